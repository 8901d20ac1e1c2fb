"""Paths: a scale and a shift after a value, back through what leaves channels apart to constants that take them.

    g(f(x; w)) * k + shift -> g(f(x; w'))        where g carries channels and f takes the map that g pulls

Readers come before what they read, so that all that is asked of a value is known when its node's turn comes: ways that
part and join again, as parts of a split in a concat, agree there on one map or are refused. Whoever else reads channels
that stay what they are, as another slice does, is made anew beside. A plan says what is made on the way; nothing is
changed before all of it is known to be possible. The nodes on the way stand in the match, so that the driver asks of
each whether it may go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.graph.channels import MOST as CHANNELS
from renorm.graph.channels import Carry, ChannelMap, pulled
from renorm.graph.ir import Node, Value
from renorm.graph.rewrite import Match

Array = np.ndarray[Any, Any]

FARTHEST, MOST = 32, 256  # nodes that carry one map, and nodes that are made anew for it
MANY = 64  # readers of a value, and results of a node, from which on it is not asked what becomes of the others
Made = Callable[[Match], Value]
"""Makes the value that a plan is of."""

Leaf = Callable[[Node, ChannelMap], "Made | str"]
"""Takes a map behind a node into the node's constants, or says why it cannot."""


def carry_to(node: Node, index: int, axis: int, result: int) -> Carry | None:
    """Return where channels of an operand are in one of the results; None where there are more than maps go through."""
    v = node.inputs[index]
    extent = v.shape[axis] if v is not None and -v.rank <= axis < v.rank else 1  # others are broadcast
    if isinstance(extent, int) and extent > CHANNELS:
        return None
    key = "carried", index, axis
    found = node.notes[key] if key in node.notes else node.op.carried(node, index, axis)
    if isinstance(found, Sequence):  # one for each result, of which there may be many
        found = node.notes[key] = {c.result: c for c in reversed(found)}
    if isinstance(found, dict):
        return found.get(result)
    return found if found is not None and found.result == result else None


def applied_again(m: Match, node: Node, inputs: Sequence[Value | None]) -> list[Value]:
    """The results of a node on other operands, which are given flat."""
    flat, operands = iter(inputs), list[Any]()
    for o in node.operands:
        operands.append([next(flat) for _ in o] if isinstance(o, list) else next(flat))
    applied = m.graph.apply(node.op, operands, name=node.name)
    return list(applied) if isinstance(applied, tuple) else [applied]


# --- plans ------------------------------------------------------------------------------------------------------------


@dataclass
class Step:
    """A node made anew on what its operands have become. constants: what new constants hold, by operand, counted flat;
    rests: shifts that stay after results, by their number."""

    node: Node
    constants: dict[int, Array] = field(default_factory=dict[int, Array])
    rests: dict[int, Array] = field(default_factory=dict[int, Array])

    def __call__(self, m: Match, new: dict[Value, Value]) -> list[Value]:
        source, operands = m.origin, list[Value | None]()
        for i, v in enumerate(self.node.inputs):
            if v is not None and i in self.constants:
                v = m.graph.constant(self.constants[i], v.name, source, dtype=v.dtype)
            operands.append(v if v is None else new.get(v, v))
        results = applied_again(m, self.node, operands)
        for i, rest in self.rests.items():
            shift = m.graph.constant(rest, f"{self.node.name}.shift", dtype=results[i].dtype)
            results[i] = ops.add(results[i], shift)
        return results


@dataclass
class Plan:
    """The nodes that make a value with a map. steps: from back to front; a Made is of a node whose constants take the
    map."""

    value: Value
    steps: dict[Node, Step | Made] = field(default_factory=dict[Node, "Step | Made"])

    def __call__(self, m: Match) -> Value:
        new: dict[Value, Value] = {}
        for node, step in reversed(self.steps.items()):
            new |= zip(node.outputs, step(m, new) if isinstance(step, Step) else [step(m)])
        m.alongside |= {old: made for old, made in new.items() if old in m.alongside}
        return new.get(self.value, self.value)


# --- search -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Asked:
    """The map that a value has to take in. of: the channels for which somebody asks; for others any map would do."""

    map: ChannelMap
    of: Array

    def joined(self, other: Asked) -> Asked | None:
        """Return one demand for two; None where they differ."""
        if other.map.axis != self.map.axis:
            if not other.map.is_identity:
                return other.joined(self) if self.map.is_identity else None
            other = Asked(ChannelMap(self.map.axis, None, None), np.full_like(self.of, other.of.any()))
        both, found = self.of & other.of, list[Array]()
        for mine, its, neutral in ((self.map.k, other.map.k, 1.0), (self.map.shift, other.map.shift, 0.0)):
            a, b = (np.full(self.of.size, neutral) if v is None else v for v in (mine, its))
            if not np.array_equal(a[both], b[both]):
                return None
            found.append(np.where(other.of, b, a))
        return Asked(ChannelMap(self.map.axis, *found).plain(), self.of | other.of)


WHOLE = Asked(ChannelMap(-1, None, None), np.ones(1, bool))  # all of a value, as it is, whatever its channels are


def back(m: Match, v: Value, wanted: ChannelMap, take: Leaf) -> Made | str:
    """A plan for v * k + shift, or why there is none."""
    search = _Search(m, take, Plan(v))
    size = next(e.size for e in (wanted.k, wanted.shift, np.ones(1)) if e is not None)
    return search.ask(v, Asked(wanted, np.ones(size, bool))) or search.run() or search.plan


@dataclass
class _Search:
    """asked: of each value; waiting: nodes that have to give something else than they do."""

    m: Match
    take: Leaf
    plan: Plan
    asked: dict[Value, Asked] = field(default_factory=dict[Value, Asked])
    waiting: dict[Node, None] = field(default_factory=dict[Node, None])

    def ask(self, v: Value, asked: Asked) -> str | None:
        """Adds what is asked of a value; a sentence where it cannot be had."""
        if reason := asked.map.objection():
            return reason
        before = self.asked.get(v)
        both = asked if before is None else before.joined(asked)
        node = v.producer
        if both is None:
            name = v.name if node is None else node.name
            return f"{name!r} is reached in two ways, which ask for different factors or shifts of it"
        self.asked[v] = both
        if both.map.is_identity:
            return None
        if node is None:
            return f"it reads the input {v.name!r} of the graph"
        self.waiting[node] = None
        return None

    def run(self) -> str | None:
        """Plans for all nodes that wait, the last one of the graph first; a sentence where one of them cannot."""
        carriers = 0
        while self.waiting:
            node = max(self.waiting, key=self.m.graph.place_of) if len(self.waiting) > 1 else next(iter(self.waiting))
            del self.waiting[node]
            if len(node.outputs) > MANY:
                return f"{node.op.name} has more than {MANY} results (node {node.name!r})"
            for v in node.outputs:
                self._make_beside(v)
            self.m.bound[f"on the way: {node.name}"] = node
            if reason := self._plan(node):
                return reason
            carriers += isinstance(self.plan.steps[node], Step)
            if carriers > FARTHEST or len(self.plan.steps) > MOST:
                return "it is too far from what could take it: too many nodes would have to be made anew"
        return None

    def _plan(self, node: Node) -> str | None:
        found: Any = f"{node.op.name} takes no scale (node {node.name!r})"
        if len(node.outputs) == 1:
            found = self.take(node, self.asked[node.output].map)
            if not isinstance(found, str):
                self.plan.steps[node] = found
                return self._leave(v for v in node.inputs)
        step = self.plan.steps[node] = Step(node)
        for number, v in enumerate(node.outputs):
            if not self._changes(v):
                self.m.alongside[v] = None
                if not v.readers and not self.m.graph.is_output(v):
                    continue
            reason = self._pull(step, number, v, found)
            if reason:
                return reason
        return None

    def _leave(self, values: Iterable[Value | None]) -> str | None:
        """Asks of values to stay what they are, so that none is computed twice, with a map and without."""
        reasons = (self.ask(v, WHOLE) for v in values if v is not None and not v.is_constant)
        return next((r for r in reasons if r), None)

    def _pull(self, step: Step, number: int, v: Value, untaken: str) -> str | None:
        """Asks for the operands with which a node gives a result that is asked for; for a result that is not, for
        those that leave it as it is."""
        node = step.node
        wanted = self.asked[v].map if self._changes(v) else self._identity(node)
        if wanted is None:
            return f"{node.op.name} does not keep channels of {v.name!r} apart (node {node.name!r})"
        steps, rest = _pulled(node, v, wanted), None
        if isinstance(steps, str):
            kept, rest = _parted(node, v, wanted)
            steps = steps if rest is None else _pulled(node, v, kept)
        if steps is None:
            return untaken
        if isinstance(steps, str):
            return f"{node.op.name} {steps} (node {node.name!r})"
        if rest is not None:
            step.rests[number] = rest.reshape([-1 if a == wanted.axis else 1 for a in range(v.rank)])
        for index, own in steps.items():
            operand = node.inputs[index]
            assert operand is not None
            reason = self._hold(step, index, operand, own.map) if operand.is_constant else self.ask(operand, own)
            if reason:
                return reason
        return self._leave(v for i, v in enumerate(node.inputs) if i not in steps)

    def _hold(self, step: Step, index: int, operand: Value, own: ChannelMap) -> str | None:
        """A constant operand with the map in it."""
        if own.is_identity:
            return None
        if reason := own.objection():
            return reason
        made = applied(operand, own)
        with np.errstate(over="ignore"):
            if not np.isfinite(made.astype(dtypes.numpy_dtype(operand.dtype))).all():
                return f"constant {operand.name!r} with the map in it goes beyond {operand.dtype}"
        step.constants[index] = made
        return None

    def _changes(self, v: Value) -> bool:
        return v in self.asked and not self.asked[v].map.is_identity

    def _identity(self, node: Node) -> ChannelMap | None:
        """No map, along the axis on which results have the channels that are asked of others."""
        axes = {self.asked[v].map.axis for v in node.outputs if self._changes(v)}
        return ChannelMap(axes.pop(), None, None) if len(axes) == 1 else None

    def _make_beside(self, v: Value) -> None:
        """Plans to make readers anew that are not on the way, where what is asked of a value is nothing to them."""
        if not self._changes(v) or not 2 <= len(v.readers) <= MANY:
            return
        asked, inside = self.asked[v], {*self.m.nodes, *self.plan.steps}
        for u in v.readers:
            if u in inside or [i for i in u.inputs if i is not None and not i.is_constant] != [v]:
                continue
            own = _left_alone(u, u.inputs.index(v), asked)
            both = None if own is None else asked.joined(own)
            if both is not None:
                self.asked[v] = asked = both
                self.plan.steps[u] = Step(u)
                self.m.bound[f"beside the way: {u.name}"] = u
                self.m.alongside |= dict.fromkeys(u.outputs)


def _left_alone(node: Node, index: int, asked: Asked) -> Asked | None:
    """Return what a node asks of an operand so that its results stay what they are; None where it does not say."""
    of = np.zeros_like(asked.of)
    for number, y in enumerate(node.outputs):
        carry = carry_to(node, index, asked.map.axis, number)
        if carry is None:
            return None
        of[carry.pairs[:, 1]] |= bool(y.readers) or y.graph.is_output(y)
    return Asked(ChannelMap(asked.map.axis, None, None), of)


def _parted(node: Node, v: Value, wanted: ChannelMap) -> tuple[ChannelMap, Array | None]:
    """The part of a map that may go through a node of one operand, and the shift that stays after it."""
    x = node.inputs[0]
    for axis in range(0 if x is None else x.rank):
        carry = carry_to(node, 0, axis, node.outputs.index(v))
        if carry is not None and carry.axis == wanted.axis:
            return carry.parted(wanted)
    return wanted, None


def _pulled(node: Node, v: Value, wanted: ChannelMap) -> dict[int, Asked] | str | None:
    """Return what is asked of operands so that they are together the map on a result; None where the op does not carry
    channels."""
    found: dict[int, Asked] = {}
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
    """Yield how channels of an operand come to be along an axis of a result; of a constant that is spread, too."""
    axes = list(range(operand.rank))
    if operand.is_constant and along - v.rank < -operand.rank:
        axes.append(along - v.rank)
    for axis in axes:
        extent = operand.shape[axis] if axis >= 0 else 1
        carry = carry_to(node, index, axis, node.outputs.index(v)) if isinstance(extent, int) else None
        if carry is not None and carry.axis == along:
            yield carry, axis


def _own(carry: Carry, wanted: ChannelMap, axis: int, operand: Value) -> Asked | str:
    """Return what is asked of an operand. One channel of a constant becomes as many as the map has."""
    if not (operand.is_constant and carry.joined) or carry.pairs[:, 1].any():
        extent = int(str(operand.shape[axis]))
        made, of = pulled(carry, wanted, axis, extent), np.zeros(extent, bool)
        of[carry.pairs[:, 1]] = True
        return made if isinstance(made, str) else Asked(made.plain(), of)
    shift = wanted.shift if wanted.shift is None or not carry.negated else -wanted.shift
    return Asked(ChannelMap(axis, wanted.k, shift), np.ones(len(carry.pairs), bool))


def applied(constant: Value, wanted: ChannelMap) -> Array:
    """A constant's elements times k plus shift, in float64. What is the same for all channels spreads nothing."""
    behind = constant.rank - 1 - wanted.axis if wanted.axis >= 0 else -1 - wanted.axis
    k, shift = (
        None if v is None else v[0] if v.size and (v == v[0]).all() else v.reshape(-1, *[1] * behind)
        for v in (wanted.k, wanted.shift)
    )
    exact = constant.exact
    held = np.asarray(constant.data, np.float64) if exact is None else exact
    held = held if k is None else held * k
    return held if shift is None else held + shift
