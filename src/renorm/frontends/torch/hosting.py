"""Programs of PyTorch that are no one graph: torch.while_loop, and map and scan over an axis of open extent, as steps
of an outline.

    while_loop   before  x -> c = cond(x)      body  x' -> y = f(x'), c = cond(y)      as long as c
    scan         body  x', slice of z -> y, result of this round                       for each slice of z

A piece is a graph of calls out of the program and out of bodies, which the reader of whole programs reads. What PyTorch
says of extents holds in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch import fx

from renorm.core.errors import UnsupportedOp
from renorm.core.limits import Limits
from renorm.frontends import hosting
from renorm.frontends.diagnosis import diagnose
from renorm.frontends.outline import Outline, Reading, Types
from renorm.frontends.torch.extents import Extents
from renorm.frontends.torch.reader import Reader, overload
from renorm.graph.ir import Graph
from renorm.runtime.steps import Along, Rounds, Step

STEPS = ("while_loop", "map_impl", "scan")
_RANDOM = torch.Tag.nondeterministic_seeded


def require(
    reader: Reader,
    calls: fx.GraphModule,
    inputs: Mapping[fx.Node, str],
    held: Mapping[fx.Node, torch.Tensor],
    results: Sequence[Any],
    extents: Callable[[], Extents],
    updated: Sequence[str] = (),
) -> None:
    """Raise Hosted where nothing is wrong but that data end loops, or that these go over open extents; UnsupportedOp
    where these cannot be steps. inputs, held: placeholders by what inputs of the graph are called, and those that are
    constants. extents: of each piece. updated: buffers that the program writes to."""
    steps, label = [n for n in reader.refused if overload(n) in STEPS], reader.graph.name
    if not steps or len(steps) < len(reader.problems):
        return
    named = ", ".join(n.name for n in steps)
    if updated:
        do = "return what is updated as a result"
        raise UnsupportedOp(f"{label} updates buffers beside loops that are steps: {named}", updated, do)
    results = [r for r in results if r is not None]
    if wrong := [r for r in results if not isinstance(r, fx.Node) or not _is_tensor(r)]:
        what = f"{label}: {wrong[0]} is a result beside loops that are steps: {named}, and no tensor"
        raise UnsupportedOp(what, do="return torch.tensor of it")
    try:
        outline = _Cut(reader.graph, calls, inputs, held, extents).read(steps, results)
    except UnsupportedOp as error:
        raise UnsupportedOp(f"{label}: {error.headline}", error.facts, error.do) from error
    raise hosting.hosted(outline, reader.problems, label)


@dataclass(frozen=True, eq=False)
class _Call:
    """A call that gives a tensor, or a step. owner: of the graph that it stands in. names: of values, by nodes of that
    graph. place: among all calls."""

    node: fx.Node
    owner: fx.GraphModule
    names: Mapping[fx.Node, str]
    place: int
    name: str
    input: tuple[str, ...]
    output: tuple[str, ...]

    def operands(self, given: Any) -> list[str]:
        """Return the names of operands. Raises UnsupportedOp for what is no tensor."""
        if wrong := [x for x in given if not isinstance(x, fx.Node) or x not in self.names]:
            raise UnsupportedOp(f"{self.name} is given {wrong[0]}, which is no tensor", do="give torch.tensor of it")
        return [self.names[x] for x in given]


_Scope = hosting.Scope[_Call]


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


class _Cut(hosting.Cut[_Call]):
    """Hold what is cut out of a program, piece by piece. metas: what PyTorch says of values, by their names."""

    def __init__(
        self,
        graph: Graph,
        calls: fx.GraphModule,
        inputs: Mapping[fx.Node, str],
        held: Mapping[fx.Node, torch.Tensor],
        extents: Callable[[], Extents],
    ):
        super().__init__(graph)
        self._calls, self._extents, self._count = calls, extents, 0
        self._names = {**inputs, **{n: n.name for n in held}}
        self._held = {n.name: tensor for n, tensor in held.items()}
        self._metas = dict[str, Any]()
        self._conditions = dict[int, str]()  # of first rounds, by ids of calls

    def read(self, steps: Sequence[fx.Node], results: Sequence[fx.Node]) -> Outline:
        if any(v.deciding for v in self.inputs):
            raise UnsupportedOp("a number is an input beside loops that are steps", do="give torch.tensor of it")
        made = self._of(self._calls, self._names, "")
        wanted = {id(c) for c in made if c.node in steps}
        producers = {out: c for c in made for out in c.output if out}
        return self.outline(
            made, wanted, _Scope(producers, self._held, frozenset()), [(n.name, self._names[n]) for n in results]
        )

    def _of(self, owner: fx.GraphModule, names: dict[fx.Node, str], place: str) -> list[_Call]:
        """Return the calls of a graph, of whose placeholders the names are known; names of other values are added."""
        made = list[_Call]()
        for n, name in names.items():
            self._metas.setdefault(name, n.meta["val"])
        for node in (n for n in owner.graph.nodes if n.op == "call_function"):
            is_step = overload(node) in STEPS
            if not is_step and (not _is_tensor(node) or _is_of_step(node)):
                continue
            parts = {u.args[1]: u for u in node.users if overload(u) == "getitem"} if is_step else {0: node}
            names |= {n: place + n.name for n in parts.values()}
            self._metas |= {names[n]: n.meta["val"] for n in parts.values()}
            read = dict.fromkeys(names[n] for n in _tensors(node) if n in names)
            outputs = tuple(names[parts[i]] if i in parts else "" for i in range(max(parts, default=-1) + 1))
            self._count += 1
            made.append(_Call(node, owner, names, self._count, place + node.name, tuple(read), outputs))
        return made

    def _beside(self, call: _Call, which: int, given: Sequence[str], place: str) -> tuple[list[_Call], list[str]]:
        """Return the calls of a body of a step that is given these values, and the names of its results."""
        named = call.node.args[which]
        assert isinstance(named, fx.Node)
        body = getattr(call.owner, str(named.target))
        placeholders = [n for n in body.graph.nodes if n.op == "placeholder"]
        names = dict(zip(placeholders, given, strict=True))
        made = self._of(body, names, f"{place}/")
        results = body.graph.output_node().args[0]
        results = results if isinstance(results, (list, tuple)) else [results]
        if wrong := [r for r in results if r not in names]:
            raise UnsupportedOp(f"{call.name}: a result of its body is {wrong[0]}, which is no tensor")
        return made, [names[r] for r in results]

    # --- steps --------------------------------------------------------------------------------------------------------

    def is_drawn(self, node: _Call) -> bool:
        return _RANDOM in getattr(node.node.target, "tags", ())

    def begins(self, node: _Call) -> Sequence[_Call]:
        if overload(node.node) != "while_loop":
            return ()
        args: Any = node.node.args
        given = node.operands([*args[2], *args[3]])
        made, (self._conditions[id(node)],) = self._beside(node, 0, given, f"{node.name}.condition0")
        return made

    def step(self, node: _Call, scope: _Scope) -> Step:
        args: Any = node.node.args
        place = f"{node.name}.body"
        if overload(node.node) == "while_loop":
            states, others = map(node.operands, args[2:4])
            formal = [f"{place}/{name}'" for name in states]
            self._metas |= {f: self._metas[name] for f, name in zip(formal, states)}
            made, results = self._beside(node, 1, [*formal, *others], place)
            last, (going,) = self._beside(node, 0, [*results, *others], f"{node.name}.condition")
            body = self.body(place, _within(scope, [*made, *last]), [going, *results])
            return Rounds(
                *(node.name, "while_loop", None, self._conditions[id(node)], tuple(states), None, None, tuple(formal)),
                *(body, _padded(node.output, len(states))),
            )
        states, sliced, others = map(node.operands, args[1:4] if len(args) > 3 else ((), *args[1:3]))
        formal = [f"{place}/{name}'" for name in states]
        slices = [f"{place}/{name}[]" for name in sliced]
        self._metas |= {f: self._metas[name] for f, name in zip(formal, states)}
        made, results = self._beside(node, 0, [*formal, *slices, *others], place)
        body = self.body(place, _within(scope, made), results)
        stacked = (Along(),) * (len(results) - len(states))
        return Rounds(
            *(node.name, overload(node.node), None, None, tuple(states), None, None, tuple(formal), body),
            *(_padded(node.output, len(results)), stacked, tuple((n, Along()) for n in sliced), tuple(slices)),
        )

    # --- pieces -------------------------------------------------------------------------------------------------------

    def reading(
        self, name: str, nodes: Sequence[_Call], held: Mapping[str, Any], ends: tuple[Sequence[str], ...]
    ) -> Reading:
        inputs, _, outputs = ends

        def read(types: Types | None, elements: Mapping[str, Any], limits: Limits) -> Graph:
            piece = _Piece({n: self._metas[n] for n in (*inputs, *held)})
            for call in sorted(nodes, key=lambda c: c.place):
                piece.add(call)
            reader = piece.reader(f"{self.name}.{name}", self._extents(), inputs, held)
            results = [piece.values[n] for n in outputs]
            try:
                graph = reader.read(results)
            except UnsupportedOp:
                constants = {piece.values[n]: t for n, t in held.items()}
                require(reader, piece.module(), {piece.values[n]: n for n in inputs}, constants, results, self._extents)
                raise
            diagnose(graph)
            return graph

        return read


class _Piece:
    """A graph of calls. values: its nodes, by the names of values."""

    def __init__(self, metas: Mapping[str, Any]):
        self.graph, self.values, self._made = fx.Graph(), dict[str, fx.Node](), dict[tuple[int, fx.Node], fx.Node]()
        self._attributes, self._numbers = dict[fx.Node, Any](), list[fx.Node]()
        for number, (name, meta) in enumerate(metas.items()):
            self.values[name] = self.graph.placeholder(f"value_{number}")
            self.values[name].meta["val"] = meta

    def add(self, call: _Call) -> None:
        """Add a call, and all that it reads which is no tensor."""
        made = self._copied(call, call.node)
        if overload(call.node) not in STEPS:
            self.values[call.output[0]] = made
            return
        for i, name in enumerate(call.output):
            if name:
                self.values[name] = self.graph.call_function(getitem, (made, i))
                self.values[name].meta = dict(next(u for u in call.node.users if u.args[1] == i).meta)

    def _copied(self, call: _Call, node: fx.Node) -> fx.Node:
        if node is not call.node and (name := call.names.get(node)) in self.values:
            return self.values[name]
        key = id(call.names), node
        if key not in self._made:
            held = node.meta.get("val")
            if node.op == "get_attr":
                made = self.graph.get_attr(f"body_{len(self._attributes)}")
                self._attributes[made] = getattr(call.owner, str(node.target))
            elif node is not call.node and not isinstance(held, (torch.Tensor, list, tuple)):
                made = self.graph.placeholder(f"number_{len(self._numbers)}")
                self._numbers.append(made)
            else:
                made = self.graph.node_copy(node, lambda n: self._copied(call, n))
            made.meta = dict(node.meta)
            self._made[key] = made
        return self._made[key]

    def module(self) -> fx.GraphModule:
        """Return the graph with the bodies that it names."""
        return fx.GraphModule({str(n.target): body for n, body in self._attributes.items()}, self.graph)

    def reader(self, name: str, extents: Extents, inputs: Sequence[str], held: Mapping[str, Any]) -> Reader:
        """Return what reads it. inputs: names of values that others give; held: constants."""
        made = Reader(name, self.graph, extents)
        for n in inputs:
            made.input(self.values[n], n)
        for n, tensor in held.items():
            made.constant(self.values[n], n, tensor)
        for node in self._numbers:
            number = node.meta.get("val")
            made.made[node] = extents.of(number) if isinstance(number, (int, torch.SymInt)) else number
        for node, body in self._attributes.items():
            made.attribute(node, body)
        return made


def _tensors(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that a call reads, of calls of several results those that these read."""
    found = list[fx.Node]()
    for n in node.all_input_nodes:
        if _is_tensor(n):
            found.append(n)
        elif n.op == "call_function" and isinstance(n.meta.get("val"), (list, tuple)):
            found += _tensors(n)
    return found


def _is_of_step(node: fx.Node) -> bool:
    return overload(node) == "getitem" and overload(node.all_input_nodes[0]) in STEPS


def _padded(names: Sequence[str], count: int) -> tuple[str, ...]:
    return (*names, *[""] * (count - len(names)))


def _within(scope: _Scope, calls: Sequence[_Call]) -> _Scope:
    return replace(scope, producers={**scope.producers, **{out: c for c in calls for out in c.output if out}})
