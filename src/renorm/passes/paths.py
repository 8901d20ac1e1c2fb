"""Paths of a scale and shift: through ops that leave channels apart, to constants that take it.

    g(f(x; w)) * k + shift -> g(f(x; w'))        back, where g carries channels and f takes the map that g pulls
    f(g(x * k + shift); w) -> f'(g(x); w')       forward, where g carries channels and f absorbs the map that g pushes

A plan says what is made anew on the way; nothing is changed before all of it is known to be possible. The nodes on the
way stand in the match, so that the driver asks of each whether it may go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from renorm import ops
from renorm.graph.channels import ChannelMap, pulled, pushed
from renorm.graph.ir import Node, Value
from renorm.graph.rewrite import Match

Array = np.ndarray[Any, Any]
Made = Callable[[Match], Value]
"""Makes the value that a plan is of."""


@dataclass(frozen=True)
class Through:
    """A node made anew on other operands. changed: by operand, counted flat. rest: what is added to it."""

    node: Node
    changed: dict[int, Made]
    rest: Array | None = None

    def __call__(self, m: Match) -> Value:
        made: list[Value | None] = list(self.node.inputs)
        for i, make in self.changed.items():
            made[i] = make(m)
        flat, operands = iter(made), list[Any]()
        for o in self.node.operands:
            operands.append([next(flat) for _ in o] if isinstance(o, list) else next(flat))
        y = m.graph.apply(self.node.op, operands, name=self.node.name)
        if self.rest is None:
            return y
        return ops.add(y, m.graph.constant(self.rest, f"{self.node.name}.border", dtype=y.dtype))


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
    if v.is_constant:
        return Mapped(v, applied(v, wanted))
    node = v.producer
    if node is None:
        return f"it reads the input {v.name!r} of the graph"
    m.bound[f"on the way: {node.name}"] = node
    found = take(node, wanted) if v is node.output else f"{v.name!r} is one of several results of {node.name!r}"
    if not isinstance(found, str):
        return found
    steps = _pulled(node, v, wanted)
    if steps is None:
        return found
    if isinstance(steps, str):
        return f"{node.op.name} {steps} (node {node.name!r})"
    plans: dict[int, Made] = {}
    maps, rest = steps
    for index, own in maps.items():
        operand = node.inputs[index]
        assert operand is not None
        deeper = back(m, operand, own, take)
        if isinstance(deeper, str):
            return deeper
        plans[index] = deeper
    return Through(node, plans, rest)


def _pulled(node: Node, v: Value, wanted: ChannelMap) -> tuple[dict[int, ChannelMap], Array | None] | str | None:
    """The maps on operands that are together the map on a result but for what it adds to a fill; None where the op does
    not carry channels."""
    found: dict[int, ChannelMap] = {}
    reason, is_sum = None, False
    rest: Array | None = None
    for index, operand in enumerate(node.inputs):
        if operand is None or operand.rank == 0:
            continue
        for axis, extent in enumerate(operand.shape):
            carry = node.op.carried(node, index, axis) if isinstance(extent, int) else None
            if carry is None or carry.axis != wanted.axis or node.outputs[carry.result] is not v:
                continue
            own = pulled(carry, wanted, axis, int(str(extent)))
            filled = carry.changed_fill(wanted, v.rank)
            if isinstance(own, str) or isinstance(filled, str):
                reason = reason or (own if isinstance(own, str) else str(filled))  # another axis may do
                continue
            rest = filled
            is_sum = is_sum or carry.joined
            if carry.joined and found:
                own = ChannelMap(own.axis, own.k, None)
            found[index] = own
            break
    for index, operand in enumerate(node.inputs):
        if operand is not None and index not in found and (is_sum or (operand.rank and not operand.is_constant)):
            return reason or ("also takes an operand that the map cannot go to" if found else None)
    return (found, rest) if found else reason


@dataclass
class Front:
    """A map in front of a value: v = made * k + shift + rest. rest: an array that broadcasts to v, with a batch of 1.
    norms: the nodes that were it."""

    made: Made
    map: ChannelMap
    norms: list[Node] = field(default_factory=list[Node])
    rest: Array | None = None


Affine = Callable[[Node], "tuple[Value, ChannelMap] | None"]
"""What a node is that scales and shifts one of its operands; None for others."""


def front(m: Match, v: Value, affine: Affine) -> Front | str | None:
    """The map that stands in front of a value, with what carries it on the way; None where there is none."""
    node = v.producer
    if node is None or v is not node.output:
        return None
    own = affine(node)
    if own is not None:
        m.bound[f"on the way: {node.name}"] = node
        x, step = own
        before = front(m, x, affine)
        if isinstance(before, Front) and before.map.axis == step.axis and before.rest is None:
            return Front(before.made, before.map.then(step), [*before.norms, node])
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
    m.bound[f"on the way: {node.name}"] = node
    found = _pushed(node, fronts)
    if isinstance(found, str):
        return f"{node.op.name} {found} (node {node.name!r})"
    norms = [n for f in fronts.values() for n in f.norms]
    return Front(Through(node, {i: f.made for i, f in fronts.items()}), found[0], norms, found[1])


def _may_carry(node: Node, index: int) -> bool:
    operand = node.inputs[index]
    assert operand is not None
    return any(node.op.carried(node, index, a) is not None for a, d in enumerate(operand.shape) if isinstance(d, int))


def _pushed(node: Node, fronts: dict[int, Front]) -> tuple[ChannelMap, Array | None] | str:
    """The map on a node's result that is the same as those on its operands, but for what it takes from a fill."""
    rest: Array | None = None
    result: int | None = None
    k: Any = None
    shift: Any = None
    touched: Any = None
    for index, operand in enumerate(node.inputs):
        if operand is None or operand.rank == 0:
            continue
        own = fronts.get(index)
        axis = own.map.axis if own is not None else result
        carry = None if axis is None or axis >= operand.rank else node.op.carried(node, index, axis)
        if carry is None:
            if own is None and operand.is_constant and operand.dtype.startswith("int"):
                continue  # a shape, bounds, pads
            return "does not keep these channels apart"
        if carry.joined:
            return "adds what has no such map"
        extent = node.outputs[carry.result].shape[carry.axis]
        if carry.result or not isinstance(extent, int):
            return "has more channels than are known"
        if result is None:
            result, k, shift, touched = carry.axis, np.ones(extent), np.zeros(extent), np.zeros(extent, bool)
        moved = ChannelMap(carry.axis, None, None) if own is None else pushed(carry, own.map, extent)
        if isinstance(moved, str):
            return moved
        filled = carry.changed_fill(moved, node.outputs[carry.result].rank)
        if isinstance(filled, str) or carry.axis != result:
            return filled if isinstance(filled, str) else "moves operands to different axes"
        rest = None if filled is None else -filled
        if own is not None and own.rest is not None:
            moved_rest = _moved_rest(node, index, own.rest)
            if moved_rest is None or carry.positive:
                return "follows padding that the map has changed"
            rest = moved_rest if rest is None else rest + moved_rest
        to = np.unique(carry.pairs[:, 0])
        new_k = np.ones(extent) if moved.k is None else moved.k
        new_shift = np.zeros(extent) if moved.shift is None else moved.shift
        both = to[touched[to]]
        if not (np.array_equal(k[both], new_k[both]) and np.array_equal(shift[both], new_shift[both])):
            return "brings operands together whose maps differ"
        k[to], shift[to], touched[to] = new_k[to], new_shift[to], True
    assert result is not None
    return ChannelMap(result, k, shift), rest


def _moved_rest(node: Node, index: int, rest: Array) -> Array | None:
    """What an op makes of an array that is added to its operand; None where it has others, or extents are not known."""
    x, *others = node.inputs
    if index or x is None or any(v is not None and v.data is None for v in others):
        return None
    if not all(isinstance(d, int) for d in x.shape[1:]):
        return None
    image = np.broadcast_to(rest, (1, *(int(str(d)) for d in x.shape[1:])))
    given = [None if v is None else v.data for v in others]
    return node.op.reference(image, *given) - node.op.reference(np.zeros_like(image), *given)


def applied(v: Value, wanted: ChannelMap) -> Array:
    """A constant's elements times k plus shift, in float64."""
    spread = [1] * v.rank
    spread[wanted.axis] = -1
    exact = v.exact
    held = np.asarray(v.data, np.float64) if exact is None else exact
    held = held if wanted.k is None else held * wanted.k.reshape(spread)
    return held if wanted.shift is None else held + wanted.shift.reshape(spread)
