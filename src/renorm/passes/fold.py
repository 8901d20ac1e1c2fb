"""Folding: a scale and a shift per channel become part of the constants of the node before them.

    f(x; w, b) * k + shift -> f(x; w', b')        for every op f whose `scaled` gives w' and b'

k and shift come from batch norm, k = scale / sqrt(var + epsilon), or from arithmetic with constants per channel. All
of it runs in float64; a constant is rounded once, however many folds end in it (`Value.exact`). Constants are never
edited in place, so that a weight which two nodes share stays what it is for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.dataclass import dataclass
from renorm.core.dims import format_shape
from renorm.core.dtypes import itemsize
from renorm.graph import registry
from renorm.graph.channels import ChannelMap
from renorm.graph.deferred import Deferred, fits, largest
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.rewrite import Match, Rewrite, Variable, any_result
from renorm.graph.types import TensorType
from renorm.passes import paths

Array = np.ndarray[Any, Any]

FAR = 1024.0  # mean / standard deviation beyond which x * k + shift loses more than three of seven digits
BORDER = 1 << 20  # bytes of an image that takes the place of a norm in front: more costs more than the norm


class Fold(Rewrite):
    """f(x; w, b) * k + shift -> f(x; w', b')

    Subclasses say in `affine` what k and shift are; in their patterns `producer` is the node of f.
    """

    fate = "folded"

    def affine(self, m: Match) -> ChannelMap | str:
        """What follows the producer, or why it is no scale and shift per channel, as a sentence."""
        raise NotImplementedError

    def fits(self, m: Match) -> bool:
        if len(m.producer.outputs) > 1:  # what else it gives may stay; the path tells
            m.alongside |= dict.fromkeys(m.producer.outputs)
        return True

    def refuse(self, m: Match) -> str | None:
        """The map itself is tried first, then what it is together with those that stand right before it."""
        y, found = self.scaled(m), self.affine(m)
        if isinstance(found, str):
            return found
        reasons: list[str] = []
        m.about = [m.root]
        while True:
            pattern = dict(m.bound)
            for one in found.plain().along(y.shape):
                m.bound, m.alongside = dict(pattern), {}
                if one.is_identity:  # whatever stands before it stays
                    m.bound = {name: v for name, v in pattern.items() if v is not y.producer}
                m.found = paths.back(m, y, one, absorb)
                if not isinstance(m.found, str):
                    return None
                reasons.append(m.found)
            m.bound, m.alongside, node = pattern, {}, y.producer
            before = None if node is None or len(y.users) > 1 or m.graph.is_output(y) else scaling(node)
            both = None if before is None else together(before[1], found, before[0])
            if node is None or before is None or both is None:
                break
            m.bound[f"on the way: {node.name}"] = node
            m.about.append(node)
            y, found = before[0], both
        m.found = Scaled(m.root.name, y, found.plain())
        if m.found.count < len(m.about) and m.found.fits() and not _cancels(m.found.map, self.affine(m)):
            return None
        m.about = [m.root]
        return reasons[0]

    @staticmethod
    def scaled(m: Match) -> Value:
        """What the map falls upon."""
        return next(v for v in m.root.inputs if v is not None and v.producer is m.producer)

    def rewrite(self, m: Match) -> Value:
        return m.found(m)


def _cancels(both: ChannelMap, last: Any) -> bool:
    """Whether x * k + shift rounds far more coarsely than (x + c) * k + shift', where x is near -c: a guess, as x is
    not known."""
    if both.k is None or both.shift is None:
        return False
    own = 0.0 if last.shift is None else np.abs(last.shift).max()
    return bool(np.abs(both.shift).max() > FAR * (np.abs(both.k).max() + own))


def together(first: ChannelMap, second: ChannelMap, x: Value) -> ChannelMap | None:
    """Two maps of x, one after the other, as one; None where they run along different axes."""
    return next((a.then(second) for a in first.along(x.shape) if a.axis == second.axis), None)


@dataclass(frozen=True)
class Absorbed:
    """A node with other constants. given, changed: its operands before and after; rest: a shift that it could not
    take; made: what makes operands anew."""

    producer: Node
    op: Any
    changed: Sequence[Any]
    rest: Array | None
    given: Sequence[Any]
    made: Mapping[int, paths.Made] = field(default_factory=dict[int, paths.Made])

    def __call__(self, m: Match) -> Value:
        graph, y = m.graph, self.producer.output
        olds = [*self.producer.operands, *[None] * len(self.changed)]
        given = [*self.given, *[None] * len(self.changed)]
        operands: list[Any] = []
        for parameter, old, before, after in zip(self.op.parsed.operands, olds, given, self.changed):
            if after is not None and after is not before:
                hint = old.name if isinstance(old, Value) else f"{self.producer.name}.{parameter.name}"
                dtype = old.dtype if isinstance(old, Value) else y.dtype
                operands.append(graph.constant(after, hint, f"folded {', '.join(m.origin)}", dtype=dtype))
            else:
                operands.append(None if after is None else old)
        for index, make in self.made.items():
            operands[index] = make(m)
        result = graph.apply(self.op, operands, name=self.producer.name)
        if self.rest is not None:
            result = ops.add(result, graph.constant(self.rest, f"{self.producer.name}.shift", dtype=y.dtype))
        return result


@dataclass(frozen=True)
class Scaled:
    """x * k + shift, as one multiplication and one addition. name: of the node whose constants take the map."""

    name: str
    x: Value
    map: ChannelMap

    @property
    def count(self) -> int:
        return (self.map.k is not None) + (self.map.shift is not None)

    def fits(self) -> bool:
        """Whether the constants are numbers of the dtype; no product with what is not finite is what it was."""
        return all(v is None or fits(largest(v), self.x.dtype) for v in (self.map.k, self.map.shift))

    def __call__(self, m: Match) -> Value:
        y, source = self.x, f"folded {', '.join(m.origin)}"
        spread = [-1 if a == self.map.axis else 1 for a in range(y.rank)]
        for op, values in ((ops.mul, self.map.k), (ops.add, self.map.shift)):
            if values is not None:
                y = op(
                    y, m.graph.constant(values.reshape(spread), f"{self.name}.c", source, dtype=y.dtype), name=self.name
                )
        return y


def multiply(producer: Node, affine: ChannelMap) -> Scaled | None:
    """(x * c) * k as x * (c * k), where that is what the producer and the map are."""
    own = scaling(producer) if producer.op.name in ("mul", "div") and affine.shift is None else None
    both = None if own is None else together(own[1], affine, own[0])
    found = None if own is None or both is None else Scaled(producer.name, own[0], both)
    return found if found is not None and found.fits() else None


def absorb(producer: Node, affine: ChannelMap) -> Absorbed | Scaled | str:
    """The producer with the affine map in its constants, or why it cannot take it."""
    multiplied = multiply(producer, affine)
    if multiplied is not None:
        return multiplied
    given = _given(producer)
    found, rest = producer.op.scaled(given, affine.axis, affine.k, affine.shift), None
    if isinstance(found, str) and affine.k is not None and affine.shift is not None:
        without = producer.op.scaled(given, affine.axis, affine.k, None)  # no bias? then the shift stays behind
        if not isinstance(without, str):
            spread = [1] * producer.output.rank
            spread[affine.axis] = -1
            found, rest = without, affine.shift.reshape(spread)
    if isinstance(found, str):
        return f"{found} (node {producer.name!r})"
    op, changed = found
    return _checked(Absorbed(producer, op, changed, rest, given))


def absorb_front(consumer: Node, index: int, before: ChannelMap) -> Absorbed | str:
    """The consumer with the map on one of its operands in its constants, or why it cannot take it."""
    given = _given(consumer)
    found = before.objection() or consumer.op.absorbed(consumer, given, index, before)
    if isinstance(found, str):
        return f"{found} (node {consumer.name!r})"
    op, changed, rest = found
    if rest is not None and rest.size * itemsize(consumer.output.dtype) > BORDER:
        return f"what it adds at the border of {consumer.name!r} would take {rest.size} numbers"
    return _checked(Absorbed(consumer, op, changed, rest, given))


def is_norm(found: paths.Front | str, x: Value) -> bool:
    """Whether nothing stands between the norms in front of a value and itself."""
    return not isinstance(found, str) and found.norms[-1].output is x


def taken_by_all(graph: Graph, x: Value, before: ChannelMap) -> bool:
    """Whether every reader of a value takes the map in front of it into its constants."""
    taken = (absorb_front(n, i, before) for n in x.users for i, v in enumerate(n.inputs) if v is x)
    return not graph.is_output(x) and not any(isinstance(found, str) for found in taken)


def _given(node: Node) -> list[Any]:
    """What `OpDef.scaled` and `OpDef.absorbed` are given for the operands of a node."""
    types, given, at = node.operand_types(), list[Any](), 0
    for o in node.operands:
        given.append(_elements(o, node.op.channel_axis(at, types) is not None))
        at += len(o) if isinstance(o, list) else 1
    return given


def _checked(found: Absorbed) -> Absorbed | str:
    """The same, or a sentence where a constant would not fit into its dtype."""
    given = [*found.given, *[None] * (len(found.changed) - len(found.given))]
    for before, after in zip([*given, None], [*found.changed, found.rest]):
        if after is not None and after is not before and not isinstance(after, TensorType):
            reason = _overflow(after, found.producer.output.dtype)
            if reason:
                return f"{reason} (node {found.producer.name!r})"
    return found


def _elements(operand: Any, is_weight: bool) -> Any:
    """What `OpDef.scaled` is given for an operand."""
    if isinstance(operand, list):
        return [_elements(o, is_weight) for o in operand]
    if operand is None or not operand.is_constant:
        return None if operand is None else operand.type
    return given(operand) if is_weight else exact(operand)


def _overflow(array: Array | Deferred, dtype: str) -> str | None:
    """A sentence where rounding to `dtype` makes a finite element infinite."""
    if fits(largest(array), dtype):
        return None
    array = array.exact() if isinstance(array, Deferred) else array  # whose bound may be far too high
    highest = float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
    return None if fits(highest, dtype) else f"folded constants go beyond {dtype}: {highest:.3g}"


def given(weight: Value) -> Array | Deferred:
    """A constant's elements before the rounding of an earlier fold: as they were read, in float64, or not computed
    yet."""
    assert weight.elements is not None
    return weight.elements if weight.deferred or weight.exact is None else weight.exact


def exact(value: Value) -> Array:
    """A constant's elements in float64, before the rounding of an earlier fold."""
    found = value.exact
    if found is None:
        assert value.data is not None
        found = value.data.astype(np.float64)
    return found


def normalization(node: Node) -> ChannelMap | str:
    """What a batch norm in inference does to each channel, or why that is not known."""
    parameters = [v for v in node.inputs[1:] if v is not None]
    if getattr(node.op, "training_mode", False):
        return "its statistics come from the batch (training_mode = 1)"
    for parameter, v in zip(node.op.parsed.operands[1:], parameters):
        if not v.is_constant:
            return f"its {parameter.name} {v.name!r} is not a constant"
    scale, bias, mean, var = (exact(v) for v in parameters)
    with np.errstate(all="ignore"):
        k = scale / np.sqrt(var + node.op.values["epsilon"])
        return ChannelMap(1, k, bias - mean * k)


def per_channel(c: Value, y: Value, result: Value) -> tuple[int, Array] | str:
    """The axis of y along which a constant runs that is combined with it, and its elements; or why it is not per
    channel."""
    if result.shape != y.shape or c.rank > y.rank:
        return f"constant {c.name!r} broadcasts the result from {format_shape(y.shape)} to {format_shape(result.shape)}"
    spread = [1] * (y.rank - c.rank) + [int(str(d)) for d in c.shape]
    axes = [a for a, extent in enumerate(spread) if extent != 1]
    if len(axes) > 1:
        return f"constant {c.name!r} is {format_shape(c.shape)}, which is not per channel"
    axis = axes[0] if axes else min(1, y.rank - 1)
    extent = y.shape[axis] if y.rank else 1
    if not isinstance(extent, int):
        return f"the number of channels of {y.name!r} is not known: {extent}"
    return axis, np.broadcast_to(exact(c).reshape(-1), (extent,))


class FoldBatchNorm(Fold):
    """batch_norm(f(x; w, b)) -> f(x; w * k, (b - mean) * k + bias), k = scale / sqrt(var + epsilon)"""

    def pattern(self, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        return ops.batch_norm(any_result("producer"), scale, bias, mean, var)

    def affine(self, m: Match) -> ChannelMap | str:
        return normalization(m.root)


@dataclass(frozen=True)
class FoldInFront(Rewrite):
    """f(x * k + shift; w, b) -> f'(x; w', b') + rest        for every op f whose `absorbed` gives w', b' and rest

    x may be any operand that is not constant: the right one of a product, for example.
    """

    op: str
    fate = "folded"

    @property
    def name(self) -> str:
        return f"FoldInFront({self.op})"

    def pattern(self) -> Any:
        op = registry.find(self.op)
        return op.matching()(*(Variable(p.name) for p in op.parsed.operands))

    def fits(self, m: Match) -> bool:
        pattern = dict(m.bound)
        for index, x in enumerate(m.root.inputs):
            m.bound = dict(pattern)
            found = None if x is None or x.is_constant else paths.front(m, x, scaling)
            if found is not None:
                m.found = index, found
                m.alongside = {v: None for v in m.root.inputs[index : index + 1] if v is not None and is_norm(found, v)}
                m.about = [n for n in m.nodes if n.op.name == "batch_norm" or n.op.name in _ARITHMETIC] or [m.root]
                return True
        return False

    def refuse(self, m: Match) -> str | None:
        index, found = m.found
        if isinstance(found, str):
            return found
        m.about = [*found.norms]
        # what others read stays for them, until they too have taken the map into their constants
        x = m.root.inputs[index]
        assert x is not None
        reasons: list[str] = []
        for one in found.map.plain().along(x.shape):
            taken = absorb_front(m.root, index, one)
            if not isinstance(taken, str):
                m.found = replace(taken, made={index: found.made})
                if not taken_by_all(m.graph, x, one):
                    m.alongside = {}
                return None
            reasons.append(taken)
        return reasons[0]

    def rewrite(self, m: Match) -> Value:
        return m.found(m)


def scaling(node: Node) -> tuple[Value, ChannelMap] | None:
    """The operand that a node scales and shifts by constants, and the map; None where that is not all it does."""
    if node.op.name == "batch_norm":
        found = normalization(node)
        x = node.inputs[0]
        return None if isinstance(found, str) or x is None else (x, found)
    if node.op.name not in _ARITHMETIC or not dtypes.is_float(node.output.dtype):
        return None
    a, b = node.inputs
    assert a is not None
    assert b is not None
    for x, c, turned in ((a, b, False), (b, a, True)):
        if c.is_constant and not x.is_constant and (not turned or node.op.name != "div"):
            found = per_channel(c, x, node.output)
            return None if isinstance(found, str) else (x, _ARITHMETIC[node.op.name](*found, turned))
    return None


def _divided(axis: int, c: Array, turned: bool) -> ChannelMap:
    with np.errstate(all="ignore"):
        return ChannelMap(axis, 1 / c, None)


_ARITHMETIC: dict[str, Callable[[int, Array, bool], ChannelMap]] = {
    "add": lambda axis, c, turned: ChannelMap(axis, None, c),
    "div": _divided,
    "mul": lambda axis, c, turned: ChannelMap(axis, c, None),
    "sub": lambda axis, c, turned: ChannelMap(axis, -np.ones_like(c) if turned else None, c if turned else -c),
}


class FoldArithmetic(Fold):
    """Base of folds of arithmetic with a constant `c`."""

    constants = ("c",)

    def affine(self, m: Match) -> ChannelMap | str:
        if not dtypes.is_float(m.c.dtype):
            return f"{m.c.dtype} arithmetic is not folded"
        found = per_channel(m.c, self.scaled(m), m.root.output)
        return found if isinstance(found, str) else self.of(*found)

    def of(self, axis: int, c: Array) -> ChannelMap:
        raise NotImplementedError


class FoldMul(FoldArithmetic):
    """f(x; w, b) * c -> f(x; w * c, b * c)"""

    def pattern(self, c: Any) -> Any:
        return ops.mul(any_result("producer"), c)

    def of(self, axis: int, c: Array) -> ChannelMap:
        return ChannelMap(axis, c, None)


class FoldDiv(FoldArithmetic):
    """f(x; w, b) / c -> f(x; w / c, b / c)"""

    def pattern(self, c: Any) -> Any:
        return ops.div(any_result("producer"), c)

    def of(self, axis: int, c: Array) -> ChannelMap:
        with np.errstate(all="ignore"):
            return ChannelMap(axis, 1 / c, None)


class FoldAdd(FoldArithmetic):
    """f(x; w, b) + c -> f(x; w, b + c)"""

    def pattern(self, c: Any) -> Any:
        return ops.add(any_result("producer"), c)

    def of(self, axis: int, c: Array) -> ChannelMap:
        return ChannelMap(axis, None, c)


class FoldSub(FoldArithmetic):
    """f(x; w, b) - c -> f(x; w, b - c)"""

    def pattern(self, c: Any) -> Any:
        return ops.sub(any_result("producer"), c)

    def of(self, axis: int, c: Array) -> ChannelMap:
        return ChannelMap(axis, None, -c)


class FoldSubFrom(FoldArithmetic):
    """c - f(x; w, b) -> f(x; -w, c - b)"""

    def pattern(self, c: Any) -> Any:
        return ops.sub(c, any_result("producer"))

    def of(self, axis: int, c: Array) -> ChannelMap:
        return ChannelMap(axis, -np.ones_like(c), c)


RULES: tuple[Rewrite, ...] = (
    FoldBatchNorm(),
    FoldMul(),
    FoldDiv(),
    FoldAdd(),
    FoldSub(),
    FoldSubFrom(),
    *(FoldInFront(op) for op in ("conv", "conv_transpose", "gemm", "matmul")),
)
