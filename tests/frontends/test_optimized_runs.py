"""What `optimize` writes, ONNX Runtime runs at the opset of the source, with the names and numbers of the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplementedByRuntime
from tests.frontends.models import model
from tests.frontends.onnx_graphs import by_onnxruntime, inputs, network
from tests.random_numbers import RNG

import renorm


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def assert_runs(source: onnx.ModelProto, given: dict[str, Any], path: Path, level: int = 2) -> onnx.ModelProto | None:
    """The model that is written of a source; None where ONNX Runtime does not run the source itself."""
    try:
        expected = by_onnxruntime(source, given)
    except NotImplementedByRuntime:
        return None
    renorm.optimize(source, path, opt_level=level)
    written = onnx.load(path)
    assert [o.name for o in written.graph.output] == [o.name for o in source.graph.output]
    assert written.opset_import == source.opset_import
    for ours, theirs in zip(by_onnxruntime(written, given), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * max(1, np.abs(theirs).max(initial=0)))
    return written


def test_random_networks_of_all_opsets(tmp_path: Path) -> None:
    ran = [
        assert_runs(network(seed), inputs(seed), tmp_path / "out.onnx", level=(1, 2, 2)[seed % 3]) for seed in range(60)
    ]
    opsets = {m.opset_import[0].version for m in ran if m is not None}
    assert sum(m is not None for m in ran) > 50
    assert len(opsets) > 18


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("(float[2, 3] x) => (float[2, 4] y) { y = MatMul(x, w) }", ["MatMul"]),
        ("(float[2, 3] x) => (float[2, 4] y) { a = MatMul(x, w) y = Sum(a, d) }", ["MatMul", "Sum"]),
        ("(float[2, 3] x) => (float[2, 4] y) { t = Transpose(u) y = MatMul(x, t) }", ["MatMul"]),
        ("(float[3, 2] x) => (float[2, 4] y) { t = Transpose(x) y = MatMul(t, w) }", ["Transpose", "MatMul"]),
    ],
)
def test_products_at_an_opset_without_a_kernel_of_gemm(body: str, expected: list[str], tmp_path: Path) -> None:
    source = model(f"g {body}", opset=6, ir=3)
    read = {name for n in source.graph.node for name in n.input}
    for name, array in {"w": f(3, 4), "u": f(4, 3), "d": f(2, 4)}.items():
        if name in read:
            source.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
            source.graph.input.append(onnx.helper.make_tensor_value_info(name, 1, array.shape))
    shape = [d.dim_value for d in source.graph.input[0].type.tensor_type.shape.dim]
    written = assert_runs(source, {"x": f(*shape)}, tmp_path / "out.onnx")
    assert written is not None
    assert [n.op_type for n in written.graph.node] == expected


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 22, 26])
@pytest.mark.parametrize(
    "body",
    [
        "(float[2, 3] x) => (float[2, 3] y) { y = Identity(x) }",
        "(float[2, 3] x) => (float[2, 3] y, float[2, 3] z) { y = Identity(x) z = Identity(x) }",
        "(float[2, 3] x) => (float[2, 3] y, float[2, 3] z) { a = Relu(x) y = Identity(a) z = Identity(a) }",
        "(float[2, 3] x) => (float[2, 3] y, float[2, 3] a) { a = Relu(x) b = Identity(a) y = Neg(b) }",
        "(float[2, 3] x) => (float[2, 3] y, float[3] z, float[3] u) { y = Relu(x) z = Identity(s) u = Identity(s) }",
        "(float[2, 3] x) => (float[2, 3] y, float[3] z) { y = Relu(x) t = Mul(s, s) z = Identity(t) }",
        "(float[2, 3] x) => (float[2, 3] y, float[2, 3] z) { a = Relu(x) b = Dropout(a) y = Dropout(b) z = Neg(y) }",
        "(float[2, 3] x) => (float[2, 3] y, int64[2] z) { y = Relu(x) z = Shape(x) }",
    ],
)
def test_outputs_that_are_inputs_constants_or_the_same_value(body: str, opset: int, tmp_path: Path) -> None:
    source = model(f"g {body}", opset=opset, ir=8, **({"s": f(3)} if "(s" in body else {}))
    assert assert_runs(source, {"x": f(2, 3)}, tmp_path / "out.onnx") is not None
