"""Quantized operators against ONNX Runtime. Sums of integers are equal to its sums; where it multiplies them by a scale
in another order, or from a table, a result may be one step off: at halves, which the last digit of float32 decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.frontends import onnx_runtime

import renorm
from renorm.core import dtypes
from renorm.core.errors import RenormError
from renorm.ops.dequantize_linear import GREATEST

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(19)
START = RNG.bit_generator.state
RANGES = {
    "u8": (0, 256, np.uint8),
    "i8": (-128, 128, np.int8),
    "i7": (-64, 64, np.int8),  # multiplied with u8: on CPUs without VNNI, ONNX Runtime saturates two products at 32,767
}


@pytest.fixture(autouse=True)
def drawn_anew() -> None:
    """Draw the same for a test whichever ran before it."""
    RNG.bit_generator.state = START


def q(kind: str, *shape: int) -> Array:
    """Integers from all of their range."""
    low, high, dtype = RANGES[kind]
    return RNG.integers(low, high, shape).astype(dtype)


def scale(*shape: int, low: float = 0.01, high: float = 0.03) -> Array:
    return RNG.uniform(low, high, shape).astype(np.float32)


def f(*shape: int) -> Array:
    return RNG.normal(0, 3, shape).astype(np.float32)


def model(op_type: str, operands: Any, domain: str, constant: Any, outputs: int, attributes: Any) -> onnx.ModelProto:
    names = [f"x{k}" if a is not None else "" for k, a in enumerate(operands)]
    made = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op_type, names, made, domain=domain, **attributes)
    values = {n: a for n, a in zip(names, operands) if n}
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in values.items()}
    held = {names[k] for k in constant}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in values.items() if n not in held],
        [onnx.ValueInfoProto(name=n) for n in made],
        [numpy_helper.from_array(values[n], n) for n in sorted(held)],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def both(
    op_type: str, *operands: Any, domain: str = "com.microsoft", outputs: int = 1, steps: int = 0, **given: Any
) -> list[Array]:
    """Results by renorm, which are those of ONNX Runtime: as they are and with all operands but the first constant."""
    operands = tuple(None if a is None else np.asarray(a) for a in operands)
    for constant in ([], [k for k, a in enumerate(operands) if k and a is not None]):
        proto = model(op_type, operands, domain, constant, outputs, given)
        fed = {f"x{k}": a for k, a in enumerate(operands) if a is not None and k not in constant}
        expected = onnx_runtime.run(proto, fed)
        module = renorm.compile(proto)
        got = module.run(*[fed[v.name] for v in module.inputs])
        for a, b in zip(got, expected, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            if a.dtype == np.float32:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max(initial=0.0))
            else:
                apart = np.abs(a.astype(np.int64) - b.astype(np.int64))
                assert apart.max(initial=0) <= steps
                assert apart.mean() <= steps * 0.02  # halves are few
    return got


WINDOWS: list[tuple[Any, Any, dict[str, Any]]] = [
    ((2, 3, 9, 7), (5, 3, 3, 2), {}),
    ((1, 16, 11, 13), (35, 16, 3, 3), {"pads": (1, 0, 2, 1), "strides": (2, 1)}),
    ((2, 6, 9, 8), (4, 3, 2, 3), {"group": 2, "dilations": (3, 2), "pads": (0, 2, 1, 1)}),
    ((1, 33, 7, 9), (33, 1, 3, 3), {"group": 33, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((1, 32, 5, 7), (64, 16, 1, 1), {"group": 2}),
    ((3, 7, 17), (9, 7, 4), {"auto_pad": "SAME_LOWER", "strides": (3,)}),
    ((1, 2, 5, 4, 3), (3, 2, 2, 3, 1), {"pads": (1, 1, 0, 0, 1, 0)}),
]


@pytest.mark.parametrize(("x", "w", "given"), WINDOWS)
@pytest.mark.parametrize("kinds", [("u8", "i7"), ("u8", "u8"), ("i8", "i8")])
@pytest.mark.parametrize("is_per_channel", [True, False])
def test_qlinear_conv(x: Any, w: Any, given: Any, kinds: Any, is_per_channel: bool) -> None:
    per = (w[0],) if is_per_channel else ()
    w_zero = np.zeros(per, np.int8) if kinds[1] != "u8" else np.full(per, 117, np.uint8)
    bias = RNG.integers(-5000, 5000, w[0]).astype(np.int32) if is_per_channel else None
    wide = 75 * (37 if kinds[1] == "i7" else 75)  # standard deviations
    step = np.float32(2.5 * np.sqrt(np.prod(w[1:])) * wide * 0.02 * 0.02 / 64)
    operands = q(kinds[0], *x), scale(), q(kinds[0]), q(kinds[1], *w), scale(*per), w_zero, step, q(kinds[0]), bias
    (y,) = both("QLinearConv", *operands, domain="", **given)
    assert len(np.unique(y)) > 20  # neither all at an end of the range nor all zero


@pytest.mark.parametrize(("x", "w", "given"), WINDOWS)
def test_conv_integer(x: Any, w: Any, given: Any) -> None:
    both("ConvInteger", q("u8", *x), q("u8", *w), q("u8"), q("u8"), domain="", **given)
    both("ConvInteger", q("u8", *x), q("i7", *w), domain="", **given)


def test_qlinear_conv_of_channels_that_lie_last() -> None:
    own = q("u8", 2, 9, 7, 3), scale(), q("u8"), q("i7", 5, 3, 3, 2), scale(5), np.zeros(5, np.int8)
    for last in (0, 1):
        x = np.moveaxis(own[0], -1, 1) if not last else own[0]
        both("QLinearConv", np.ascontiguousarray(x), *own[1:], np.float32(0.4), q("u8"), channels_last=last,
             pads=(1, 0, 2, 1), strides=(2, 1))  # fmt: skip


@pytest.mark.parametrize("is_per_column", [True, False])
def test_attention(is_per_column: bool) -> None:
    per = (3 * 8,) if is_per_column else (1,)
    operands = (
        q("u8", 2, 5, 12),
        q("i7", 12, 24),
        f(24),
        scale(1),
        scale(*per),
        None,
        q("u8", 1),
        np.zeros(per, np.int8),
    )
    both("QAttention", *operands, num_heads=2)
    both("QAttention", *operands[:5], np.array([3, 5], np.int32), *operands[6:], num_heads=2, unidirectional=1)


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"])
@pytest.mark.parametrize("constant", [[], [1]])
@pytest.mark.parametrize(("a", "b"), [("u8", "u8"), ("u8", "i8"), ("i8", "i8"), ("i8", "u8")])
def test_sums_are_exact(a: str, b: str, constant: list[int], target: str) -> None:
    """Compare sums of the ends of ranges with NumPy's: float32 holds 5.8e8, 9,000 times 65,025, in steps of 64."""
    ends = {kind: (low, high - 1) for kind, (low, high, _) in RANGES.items()}
    for end_a in ends[a]:
        for end_b in ends[b]:
            x, w = np.full((3, 9000), end_a, RANGES[a][2]), q(b, 9000, 35)
            w[:, ::2] = end_b
            x[1] = q(a, 9000)
            module = renorm.compile(model("MatMulInteger", [x, w], "", constant, 1, {}), target=target)
            (y,) = module.run(*[x, w][: 2 - len(constant)])
            np.testing.assert_array_equal(y, x.astype(np.int64) @ w)


@pytest.mark.parametrize("kinds", [("u8", "i7"), ("u8", "u8"), ("i8", "i8")])
@pytest.mark.parametrize(
    "shapes", [((5, 7), (7, 3)), ((9, 130), (130, 67)), ((2, 3, 33), (33, 17)), ((2, 3, 8, 9), (9, 5))]
)
def test_matmul_integer(kinds: Any, shapes: Any) -> None:
    a, b = (q(kind, *shape) for kind, shape in zip(kinds, shapes))
    both("MatMulInteger", a, b, domain="")
    both("MatMulInteger", a, b, q(kinds[0]), q(kinds[1]), domain="")
    both("MatMulInteger", a, b, q(kinds[0]), q(kinds[1], b.shape[-1]), domain="")


@pytest.mark.parametrize("kinds", [("u8", "i7"), ("u8", "u8"), ("i8", "i8")])
@pytest.mark.parametrize("is_per_column", [True, False])
def test_qlinear_matmul(kinds: Any, is_per_column: bool) -> None:
    per = (67,) if is_per_column else ()
    zero = np.zeros(per, np.int8) if kinds[1] != "u8" else q("u8", *per)
    own = q(kinds[0], 5, 33), scale(), q(kinds[0]), q(kinds[1], 33, 67), scale(*per), zero
    both("QLinearMatMul", *own, np.float32(0.3), q(kinds[0]), domain="")


def test_a_dtype_that_is_stated_as_undefined_is_left_out() -> None:
    proto = model("QuantizeLinear", [f(3), scale()], "", [], 1, {"output_dtype": 0, "precision": 0})
    proto.opset_import[0].version = 23
    assert renorm.read(proto).outputs[0].dtype == "uint8"


@pytest.mark.parametrize("x", [f(3, 5), f(2, 3, 35) + 100, -np.abs(f(7, 9)), f(1), np.zeros((2, 3), np.float32)])
def test_dynamic_quantize_linear(x: Array) -> None:
    both("DynamicQuantizeLinear", x, domain="", outputs=3)


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("b", [(2, 3, 5, 7), (5, 1), ()])
def test_sums_and_products(op_type: str, kind: str, b: Any) -> None:
    step = np.float32(0.04 if op_type == "QLinearAdd" else 0.05)
    both(op_type, q(kind, 2, 3, 5, 7), scale(), q(kind), q(kind, *b), scale(), q(kind), step, q(kind), steps=1)


MASK = np.float32(2.6793887e36)  # of -3.4028235e38 as -127: rounded up, so that their product is an infinity


def test_a_mask_of_the_least_float_is_no_infinity() -> None:
    a = np.array([[0, 1, 127, -128]], np.int8), np.float32(1 / 127), np.int8(0)
    (got,) = both("QLinearMul", *a, np.array([[-127], [0]], np.int8), MASK, np.int8(0), MASK, np.int8(0))
    np.testing.assert_array_equal(got, [[0, -1, -127, 127], [0, 0, 0, 0]])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("is_known", [False, True])
def test_integers_beyond_the_greatest_float_are_dequantized_to_it(dtype: str, level: int, is_known: bool) -> None:
    kind = dtypes.numpy_dtype(dtype)
    step = np.array({"float32": MASK, "float16": 516, "bfloat16": 2.6793887e36 * 1.01}[dtype], kind)
    values = {"x": np.array([-127, 0, 3, 127, -128], np.int8), "step": step}
    held = {n: a for n, a in values.items() if n == "step" or is_known}
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["x", "step"], ["y"]), helper.make_node("Mul", ["y", "f"], ["z"])],
        "g",
        [helper.make_tensor_value_info("f", helper.np_dtype_to_tensor_dtype(kind), (5,))]
        + ([] if is_known else [helper.make_tensor_value_info("x", onnx.TensorProto.INT8, (5,))]),
        [onnx.ValueInfoProto(name="z")],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    opset = 19 if dtype == "float32" else 23
    module = renorm.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), opt_level=level
    )
    fed = {"x": values["x"], "f": np.array([0, 1, 1, 0, 1], kind)}
    (z,) = module.run(*(fed[v.name] for v in module.inputs))
    z = z.astype(np.float64)
    assert (z[[0, 1, 3]] == 0).all()
    assert z[2] == float(step) * 3
    assert z[4] == -GREATEST[dtype]


@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_functions(kind: str) -> None:
    x = q(kind, 2, 3, 37), scale(), q(kind)
    both("QLinearLeakyRelu", *x, scale(), q(kind), steps=1, alpha=0.3)
    both("QLinearSigmoid", *x, np.float32(1 / 256), np.zeros((), x[0].dtype), steps=1)
    least = np.asarray(RANGES[kind][0], x[0].dtype)
    both("QLinearSoftmax", *x, np.float32(1 / 256), least, steps=1, axis=1, opset=13)
    both("QLinearSoftmax", *x, np.float32(1 / 256), least, steps=1, axis=1, opset=12)


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("last", [0, 1])
def test_pools(kind: str, last: int) -> None:
    x = q(kind, 2, 7, 9, 5), scale(), q(kind)
    both("QLinearGlobalAveragePool", *x, scale(), q(kind), steps=1, channels_last=last)
    window: dict[str, Any] = {"kernel_shape": (3, 2), "pads": (1, 0, 1, 1), "strides": (2, 1)}
    both("QLinearAveragePool", *x, scale(), q(kind), steps=1, channels_last=last, **window)
    both("QLinearAveragePool", *x, scale(), q(kind), steps=1, channels_last=last, count_include_pad=1, **window)


def test_parts_of_a_concat_are_in_one_scale() -> None:
    parts = q("u8", 2, 3, 5), scale(), q("u8"), q("u8", 2, 4, 5), scale(), q("u8")
    both("QLinearConcat", np.float32(0.02), q("u8"), *parts, steps=1, axis=1)


def test_where() -> None:
    a, b = (q("u8", 3, 5), scale(), q("u8")), (q("u8", 3, 5), scale(), q("u8"))
    both("QLinearWhere", RNG.random((3, 5)) < 0.5, *a, *b, scale(), q("u8"), steps=1)


@pytest.mark.parametrize("turns", [(0, 0), (1, 0), (0, 1)])
@pytest.mark.parametrize("is_quantized", [True, False])
def test_qgemm(turns: Any, is_quantized: bool) -> None:
    a = q("u8", *((33, 5) if turns[0] else (5, 33)))
    b = q("i7", *((67, 33) if turns[1] else (33, 67)))
    c = RNG.integers(-9000, 9000, 67).astype(np.int32)
    y = (np.float32(0.2), q("u8")) if is_quantized else (None, None)
    attributes: dict[str, Any] = {"transA": turns[0], "transB": turns[1], "alpha": 0.5}
    both("QGemm", a, scale(), q("u8"), b, scale(67), np.zeros(67, np.int8), c, *y, steps=1, **attributes)


def test_products_that_end_in_floats() -> None:
    b, b_scale, bias = q("i7", 33, 67), scale(67), f(67)
    both("MatMulIntegerToFloat", q("u8", 5, 33), b, scale(), b_scale, q("u8"), None, bias)
    both("MatMulIntegerToFloat", q("u8", 2, 5, 33), b, scale(), b_scale, q("u8"), np.zeros(67, np.int8))
    both("DynamicQuantizeMatMul", f(5, 33), b, b_scale, None, bias)
    both("DynamicQuantizeMatMul", f(2, 5, 33), q("u8", 33, 67), scale(), q("u8"))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("has_zeros", [True, False])
def test_weights_of_a_few_bits(bits: int, has_zeros: bool) -> None:
    depth, columns, block = 70, 9, 16
    blocks = -(-depth // block)
    b = q("u8", columns, blocks, block * bits // 8)
    zeros = q("u8", columns * -(-blocks * bits // 8)) if has_zeros else None
    operands = f(3, depth), b, scale(columns * blocks), zeros
    proto = model("MatMulNBits", operands, "com.microsoft", [1, 2, *([3] if has_zeros else [])], 1,
                  {"K": depth, "N": columns, "bits": bits, "block_size": block})  # fmt: skip
    (expected,) = onnx_runtime.run(proto, operands[0])
    np.testing.assert_allclose(renorm.compile(proto).run(operands[0])[0], expected, rtol=1e-4, atol=1e-4)
    proto = model("MatMulNBits", operands, "com.microsoft", [], 1, {"K": depth, "N": columns, "block_size": block})
    with pytest.raises(RenormError, match="must be constants"):
        renorm.read(proto)
