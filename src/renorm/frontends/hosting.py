"""Networks that are no one graph, cut at the nodes whose bodies cannot be read into it: an outline of pieces.

A piece is a network of its own: the nodes that its results need and nothing else gives. What is computed of constants
is no input, but part of each piece that reads it, so that it is folded and packed there as weights are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from renorm.core import dtypes
from renorm.core.dims import Sym
from renorm.core.errors import InvalidModel, UntoldOperand
from renorm.frontends.outline import Hosted, Outline, Piece, Reading
from renorm.frontends.problems import Problem, together
from renorm.graph.deciding import sources
from renorm.graph.ir import Graph, Value
from renorm.runtime.program import TensorSpec
from renorm.runtime.steps import Body, Choice, Part, Plan, Rounds, Step, Whole


class Node(Protocol):
    """input, output: names of values, "" for what is left out."""

    @property
    def input(self) -> Sequence[str]: ...

    @property
    def output(self) -> Sequence[str]: ...


N = TypeVar("N", bound=Node)


def deciding(graph: Graph, problems: Sequence[Problem], hosted: Collection[int], has_data: bool) -> set[Value] | None:
    """Return the inputs of which elements are not known, where nothing else is wrong but what runs piece by piece; None
    where something is. hosted: places of problems of loops and branches. has_data: inputs are computed by others."""
    by = set[Value]()
    for place, p in enumerate(problems):
        operand = p.error.operand if isinstance(p.error, UntoldOperand) else None
        found = sources(graph, operand) if isinstance(operand, (Value, Sym)) else None
        if place in hosted and (not found or has_data or any(map(is_data, found))):
            continue
        if not found:
            return None
        by |= found
    return by


def is_data(v: Value) -> bool:
    """Return whether an input is of numbers, or integers that stand for such: a module for each of these would be one
    for each call."""
    return dtypes.is_float(v.dtype) or any(node.op.name == "dequantize_linear" for node in v.users)


def hosted(cut: Outline, problems: Sequence[Problem], label: str) -> Hosted:
    """Return the error of a network that is not one graph, with its outline."""
    told = together(problems, label)
    do = "compile it, which runs it piece by piece, or give the shapes (shapes=) or inputs (inputs=) that it depends on"
    why = Hosted(told.headline, told.facts, do)
    why.outline = replace(cut, plan=replace(cut.plan, obstacle=str(why)))
    why.__cause__ = told
    return why


@dataclass(frozen=True)
class Scope(Generic[N]):
    """Hold what pieces of a graph may be made of. producers: nodes by the names of their results. held: constants by
    their names. given: names of inputs whose elements were given."""

    producers: Mapping[str, N]
    held: Mapping[str, Any]
    given: frozenset[str]


class Cut(ABC, Generic[N]):
    """Hold what is cut out of a network, piece by piece."""

    def __init__(self, graph: Graph):
        self.name, self.inputs, self.pieces = graph.name, graph.inputs, list[Piece]()

    @abstractmethod
    def step(self, node: N, scope: Scope[N]) -> Step:
        """Return what a node with bodies does."""

    @abstractmethod
    def reading(
        self, name: str, nodes: Sequence[N], held: Mapping[str, Any], ends: tuple[Sequence[str], ...]
    ) -> Reading:
        """Return what reads a piece. ends: names of inputs, of inputs whose elements were given, and of outputs."""

    @abstractmethod
    def is_drawn(self, node: N) -> bool:
        """Return whether each run of a node without inputs gives others."""

    def needs(self, node: N) -> Sequence[str]:
        """Return the names that a node reads, and bodies of it."""
        return node.input

    def begins(self, node: N) -> Sequence[N]:
        """Return nodes that compute what the step of a node takes beside the operands that the node has."""
        return ()

    def resolved(self, name: str, scope: Scope[N]) -> str:
        """Return the name of what a value is by another name."""
        return name

    def outline(
        self, nodes: Sequence[N], wanted: Collection[int], scope: Scope[N], outputs: Sequence[tuple[str, str]]
    ) -> Outline:
        """Return a network in steps. nodes: in an order in which they can run. wanted: ids of those that are steps; one
        that waits for another of them stands in the piece after that one, which is cut when it is read. outputs: with
        the names of the values that they are."""
        late, made, steps, producers = set[str](), set[str](), list[N](), {**scope.producers}
        for node in nodes:
            waits = any(name in late for name in self.needs(node))
            if id(node) in wanted and not waits:
                steps.append(node)
                made.update(node.output)
                producers.update((out, n) for n in self.begins(node) for out in n.output)
            if id(node) in wanted or waits:
                late.update(filter(None, node.output))
        early = replace(scope, producers={out: n for out, n in producers.items() if out not in late})
        constant = replace(early, producers=self._constant(nodes, early))
        start = self.piece("before", early, ())  # comes first; what it has to give, others say
        run = [self.step(node, constant) for node in steps]
        after = {out: producers[out] for out in late - made}
        last = replace(constant, producers={**constant.producers, **after})
        ends = [(name, self.resolved(value, last)) for name, value in outputs]
        end = self.piece("after", last, [n for _, n in ends if n in after])
        needed = [n for s in (*run, Whole(end)) for n in self._needed(s)] + [n for _, n in ends if n not in late]
        given = {v.name for v in self.inputs}
        self.pieces[start] = self._cut("before", early, [n for n in needed if n not in given and n not in late], True)
        is_begun, is_ended = (bool(self.pieces[number].part.outputs) for number in (start, end))
        whole: list[Step] = [*([Whole(start)] if is_begun else []), *run, *([Whole(end)] if is_ended else [])]
        specs = tuple(TensorSpec(v.name, v.dtype, tuple(v.shape)) for v in self.inputs)
        plan = Plan(self.name, specs, tuple(p.part for p in self.pieces), tuple(whole), tuple(ends))
        return Outline(plan, tuple(self.pieces), start if is_begun else None)

    def _constant(self, nodes: Sequence[N], scope: Scope[N]) -> dict[str, N]:
        """Return the nodes that compute something of constants alone, by names of results."""
        known, found = {*scope.held, *scope.given, ""}, dict[str, N]()
        for n in nodes:
            is_early = all(out in scope.producers for out in n.output if out)
            if is_early and not self.is_drawn(n) and known.issuperset(self.needs(n)):
                known.update(n.output)
                found.update((out, n) for out in n.output if out)
        return found

    def body(self, name: str, scope: Scope[N], results: Sequence[str]) -> Body:
        """Return the piece that makes these results, but for those that are passed on."""
        made = [r for r in dict.fromkeys(results) if r in scope.producers or r in scope.held or r in scope.given]
        return Body(self.piece(name, scope, made), tuple(results))

    def piece(self, name: str, scope: Scope[N], outputs: Sequence[str]) -> int:
        """Note what gives outputs, and return its number."""
        self.pieces.append(self._cut(name, scope, outputs))
        return len(self.pieces) - 1

    def _cut(self, name: str, scope: Scope[N], outputs: Sequence[str], is_first: bool = False) -> Piece:
        """Return what gives outputs. is_first: it takes inputs of the network alone, in their order."""
        nodes, held, given, inputs = dict[int, N](), dict[str, Any](), list[str](), list[str]()
        made = tuple(dict.fromkeys(outputs))
        waiting, seen = [*made], {""}
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            if (n := scope.producers.get(at)) is not None:
                if id(n) not in nodes:
                    nodes[id(n)] = n
                    waiting += self.needs(n)
            elif at in scope.held:
                held[at] = scope.held[at]
            elif at in scope.given:
                given.append(at)
            else:
                inputs.append(at)
        if is_first:
            inputs = [v.name for v in self.inputs if v.name in inputs]
        part = Part(name, tuple(inputs), made)
        return Piece(part, self.reading(name, [*nodes.values()], held, (part.inputs, given, made)))

    def _needed(self, step: Step) -> list[str]:
        """Return the names that a step reads."""
        if isinstance(step, Choice):
            return [step.condition, *(n for b in step.bodies for n in self._seen(b))]
        if isinstance(step, Rounds):
            own = {step.number, step.going, *step.carried, *step.slices}
            outer = [n for n in self._seen(step.body) if n not in own]
            return [n for n in (step.count, step.condition, *step.states, *(n for n, _ in step.sliced)) if n] + outer
        return [*self.pieces[step.part].part.inputs]

    def _seen(self, body: Body) -> list[str]:
        """Return the names that a body reads, or passes on."""
        part = self.pieces[body.part].part
        return [*part.inputs, *(r for r in body.results if r not in part.outputs)]


def check_results(kind: str, name: str, wanted: int, body: Body, skipped: int = 0) -> None:
    """Raise InvalidModel where a node has more results than a body makes. skipped: those that are its condition."""
    if wanted > len(body.results) - skipped:
        made = f"a body of it makes {len(body.results) - skipped}"
        raise InvalidModel(f"{kind} {name!r} has {wanted} results, {made}")
