"""ONNX models that are no one graph, cut at the nodes whose bodies cannot be read into it: an outline of pieces.

A piece is a model of its own: the nodes that its results need and nothing else gives. What is computed of constants is
no input, but part of each piece that reads it, so that it is folded and packed there as weights are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from renorm.core import dtypes
from renorm.core.errors import InvalidModel
from renorm.core.limits import Limits
from renorm.core.stated import Declared
from renorm.frontends.diagnosis import diagnose
from renorm.frontends.onnx.control_flow import OPS
from renorm.frontends.onnx.held import Held
from renorm.frontends.onnx.messages import (
    ELEMENT_TYPES,
    Dimension,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TensorShapeProto,
    TensorType,
    TypeProto,
    ValueInfoProto,
    captured,
    graphs,
    inner_graphs,
    topological,
)
from renorm.frontends.onnx.model import standard_domain
from renorm.frontends.outline import Hosted, Outline, Piece, Types
from renorm.frontends.problems import together
from renorm.graph.ir import Graph
from renorm.runtime.program import TensorSpec
from renorm.runtime.steps import Along, Body, Choice, Part, Plan, Rounds, Step, Whole

if TYPE_CHECKING:
    from renorm.frontends.onnx.reader import Reader

_DRAWS = frozenset({"Bernoulli", "Dropout", "Multinomial"})  # beside Random...: each run of a node gives others
_ELEMENTS = {"float32": "FLOAT", "float64": "DOUBLE"}  # dtypes that ONNX calls otherwise


def require(reader: Reader) -> None:
    """Raise Hosted where nothing is wrong but that data end loops and choose branches."""
    hosted = list(reader.hosted.values())
    if not hosted or len(hosted) < len(reader.problems) or not all(map(_has_bodies, hosted)):
        return
    nested = [g for top in hosted for a in top.attribute for b in inner_graphs(a) for g in graphs(b)]
    for node in (n for g in nested for n in g.node):
        reader.note_missing(node, node.name or node.op_type, reader.root)
    kinds = {v.type.WhichOneof("value") for g in nested for v in (*g.input, *g.output)}
    if reader.missing or not kinds <= {"tensor_type", None}:
        return
    cut = outline(reader, hosted)
    between = {name for part in cut.plan.parts for name in (*part.inputs, *part.outputs)}
    if any(isinstance(reader.root.values.get(name), Held) for name in between):  # pieces give each other arrays
        return
    told = together(reader.problems, reader.source.label)
    do = "compile it, which runs it piece by piece, or give the shapes (shapes=) or inputs (inputs=) that it depends on"
    why = Hosted(told.headline, told.facts, do)
    why.outline = replace(cut, plan=replace(cut.plan, obstacle=str(why)))
    raise why from told


def _has_bodies(node: NodeProto) -> bool:
    return node.op_type in OPS and not standard_domain(node.domain)


def outline(reader: Reader, hosted: Sequence[NodeProto]) -> Outline:
    """Return the network of a reader in steps, of which these nodes are some. One that waits for another of them stands
    in the piece after that one, which is cut when it is read."""
    proto, inputs = reader.source.model.graph, reader.graph.inputs
    nodes, order = proto.node, topological(proto.node)[0]
    wanted, late, made, places = {id(n) for n in hosted}, set[str](), set[str](), list[int]()
    for place in order:
        node = nodes[place]
        waits = any(name in late for name in _read(node))
        if id(node) in wanted and not waits:
            places.append(place)
            made.update(node.output)
        if id(node) in wanted or waits:
            late.update(filter(None, node.output))
    producers = {out: n for n in nodes for out in n.output if out}
    early = _Scope(
        {out: n for out, n in producers.items() if out not in late},
        _held(proto),
        frozenset(reader.values),
    )
    constant = replace(early, producers=_constant(nodes, order, early))
    cut = _Cut(reader)
    start = cut.piece("before", early, ())  # comes first; what it has to give, others say
    steps = [cut.step(nodes[p], nodes[p].name or f"{nodes[p].op_type}_{p}", constant) for p in places]
    after = {out: producers[out] for out in late - made}
    last = replace(constant, producers={**constant.producers, **after})
    names = [last.resolved(o.name) for o in proto.output]
    end = cut.piece("after", last, [n for n in names if n in after])
    needed = [n for s in (*steps, Whole(end)) for n in cut.needed(s)] + [n for n in names if n not in late]
    given = {v.name for v in inputs}
    cut.pieces[start] = cut.cut("before", early, [n for n in needed if n not in given and n not in late], is_first=True)
    begins, ends = (bool(cut.pieces[number].part.outputs) for number in (start, end))
    whole: list[Step] = [*([Whole(start)] if begins else []), *steps, *([Whole(end)] if ends else [])]
    plan = Plan(
        reader.graph.name,
        tuple(TensorSpec(v.name, v.dtype, tuple(v.shape)) for v in inputs),
        tuple(p.part for p in cut.pieces),
        tuple(whole),
        tuple((o.name, name) for o, name in zip(proto.output, names)),
    )
    return Outline(plan, tuple(cut.pieces), start if begins else None)


@dataclass(frozen=True)
class _Scope:
    """Hold what pieces of a graph may be made of. producers: nodes by the names of their results. held: initializers.
    given: names of inputs whose elements were given."""

    producers: Mapping[str, NodeProto]
    held: Mapping[str, TensorProto | SparseTensorProto]
    given: frozenset[str]

    def within(self, body: GraphProto) -> _Scope:
        """Return the scope of a body."""
        formal = {i.name for i in body.input}
        producers = {k: n for k, n in self.producers.items() if k not in formal}
        producers |= {out: n for n in body.node for out in n.output if out}
        held = {**{k: t for k, t in self.held.items() if k not in formal}, **_held(body)}
        return _Scope(producers, held, self.given - formal)

    def resolved(self, name: str) -> str:
        """Return the name of what a value is by another name."""
        passed = set[str]()  # nodes of a body may stand in a ring
        while (n := self.producers.get(name)) is not None and n.op_type == "Identity" and not standard_domain(n.domain):
            if not n.input or name in passed:
                break
            passed.add(name)
            name = n.input[0]
        return name


def _constant(nodes: Sequence[NodeProto], order: Sequence[int], scope: _Scope) -> dict[str, NodeProto]:
    """Return the nodes that compute something of constants alone, by names of results."""
    known, found = {*scope.held, *scope.given, ""}, dict[str, NodeProto]()
    for n in (nodes[place] for place in order):
        is_drawn = n.op_type in _DRAWS or n.op_type.startswith("Random")
        if not is_drawn and all(out in scope.producers for out in n.output if out) and known.issuperset(_read(n)):
            known.update(n.output)
            found.update((out, n) for out in n.output if out)
    return found


class _Cut:
    """Hold what is cut out of the network of a reader, piece by piece."""

    def __init__(self, reader: Reader):
        self._reader, self.pieces = reader, list[Piece]()

    def step(self, node: NodeProto, name: str, scope: _Scope) -> Step:
        """Return what a node with bodies does."""
        attributes = {a.name: a for a in node.attribute}
        if node.op_type == "If":
            branches = [attributes[which].g for which in ("then_branch", "else_branch")]
            first, second = (self._body(g, f"{name}.{w}", scope) for g, w in zip(branches, ("then", "else")))
            for body in (first, second):
                _check_results(node, name, body)
            return Choice(name, "If", scope.resolved(node.input[0]), (first, second), tuple(node.output))
        body = attributes["body"].g
        formal, operands = [i.name for i in body.input], [scope.resolved(i) for i in node.input]
        if node.op_type == "Loop":
            count, condition = ([*operands, "", ""])[:2]
            made = self._body(body, f"{name}.body", scope, 0 if condition else 1)
            _check_results(node, name, made, 1 if condition else 0)
            stacked = (Along(),) * (len(body.output) - 1 - len(operands[2:]))
            return Rounds(
                *(name, "Loop", count or None, condition or None, tuple(operands[2:])),
                *(formal[0], formal[1], tuple(formal[2:]), made, tuple(node.output), stacked),
            )
        number = int(attributes["num_scan_inputs"].i)
        states = len(operands) - number
        made = self._body(body, f"{name}.body", scope)
        _check_results(node, name, made)

        def along(which: str, length: int) -> list[Along]:
            axes, directions = (
                [int(i) for i in attributes[f"scan_{which}_{what}"].ints]
                if f"scan_{which}_{what}" in attributes
                else [0] * length
                for what in ("axes", "directions")
            )
            return [Along(axis, bool(back)) for axis, back in zip(axes, directions, strict=True)]

        sliced = tuple(zip(operands[states:], along("input", number)))
        return Rounds(
            *(name, "Scan", None, None, tuple(operands[:states]), None, None, tuple(formal[:states]), made),
            *(tuple(node.output), tuple(along("output", len(body.output) - states)), sliced, tuple(formal[states:])),
        )

    def _body(self, body: GraphProto, name: str, scope: _Scope, skipped: int = 0) -> Body:
        """skipped: how many of its first results nobody reads."""
        inner = scope.within(body)
        results = tuple(inner.resolved(o.name) for o in body.output)[skipped:]
        made = [r for r in dict.fromkeys(results) if r in inner.producers or r in inner.held or r in inner.given]
        return Body(self.piece(name, inner, made), results)

    def piece(self, name: str, scope: _Scope, outputs: Sequence[str]) -> int:
        """Note what gives outputs, and return its number."""
        self.pieces.append(self.cut(name, scope, outputs))
        return len(self.pieces) - 1

    def cut(self, name: str, scope: _Scope, outputs: Sequence[str], is_first: bool = False) -> Piece:
        """Return what gives outputs. is_first: it takes inputs of the network alone, in their order."""
        reader = self._reader
        nodes, held, given, inputs = dict[int, NodeProto](), dict[str, Any](), list[str](), list[str]()
        waiting, seen = list(dict.fromkeys(outputs)), {""}
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            if (n := scope.producers.get(at)) is not None:
                if id(n) not in nodes:
                    nodes[id(n)] = n
                    waiting += _read(n)
            elif at in scope.held:
                held[at] = scope.held[at]
            elif at in scope.given:
                given.append(at)
            else:
                inputs.append(at)
        infos = {i.name: i for i in reader.source.model.graph.input}
        if is_first:
            inputs = [name for name in infos if name in inputs]

        def read(types: Types | None, elements: Mapping[str, Any], limits: Limits) -> Graph:
            proto, model = GraphProto(), ModelProto()
            proto.name = f"{reader.graph.name}.{name}"
            proto.node = list(nodes.values())
            proto.initializer = [t for t in held.values() if hasattr(t, "data_type")]
            proto.sparse_initializer = [t for t in held.values() if not hasattr(t, "data_type")]
            proto.input = [infos[n] if types is None else _info(types[n]) for n in inputs] + [infos[n] for n in given]
            proto.output = [_named(n) for n in dict.fromkeys(outputs)]
            source = reader.source
            model.ir_version, model.opset_import = source.model.ir_version, source.model.opset_import
            model.graph = proto
            shapes = reader.shapes if types is None else {n: types[n].shape for n in inputs}
            own = {n: reader.values[n] for n in given} | dict(elements)
            made = type(reader)(
                replace(source, model=model, content=None),
                {n: shape for n, shape in shapes.items() if n in inputs or n in given},
                own,
                reader.is_mapped,
                limits,
            )
            made.has_data = types is not None
            graph = made.read()
            diagnose(graph)
            return graph

        return Piece(Part(name, tuple(inputs), tuple(dict.fromkeys(outputs))), read)

    def needed(self, step: Step) -> list[str]:
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


def _check_results(node: NodeProto, name: str, body: Body, skipped: int = 0) -> None:
    """Raise InvalidModel where a node has more results than a body makes. skipped: those that are its condition."""
    if len(node.output) > len(body.results) - skipped:
        made = f"a body of it makes {len(body.results) - skipped}"
        raise InvalidModel(f"{node.op_type} {name!r} has {len(node.output)} results, {made}")


def _info(declared: Declared) -> ValueInfoProto:
    """Return what a file says of an input of such a type; extents that are no numbers are stated beside it."""
    made, tensor, shape = _named(declared.name), TensorType(), TensorShapeProto()
    tensor.elem_type = ELEMENT_TYPES.index(_ELEMENTS.get(declared.dtype) or dtypes.lookup(declared.dtype).name.upper())
    shape.dim = [Dimension() for _ in declared.shape]
    for d, extent in zip(shape.dim, declared.shape):
        if isinstance(extent, int):
            d.dim_value = extent
    tensor.shape, made.type = shape, TypeProto()
    made.type.tensor_type = tensor
    return made


def _named(name: str) -> ValueInfoProto:
    made = ValueInfoProto()
    made.name = name
    return made


def _read(node: NodeProto) -> list[str]:
    """Return the names that a node reads, and the graphs nested in it."""
    return [*node.input, *captured(node)]


def _held(proto: GraphProto) -> dict[str, TensorProto | SparseTensorProto]:
    return {t.name: t for t in proto.initializer} | {t.values.name: t for t in proto.sparse_initializer}
