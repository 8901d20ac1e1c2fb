"""Channel flow: maps x * k + shift per channel go through ops that leave channels apart.

    backwards   g(f(x; w)) * k + shift -> g(f(x; w'))     f takes the map that g pulls: `pull` asks for it
    forwards    f(g(x * k + shift); w) -> f'(g(x); w')    f takes the map that g pushes: `push` brings it

    pull:  map on a result    ─▶ maps on its operands, which together are that map
    push:  maps on operands   ─▶ map on a result

Both are one step through one node, and know no op: an op says where it leaves channels (`OpDef.propagate_channels`).
The searches `ask` (backwards) and `Fronts` (forwards) go from node to node with them and change nothing; what they find
is a `Rewiring`, which says what has to be made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.graph.channels import MOST as CHANNELS
from renorm.graph.channels import Carry, ChannelMap, pulled, pushed
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.rewrite import Match, Refusal
from renorm.passes.affine import Array, mapped, together

MOST_CARRIERS, MOST_STEPS = 32, 256  # backwards: nodes that carry one map, and nodes that are made anew for it
FARTHEST = 100  # forwards: nodes in a row that a map is looked for after, and nodes that carry it to all its readers
MANY = 64  # readers of a value, and results of a node, from which on it is not asked what becomes of the others

UNCHANGED = ChannelMap(-1, None, None)  # of a whole value, whatever its channels are

Affine = Callable[[Node], "tuple[Value, ChannelMap] | None"]
"""Gives the operand that a node scales and shifts, and the map; None for others."""

# --- one step ---------------------------------------------------------------------------------------------------------


def carry_to(node: Node, index: int, axis: int, result: int) -> Carry | None:
    """Return where channels of an operand are in one of the results; None where there are more than maps go through."""
    v = node.inputs[index]
    extent = v.shape[axis] if v is not None and -v.rank <= axis < v.rank else 1  # others are broadcast
    if isinstance(extent, int) and extent > CHANNELS:
        return None
    key = "carried", index, axis
    found = node.notes[key] if key in node.notes else node.op.propagate_channels(node, index, axis)
    if isinstance(found, Sequence):  # one for each result, of which there may be many
        found = node.notes[key] = {c.result: c for c in reversed(found)}
    if isinstance(found, dict):
        return found.get(result)
    return found if found is not None and found.result == result else None


def _carries(node: Node, index: int, result: int) -> Iterator[tuple[Carry, int]]:
    """Yield how channels along each axis of an operand come to a result; of a constant that is spread, along axes that
    stand before its first one, too."""
    operand, y = node.inputs[index], node.outputs[result]
    assert operand is not None
    first = operand.rank - y.rank if operand.is_constant and operand.rank < y.rank else 0
    for axis in (*range(operand.rank), *range(first - operand.rank, -operand.rank)):
        extent = operand.shape[axis] if axis >= 0 else 1
        carry = carry_to(node, index, axis, result) if isinstance(extent, int) else None
        if carry is not None:
            yield carry, axis


def pull(node: Node, result: int, wanted: ChannelMap) -> dict[int, ChannelMap] | str | None:
    """Return what is asked of operands so that together they are a map on a result; a sentence, after the op's name,
    where they cannot be; None where the op does not carry channels."""
    found: dict[int, ChannelMap] = {}
    reason, is_sum = None, False
    constants_first = sorted(enumerate(node.inputs), key=lambda o: o[1] is None or not o[1].is_constant)
    for index, operand in constants_first:  # a constant takes the shift of a sum
        if operand is None:
            continue
        for carry, axis in _carries(node, index, result):
            if carry.axis != wanted.axis:
                continue
            rest = ChannelMap(wanted.axis, wanted.k, None) if carry.joined and found else wanted
            own = _of_operand(carry, rest, axis, operand)
            if isinstance(own, str):
                reason = reason or own  # another axis of the operand may do
                continue
            is_sum = is_sum or carry.joined
            found[index] = own.plain()
            break
    for index, operand in enumerate(node.inputs):
        if operand is not None and index not in found and (is_sum or (operand.rank and not operand.is_constant)):
            return reason or (f"also takes {operand.name!r}, which the map cannot go to" if found else None)
    return found or reason


def _of_operand(carry: Carry, wanted: ChannelMap, axis: int, operand: Value) -> ChannelMap | str:
    """Return what is asked of an operand. One channel of a constant becomes as many as the map has."""
    if not (operand.is_constant and carry.joined) or carry.pairs[:, 1].any():
        return pulled(carry, wanted, axis, int(str(operand.shape[axis])))
    shift = wanted.shift if wanted.shift is None or not carry.negated else -wanted.shift
    return ChannelMap(axis, wanted.k, shift)


def push(node: Node, result: int, maps: Mapping[int, ChannelMap]) -> ChannelMap | str:
    """Return the map on a result that is the same as those on operands; a sentence, after the op's name, where there is
    none."""
    index, first = next(iter(maps.items()))
    axes = {axis: carry.axis for carry, axis in _carries(node, index, result)}
    operand, reason = node.inputs[index], ""
    assert operand is not None
    for one in first.plain().along(operand.shape):
        found = _push_along(node, result, maps, axes[one.axis]) if one.axis in axes else None
        if isinstance(found, ChannelMap):
            return found
        reason = reason or found or "does not keep these channels apart"
    return reason


def _push_along(node: Node, result: int, maps: Mapping[int, ChannelMap], axis: int) -> ChannelMap | str:
    """The same, along one axis of the result."""
    extent, total = node.outputs[result].shape[axis], None
    if not isinstance(extent, int):
        return "has more channels than are known"
    for index, operand in enumerate(node.inputs):
        if operand is None or operand.rank == 0:
            continue
        carries = {a: c for c, a in _carries(node, index, result) if c.axis == axis}
        given = maps.get(index, UNCHANGED).plain()
        own = next((m for m in given.along(operand.shape) if m.axis in carries), None)
        if own is None and index not in maps and operand.is_constant:
            continue  # a shape, bounds, pads
        if own is None:
            return "does not keep these channels apart"
        carry = carries[own.axis]
        moved = "adds what has no such map" if carry.joined else pushed(carry, own, extent)
        total = moved if total is None or isinstance(moved, str) else total.joined(moved)
        if total is None or isinstance(total, str):
            return total or "brings operands together whose maps differ"
    return total or "does not keep these channels apart"


# --- what is to be made -----------------------------------------------------------------------------------------------


@dataclass
class Remade:
    """A node made anew on what its operands have become. constants: what new constants hold, by operand, counted flat;
    rests: shifts that stay after results, by their number."""

    node: Node
    constants: dict[int, Array] = field(default_factory=dict[int, Array])
    rests: dict[int, Array] = field(default_factory=dict[int, Array])

    def __call__(self, m: Match, new: Mapping[Value, Value]) -> Sequence[Value]:
        operands = [v if v is None else new.get(v, v) for v in self.node.inputs]
        twin = None if self.constants or self.rests else _twin(m, self.node, operands, {*new.values()})
        if twin is not None:
            return twin.outputs
        for i, held in self.constants.items():
            old = self.node.inputs[i]
            assert old is not None
            operands[i] = m.graph.constant(held, old.name, m.origin, dtype=old.dtype)
        results = _applied_again(m.graph, self.node, operands)
        for i, rest in self.rests.items():
            shift = m.graph.constant(rest, f"{self.node.name}.shift", dtype=results[i].dtype)
            results[i] = ops.add(results[i], shift)
        return results


def _twin(m: Match, node: Node, operands: list[Value | None], taken: Collection[Value]) -> Node | None:
    """Return a node in front of the root that already is `node` on these operands, made for another reader. taken:
    values that stand for others now: two values that both are outputs need one each."""
    read = [v for v in operands if v is not None]
    for other in read[0].readers if read else ():
        same = type(other.op) is type(node.op) and other.op == node.op and len(other.inputs) == len(operands)
        if other is node or not same or any(a is not b for a, b in zip(other.inputs, operands)):
            continue
        if any(v in taken for v in other.outputs):
            continue
        if m.graph.position_of(other) < m.graph.position_of(m.root):
            return other
    return None


def _applied_again(graph: Graph, node: Node, inputs: Sequence[Value | None]) -> list[Value]:
    """Return the results of a node on other operands, which are given flat."""
    applied = graph.apply(node.op, node.arranged(inputs), name=node.name)
    return list(applied) if isinstance(applied, tuple) else [applied]


Made = Callable[[Match], Value]
"""Makes the result of a node whose constants take a map."""


@dataclass
class Rewiring:
    """Nodes that are made anew. steps: in any order; a value stands for a node that falls out, and is what takes the
    place of its result. beside: results of these nodes that others may go on reading."""

    steps: dict[Node, Remade | Made | Value] = field(default_factory=dict[Node, "Remade | Made | Value"])
    beside: dict[Value, None] = field(default_factory=dict[Value, None])

    def __call__(self, m: Match) -> dict[Value, Value]:
        """Make them in front of the root; return what takes the place of which value."""
        new: dict[Value, Value] = {}
        for node in sorted(self.steps, key=m.graph.position_of):
            step = self.steps[node]
            if isinstance(step, Remade):
                new |= zip(node.outputs, step(m, new))
            else:
                new[node.output] = new.get(step, step) if isinstance(step, Value) else step(m)
        return new


# --- backwards --------------------------------------------------------------------------------------------------------

Take = Callable[[Node, ChannelMap], "Made | str"]
"""Takes a map after a node into the node's constants, or says why it cannot."""


def ask(graph: Graph, v: Value, wanted: ChannelMap, take: Take, inside: Iterable[Node] = ()) -> Rewiring | str:
    """Return the nodes that make v * k + shift, or why there are none. inside: nodes that go anyway.

    Readers come before what they read, so that all that is asked of a value is known when its node's turn comes: ways
    that part and join again, as parts of a split in a concat, agree there on one map or are refused. Whoever else reads
    channels that stay what they are, as another slice does, is made anew beside.
    """
    search = _Asked(graph, take, {*inside})
    return search.ask(v, wanted) or search.run() or search.found


@dataclass
class _Asked:
    """maps: what is asked of each value; waiting: nodes that have to give something else than they do."""

    graph: Graph
    take: Take
    inside: set[Node]
    found: Rewiring = field(default_factory=Rewiring)
    maps: dict[Value, ChannelMap] = field(default_factory=dict[Value, ChannelMap])
    waiting: dict[Node, None] = field(default_factory=dict[Node, None])

    def ask(self, v: Value, wanted: ChannelMap, reader: Node | None = None) -> str | None:
        """Add what is asked of a value, for the sake of a node that reads it; return a sentence where it cannot be
        had."""
        if reason := wanted.objection():
            return reason
        both = self.maps[v].joined(wanted) if v in self.maps else wanted
        node = v.producer
        if both is None:
            name = v.name if node is None else node.name
            return f"{name!r} is reached in two ways, which ask for different factors or shifts of it"
        self.maps[v] = both
        if both.is_identity:
            return None
        if node is None:
            said = "it" if reader is None else f"{reader.op.name} {reader.name!r}"
            return f"{said} reads the input {v.name!r} of the graph, which has no constants that could take it"
        self.waiting[node] = None
        return None

    def run(self) -> str | None:
        """Find a step for each node that waits, the last one of the graph first; return why one has none."""
        carriers, steps = 0, self.found.steps
        while self.waiting:
            node = max(self.waiting, key=self.graph.position_of) if len(self.waiting) > 1 else next(iter(self.waiting))
            del self.waiting[node]
            if len(node.outputs) > MANY:
                return f"{node.op.name} has more than {MANY} results (node {node.name!r})"
            for v in node.outputs:
                self._make_beside(v)
            if reason := self._step(node):
                return reason
            carriers += isinstance(steps[node], Remade)
            if carriers > MOST_CARRIERS or len(steps) > MOST_STEPS:
                return "it is too far from what could take it: too many nodes would have to be made anew"
        return None

    def _step(self, node: Node) -> str | None:
        untaken: Any = f"{node.op.name} takes no scale (node {node.name!r})"
        if len(node.outputs) == 1:
            untaken = self.take(node, self.maps[node.output])
            if not isinstance(untaken, str):
                self.found.steps[node] = untaken
                return self._leave(node.inputs)
        step = self.found.steps[node] = Remade(node)
        for number, v in enumerate(node.outputs):
            if not self._changes(v):
                self.found.beside[v] = None
                if not v.readers and not self.graph.is_output(v):
                    continue
            reason = self._pull(step, number, v, untaken)
            if reason:
                return reason
        return None

    def _leave(self, values: Iterable[Value | None]) -> str | None:
        """Ask of values to stay what they are, so that none is computed twice, with a map and without."""
        reasons = (self.ask(v, UNCHANGED) for v in values if v is not None and not v.is_constant)
        return next((r for r in reasons if r), None)

    def _pull(self, step: Remade, number: int, v: Value, untaken: str) -> str | None:
        """Ask for the operands with which a node gives a result that is asked for; for a result that is not, for those
        that leave it as it is."""
        node = step.node
        wanted = self.maps[v] if self._changes(v) else self._identity(node)
        if wanted is None:
            return f"{node.op.name} does not keep channels of {v.name!r} apart (node {node.name!r})"
        asked, rest = pull(node, number, wanted), None
        if isinstance(asked, str):
            through, rest = _parted(node, number, wanted)
            asked = asked if rest is None else pull(node, number, through)
        if asked is None:
            return untaken
        if isinstance(asked, str):
            return f"{node.op.name} {asked} (node {node.name!r})"
        if rest is not None:
            step.rests[number] = rest.reshape([-1 if a == wanted.axis else 1 for a in range(v.rank)])
        for index, own in asked.items():
            operand = node.inputs[index]
            assert operand is not None
            reason = self._hold(step, index, operand, own) if operand.is_constant else self.ask(operand, own, node)
            if reason:
                return reason
        return self._leave(v for i, v in enumerate(node.inputs) if i not in asked)

    def _hold(self, step: Remade, index: int, operand: Value, own: ChannelMap) -> str | None:
        """Have a constant operand take the map; return why it cannot."""
        if own.is_identity:
            return None
        if reason := own.objection():
            return reason
        made = mapped(operand, own)
        with np.errstate(over="ignore"):
            if not np.isfinite(made.astype(dtypes.numpy_dtype(operand.dtype))).all():
                return f"constant {operand.name!r} with the map in it goes beyond {operand.dtype}"
        step.constants[index] = made
        return None

    def _changes(self, v: Value) -> bool:
        return v in self.maps and not self.maps[v].is_identity

    def _identity(self, node: Node) -> ChannelMap | None:
        """No map, along the axis on which results have the channels that are asked of others."""
        axes = {self.maps[v].axis for v in node.outputs if self._changes(v)}
        return ChannelMap(axes.pop(), None, None) if len(axes) == 1 else None

    def _make_beside(self, v: Value) -> None:
        """Make readers anew that are not on the way, where what is asked of a value is nothing to them."""
        if not self._changes(v) or not 2 <= len(v.readers) <= MANY:
            return
        for u in v.readers:
            if u in self.inside or u in self.found.steps:
                continue
            if [i for i in u.inputs if i is not None and not i.is_constant] != [v]:
                continue
            own = _left_alone(u, u.inputs.index(v), self.maps[v])
            both = None if own is None else self.maps[v].joined(own)
            if both is not None:
                self.maps[v], self.found.steps[u] = both, Remade(u)
                self.found.beside |= dict.fromkeys(u.outputs)


def _left_alone(node: Node, index: int, asked: ChannelMap) -> ChannelMap | None:
    """Return what a node asks of an operand so that its results stay what they are; None where it does not say."""
    of = np.zeros(asked.count, bool)
    for number, y in enumerate(node.outputs):
        carry = carry_to(node, index, asked.axis, number)
        if carry is None:
            return None
        of[carry.pairs[:, 1]] |= bool(y.readers) or y.graph.is_output(y)
    return ChannelMap(asked.axis, None, None, of)


def _parted(node: Node, result: int, wanted: ChannelMap) -> tuple[ChannelMap, Array | None]:
    """Return the part of a map that may go through a node of one operand, and the shift that stays after it."""
    if node.inputs[0] is not None:
        for carry, axis in _carries(node, 0, result):
            if axis >= 0 and carry.axis == wanted.axis:
                return carry.parted(wanted)
    return wanted, None


# --- forwards ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Front:
    """A map in front of a value v = x * k + shift, where the rewiring makes x of v. norms: the nodes that are the
    map."""

    map: ChannelMap
    rewiring: Rewiring
    norms: Sequence[Node]


@dataclass
class Fronts:
    """The maps that stand in front of values, each with what carries it on the way."""

    graph: Graph
    affine: Affine
    found: dict[Value, Front | Refusal | None] = field(default_factory=dict[Value, "Front | Refusal | None"])

    def of(self, v: Value) -> Front | Refusal | None:
        """Return the map; None where there is none, a sentence where it cannot come."""
        return self._within(v, FARTHEST)

    def _within(self, v: Value, left: int) -> Front | Refusal | None:
        """left: nodes that the way there may have."""
        if v not in self.found:
            self.found[v] = self._of(v, left - 1) if left else None
        return self.found[v]

    def _of(self, v: Value, left: int) -> Front | Refusal | None:
        node = v.producer
        if node is None:
            return None
        own = self.affine(node)
        if own is not None:
            return self._norm(node, *own, left)
        fronts, result = dict[int, Front](), node.outputs.index(v)
        for index, operand in enumerate(node.inputs):
            if operand is None or operand.is_constant or not any(_carries(node, index, result)):
                continue
            found = self._within(operand, left)
            if isinstance(found, Refusal):
                return found
            if found is not None:
                fronts[index] = found
        if not fronts:
            return None
        norms = [*dict.fromkeys(n for f in fronts.values() for n in f.norms)]
        moved = push(node, result, {i: f.map for i, f in fronts.items()})
        if isinstance(moved, str):
            return Refusal(f"{node.op.name} {moved} (node {node.name!r})", norms)
        steps: dict[Node, Remade | Made | Value] = {node: Remade(node)}
        for front in fronts.values():
            steps |= front.rewiring.steps
        return Front(moved, Rewiring(steps), norms)

    def _norm(self, node: Node, x: Value, step: ChannelMap, left: int) -> Front:
        """Return a norm, with those before it that nobody else reads."""
        is_alone = len(x.readers) == 1 and not self.graph.is_output(x)
        before = self._within(x, left) if is_alone else None
        both = together(before.map, step, x) if isinstance(before, Front) else None
        if isinstance(before, Front) and both is not None:
            return Front(both, Rewiring({node: x, **before.rewiring.steps}), [*before.norms, node])
        return Front(step, Rewiring({node: x}), [node])


Absorbs = Callable[[Node, int, ChannelMap], bool]
"""Whether a node takes the map on one of its operands into its constants."""


@dataclass
class Readers:
    """Who reads what carries a map. known: whether all who read a value take a map of it. carriers: nodes looked at
    that only carry it on."""

    graph: Graph
    affine: Affine
    absorbs: Absorbs
    known: dict[Hashable, bool] = field(default_factory=dict[Hashable, bool])
    carriers: int = 0

    def take(self, v: Value, step: ChannelMap) -> bool:
        """Return whether all who read a value take a map of it into their constants, or carry it to such who do."""
        key = v, _key(step)
        if key not in self.known:
            ways = [(one, _key(one)) for one in step.plain().along(v.shape)]
            self.known[key] = not self.graph.is_output(v) and all(
                any(self._absorbs(u, i, *one) for one in ways) or self._goes_on(u, i, step)
                for u in v.readers
                for i, operand in enumerate(u.inputs)
                if operand is v
            )
        return self.known[key]

    def _absorbs(self, node: Node, index: int, step: ChannelMap, key: Hashable) -> bool:
        """Ask a node once, though for each reader all others are asked."""
        of = "absorbs", index, key
        if of not in node.notes:
            node.notes[of] = self.absorbs(node, index, step)
        return node.notes[of]

    def _goes_on(self, node: Node, index: int, step: ChannelMap) -> bool:
        """Return whether a node is another norm, or carries the map, to readers who all take it."""
        self.carriers += 1
        x, own = node.inputs[index], self.affine(node)
        assert x is not None
        if self.carriers > FARTHEST:
            return False
        if own is not None:
            both = together(step, own[1], x) if own[0] is x else None
            return both is not None and self.take(node.output, both)
        for number, y in enumerate(node.outputs):
            if not y.readers and not self.graph.is_output(y):
                continue
            moved = (_alone(node, index, one, number) for one in step.plain().along(x.shape))
            if not any(one is not None and self.take(y, one) for one in moved):
                return False
        return True


def _key(m: ChannelMap) -> Hashable:
    return m.axis, *(None if v is None else v.tobytes() for v in (m.k, m.shift))


def _alone(node: Node, index: int, step: ChannelMap, number: int) -> ChannelMap | None:
    """Return a map on one operand as one on a result, whatever maps others have; None where it does not go through."""
    carry = carry_to(node, index, step.axis, number)
    extent = None if carry is None or carry.joined else node.outputs[number].shape[carry.axis]
    found = pushed(carry, step, extent) if carry is not None and isinstance(extent, int) else None
    return None if isinstance(found, str) else found
