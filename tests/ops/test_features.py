"""What prepares features: mel weights and ops of ai.onnx.ml, against the reference evaluator of the onnx package."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser
from onnx.reference import ReferenceEvaluator

import renorm
from renorm.errors import LimitExceeded, OperandError, UntoldOperand
from renorm.ops.mel_weight_matrix import weights

MEL = """<ir_version: 9, opset_import: ["" : 17]>
g (int64 bands, float lower, float upper) => (float[?,?] y) {
    length = Constant <value_int: int = %d> ()
    rate = Constant <value_int: int = %d> ()
    y = MelWeightMatrix (bands, length, rate, lower, upper)
}"""
F32, F64, I32, I64 = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT32, onnx.TensorProto.INT64


@pytest.mark.parametrize(
    ("bands", "length", "rate", "lower", "upper"),
    [(8, 16, 8192, 0.0, 4096.0), (40, 512, 16000, 20.0, 7600.0), (3, 7, 100, 5.0, 40.0), (20, 16, 8192, 0.0, 4000.0)],
)
def test_mel_weights(bands: int, length: int, rate: int, lower: float, upper: float) -> None:
    """Also of more bands than frequencies, where edges coincide."""
    model = parser.parse_model(MEL % (length, rate))
    given = {"bands": np.asarray(bands), "lower": np.float32(lower), "upper": np.float32(upper)}
    given = {n: np.asarray(a) for n, a in given.items()}
    expected: Any = ReferenceEvaluator(model).run(None, given)
    (y,) = renorm.compile(model, inputs=given).run()
    np.testing.assert_allclose(y, expected[0], rtol=1e-6)
    np.testing.assert_array_equal(renorm.compile(model).run(*given.values())[0], y)


def test_mel_weights_that_are_none() -> None:
    with pytest.raises(OperandError, match="beyond 9 frequencies up to 4096 Hz"):
        weights(8, 16, 8192, 0.0, 9000.0)
    model = parser.parse_model(MEL % (16, 8192))
    for elements, error in (
        ({"bands": 0, "lower": 0.0, "upper": 4000.0}, OperandError),
        ({"bands": 8, "lower": 4000.0, "upper": 5.0}, OperandError),
        ({"bands": 2**40, "lower": 0.0, "upper": 4000.0}, LimitExceeded),
    ):
        with pytest.raises(error):
            renorm.read(model, inputs=elements)


def test_mel_weights_of_data() -> None:
    """How many bands there are is computed of data: nobody can say it."""
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (float[70] x, float lower, float upper) => (float[?,?] y) {
            bands = ArgMax <axis: int = 0, keepdims: int = 0> (x)
            y = MelWeightMatrix (bands, bands, bands, lower, upper)
        }"""
    )
    with pytest.raises(UntoldOperand, match="num_mel_bins"):
        renorm.compile(model)


def _node(op_type: str, inputs: dict[str, Any], types: dict[str, Any], **attributes: Any) -> Any:
    node = helper.make_node(op_type, list(inputs), ["y"], domain="ai.onnx.ml", **attributes)
    infos = [helper.make_tensor_value_info(n, types.get(n) or I64, np.shape(a)) for n, a in inputs.items()]
    out = helper.make_empty_tensor_value_info("y")
    return helper.make_model(
        helper.make_graph([node], "g", infos, [out]),
        opset_imports=[helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("", 17)],
        ir_version=9,
    )


@pytest.mark.parametrize("threshold", [0.0, -1.5, 1.5, 3e9, -3e9])
@pytest.mark.parametrize(("dtype", "code"), [("float32", F32), ("float64", F64), ("int32", I32), ("int64", I64)])
def test_binarizer(threshold: float, dtype: str, code: int) -> None:
    """Of integers too, where the threshold is none of them."""
    x = np.asarray([[-2, -1, 0], [1, 2, 3]], dtype)
    (y,) = renorm.compile(_node("Binarizer", {"x": x}, {"x": code}, threshold=threshold)).run(x)
    np.testing.assert_array_equal(y, (x > threshold).astype(dtype), strict=True)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 5), (7,)])
def test_array_feature_extractor(shape: tuple[int, ...]) -> None:
    x, k = np.arange(np.prod(shape), dtype=np.float32).reshape(shape), np.asarray([[2, 0, 2]])
    model = _node("ArrayFeatureExtractor", {"x": x, "k": k}, {"x": F32})
    (y,) = renorm.compile(model).run(x, k)
    expected = x[..., k.reshape(-1)]
    np.testing.assert_array_equal(y, expected.reshape(1, -1) if len(shape) == 1 else expected)
