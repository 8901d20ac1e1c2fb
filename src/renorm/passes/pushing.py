"""Pushing: the map in front of a value, past what leaves channels apart.

    f(g(x * k + shift); w) -> f'(g(x); w')        where g carries channels and f absorbs the map that g pushes

Nodes on the way are made anew for each reader of what carries the map, or found where another reader has had them made;
nothing is changed for those that do not take it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from renorm.graph.channels import ChannelMap, pushed
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.rewrite import Match
from renorm.passes.paths import Made, applied_again, carry_to

FARTHEST = 100  # nodes in a row that a map is looked for after, and nodes that may carry it to all who read it

Affine = Callable[[Node], "tuple[Value, ChannelMap] | None"]
"""Gives the operand that a node scales and shifts, and the map; None for others."""

Absorb = Callable[[Node, int, ChannelMap], Any]
"""A node with the map on one of its operands in its constants, or a sentence why it cannot take it."""


@dataclass
class Front:
    """A map in front of a value: v = made * k + shift. norms: the nodes that were it."""

    made: Made
    map: ChannelMap
    norms: list[Node] = field(default_factory=list[Node])


@dataclass(frozen=True)
class Same:
    """A value that stays."""

    value: Value

    def __call__(self, m: Match) -> Value:
        return self.value


@dataclass
class Past:
    """A result of a node on other operands, counted flat. made: once it is; several ways may lead to it."""

    node: Node
    changed: dict[int, Made]
    result: int
    made: Value | None = None

    def __call__(self, m: Match) -> Value:
        if self.made is None:
            operands = [*self.node.inputs]
            for i, make in self.changed.items():
                operands[i] = make(m)
            twin = _twin(m, self.node, operands)
            self.made = (twin.outputs if twin is not None else applied_again(m, self.node, operands))[self.result]
        return self.made


def _twin(m: Match, node: Node, operands: list[Value | None]) -> Node | None:
    """A node in front of the root that already is `node` on these operands."""
    read = [v for v in operands if v is not None]
    for other in read[0].readers if read else ():
        same = type(other.op) is type(node.op) and other.op == node.op and len(other.inputs) == len(operands)
        if other is node or not same or any(a is not b for a, b in zip(other.inputs, operands)):
            continue
        if m.graph.place_of(other) < m.graph.place_of(m.root):
            return other
    return None


def front(m: Match, v: Value, affine: Affine) -> Front | str | None:
    """The map that stands in front of a value, with what carries it on the way, which then is in the match; None where
    there is none, a sentence where it cannot come."""
    return _Search(m, affine).front(v, FARTHEST)


@dataclass
class _Search:
    m: Match
    affine: Affine
    found: dict[Value, Front | str | None] = field(default_factory=dict[Value, "Front | str | None"])

    def front(self, v: Value, left: int) -> Front | str | None:
        """left: nodes that the way there may have."""
        if v not in self.found:
            self.found[v] = self._front(v, left - 1) if left else None
        return self.found[v]

    def _front(self, v: Value, left: int) -> Front | str | None:
        node = v.producer
        if node is None:
            return None
        own = self.affine(node)
        if own is not None:
            return self._norm(node, *own, left)
        fronts: dict[int, Front] = {}
        result = node.outputs.index(v)
        for index, operand in enumerate(node.inputs):
            if operand is None or operand.is_constant or not _may_carry(node, index, result):
                continue
            found = self.front(operand, left)
            if isinstance(found, str):
                return found
            if found is not None:
                fronts[index] = found
        if not fronts:
            return None
        self._bind(node)
        together = _together(node, fronts, result)
        if isinstance(together, str):
            return f"{node.op.name} {together} (node {node.name!r})"
        norms = dict.fromkeys(n for f in fronts.values() for n in f.norms)
        return Front(Past(node, {i: f.made for i, f in fronts.items()}, result), together, [*norms])

    def _norm(self, node: Node, x: Value, step: ChannelMap, left: int) -> Front:
        """A norm, with those before it that nobody else reads."""
        self._bind(node)
        known = dict(self.m.bound), dict(self.found)
        is_alone = len(x.readers) == 1 and not self.m.graph.is_output(x)
        before = self.front(x, left) if is_alone else None
        both = _composed(before.map, step, x) if isinstance(before, Front) else None
        if isinstance(before, Front) and both is not None:
            return Front(before.made, both, [*before.norms, node])
        self.m.bound, self.found = known  # what stands further in front stays as it is
        return Front(Same(x), step, [node])

    def _bind(self, node: Node) -> None:
        self.m.bound[f"on the way: {node.name}"] = node


def _composed(first: ChannelMap, second: ChannelMap, x: Value) -> ChannelMap | None:
    """Two maps of x, one after the other, as one; None where they run along different axes."""
    ways = _ways(second, x)
    return next((a.then(b) for a in _ways(first, x) for b in ways if a.axis == b.axis), None)


def _may_carry(node: Node, index: int, result: int) -> bool:
    operand = node.inputs[index]
    assert operand is not None
    return any(carry_to(node, index, a, result) is not None for a, d in enumerate(operand.shape) if isinstance(d, int))


def _together(node: Node, fronts: dict[int, Front], number: int) -> ChannelMap | str:
    """The map on a result of a node that is the same as those on its operands. number: of the result."""
    index, first = next(iter(fronts.items()))
    tried = (_along(node, fronts, number, one.axis) for one in _ways(first.map, node.inputs[index]))
    found = list[Any]()
    for one in tried:
        if not isinstance(one, str):
            return one
        found.append(one)
    return found[0]


def _ways(m: ChannelMap, v: Value | None) -> list[ChannelMap]:
    """A map of a value, along other axes too where all channels have the same factor and shift."""
    assert v is not None
    return m.plain().along(v.shape)


def _along(node: Node, fronts: dict[int, Front], number: int, along: int) -> ChannelMap | str:
    """The same, where that on the first operand is taken along an axis."""
    first = next(iter(fronts))
    carried = carry_to(node, first, along, number)
    result = None if carried is None else carried.axis
    k: Any = None
    shift: Any = None
    touched: Any = None
    for index, operand in enumerate(node.inputs):
        if operand is None or operand.rank == 0:
            continue
        own = None if index not in fronts else _at(node, index, fronts[index].map, number, result)
        axis = own.axis if own is not None else result
        carry = None if axis is None or axis >= operand.rank else carry_to(node, index, axis, number)
        if carry is None:
            if own is None and operand.is_constant:
                continue  # a shape, bounds, pads
            return "does not keep these channels apart"
        if carry.joined:
            return "adds what has no such map"
        extent = node.outputs[number].shape[carry.axis]
        if not isinstance(extent, int):
            return "has more channels than are known"
        if touched is None:
            k, shift, touched = np.ones(extent), np.zeros(extent), np.zeros(extent, bool)
        moved = ChannelMap(carry.axis, None, None) if own is None else pushed(carry, own, extent)
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


def _at(node: Node, index: int, m: ChannelMap, number: int, result: int | None) -> ChannelMap:
    """The map on an operand along the axis that comes to be `result`, where it has one."""
    for one in _ways(m, node.inputs[index]):
        carry = carry_to(node, index, one.axis, number)
        if carry is not None and carry.axis == result:
            return one
    return m


def is_taken_by_all(m: Match, norms: list[Node], affine: Affine, absorb: Absorb) -> bool:
    """Return whether somebody outside of a match reads what norms give, or what carries it, and all who do take the
    maps into their constants, too: one after the other they will, and then the norms are gone."""
    inside = set(m.nodes)
    between = [v for n in inside if n is not m.root for v in n.outputs]
    if all(u in inside for v in between for u in v.readers):
        return False
    readers = _Readers(m.graph, affine, absorb)
    steps = {n.output: step[1] for n in norms if (step := affine(n)) is not None}
    return all(readers.take(v, step) for v, step in steps.items())


@dataclass
class _Readers:
    """Who reads what carries a map. known: whether all who read a value take a map of it. carriers: nodes looked at
    that only carry it on."""

    graph: Graph
    affine: Affine
    absorb: Absorb
    known: dict[Hashable, bool] = field(default_factory=dict[Hashable, bool])
    carriers: int = 0

    def take(self, v: Value, step: ChannelMap) -> bool:
        key = v, _key(step)
        if key not in self.known:
            ways = [(one, _key(one)) for one in _ways(step, v)]
            self.known[key] = not self.graph.is_output(v) and all(
                any(self._absorbs(u, i, *one) for one in ways) or self._goes_on(u, i, step)
                for u in v.readers
                for i, operand in enumerate(u.inputs)
                if operand is v
            )
        return self.known[key]

    def _absorbs(self, node: Node, index: int, step: ChannelMap, key: Hashable) -> bool:
        """Return whether a node takes the map into its constants: asked once, though for each reader all others are
        asked."""
        of = "absorbs", index, key
        if of not in node.notes:
            node.notes[of] = not isinstance(self.absorb(node, index, step), str)
        return node.notes[of]

    def _goes_on(self, node: Node, index: int, step: ChannelMap) -> bool:
        """Return whether a node is another norm, or carries the map, to readers who all take it."""
        self.carriers += 1
        x, own = node.inputs[index], self.affine(node)
        assert x is not None
        if self.carriers > FARTHEST:
            return False
        if own is not None:
            both = _composed(step, own[1], x) if own[0] is x else None
            return both is not None and self.take(node.output, both)
        for number, y in enumerate(node.outputs):
            if not y.readers and not self.graph.is_output(y):
                continue
            moved = (_moved(node, index, one, number) for one in _ways(step, x))
            if not any(one is not None and self.take(y, one) for one in moved):
                return False
        return True


def _key(m: ChannelMap) -> Hashable:
    return m.axis, *(None if v is None else v.tobytes() for v in (m.k, m.shift))


def _moved(node: Node, index: int, step: ChannelMap, number: int) -> ChannelMap | None:
    """A map on an operand as one on a result; None where it does not go through."""
    carry = carry_to(node, index, step.axis, number)
    extent = None if carry is None or carry.joined else node.outputs[number].shape[carry.axis]
    found = pushed(carry, step, extent) if carry is not None and isinstance(extent, int) else None
    return None if isinstance(found, str) else found
