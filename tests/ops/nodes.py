"""One ONNX node, run by renorm (reader, then references) and by ONNX Runtime; one op, run as loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from tests.frontends import onnx_runtime
from tests.ops.one_node import OneNode

from renorm import frontends
from renorm.core import dtypes
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.graph.op import OpDef, Sample
from renorm.graph.types import Spec, TensorType

Array = np.ndarray[Any, Any]


def model(
    op_type: str,
    opset: int,
    operands: Mapping[str, Array | None],
    outputs: tuple[str, ...] = ("y",),
    constant: tuple[str, ...] = (),
    read: tuple[str, ...] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node.

    operands: by name, None where left out; constant: those that are initializers; outputs: of the node;
    read: those that are outputs of the graph too (all by default).
    """
    given = {n: a for n, a in operands.items() if a is not None}
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in given.items()}
    node = helper.make_node(
        op_type, ["" if a is None else n for n, a in operands.items()], list(outputs), name="node", **attributes
    )
    read = tuple(o for o in outputs if o) if read is None else read
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in given.items() if n not in constant],
        [helper.make_tensor_value_info(o, TensorProto.UNDEFINED, None) for o in read],
        [onnx.numpy_helper.from_array(given[n], n) for n in constant if n in given],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def read(proto: onnx.ModelProto) -> Graph:
    return frontends.read(proto)


def by_renorm(proto: onnx.ModelProto, operands: Mapping[str, Array | None]) -> list[Array]:
    """What the references of the ops give that the reader makes of the model."""
    graph = read(proto)
    return interpret.run(graph, {v.name: operands[v.name] for v in graph.inputs})


def by_onnxruntime(proto: onnx.ModelProto, operands: Mapping[str, Array | None]) -> list[Array]:
    for o in proto.graph.output:
        o.type.tensor_type.elem_type = o.type.tensor_type.elem_type or TensorProto.FLOAT
    session = onnx_runtime.session(proto)
    return onnx_runtime.run(session, {i.name: operands[i.name] for i in session.get_inputs()})


def case(op: type[OpDef], *arrays: Array | None, **attributes: Any) -> OneNode:
    """An op on these operands."""
    specs = [
        None if a is None else Spec(TensorType(dtypes.from_numpy(a.dtype), tuple(a.shape)), values=a) for a in arrays
    ]
    return OneNode(op, Sample(*specs, **attributes))


def by_loops(op: type[OpDef], *arrays: Array | None, **attributes: Any) -> Array:
    """What the op's loops compute."""
    one = case(op, *arrays, **attributes)
    return one.run(one.kernel())[0]


def by_reference(op: type[OpDef], *arrays: Array | None, **attributes: Any) -> Array:
    """What the op's reference computes from float64 operands."""
    return case(op, *arrays, **attributes).reference()[0]


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)
