"""Paths of a scale and shift: through ops that leave channels apart, to constants that take it.

    g(f(x; w)) * k + shift -> g(f(x; w'))        back, where g carries channels and f takes the map that g pulls
    f(g(x * k + shift); w) -> f'(g(x); w')       forward, where g carries channels and f absorbs the map that g pushes

A plan says what is made anew on the way; nothing is changed before all of it is known to be possible. The nodes on the
way stand in the match, so that the driver asks of each whether it may go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.dataclass import dataclass
from renorm.graph.channels import Carry, ChannelMap, pulled, pushed
from renorm.graph.ir import Node, Value
from renorm.graph.rewrite import Match

Array = np.ndarray[Any, Any]
Made = Callable[[Match], Value]
"""Makes the value that a plan is of."""


@dataclass(frozen=True)
class Through:
    """A node made anew on other operands. changed: by operand, counted flat. result: which of its results is asked for;
    the others stay what they are, for whoever reads them. rest: a shift that stays behind it."""

    node: Node
    changed: dict[int, Made]
    result: int = 0
    rest: Array | None = None

    def __call__(self, m: Match) -> Value:
        made: list[Value | None] = list(self.node.inputs)
        for i, make in self.changed.items():
            made[i] = make(m)
        flat, operands = iter(made), list[Any]()
        for o in self.node.operands:
            operands.append([next(flat) for _ in o] if isinstance(o, list) else next(flat))
        applied = m.graph.apply(self.node.op, operands, name=self.node.name)
        results: list[Value] = list(applied) if isinstance(applied, tuple) else [applied]
        for i, (old, new) in enumerate(zip(self.node.outputs, results)):
            if i != self.result:
                m.alongside[old] = new
        y = results[self.result]
        if self.rest is None:
            return y
        return ops.add(y, m.graph.constant(self.rest, f"{self.node.name}.shift", dtype=y.dtype))


@dataclass(frozen=True)
class Same:
    """A value that stays."""

    value: Value

    def __call__(self, m: Match) -> Value:
        return self.value


@dataclass(frozen=True)
class Mapped:
    """A constant with the map in its elements."""

    value: Value
    elements: Array

    def __call__(self, m: Match) -> Value:
        source = f"folded {', '.join(m.origin)}"
        return m.graph.constant(self.elements, self.value.name, source, dtype=self.value.dtype)


Leaf = Callable[[Node, ChannelMap], "Made | str"]
"""What takes a map behind a node into the node's constants, or why it cannot."""


def back(m: Match, v: Value, wanted: ChannelMap, take: Leaf) -> Made | str:
    """A plan for v * k + shift, or why there is none."""
    if reason := wanted.objection():
        return reason
    if wanted.is_identity:
        return Same(v)
    if v.is_constant:
        made = applied(v, wanted)
        with np.errstate(over="ignore"):
            fits = np.isfinite(made.astype(dtypes.numpy_dtype(v.dtype))).all()
        return Mapped(v, made) if fits else f"constant {v.name!r} with the map in it goes beyond {v.dtype}"
    node = v.producer
    if node is None:
        return f"it reads the input {v.name!r} of the graph"
    if f"on the way: {node.name}" in m.bound:
        return f"{node.name!r} is reached in two ways, and would have to be computed twice"
    m.bound[f"on the way: {node.name}"] = node
    found = take(node, wanted) if len(node.outputs) == 1 else f"{node.op.name} takes no scale (node {node.name!r})"
    if not isinstance(found, str):
        return found
    steps, rest = _pulled(node, v, wanted), None
    if isinstance(steps, str):
        kept, rest = _parted(node, v, wanted)
        steps = steps if rest is None else _pulled(node, v, kept)
    if steps is None:
        return found
    if isinstance(steps, str):
        return f"{node.op.name} {steps} (node {node.name!r})"
    m.alongside |= {other: None for other in node.outputs if other is not v}
    plans: dict[int, Made] = {}
    for index, own in steps.items():
        operand = node.inputs[index]
        assert operand is not None
        deeper = back(m, operand, own, take)
        if isinstance(deeper, str):
            return deeper
        plans[index] = deeper
    if rest is not None:
        rest = rest.reshape([-1 if a == wanted.axis else 1 for a in range(v.rank)])
    return Through(node, plans, node.outputs.index(v), rest)


def _carries(node: Node, index: int, axis: int, result: int) -> Carry | None:
    """Where channels of an operand are in one of the results."""
    found = node.op.carried(node, index, axis)
    several = found if isinstance(found, Sequence) else [found]
    return next((c for c in several if c is not None and c.result == result), None)


def _parted(node: Node, v: Value, wanted: ChannelMap) -> tuple[ChannelMap, Array | None]:
    """The part of a map that may go through a node of one operand, and the shift that stays behind it."""
    x = node.inputs[0]
    for axis in range(0 if x is None else x.rank):
        carry = _carries(node, 0, axis, node.outputs.index(v))
        if carry is not None and carry.axis == wanted.axis:
            return carry.parted(wanted)
    return wanted, None


def _pulled(node: Node, v: Value, wanted: ChannelMap) -> dict[int, ChannelMap] | str | None:
    """The maps on operands that are together the map on a result; None where the op does not carry channels."""
    found: dict[int, ChannelMap] = {}
    reason, is_sum = None, False
    constants_first = sorted(enumerate(node.inputs), key=lambda o: o[1] is None or not o[1].is_constant)
    for index, operand in constants_first:  # a constant takes the shift of a sum
        if operand is None:
            continue
        for carry, axis in _ways(node, index, operand, v, wanted.axis):
            rest = ChannelMap(wanted.axis, wanted.k, None) if carry.joined and found else wanted
            own = _own(carry, rest, axis, operand)
            if isinstance(own, str):
                reason = reason or own  # another axis of the operand may do
                continue
            is_sum = is_sum or carry.joined
            found[index] = own
            break
    for index, operand in enumerate(node.inputs):
        if operand is not None and index not in found and (is_sum or (operand.rank and not operand.is_constant)):
            return reason or (f"also takes {operand.name!r}, which the map cannot go to" if found else None)
    return found or reason


def _ways(node: Node, index: int, operand: Value, v: Value, along: int) -> Iterator[tuple[Carry, int]]:
    """How channels of an operand come to be along an axis of a result; of a constant that is spread, too."""
    axes = list(range(operand.rank))
    if operand.is_constant and along - v.rank < -operand.rank:
        axes.append(along - v.rank)
    for axis in axes:
        extent = operand.shape[axis] if axis >= 0 else 1
        carry = _carries(node, index, axis, node.outputs.index(v)) if isinstance(extent, int) else None
        if carry is not None and carry.axis == along:
            yield carry, axis


def _own(carry: Carry, wanted: ChannelMap, axis: int, operand: Value) -> ChannelMap | str:
    """The map on an operand. One channel of a constant becomes as many as the map has."""
    if not (operand.is_constant and carry.joined) or carry.pairs[:, 1].any():
        return pulled(carry, wanted, axis, int(str(operand.shape[axis])))
    shift = wanted.shift if wanted.shift is None or not carry.negated else -wanted.shift
    return ChannelMap(axis, wanted.k, shift)


@dataclass
class Front:
    """A map in front of a value: v = made * k + shift. norms: the nodes that were it."""

    made: Made
    map: ChannelMap
    norms: list[Node] = field(default_factory=list[Node])


Affine = Callable[[Node], "tuple[Value, ChannelMap] | None"]
"""What a node is that scales and shifts one of its operands; None for others."""


def front(m: Match, v: Value, affine: Affine) -> Front | str | None:
    """The map that stands in front of a value, with what carries it on the way; None where there is none."""
    node = v.producer
    if node is None or v is not node.outputs[0]:
        return None
    if any(other.users or m.graph.is_output(other) for other in node.outputs[1:]):
        return None  # they would change with it
    own = affine(node)
    if own is not None:
        m.bound[f"on the way: {node.name}"] = node
        x, step = own
        known = dict(m.bound)
        before = front(m, x, affine)
        ways = before.map.along(x.shape) if isinstance(before, Front) else []
        both = next((a.then(b) for a in ways for b in step.along(x.shape) if a.axis == b.axis), None)
        if isinstance(before, Front) and both is not None:
            return Front(before.made, both, [*before.norms, node])
        m.bound = known  # what stands further in front stays as it is
        return Front(Same(x), step, [node])
    fronts: dict[int, Front] = {}
    for index, operand in enumerate(node.inputs):
        if operand is None or operand.is_constant or not _may_carry(node, index):
            continue
        found = front(m, operand, affine)
        if isinstance(found, str):
            return found
        if found is not None:
            fronts[index] = found
    if not fronts:
        return None
    if f"on the way: {node.name}" in m.bound:
        return f"comes in two ways, through {node.name!r}"
    m.bound[f"on the way: {node.name}"] = node
    found = _pushed(node, fronts)
    if isinstance(found, str):
        return f"{node.op.name} {found} (node {node.name!r})"
    norms = [n for f in fronts.values() for n in f.norms]
    return Front(Through(node, {i: f.made for i, f in fronts.items()}), found, norms)


def _may_carry(node: Node, index: int) -> bool:
    operand = node.inputs[index]
    assert operand is not None
    return any(_carries(node, index, a, 0) is not None for a, d in enumerate(operand.shape) if isinstance(d, int))


def _pushed(node: Node, fronts: dict[int, Front]) -> ChannelMap | str:
    """The map on a node's result that is the same as those on its operands."""
    index, first = next(iter(fronts.items()))
    carried = _carries(node, index, first.map.axis, 0)
    result = None if carried is None else carried.axis
    k: Any = None
    shift: Any = None
    touched: Any = None
    for index, operand in enumerate(node.inputs):
        if operand is None or operand.rank == 0:
            continue
        own = fronts.get(index)
        axis = own.map.axis if own is not None else result
        carry = None if axis is None or axis >= operand.rank else _carries(node, index, axis, 0)
        if carry is None:
            if own is None and operand.is_constant:
                continue  # a shape, bounds, pads
            return "does not keep these channels apart"
        if carry.joined:
            return "adds what has no such map"
        extent = node.outputs[carry.result].shape[carry.axis]
        if not isinstance(extent, int):
            return "has more channels than are known"
        if touched is None:
            k, shift, touched = np.ones(extent), np.zeros(extent), np.zeros(extent, bool)
        moved = ChannelMap(carry.axis, None, None) if own is None else pushed(carry, own.map, extent)
        if isinstance(moved, str):
            return moved
        if carry.axis != result:
            return "moves operands to different axes"
        to = np.unique(carry.pairs[:, 0])
        new_k = np.ones(extent) if moved.k is None else moved.k
        new_shift = np.zeros(extent) if moved.shift is None else moved.shift
        both = to[touched[to]]
        if not (np.array_equal(k[both], new_k[both]) and np.array_equal(shift[both], new_shift[both])):
            return "brings operands together whose maps differ"
        k[to], shift[to], touched[to] = new_k[to], new_shift[to], True
    assert result is not None
    return ChannelMap(result, k, shift)


def applied(v: Value, wanted: ChannelMap) -> Array:
    """A constant's elements times k plus shift, in float64."""
    behind = v.rank - 1 - wanted.axis if wanted.axis >= 0 else -1 - wanted.axis
    spread = [-1, *[1] * behind]
    exact = v.exact
    held = np.asarray(v.data, np.float64) if exact is None else exact
    held = held if wanted.k is None else held * wanted.k.reshape(spread)
    return held if wanted.shift is None else held + wanted.shift.reshape(spread)
