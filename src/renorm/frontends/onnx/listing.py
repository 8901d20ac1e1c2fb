"""An ONNX model as a listing, and back.

Constant nodes that hold a tensor are constants of the listing, and come back as initializers. Nodes keep all that the
file says of them; functions of the model are inlined first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnx.inliner
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from renorm.core.errors import InvalidModel, RenormError, UnsupportedOp
from renorm.core.limits import Limits
from renorm.frontends.files import called, opened
from renorm.frontends.listing import Array, Listing, Operator
from renorm.frontends.onnx import bounds, tensors
from renorm.frontends.onnx.messages import captured, graphs
from renorm.frontends.onnx.model import standard_domain
from renorm.frontends.onnx.writer import list_as_inputs, to_tensor

_WHOLE = b"tensor"  # in Listing.types: the constant is a serialized TensorProto, whose elements are no array


def load(source: Any, limits: Limits, is_slim: bool = False) -> ModelProto:
    """Return a model (a path, bytes, or a ModelProto) with all of its data. limits: what it may ask for. is_slim:
    without those in files of their own. Raises InvalidModel, LimitExceeded."""
    model = source if isinstance(source, ModelProto) else _parsed(source, limits, is_slim)
    bounds.check(cast(Any, model), called(source, model.graph.name) or "model", limits)
    return model


def inlined(model: ModelProto, limits: Limits) -> ModelProto:
    """Return a model with bodies of functions in the place of calls, the same where it has none. Raises LimitExceeded
    before any is put there."""
    if not model.functions:
        return model
    bounds.check(cast(Any, model), model.graph.name or "model", limits)
    return onnx.inliner.inline_local_functions(model, convert_version=True)


def _parsed(source: Any, limits: Limits, is_slim: bool) -> ModelProto:
    try:
        if isinstance(source, (str, os.PathLike)):
            opened(source, limits).close()
            model = onnx.load(os.fspath(source), load_external_data=False)
            return model if is_slim else _with_data(model, Path(source), limits)
        return onnx.load_from_string(bytes(source))
    except (RenormError, MemoryError):
        raise
    except Exception as error:  # of the system, of protobuf, or of onnx over what is said of data in other files
        raise InvalidModel(f"{source if isinstance(source, (str, Path)) else 'bytes'}: {error}") from error


def _with_data(model: ModelProto, path: Path, limits: Limits) -> ModelProto:
    """Return the model with the data that it has in other files, which are looked at as the reader does."""
    held = cast(list[GraphProto], graphs(cast(Any, model.graph)))
    nodes = [n for part in (*held, *model.functions) for n in part.node]
    inner = [t for n in nodes for a in n.attribute for t in (a.t, *a.tensors)]
    for tensor in (*(t for g in held for t in g.initializer), *inner):
        for entry in tensor.external_data:
            if entry.key == "location":
                file = tensors.external_file(entry.value, path, f"initializer {tensor.name!r}")
                opened(file, limits).close()
    onnx.load_external_data_for_model(model, str(path.parent))
    return model


def listing(model: ModelProto, limits: Limits) -> Listing:
    """Return what a model consists of. Raises LimitExceeded."""
    model = inlined(model, limits)
    graph, constants, types = model.graph, dict[str, Array](), dict[str, bytes]()
    for tensor in graph.initializer:
        constants[tensor.name] = _elements(tensor, tensor.name, types)
    for sparse in graph.sparse_initializer:
        what = f"initializer {sparse.values.name!r}"
        constants[sparse.values.name] = tensors.from_sparse(cast(Any, sparse), what, limits)
    operators = list[Operator]()
    for node in graph.node:
        if not standard_domain(node.domain) and node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = _elements(node.attribute[0].t, node.output[0], types)
        else:
            operators.append(_operator(node))
    types.update((v.name, v.SerializeToString(deterministic=True)) for v in graph.value_info)
    inputs = [v.name for v in graph.input if v.name not in constants]
    return Listing(inputs, [v.name for v in graph.output], operators, constants, types)


def assemble(model: ModelProto, found: Listing) -> ModelProto:
    """Return a model with these operators and constants, and all else as in `model`."""
    made = _without_contents(model)
    made.graph.node.extend(o.native for o in found.operators)
    for name, array in found.constants.items():
        made.graph.initializer.append(_tensor(array, name, found.types.get(name) == _WHOLE))
    list_as_inputs(made, made.graph.initializer)
    ends = {*found.inputs, *found.outputs}
    for name in dict.fromkeys(n for o in found.operators for n in o.results):
        if name in found.types and name not in ends:
            made.graph.value_info.add().ParseFromString(found.types[name])
    return made


def fragment(operators: list[Operator], of: Listing, model: ModelProto) -> bytes:
    """Operators of a model alone, with the versions that they follow and what is said of the values that they make."""
    versions = ModelProto(opset_import=model.opset_import)
    return assemble(versions, Listing([], [], operators, types=of.types)).SerializeToString(deterministic=True)


def _without_contents(model: ModelProto) -> ModelProto:
    slim = ModelProto()
    slim.CopyFrom(model)
    constants = {t.name for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in constants]
    for part in ("node", "initializer", "sparse_initializer", "value_info", "input"):
        slim.graph.ClearField(part)
    slim.ClearField("functions")
    slim.graph.input.extend(inputs)
    return slim


def _operator(node: NodeProto) -> Operator:
    body = NodeProto()
    body.CopyFrom(node)
    body.domain = standard_domain(node.domain)
    for field in ("name", "doc_string", "input", "output", "metadata_props"):
        body.ClearField(field)
    group = next((a.i for a in node.attribute if a.name == "group" and a.type == AttributeProto.INT), 1)
    return Operator(
        node.op_type,
        node.name,
        body.SerializeToString(deterministic=True),
        tuple(node.input),
        tuple(node.output),
        node,
        tuple(captured(cast(Any, node))),
        group,
    )


def _elements(tensor: TensorProto, name: str, types: dict[str, bytes]) -> Array:
    try:
        return tensors.to_array(cast(Any, tensor), None, f"initializer {name!r}")
    except UnsupportedOp:
        types[name] = _WHOLE
        return np.frombuffer(tensor.SerializeToString(deterministic=True), np.uint8)


def _tensor(array: Array, name: str, is_whole: bool) -> TensorProto:
    if not is_whole:
        return to_tensor(array, name)
    tensor = TensorProto()
    tensor.ParseFromString(array.tobytes())
    tensor.name = name
    return tensor
