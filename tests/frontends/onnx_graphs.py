"""Random small networks as ONNX models of opsets 6 to 26: norms, scales and moves that passes rewrite, and what changes
nothing (Identity, Dropout, a Cast to the same type) anywhere, in front of outputs too."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from tests.frontends import onnx_runtime

CHANNELS = 4
SHAPE = (1, CHANNELS, 4, 4)
onnxruntime.set_default_logger_severity(4)


def _constants(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    held = {
        "w": rng.normal(size=(CHANNELS, CHANNELS, 1, 1)),
        "k": rng.normal(size=(1, CHANNELS, 1, 1)),
        "c": rng.normal(size=SHAPE),
        "s": rng.uniform(0.5, 2, CHANNELS),
        "b": rng.normal(size=CHANNELS),
        "m": rng.normal(size=CHANNELS),
        "v": rng.uniform(0.5, 2, CHANNELS),
        "p": rng.normal(size=(4, 3)),
    }
    return {name: array.astype(np.float32) for name, array in held.items()}


def _nodes(draw: random.Random, kind: str, x: str, y: str, others: list[str], opset: int) -> list[onnx.NodeProto]:
    """Nodes that make y of x, and of another value where they read two."""
    made = helper.make_node
    match kind:
        case "Conv":
            return [made("Conv", [x, "w"], [y])]
        case "BatchNormalization":
            return [made("BatchNormalization", [x, "s", "b", "m", "v"], [y])]
        case "InstanceNormalization":
            return [made("InstanceNormalization", [x, "s", "b"], [y])]
        case "Add" | "Mul":
            return [made(kind, [x, draw.choice([*others, *(("k", "c") if opset >= 7 else ())])], [y])]
        case "Sum" | "Max":
            return [made(kind, [x, draw.choice(others)] if draw.random() < 0.5 else [x], [y])]
        case "Concat":
            return [made("Concat", [x], [y], axis=1)]
        case "Cast":
            return [made("Cast", [x], [y], to=onnx.TensorProto.FLOAT)]
        case "Transpose":
            back = made("Transpose", [f"{y}.t"], [y], perm=[0, 3, 1, 2])
            return [made("Transpose", [x], [f"{y}.t"], perm=[0, 2, 3, 1]), back]
        case "AveragePool" | "MaxPool":
            return [made(kind, [x], [y], kernel_shape=[1, 1])]
        case _:
            return [made(kind, [x], [y])]


_KINDS = (
    *["Identity"] * 5, "Dropout", "Relu", "Neg", "Conv", "BatchNormalization", "InstanceNormalization", "Add", "Mul",
    "Sum", "Concat", "Transpose", "Cast", "Sigmoid", "Max", "AveragePool", "MaxPool",
)  # fmt: skip


def network(seed: int) -> onnx.ModelProto:
    """A model with the input x and up to four outputs, the first of which are in a tail of products of matrices."""
    draw = random.Random(seed)
    opset = draw.randint(6, 26)
    ir = 3 if opset < 9 else draw.choice([3, 4, 8])
    values, nodes = ["x", *(["c"] if draw.random() < 0.5 else [])], list[onnx.NodeProto]()
    for i in range(draw.randint(1, 9)):
        near = values[-3:] if draw.random() < 0.7 else values
        nodes += _nodes(draw, draw.choice(_KINDS), draw.choice(near), f"t{i}", values, opset)
        values.append(f"t{i}")
    made = [v for v in values if v.startswith("t")]
    outputs: dict[str, tuple[int, ...]] = dict.fromkeys(
        (made[-1], *draw.sample(made, draw.randint(0, min(3, len(made))))), SHAPE
    )
    if draw.random() < 0.5:
        nodes.append(helper.make_node("MaxPool", [draw.choice(made)], ["pooled"], kernel_shape=[4, 4]))
        nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
        nodes.append(helper.make_node("MatMul", ["flat", "p"], ["scores"]))
        outputs["scores"] = (1, 3)
    used = {name for n in nodes for name in n.input}
    held = [numpy_helper.from_array(a, name) for name, a in _constants(seed).items() if name in used]
    listed = [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in held] if ir < 4 else []
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, SHAPE)
    results = [helper.make_tensor_value_info(o, onnx.TensorProto.FLOAT, shape) for o, shape in outputs.items()]
    graph = helper.make_graph(nodes, "random", [given, *listed], results, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def inputs(seed: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)}


def by_onnxruntime(model: onnx.ModelProto, given: Mapping[str, Any]) -> list[Any]:
    session = onnx_runtime.session(model)
    wanted = {i.name for i in session.get_inputs()}
    return onnx_runtime.run(session, {n: a for n, a in given.items() if n in wanted})
