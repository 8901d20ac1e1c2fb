"""Graph to ONNX, at the opset and IR version of the file it was read from.

Names of inputs, outputs, nodes and values are the graph's; constants become initializers; extents that are open stay
open. A node whose op no pass has changed gets its original attributes back, as the file stated them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

import renorm
from renorm import ops
from renorm.core import dtypes
from renorm.core.dims import Dim, Sym, Symbol, symbols_of
from renorm.core.errors import InternalError, UnsupportedOp
from renorm.frontends.counted import computed
from renorm.frontends.files import replaced
from renorm.frontends.onnx import tensors
from renorm.frontends.onnx.provenance import KEY, Provenance
from renorm.graph import interpret, registry
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.op import OpDef

INLINE_LIMIT = 2**31 - 2**24  # bytes of weights that fit beside the rest in one protobuf message, whose limit is 2 GiB
_OF_RUNTIME = {"Gemm": 7}  # opsets since which ONNX Runtime has kernels of ops that passes bring in
_ALIGNMENT = 4096  # of tensors in external data, so that they can be mapped into memory page by page


def write(
    graph: Graph,
    path: str | os.PathLike[str] | None = None,
    *,
    inline_limit: int = INLINE_LIMIT,
    attach: Callable[[ModelProto], None] | None = None,
) -> ModelProto:
    """Return the graph as an ONNX model, also written to `path` if given: whole or not at all.

    inline_limit: bytes; with more constants than that they go into a file `<name>.data` beside the model. attach: adds
    to the model before it is written. Raises UnsupportedOp that names every node which ONNX cannot express at the
    graph's opset.
    """
    model = _Writer(_spelled(graph)).model()
    if attach is not None:
        attach(model)
    if path is None:
        _check(model, None)
    else:
        save(model, path, inline_limit)
    return model


def save(
    model: ModelProto, path: str | os.PathLike[str], inline_limit: int = INLINE_LIMIT, *, is_ours: bool = True
) -> None:
    """Write a model: whole or not at all. is_ours: nodes are renorm's, so that what is wrong with them is its fault;
    they are checked first."""
    target = Path(os.fsdecode(path))
    if sum(len(t.raw_data) for t in model.graph.initializer) <= inline_limit:
        if is_ours:
            _check(model, None)
        with replaced(target) as file:
            file.write(model.SerializeToString())
    else:
        data = target.with_name(target.name + ".data")
        with replaced(target) as file, replaced(data) as beside:
            slim = _externalized(model, data.name, beside)
            file.write(slim.SerializeToString())
            file.flush()  # what is left to be done for it cannot fail any more when `data` is replaced
            os.fsync(file.fileno())
        if is_ours:
            _check(slim, target)


def vocabulary(graph: Graph, path: str | os.PathLike[str]) -> Callable[[str], bool]:
    """Return whether ONNX has an op at the graph's opset, also for files without it, and ONNX Runtime a kernel of
    it."""
    provenance: Provenance = graph.metadata.get(KEY) or Provenance.default()
    opset = provenance.opsets.get("", 0)

    def is_there(op_type: str) -> bool:
        return opset >= _OF_RUNTIME.get(op_type, 0) and _is_current(op_type, opset)

    return lambda op: any(is_there(key) for key in registry.find(op).onnx if "::" not in key)


def _is_current(op_type: str, opset: int) -> bool:
    return onnx.defs.has(op_type, opset) and not onnx.defs.get_schema(op_type, opset).deprecated


def _spelled(graph: Graph) -> Graph:
    """Return the graph with ops in the place of nodes that ONNX says by these, where it has no op."""
    told = any(v.readers for v in graph.extents.values())
    if not told and all(type(n.op).in_onnx is OpDef.in_onnx for n in graph.nodes):
        return graph
    graph = graph.copy()
    _compute_extents(graph)
    writer = _Writer(graph)
    for node in [*graph.nodes]:
        if type(node.op).in_onnx is OpDef.in_onnx or writer.node(node) is not None:
            continue
        with graph.at(node, node.origin):
            made = node.op.in_onnx(node)
        if made is not None:
            results = made if isinstance(made, list) else [made]
            for old, new in zip(node.outputs, results, strict=True):
                if not graph.is_output(old):
                    graph.swap_names(old, new)
                graph.replace(old, new)
            graph.discard([node])
            graph.rename_node(results[0].producer, node.name)
    return graph


def _compute_extents(graph: Graph) -> None:
    """Have what ops are told of open extents computed of the shapes of inputs."""
    told = [(v, v.known) for v in graph.extents.values() if v.readers and v.known is not None]
    missing = {s for _, known in told for d in known.flat for s in symbols_of(d)}
    counts = dict[Symbol, Value]()
    with graph.at(graph.nodes[0]) if told else nullcontext():
        for x in graph.inputs:
            for axis, d in enumerate(x.shape):
                for s in [s for s in symbols_of(d) if s in missing and d == Sym(s)]:
                    counts[s] = ops.slice(ops.shape(x), np.array([axis]), np.array([axis + 1]))
                    missing.remove(s)
        if missing:
            raise UnsupportedOp(f"{graph.name}: no input has the extent {min(missing)}, which an op is told")
        for v, known in told:
            parts = [computed(graph, d, counts) for d in known.flat]
            whole = parts[0] if len(parts) == 1 else ops.concat(parts, axis=0)
            for n in [*v.users]:
                n.replace_operand(v, whole if v.rank else ops.squeeze(whole, axes=(0,)))


def _as_in_graph(node: Node) -> NodeProto:
    """Return what a node reads and makes, where ONNX cannot say it."""
    read = [v.name for v in node.inputs if v is not None]
    return NodeProto(op_type=node.op.name, name=node.name, input=read, output=[v.name for v in node.outputs])


class _Writer:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.provenance: Provenance = graph.metadata.get(KEY) or Provenance.default()
        self.used: dict[str, Value] = {}  # constants that something reads, by name
        self.extra: list[TensorProto] = []  # arrays that an op writes as operands
        self.read = {v for n in graph.nodes for v in n.inputs if v is not None} | set(graph.outputs)

    def model(self) -> ModelProto:
        tried = [(n, self.node(n)) for n in self.graph.nodes]
        written = [(n, proto) for n, proto in tried if proto is not None or not self._computed(n)]
        for v in self.graph.outputs:
            if v.is_constant:
                self.used[v.name] = v
        asked, named = self._asked([(n, proto or _as_in_graph(n)) for n, proto in written])
        said = {n: proto for n, proto in written if proto is not None}
        if unsupported := [n for n in asked if n not in said]:
            raise self._refusal(unsupported)
        nodes = [said[n] for n in asked]
        proto = GraphProto(name=self.graph.name)
        proto.node.extend(nodes)
        constants = [to_tensor(np.asarray(v.data), v.name) for v in self.used.values() if v.name in named]
        constants += [t for t in self.extra if t.name in named]
        proto.initializer.extend(constants)
        proto.input.extend(self._declared(v) for v in self.graph.inputs)
        proto.output.extend(self._declared(v) for v in self.graph.outputs)
        outputs = set(self.graph.outputs)
        proto.value_info.extend(
            self._declared(v)
            for n, _ in written
            for v in n.outputs
            if v in self.read and v not in outputs and v.name in named and _is_named(v)
        )
        model = ModelProto(ir_version=self.provenance.ir_version, graph=proto)
        list_as_inputs(model, constants)
        model.producer_name, model.producer_version = "renorm", renorm.__version__
        for domain, version in self.provenance.opsets.items():
            model.opset_import.add(domain=domain, version=version)
        for key, value in self.provenance.properties.items():
            model.metadata_props.add(key=key, value=value)
        return model

    def _asked(self, written: Sequence[tuple[Node, NodeProto]]) -> tuple[list[Node], set[str]]:
        """Return the nodes without those of which something is read in the graph, but nothing in the file (ONNX says
        some ops with fewer operands, or two as one), and all names that the others read or make."""
        read, left = {v.name for v in self.graph.outputs}, list[Node]()
        made, named = {v.name for v in self.read}, set(read)
        for n, proto in reversed(written):
            if made.isdisjoint(proto.output) or not read.isdisjoint(proto.output):
                left.append(n)
                read.update(proto.input)
                named.update((*proto.input, *proto.output))
        return left[::-1], named

    def _computed(self, node: Node) -> bool:
        """Return whether the results of a node that ONNX cannot say are known, as tensors of the file: those of
        constants alone, as weights with a scale per channel at an opset whose DequantizeLinear has one scale."""
        held = {v: v.data for v in node.inputs if v is not None}
        is_known = all(v.type.is_static for v in node.outputs)
        env = {v: interpret.widen(data) for v, data in held.items() if data is not None}
        if len(env) < len(held) or not is_known:
            return False
        results = interpret.apply(node, env)
        for v, data in zip(node.outputs, results):
            self.extra.append(to_tensor(data.astype(dtypes.numpy_dtype(v.dtype)), v.name))
        return True

    # --- nodes ---------------------------------------------------------------------------------------------------

    def node(self, node: Node) -> NodeProto | None:
        """Return a node as ONNX says it; None where it cannot."""
        form = self.provenance.forms.get(node.name)
        if form is not None and form.op == node.op and form.present == tuple(v is not None for v in node.inputs):
            written = NodeProto(op_type=form.op_type, name=node.name, domain=form.domain)
            written.attribute.extend(map(AttributeProto.FromString, form.attributes))
            operands: Sequence[Any] = node.inputs
        else:
            early = (self.provenance.early[t] for t in node.op.onnx if t in self.provenance.early)
            said = node.op.to_onnx(node, max((self.provenance.opsets.get("", 0), *early)))
            if said is None:
                return None
            key, attributes, operands = said
            domain, _, op_type = key.rpartition("::")
            written = NodeProto(op_type=op_type, name=node.name, domain=domain)
            written.attribute.extend(self._attributes(written, attributes))
            if not self._is_defined(node, written, attributes, operands):
                return None
        written.input.extend(self._operands(node, operands))
        written.output.extend(self._results(node, written))
        return written

    def _is_defined(
        self, node: Node, written: NodeProto, attributes: Mapping[str, Any], operands: Sequence[Any]
    ) -> bool:
        """Return whether ONNX defines this op at the graph's opset, with these attributes, for these types."""
        schema = self._schema(written)
        if schema is None:
            return bool(written.domain)  # a domain of which nothing is known here
        if schema.deprecated or any(a.name not in schema.attributes for a in written.attribute):
            return False
        if any(
            _kind(schema, a) == AttributeProto.INT and isinstance(v, float) and not v.is_integer()
            for a, v in attributes.items()
        ):
            return False
        given = [None if o is None else o.dtype if isinstance(o, Value) else str(np.asarray(o).dtype) for o in operands]
        results = [None] * node.op.onnx_place + [v.dtype if v in self.read else None for v in node.outputs]
        bound: dict[str, str] = {}
        return _admits(schema.inputs, given, bound) and _admits(schema.outputs, results, bound)

    def _operands(self, node: Node, operands: Sequence[Any]) -> list[str]:
        names: list[str] = []
        for i, o in enumerate(operands):
            if o is None:
                names.append("")
            elif isinstance(o, Value):
                if o.is_constant:
                    self.used[o.name] = o
                names.append(o.name)
            else:
                name = self.graph.fresh(f"{node.name}.operand{i}")
                self.extra.append(to_tensor(np.asarray(o), name))
                names.append(name)
        return _trimmed(names)

    def _results(self, node: Node, written: NodeProto) -> list[str]:
        """Return names of the results; an optional one that nobody reads is left out."""
        schema = self._schema(written)
        names = [self.graph.fresh(f"{node.name}.output{i}") for i in range(node.op.onnx_place)]
        for i, v in enumerate(node.outputs):
            is_needed = schema is None or _is_needed(schema.outputs, i)
            names.append(v.name if is_needed or v in self.read else "")
        names = _trimmed(names)
        unread = range(len(names), node.op.onnx_outputs(self.provenance.opsets.get(written.domain, 0)))
        return names + [self.graph.fresh(f"{node.name}.output{i}") for i in unread]

    def _attributes(self, node: NodeProto, attributes: Mapping[str, Any]) -> list[AttributeProto]:
        schema, written = self._schema(node), list[AttributeProto]()
        for name, value in attributes.items():
            if value is None:
                continue
            kind = _kind(schema, name)
            if kind == AttributeProto.INT and isinstance(value, str):
                value = tensors.dtype_code(value)  # an op's Type attribute
            elif isinstance(value, np.ndarray):
                value = to_tensor(value, name)
            elif kind == AttributeProto.INT or isinstance(value, bool):
                value = int(value)
            elif kind == AttributeProto.FLOAT:
                value = float(value)
            elif kind == AttributeProto.FLOATS:
                value = [float(v) for v in value]
            written.append(onnx.helper.make_attribute(name, value, attr_type=kind))
        return written

    def _schema(self, node: NodeProto) -> onnx.defs.OpSchema | None:
        version = self.provenance.opsets.get(node.domain, 0)
        if not node.domain:
            version = self.provenance.early.get(node.op_type, version)
        if not version or not onnx.defs.has(node.op_type, version, node.domain):
            return None
        return onnx.defs.get_schema(node.op_type, version, node.domain)

    def _refusal(self, nodes: Sequence[Node]) -> UnsupportedOp:
        first, opset = nodes[0], self.provenance.opsets.get("", 0)
        counted: dict[str, int] = {}
        for n in nodes:
            counted[n.op.name] = counted.get(n.op.name, 0) + 1
        return UnsupportedOp(
            f"{self.provenance.label}: node {first.name!r} is {first.op!r}, which ai.onnx {opset} cannot express",
            [f"all such nodes: {', '.join(f'{name} ({n})' for name, n in counted.items())}"],
            "use a newer opset in the source model, or a lower optimization level",
        )

    # --- types ---------------------------------------------------------------------------------------------------

    def _declared(self, value: Value) -> ValueInfoProto:
        declared = ValueInfoProto(name=value.name)
        tensor = declared.type.tensor_type
        tensor.elem_type = tensors.dtype_code(value.dtype)
        tensor.shape.SetInParent()  # rank 0 is a shape too
        for d in value.shape:
            dim = tensor.shape.dim.add()
            if isinstance(d, int):
                dim.dim_value = d
            elif text := self._dim_param(d):
                dim.dim_param = text
        return declared

    def _dim_param(self, dim: Sym) -> str:
        """Return the name of an open extent; empty for one that had none in the source."""
        if any(s.startswith("?") for s in dim.symbols()):
            return ""
        return self.provenance.dims.get(str(dim), str(dim))


def list_as_inputs(model: ModelProto, tensors: Iterable[TensorProto]) -> None:
    """List initializers as inputs, which they had to be before IR version 4."""
    if model.ir_version < 4:
        infos = (onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in tensors)
        model.graph.input.extend(infos)


def to_tensor(array: tensors.Array, name: str) -> TensorProto:
    """Return an ONNX tensor with these elements."""
    tensor = TensorProto(name=name, data_type=tensors.dtype_code(dtypes.from_numpy(array.dtype)), dims=array.shape)
    tensor.raw_data = tensors.raw_data(array)
    return tensor


def _kind(schema: onnx.defs.OpSchema | None, attribute: str) -> int | None:
    """Return the type that ONNX states for an attribute."""
    if schema is None or attribute not in schema.attributes:
        return None
    declared: Any = schema.attributes[attribute].type
    return int(declared.value)


def _admits(
    parameters: Sequence[onnx.defs.OpSchema.FormalParameter], dtypes: Sequence[str | None], bound: dict[str, str]
) -> bool:
    """Return whether values of these dtypes may stand at the places of a schema; None stands for one that is left out.
    bound: dtypes of type variables so far."""
    for place, dtype in enumerate(dtypes):
        if dtype is None or not parameters:
            continue
        parameter = parameters[min(place, len(parameters) - 1)]  # the last one may be variadic
        if f"tensor({_WORDS.get(dtype, dtype)})" not in parameter.types:
            return False
        if parameter.is_homogeneous and bound.setdefault(parameter.type_str, dtype) != dtype:
            return False
    return True


_WORDS = {"float32": "float", "float64": "double"}  # dtypes that schemas call otherwise


def _is_named(value: Value) -> bool:
    def said(d: Dim) -> bool:
        return isinstance(d, int) or not any(s.startswith("?") for s in d.symbols())

    return all(said(d) for d in value.shape)


def _is_needed(results: Sequence[onnx.defs.OpSchema.FormalParameter], place: int) -> bool:
    """Return whether a node has to list its result at a place, also where nobody reads it."""
    option = onnx.defs.OpSchema.FormalParameterOption
    if place < len(results):
        return results[place].option != option.Optional
    return bool(results) and results[-1].option == option.Variadic


def _trimmed(names: list[str]) -> list[str]:
    while names and not names[-1]:
        names.pop()
    return names


# --- files -------------------------------------------------------------------------------------------------------


def _externalized(model: ModelProto, name: str, file: IO[bytes]) -> ModelProto:
    """Return a model whose initializers lie in the file of that name, which this writes."""
    slim = ModelProto()
    _copy_fields(model, slim, but="graph")
    _copy_fields(model.graph, slim.graph, but="initializer")

    for t in model.graph.initializer:
        if not t.raw_data:  # elements of a typed field, which has none outside
            slim.graph.initializer.add().CopyFrom(t)
            continue
        offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
        file.write(b"\0" * (offset - file.tell()))
        file.write(t.raw_data)
        placed = slim.graph.initializer.add()
        _copy_fields(t, placed, but="raw_data")
        placed.data_location = TensorProto.EXTERNAL
        for key, value in (("location", name), ("offset", offset), ("length", len(t.raw_data))):
            placed.external_data.add(key=key, value=str(value))
    return slim


def _copy_fields(source: Any, target: Any, but: str) -> None:
    """All fields of a message but one, which may be too large to be held twice."""
    for field, value in source.ListFields():
        if field.name == but:
            continue
        if hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)


def _is_misjudged(node: NodeProto) -> bool:
    """Return whether shape inference of the onnx package refuses some nodes of this kind that are right: up to opset 21
    it counts windows that begin after x, which PyTorch and ONNX Runtime do not; its body of MeanVarianceNormalization
    has float32 constants, and one without a value; to RMSNormalization y has the type of x, and not of its scale."""
    is_cut_up = any(a.name == "ceil_mode" and a.i for a in node.attribute)
    return is_cut_up or node.op_type in ("MeanVarianceNormalization", "RMSNormalization")


def _check(model: ModelProto, path: Path | None) -> None:
    """Ask onnx whether the model is valid, types included; if not, that is a fault of renorm. Ops that the model's
    opset does not have yet, or any more, stand in it because its source has them, and are passed over."""
    opset = next((o.version for o in model.opset_import if not o.domain), 0)
    others = [i for i, n in enumerate(model.graph.node) if not n.domain and not _is_current(n.op_type, opset)]
    if others and path is None:
        checked = ModelProto()
        checked.CopyFrom(model)
        for i in others:
            checked.graph.node[i].domain = "other"
        checked.opset_import.add(domain="other", version=1)
        model = checked
    elif others:
        return
    try:
        try:
            onnx.checker.check_model(str(path) if path else model, full_check=True)
        except onnx.shape_inference.InferenceError:
            if not any(_is_misjudged(n) for n in model.graph.node):
                raise
            onnx.checker.check_model(str(path) if path else model)
    except Exception as error:  # the checker raises ValidationError, InferenceError and plain RuntimeError
        raise InternalError(
            f"the ONNX model written for graph {model.graph.name!r} is not valid",
            [*str(error).splitlines()],
            "report this with the model",
        ) from error
