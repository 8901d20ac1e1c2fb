"""Casts agree wherever they are computed: as a constant, by the references, by machine code; and with ONNX Runtime
where ONNX defines the result."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.frontends import onnx_runtime

import renorm
from renorm.core import conversion, dtypes
from renorm.graph import interpret

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16",
    "uint8", "bool",
)  # fmt: skip
CODES = {
    d: onnx.TensorProto.BFLOAT16 if d == "bfloat16" else helper.np_dtype_to_tensor_dtype(np.dtype(d)) for d in DTYPES
}
FLOATS = (0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 127.9, 128.0, -128.9, -129.0, 255.9, 256.0, 65504.0, 65520.0, 70000.0, 3e9,
          -3e9, 2.0**31, 2.0**53, 9.3e18, -9.3e18, 1.9e19, 3.3e38, 1e39, 1e-8, np.nan, np.inf, -np.inf)  # fmt: skip
INTEGERS = (0, 1, -1, 127, 128, -129, 255, 256, 65519, 65520, 2**24 + 1, 2**31 - 1, 2**31, -(2**31), 2**53 + 1,
            2**63 - 1, -(2**63), 2**64 - 1)  # fmt: skip


def hostile(dtype: str) -> np.ndarray[Any, Any]:
    """Numbers of a dtype at and around the limits of the others."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dtypes.is_float(dtype):
            return np.asarray(FLOATS).astype(dtypes.numpy_dtype(dtype))
        if dtype == "bool":
            return np.asarray([False, True])
        return np.asarray([conversion.wrapped(i, dtype) for i in INTEGERS], dtype)


def test_tf32_has_eleven_digits_and_ties_go_away_from_zero() -> None:
    rng = np.random.default_rng(7)
    with np.errstate(all="ignore"):
        x = rng.integers(0, 1 << 32, 1 << 14, np.uint32)
        x[::3] = (x[::3] & 0xFFFFE000) | 0x1000
        x = x.view(np.float32)
        wide = x.astype(np.float64)
        unit = np.ldexp(1.0, np.maximum(np.frexp(wide)[1] - 1, -126) - 10)
        expected = np.copysign(np.floor(np.abs(wide) / unit + 0.5) * unit, wide).astype(np.float32)
    np.testing.assert_array_equal(conversion.converted(x, "tf32"), expected)
    found = conversion.converted(np.asarray(FLOATS), "tf32")
    assert np.array_equal(conversion.converted(found, "tf32"), found, equal_nan=True)
    assert not np.any(found[np.isfinite(found)].view(np.uint32) & 0x1FFF)
    is_number = np.isfinite(found) & (found != 0)
    assert np.abs(found[is_number] / np.asarray(FLOATS)[is_number] - 1).max() <= dtypes.unit_roundoff("tf32")


def cast_model(x: np.ndarray[Any, Any], targets: list[str], is_constant: bool) -> onnx.ModelProto:
    """y_dtype = cast(x) for each dtype; a second input and output stand for a network round it."""
    source = "bfloat16" if x.dtype == ml_dtypes.bfloat16 else x.dtype.name
    given = helper.make_tensor_value_info("x", CODES[source], x.shape)
    other = [helper.make_tensor_value_info(n, 1, [2]) for n in ("a", "b")]
    nodes = [helper.make_node("Relu", ["a"], ["b"])]
    for dtype in targets:
        nodes.append(helper.make_node("Cast", ["x"], [f"c_{dtype}"], to=CODES[dtype]))
        nodes.append(helper.make_node("Reshape", [f"c_{dtype}", "shape"], [f"y_{dtype}"]))
    held = [numpy_helper.from_array(np.asarray([1, -1]), "shape")]
    graph = helper.make_graph(
        nodes,
        "g",
        [*([] if is_constant else [given]), other[0]],
        [*(helper.make_tensor_value_info(f"y_{d}", CODES[d], [1, x.size]) for d in targets), other[1]],
        held + ([numpy_helper.from_array(x, "x")] if is_constant else []),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def bits(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """For comparison bit by bit, NaNs as one."""
    flat = np.asarray(a).reshape(-1)
    wide = flat.astype(np.float64) if flat.dtype.kind in "fV" else None
    raw = flat.view(f"u{flat.itemsize}")
    return raw if wide is None else np.where(np.isnan(wide), np.iinfo(raw.dtype).max, raw)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.usefixtures("kept_code")
def test_a_cast_is_the_same_constant_interpreted_and_compiled(source: str) -> None:
    x, one = hostile(source), np.ones(2, np.float32)
    targets = [d for d in DTYPES if d != source]
    model = cast_model(x, targets, is_constant=False)
    interpreted = interpret.run(renorm.read(model), [x, one])
    compiled = renorm.compile(model, threads=1).run(x, one)
    constant = renorm.compile(cast_model(x, targets, is_constant=True), threads=1).run(one)
    by_onnxruntime = dict[str, np.ndarray]()
    if source != "bfloat16":
        known = [d for d in targets if d != "bfloat16"]
        by_onnxruntime = dict(zip(known, onnx_runtime.run(cast_model(x, known, is_constant=False), {"x": x, "a": one})))
    for dtype, expected, *others in zip(targets, interpreted, compiled, constant):
        for found in others:
            np.testing.assert_array_equal(bits(found), bits(expected), err_msg=f"{source} to {dtype}: {x}")
        if dtype not in by_onnxruntime:
            continue
        is_defined = np.ones(x.size, bool)
        if dtypes.is_int(dtype) and dtypes.is_float(source):
            low, high = conversion.limits(dtype)
            with np.errstate(invalid="ignore"):
                whole = np.trunc(x.astype(np.float64))
                is_defined = (whole >= low) & (whole < float(high) + (dtypes.lookup(dtype).bits < 64))
        theirs = bits(by_onnxruntime[dtype])
        np.testing.assert_array_equal(theirs[is_defined], bits(expected)[is_defined], err_msg=f"{source} to {dtype}")


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul"])
def test_arithmetic_of_constants_wraps_as_at_run_time(op_type: str) -> None:
    for dtype in ("int8", "uint8", "int32", "int64", "uint64"):
        low, high = conversion.limits(dtype)
        a, b = np.asarray([high, low, high], dtype), np.asarray([1, high, high], dtype)
        graph = helper.make_graph(
            [helper.make_node(op_type, ["a", "b"], ["c"]), helper.make_node("Cast", ["c"], ["y"], to=CODES["float64"])],
            "g", [helper.make_tensor_value_info("x", 1, [1])], [helper.make_tensor_value_info("y", 11, [3])],
            [numpy_helper.from_array(a, "a"), numpy_helper.from_array(b, "b")],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        (found,) = renorm.compile(model, threads=1).run(np.ones(1, np.float32))
        with np.errstate(over="ignore"):
            expected = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[op_type](a, b)
        np.testing.assert_array_equal(found, expected.astype(np.float64))
