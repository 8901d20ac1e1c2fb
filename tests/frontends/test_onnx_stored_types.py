"""Tensors of ONNX files whose elements have at most 8 bits: several in a byte, each number of them, written again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import renorm
from renorm.core import dtypes
from renorm.core.conversion import converted
from renorm.core.errors import InvalidModel
from renorm.graph.parse import parse

SHAPE = (3, 5)  # no whole number of bytes, for 4 bits and for 2


def weights(dtype: str, size: int = 15) -> np.ndarray[Any, Any]:
    return converted(np.random.default_rng(0).integers(-9, 16, size).astype(np.float64), dtype)


def model(w: TensorProto, dtype: str) -> onnx.ModelProto:
    """w cast to float32, and as it is; x transposed; f cast to the dtype."""
    code, shape = helper.np_dtype_to_tensor_dtype(dtypes.numpy_dtype(dtype)), list(w.dims)
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Identity", ["w"], ["same"]),
        helper.make_node("Transpose", ["x"], ["turned"]),
        helper.make_node("Cast", ["f"], ["narrow"], to=code, saturate=0),
    ]
    inputs = [helper.make_tensor_value_info(n, c, SHAPE) for n, c in (("x", code), ("f", 1))]
    outputs = [
        helper.make_tensor_value_info(n, c, s)
        for n, c, s in (("wide", 1, shape), ("same", code, shape), ("turned", code, (5, 3)), ("narrow", code, SHAPE))
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)


def as_field(w: np.ndarray[Any, Any], code: int) -> TensorProto:
    """Elements in int32_data, where bytes are what they are in raw data."""
    raw = numpy_helper.from_array(w, "w").raw_data
    return TensorProto(name="w", data_type=code, dims=w.shape, int32_data=list(raw))


@pytest.mark.parametrize("dtype", dtypes.STORED)
@pytest.mark.parametrize("how", ["raw", "field", "external"])
def test_elements_of_a_file(how: str, dtype: str, tmp_path: Path) -> None:
    w, path = weights(dtype).reshape(SHAPE), tmp_path / "m.onnx"
    held = numpy_helper.from_array(w, "w")
    held = as_field(w, held.data_type) if how == "field" else held
    onnx.save(model(held, dtype), path, save_as_external_data=how == "external", location="w.bin", size_threshold=0)
    x, f = w[::-1], np.random.default_rng(1).normal(size=SHAPE).astype(np.float32) * 9
    module = renorm.compile(path, threads=1)
    renorm.optimize(path, tmp_path / "again.onnx")
    module.save(tmp_path / "m.rn")
    for one in (module, renorm.load(tmp_path / "m.rn"), renorm.compile(tmp_path / "again.onnx", threads=1)):
        wide, same, turned, narrow = one.run(x, f)
        np.testing.assert_array_equal(wide, w.astype(np.float32))
        assert same.tobytes() == w.tobytes()
        assert turned.tobytes() == np.ascontiguousarray(x.T).tobytes()
        assert narrow.tobytes() == converted(f, dtype).tobytes()
    text = str(renorm.read(path))
    assert str(parse(text)) == text


@pytest.mark.parametrize("dtype", ["int4", "uint2", "float4e2m1", "float8e5m2"])
def test_many_elements_and_none(dtype: str) -> None:
    """Many stay mapped as others do; none are no bytes."""
    for w in (weights(dtype, 200_001), weights(dtype, 0)):
        found = renorm.read(model(numpy_helper.from_array(w, "w"), dtype)).constants["w"].data
        assert found is not None
        assert found.tobytes() == w.tobytes()
        assert found.shape == w.shape


@pytest.mark.parametrize("is_external", [False, True])
def test_a_size_that_is_wrong(is_external: bool, tmp_path: Path) -> None:
    held = numpy_helper.from_array(weights("int4"), "w")
    held.raw_data = held.raw_data + b"\0"
    path = tmp_path / "m.onnx"
    onnx.save(model(held, "int4"), path, save_as_external_data=is_external, location="w.bin", size_threshold=0)
    with pytest.raises(InvalidModel, match="damaged"):
        renorm.read(path)


def test_types_that_nobody_knows_are_named() -> None:
    w = TensorProto(name="w", data_type=TensorProto.STRING, dims=[1], string_data=[b"a"])
    with pytest.raises(renorm.errors.UnsupportedOp, match="string") as found:
        renorm.read(model(w, "int4"))
    assert "float8e4m3fn" in str(found.value)


def test_a_network_that_begins_in_four_bits(tmp_path: Path) -> None:
    """Weights of int4 with a scale for each block, which a product reads."""
    rng = np.random.default_rng(2)
    w, scale = weights("int4", 24 * 7).reshape(24, 7), rng.uniform(0.1, 1, (3, 7)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=8),
            helper.make_node("MatMul", ["x", "d"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", 1, [5, 24])],
        [helper.make_tensor_value_info("y", 1, [5, 7])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(scale, "s")],
    )
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = rng.normal(size=(5, 24)).astype(np.float32)
    (y,) = renorm.compile(m, threads=1).run(x)
    np.testing.assert_allclose(y, x @ (w.astype(np.float32) * np.repeat(scale, 8, 0)), rtol=1e-5, atol=1e-5)
