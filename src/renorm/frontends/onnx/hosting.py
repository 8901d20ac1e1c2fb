"""ONNX models that are no one graph: loops that data end and branches that data choose, as steps of an outline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from renorm.core import dtypes
from renorm.core.limits import Limits
from renorm.core.stated import Declared
from renorm.frontends import hosting
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
from renorm.frontends.outline import Outline, Reading, Types
from renorm.graph.ir import Graph
from renorm.runtime.steps import Along, Body, Choice, Rounds, Step

if TYPE_CHECKING:
    from renorm.frontends.onnx.reader import Reader

_Scope = hosting.Scope[NodeProto]
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
    cut = _outline(reader, hosted)
    between = {name for part in cut.plan.parts for name in (*part.inputs, *part.outputs)}
    if any(isinstance(reader.root.values.get(name), Held) for name in between):  # pieces give each other arrays
        return
    raise hosting.hosted(cut, reader.problems, reader.source.label)


def _has_bodies(node: NodeProto) -> bool:
    return node.op_type in OPS and not standard_domain(node.domain)


def _outline(reader: Reader, hosted: Sequence[NodeProto]) -> Outline:
    proto = reader.source.model.graph
    order = topological(proto.node)[0]
    producers = {out: n for n in proto.node for out in n.output if out}
    scope = _Scope(producers, _held(proto), frozenset(reader.values))
    outputs = [(o.name, o.name) for o in proto.output]
    return _Cut(reader).outline([proto.node[p] for p in order], {id(n) for n in hosted}, scope, outputs)


class _Cut(hosting.Cut[NodeProto]):
    """Hold what is cut out of the network of a reader, piece by piece."""

    def __init__(self, reader: Reader):
        super().__init__(reader.graph)
        self._reader = reader
        self._places = {id(n): place for place, n in enumerate(reader.source.model.graph.node)}

    def is_drawn(self, node: NodeProto) -> bool:
        return node.op_type in _DRAWS or node.op_type.startswith("Random")

    def needs(self, node: NodeProto) -> Sequence[str]:
        return [*node.input, *captured(node)]

    def resolved(self, name: str, scope: _Scope) -> str:
        passed = set[str]()  # nodes of a body may stand in a ring
        while name not in passed and (n := scope.producers.get(name)) is not None:
            if n.op_type != "Identity" or standard_domain(n.domain) or not n.input:
                break
            passed.add(name)
            name = n.input[0]
        return name

    def step(self, node: NodeProto, scope: _Scope) -> Step:
        name = node.name or f"{node.op_type}_{self._places[id(node)]}"
        attributes = {a.name: a for a in node.attribute}
        if node.op_type == "If":
            branches = [attributes[which].g for which in ("then_branch", "else_branch")]
            first, second = (self._body(g, f"{name}.{w}", scope) for g, w in zip(branches, ("then", "else")))
            for body in (first, second):
                hosting.check_results("If", name, len(node.output), body)
            return Choice(name, "If", self.resolved(node.input[0], scope), (first, second), tuple(node.output))
        body = attributes["body"].g
        formal, operands = [i.name for i in body.input], [self.resolved(i, scope) for i in node.input]
        if node.op_type == "Loop":
            count, condition = ([*operands, "", ""])[:2]
            made = self._body(body, f"{name}.body", scope, 0 if condition else 1)
            hosting.check_results("Loop", name, len(node.output), made, 1 if condition else 0)
            stacked = (Along(),) * (len(body.output) - 1 - len(operands[2:]))
            return Rounds(
                *(name, "Loop", count or None, condition or None, tuple(operands[2:])),
                *(formal[0], formal[1], tuple(formal[2:]), made, tuple(node.output), stacked),
            )
        number = int(attributes["num_scan_inputs"].i)
        states = len(operands) - number
        made = self._body(body, f"{name}.body", scope)
        hosting.check_results("Scan", name, len(node.output), made)

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
        inner = _within(scope, body)
        return self.body(name, inner, [self.resolved(o.name, inner) for o in body.output][skipped:])

    def reading(
        self, name: str, nodes: Sequence[NodeProto], held: Mapping[str, Any], ends: tuple[Sequence[str], ...]
    ) -> Reading:
        reader, (inputs, given, outputs) = self._reader, ends
        infos = {i.name: i for i in reader.source.model.graph.input}

        def read(types: Types | None, elements: Mapping[str, Any], limits: Limits) -> Graph:
            proto, model = GraphProto(), ModelProto()
            proto.name = f"{reader.graph.name}.{name}"
            proto.node = list(nodes)
            proto.initializer = [t for t in held.values() if hasattr(t, "data_type")]
            proto.sparse_initializer = [t for t in held.values() if not hasattr(t, "data_type")]
            proto.input = [infos[n] if types is None else _info(types[n]) for n in inputs] + [infos[n] for n in given]
            proto.output = [_named(n) for n in outputs]
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

        return read


def _within(scope: _Scope, body: GraphProto) -> _Scope:
    """Return the scope of a body."""
    formal = {i.name for i in body.input}
    producers = {k: n for k, n in scope.producers.items() if k not in formal}
    producers |= {out: n for n in body.node for out in n.output if out}
    held = {**{k: t for k, t in scope.held.items() if k not in formal}, **_held(body)}
    return _Scope(producers, held, scope.given - formal)


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


def _held(proto: GraphProto) -> dict[str, TensorProto | SparseTensorProto]:
    return {t.name: t for t in proto.initializer} | {t.values.name: t for t in proto.sparse_initializer}
