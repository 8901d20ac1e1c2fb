"""Constants that take a scale and a shift per channel: those of the node before them, or of the node after them.

    f(x; w, b) * k + shift -> f(x; w', b')            for every op f whose `fold_after` gives w' and b'
    f(x * k + shift; w, b) -> f(x; w', b') + rest     for every op f whose `fold_before` gives them

Where a weight is dequantized on the way, its scales take the factors (dequantized_weights.py).

A constant is rounded once, however many folds end in it, and never edited in place, so that a weight which two nodes
share stays what it is for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dtypes import itemsize
from renorm.graph.channels import ChannelMap
from renorm.graph.deferred import Deferred, fits, largest, survives
from renorm.graph.ir import Node, Value
from renorm.graph.rewrite import Match
from renorm.graph.types import TensorType
from renorm.passes.affine import exact, given, scaling, together
from renorm.passes.dequantized_weights import Dequantized, integers_of, rounded_before, spread_scales

Array = np.ndarray[Any, Any]

VANISH = "folded constants vanish"  # the reason nearest to a fold: everything else of it is possible
BORDER = 1 << 20  # bytes of an image that takes the place of a norm in front: more costs more than the norm


@dataclass(frozen=True)
class Absorbed:
    """A node with other constants. given, changed: its operands before and after; rest: a shift that it could not
    take."""

    producer: Node
    op: Any
    changed: Sequence[Any]
    rest: Array | None
    given: Sequence[Any]

    def __call__(self, m: Match, moved: Mapping[int, Value] = MappingProxyType({})) -> Value:
        """moved: what operands have become, by their numbers."""
        graph, y = m.graph, self.producer.output
        olds = [*self.producer.operands, *[None] * len(self.changed)]
        given = [*self.given, *[None] * len(self.changed)]
        operands: list[Any] = []
        for parameter, old, before, after in zip(self.op.parsed.operands, olds, given, self.changed):
            if isinstance(after, Dequantized):
                operands.append(after(m))
            elif after is not None and after is not before:
                hint = old.name if isinstance(old, Value) else f"{self.producer.name}.{parameter.name}"
                dtype = old.dtype if isinstance(old, Value) else y.dtype
                operands.append(graph.constant(after, hint, m.origin, dtype=dtype))
            else:
                operands.append(None if after is None else old)
        for index, v in moved.items():
            operands[index] = v
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
        """Return whether the constants are numbers of the dtype; no product with what is not finite is what it was."""
        k, shift = (0.0 if v is None else largest(v) for v in (self.map.k, self.map.shift))
        return survives(k, self.x.dtype) and fits(shift, self.x.dtype)

    def __call__(self, m: Match) -> Value:
        y, source = self.x, m.origin
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
    multiplied, rounded = multiply(producer, affine), rounded_before(producer)
    if multiplied is not None or rounded is not None:
        return multiplied or rounded or ""
    given, axes = _given(producer), _dequantized(producer)
    for i, axis in axes.items():
        scales = spread_scales(producer.operands[i].producer, axis)
        given[i] = given[i] if scales is None else scales
    found, rest = producer.op.fold_after(given, affine.axis, affine.k, affine.shift), None
    if isinstance(found, str) and affine.k is not None and affine.shift is not None:
        without = producer.op.fold_after(given, affine.axis, affine.k, None)  # no bias? then the shift stays behind
        if not isinstance(without, str):
            spread = [1] * producer.output.rank
            spread[affine.axis] = -1
            found, rest = without, affine.shift.reshape(spread)
    if isinstance(found, str):
        return f"{found} (node {producer.name!r})"
    op, changed = found
    for i, axis in axes.items():
        if changed[i] is not given[i]:
            taken = Dequantized.of(producer.operands[i].producer, axis, changed[i])
            if isinstance(taken, str):
                return f"{taken} (node {producer.name!r})"
            changed[i] = taken
    return _checked(Absorbed(producer, op, changed, rest, given))


def _dequantized(node: Node) -> dict[int, int]:
    """Return the axis of channels of each operand, by its number, that is a weight of dequantized integers."""
    types, found = node.operand_types(), dict[int, int]()
    for i, v in enumerate(node.inputs):
        axis = node.op.channel_axis(i, types)
        if axis is not None and integers_of(v) is not None:
            found[i] = axis
    return found


def absorb_front(consumer: Node, index: int, before: ChannelMap) -> Absorbed | str:
    """The consumer with the map on one of its operands in its constants, or why it cannot take it."""
    given = _given(consumer)
    found = before.objection() or consumer.op.fold_before(consumer, given, index, before)
    if isinstance(found, str):
        return f"{found} (node {consumer.name!r})"
    op, changed, rest = found
    if rest is not None and rest.size * itemsize(consumer.output.dtype) > BORDER:
        return f"what it adds at the border of {consumer.name!r} would take {rest.size} numbers"
    return _checked(Absorbed(consumer, op, changed, rest, given))


def _given(node: Node) -> list[Any]:
    """Return the operands of a node as `OpDef.fold_after` and `OpDef.fold_before` are given them."""
    types = node.operand_types()
    are_weights = (node.op.channel_axis(i, types) is not None for i in range(len(types)))
    return node.arranged(map(_elements, node.inputs, are_weights))


def _checked(found: Absorbed) -> Absorbed | str:
    """The same, or a sentence where a constant would not fit into its dtype."""
    given = [*found.given, *[None] * (len(found.changed) - len(found.given)), None]
    names = [*(p.name for p in found.op.parsed.operands), "rest"]
    for name, before, after in zip(names, given, [*found.changed, found.rest]):
        if after is not None and after is not before and not isinstance(after, (TensorType, Dequantized)):
            reason = _lost(name, before, after, found.producer.output.dtype)
            if reason:
                return f"{reason} (node {found.producer.name!r})"
    return found


def _elements(operand: Value | None, is_weight: bool) -> Any:
    """Return an operand as `OpDef.fold_after` is given it."""
    if operand is None or not operand.is_constant:
        return None if operand is None else operand.type
    return given(operand) if is_weight else exact(operand)


def _lost(name: str, before: Any, after: Array | Deferred, dtype: str) -> str | None:
    """A sentence where rounding to `dtype` makes a finite element infinite, or where factors that had digits keep few:
    all of a weight, or any of a norm's scale, which a large 1 / sqrt(var + epsilon) may follow. What a bias loses there
    is less than what it is added to has."""
    if survives(largest(after), dtype) and name != "scale":
        return None
    after = after.exact() if isinstance(after, Deferred) else after  # whose bound may be far too high
    highest = float(np.abs(after[np.isfinite(after)]).max(initial=0.0))
    if not fits(highest, dtype):
        return f"folded constants go beyond {dtype}: {highest:.3g}"
    if not isinstance(before, (np.ndarray, Deferred)):
        return None
    pairs = [(largest(before), highest)]
    if name == "scale" and isinstance(before, np.ndarray) and before.shape == after.shape:
        pairs = list(zip(np.abs(before).ravel().tolist(), np.abs(after).ravel().tolist()))
    lost = [now for had, now in pairs if survives(had, dtype) and not survives(now, dtype) and np.isfinite(now)]
    return f"{VANISH} in {dtype}: {min(lost):.3g}" if lost else None
