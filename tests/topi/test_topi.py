"""Every operator of topi against NumPy, through lowering and the loop interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.random_numbers import RNG

from renorm import te, topi
from renorm.core.errors import OperandError, RenormError
from renorm.te.tensor import ComputeOp
from renorm.tir import interpret

Array = np.ndarray[Any, Any]


def run(f: Callable[..., Any], *arrays: Array) -> list[Array]:
    """f over placeholders for `arrays`, lowered with the default schedule and interpreted."""
    given_ = [te.placeholder(a.shape, str(a.dtype), name=f"x{k}") for k, a in enumerate(arrays)]
    made = f(*given_)
    outs = made if isinstance(made, list) else [made]
    kernel = te.lower(te.create_schedule([o.op for o in outs]), [*given_, *outs])
    results = [np.empty(o.shape, o.dtype) for o in outs]
    with np.errstate(all="ignore"):
        interpret.run(kernel, [*(np.ascontiguousarray(a) for a in arrays), *results])
    return results


def agrees(f: Callable[..., Any], reference: Callable[..., Any], *arrays: Array, tolerance: float = 1e-5) -> None:
    results = run(f, *arrays)
    with np.errstate(all="ignore"):
        wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
        made = reference(*wide)
    expected = made if isinstance(made, list) else [made]
    for got, wanted in zip(results, expected, strict=True):
        assert got.shape == np.shape(wanted)
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


def draw(*shape: int, low: float = -2.0, high: float = 2.0, dtype: str = "float32") -> Array:
    if np.dtype(dtype).kind == "f":
        return RNG.uniform(low, high, shape).astype(dtype)
    return RNG.integers(int(low), int(high) + 1, shape).astype(dtype)


UNARY: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "exp": (np.exp, -3, 3), "log": (np.log, 0.1, 9), "sqrt": (np.sqrt, 0, 9), "tanh": (np.tanh, -3, 3),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.1, 9), "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -5, 5),
    "erf": (np.vectorize(math.erf), -3, 3), "abs": (np.abs, -3, 3), "sin": (np.sin, -3, 3), "cos": (np.cos, -3, 3),
    "tan": (np.tan, -1, 1), "asin": (np.arcsin, -1, 1), "acos": (np.arccos, -1, 1), "atan": (np.arctan, -3, 3),
    "sinh": (np.sinh, -3, 3), "cosh": (np.cosh, -3, 3), "asinh": (np.arcsinh, -3, 3), "acosh": (np.arccosh, 1, 9),
    "atanh": (np.arctanh, -0.9, 0.9), "floor": (np.floor, -3, 3), "ceil": (np.ceil, -3, 3), "round": (np.rint, -3, 3),
    "trunc": (np.trunc, -3, 3), "sign": (np.sign, -3, 3), "negative": (np.negative, -3, 3),
    "identity": (lambda x: x, -3, 3),
    "reciprocal": (lambda x: 1 / x, 0.1, 3), "relu": (lambda x: np.maximum(x, 0), -3, 3),
    "softplus": (lambda x: np.logaddexp(0, x), -9, 9), "isnan": (np.isnan, -3, 3), "isinf": (np.isinf, -3, 3),
    "gelu": (lambda x: x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2, -3, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    reference, low, high = UNARY[name]
    for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-12), ("float16", 2e-3)):
        agrees(getattr(topi, name), reference, draw(2, 3, 5, low=low, high=high, dtype=dtype), tolerance=tolerance)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum,
    "minimum": np.minimum, "equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
    "greater": np.greater, "greater_equal": np.greater_equal, "power": np.power, "mod": np.fmod,
    "floor_mod": np.mod,
    "floor_divide": np.floor_divide,
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_binary_broadcasts(name: str) -> None:
    for a, b in (((2, 3, 5), (2, 3, 5)), ((2, 1, 5), (3, 1)), ((4,), ()), ((), (2, 2))):
        agrees(getattr(topi, name), BINARY[name], draw(*a, low=0.2), draw(*b, low=0.5), tolerance=1e-5)


def test_remainders_have_the_sign_of_the_dividend_or_of_the_divisor() -> None:
    for dtype in ("int32", "float32"):
        a, b = np.array([-7, 7, -7, 7], dtype), np.array([3, -3, -3, 3], dtype)
        agrees(topi.mod, np.fmod, a, b)
        agrees(topi.floor_mod, np.mod, a, b)


def test_binary_takes_numbers() -> None:
    x = draw(3, 4)
    agrees(lambda t: topi.add(t, 2), lambda a: a + 2, x)
    agrees(lambda t: topi.subtract(1.5, t), lambda a: 1.5 - a, x)
    agrees(lambda t: topi.power(t, 2), lambda a: a**2, x)
    agrees(lambda t: topi.divide(t, 4), lambda a: a / 4, x)


@pytest.mark.parametrize(("name", "reference"), [("logical_and", np.logical_and), ("logical_or", np.logical_or)])
def test_logic(name: str, reference: Callable[..., Any]) -> None:
    agrees(getattr(topi, name), reference, RNG.random((3, 4)) < 0.5, RNG.random(4) < 0.5)


def test_stage_names_are_those_of_tvm() -> None:
    x, y = te.placeholder((2, 3), name="x"), te.placeholder((3,), name="y")
    assert [topi.add(x, y).op.name, topi.subtract(x, y).op.name] == ["T_add", "T_subtract"]
    assert topi.sqrt(x).op.name == "compute"
    assert [a.var.name for a in topi.sqrt(x).op.axis] == ["i0", "i1"]
    assert [a.var.name for a in topi.add(x, y).op.axis] == ["ax0", "ax1"]
    assert topi.tag.is_broadcast(topi.add(x, y).op.tag)
    assert topi.sum(x).op.tag == topi.tag.COMM_REDUCE


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (1,), ()])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean"])
def test_reduction(name: str, axis: Any, keepdims: bool) -> None:
    x = draw(2, 3, 4)
    agrees(
        lambda t: getattr(topi, name)(t, axis, keepdims),
        lambda a: getattr(np, name)(a, axis=axis, keepdims=keepdims),
        x,
    )


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "uint64"])
def test_mean_of_integers_is_added_in_64_bits(dtype: str) -> None:
    """The sum wrapped, and the count, which 8 bits do not hold."""
    x = np.full((2, 300), 100, dtype)
    np.testing.assert_array_equal(run(lambda t: topi.mean(t, 1), x)[0], np.full(2, 100, dtype))


def test_reduction_of_booleans() -> None:
    x = RNG.random((3, 5)) < 0.7
    agrees(lambda t: topi.all(t, 1), lambda a: a.all(1), x)
    agrees(lambda t: topi.any(t, 0), lambda a: a.any(0), x)
    agrees(topi.all, np.all, np.array([1, 2, -1, 0], np.int32))  # of numbers, too
    agrees(topi.any, np.any, np.array([-1.5, 0.0], np.float32))


def test_sum_of_float16_is_accumulated_in_float32() -> None:
    x = np.full(5000, 1.0, np.float16)  # in float16 the sum stops at 2048
    assert run(lambda t: topi.sum(t), x)[0] == np.float16(5000)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_of_extremes(name: str, axis: Any) -> None:
    x = draw(4, 5, dtype="int32")  # with ties: the first one counts
    agrees(lambda t: getattr(topi, name)(t, axis), lambda a: getattr(np, name)(a, axis), x)
    y = draw(4, 5)
    y[1, 2] = y[1, 4] = np.nan
    agrees(lambda t: getattr(topi, name)(t, axis), lambda a: getattr(np, name)(a, axis), y)
    agrees(
        lambda t: getattr(topi, name)(t, axis, True, True),
        lambda a: (
            a.size - 1 - getattr(np, name)(a.reshape(-1)[::-1]).reshape(1, 1)
            if axis is None
            else a.shape[axis] - 1 - getattr(np, name)(np.flip(a, axis), axis, keepdims=True)
        ),
        x,
    )


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_position_in_a_scalar_is_0(name: str) -> None:
    """Lowering ended in a StopIteration."""
    agrees(getattr(topi, name), getattr(np, name), np.array(3.0, np.float32))


SHAPES = st.lists(st.integers(1, 4), min_size=0, max_size=4)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=4), st.lists(st.sampled_from([1, 2, 3]), max_size=5), st.data()
)
def test_reshape_between_any_shapes(shape: list[int], factors: list[int], data: Any) -> None:
    size = math.prod(shape)
    to = [f for f in factors if size % math.prod(factors) == 0]
    to = data.draw(st.permutations([*to, size // math.prod(to)]))
    agrees(lambda t: topi.reshape(t, to), lambda a: a.reshape(to), np.arange(size, dtype=np.float32).reshape(shape))


def test_reshape_needs_no_division_where_axes_line_up() -> None:
    x = te.placeholder((2, 64, 7, 7))
    parted, alike = topi.reshape(x, (2, 64, 49)).op, topi.reshape(te.placeholder((2, 64, 1, 1)), (2, 64)).op
    assert isinstance(parted, ComputeOp)
    assert isinstance(alike, ComputeOp)
    assert str(parted.body).count("//") == 1
    assert "//" not in str(alike.body)


@settings(deadline=None, max_examples=40)
@given(SHAPES, st.data())
def test_transpose(shape: list[int], data: Any) -> None:
    axes = data.draw(st.permutations(range(len(shape))))
    agrees(lambda t: topi.transpose(t, axes), lambda a: a.transpose(axes), draw(*shape))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_strided_slice(data: Any) -> None:
    bound, step = st.integers(-7, 7), st.sampled_from([-3, -2, -1, 1, 2, 3])
    begin, end, strides = (data.draw(st.tuples(s, s)) for s in (bound, bound, step))
    slices = tuple(slice(*b) for b in zip(begin, end, strides))
    agrees(lambda t: topi.strided_slice(t, begin, end, strides), lambda a: a[slices], draw(5, 4))


def test_movement() -> None:
    x, y = draw(2, 3, 4), draw(2, 1, 4)
    agrees(lambda t: topi.transpose(t), np.transpose, x)
    agrees(lambda t: topi.expand_dims(t, -1, 2), lambda a: a[..., None, None], x)
    agrees(lambda t: topi.unsqueeze(t, (0, -1)), lambda a: np.expand_dims(a, (0, -1)), x)
    agrees(lambda t: topi.squeeze(t), lambda a: np.squeeze(a), y)
    agrees(lambda t: topi.squeeze(t, 1), lambda a: np.squeeze(a, 1), y)
    agrees(lambda t: topi.broadcast_to(t, (5, 2, 3, 4)), lambda a: np.broadcast_to(a, (5, 2, 3, 4)), y)
    agrees(lambda s, t: topi.concatenate([s, t, s], 1), lambda a, b: np.concatenate([a, b, a], 1), x, y)
    agrees(lambda s: topi.stack([s, s], -1), lambda a: np.stack([a, a], -1), x)
    agrees(lambda t: topi.split(t, 2, 2), lambda a: list(np.split(a, 2, 2)), x)
    agrees(lambda t: topi.split(t, [1, 1, 3], 2), lambda a: list(np.split(a, [1, 1, 3], 2)), x)
    agrees(lambda t: topi.flip(t, 1), lambda a: np.flip(a, 1), x)
    agrees(lambda t: topi.tile(t, (2, 1, 1, 3)), lambda a: np.tile(a, (2, 1, 1, 3)), x)
    agrees(lambda t: topi.tile(t, (2,)), lambda a: np.tile(a, (2,)), x)
    agrees(lambda t: topi.strided_slice(t, [1], [2]), lambda a: a[1:2], x)
    agrees(lambda t: topi.cast(t, "int32"), lambda a: np.trunc(a), x)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_take(axis: Any) -> None:
    indices = np.array([[0, 1], [-1, 2]])
    agrees(lambda t, i: topi.take(t, i, axis, "from_end"), lambda a, i: np.take(a, i, axis), draw(3, 4), indices)
    modes: list[Any] = ["clip", "wrap"]
    for mode in modes:
        agrees(
            lambda t, i, m=mode: topi.take(t, i, axis, m),
            lambda a, i, m=mode: np.take(a, i, axis, mode=m),
            draw(3, 4),
            indices * 7,
        )


def test_take_outside_reads_the_nearest_element() -> None:
    x = np.arange(4, dtype=np.float32)
    indices = np.array([4, 100, -5, -(2**62)])
    for mode in ("clip", "from_end"):
        assert run(lambda t, i, m=mode: topi.take(t, i, 0, m), x, indices)[0].tolist() == [3, 3, 0, 0]


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(mode: Any) -> None:
    x = draw(3, 4)
    agrees(lambda t: topi.pad(t, (1, 2), (0, 5), mode=mode), lambda a: np.pad(a, ((1, 0), (2, 5)), mode), x)


def test_pad_takes_elements_away() -> None:
    agrees(
        lambda t: topi.pad(t, (-1, 1), (1, -2), 7.0),
        lambda a: np.pad(a[1:, :-2], ((0, 1), (1, 0)), constant_values=7),
        draw(3, 4),
    )


def test_choice_and_creation() -> None:
    c = RNG.random((3, 1)) < 0.5
    agrees(topi.where, np.where, c, draw(3, 4), draw(4))
    agrees(lambda t: topi.clip(t, -1, 0.5), lambda a: np.clip(a, -1, 0.5), draw(9))
    agrees(lambda t: topi.full_like(t, 3), lambda a: np.full_like(a, 3), draw(2, 3))
    np.testing.assert_array_equal(run(lambda: topi.full((2, 3), "int64", 7))[0], np.full((2, 3), 7))
    for bounds in ((5,), (2, 9, 3), (9, 2, -3), (0, 1, 0.25)):
        np.testing.assert_allclose(run(lambda b=bounds: topi.arange(*b))[0], np.arange(*bounds))


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,))],
)
def test_matmul(a: Sequence[int], b: Sequence[int]) -> None:
    agrees(topi.matmul, np.matmul, draw(*a), draw(*b))


@pytest.mark.parametrize(("left", "right"), [("int32", "float32"), ("float32", "int8"), ("uint8", "int8")])
def test_matmul_of_two_dtypes_is_in_that_of_their_sum(left: str, right: str) -> None:
    """The right operand was cut to the dtype of the left one."""
    a, b = draw(3, 40, dtype=left, low=0), draw(40, 5, dtype=right)
    for f in (topi.matmul, lambda x, y: topi.nn.dense(x, topi.transpose(y))):
        agrees(f, np.matmul, a, b)


def test_dense_is_added_in_the_dtype_of_its_result() -> None:
    a, b = np.full((2, 300), 100, np.int8), np.full((3, 300), 100, np.int8)
    wanted = np.full((2, 3), 3_000_000, np.int32)
    np.testing.assert_array_equal(run(lambda x, w: topi.nn.dense(x, w, out_dtype="int32"), a, b)[0], wanted)


@pytest.mark.parametrize(("left", "right"), [(True, False), (False, True), (True, True)])
def test_matmul_of_transposed(left: bool, right: bool) -> None:
    a, b = draw(2, 4, 3) if left else draw(2, 3, 4), draw(2, 5, 4) if right else draw(2, 4, 5)
    agrees(
        lambda s, t: topi.matmul(s, t, left, right),
        lambda x, y: np.matmul(x.swapaxes(1, 2) if left else x, y.swapaxes(1, 2) if right else y),
        a,
        b,
    )


def test_layers() -> None:
    x = draw(2, 3, 5, 4)
    agrees(topi.nn.relu, lambda a: np.maximum(a, 0), x)
    agrees(lambda t: topi.nn.leaky_relu(t, 0.1), lambda a: np.where(a < 0, 0.1 * a, a), x)
    agrees(topi.nn.prelu, lambda a, s: np.where(a < 0, s[:, None, None] * a, a), x, draw(3))
    agrees(topi.nn.flatten, lambda a: a.reshape(2, 60), x)
    agrees(topi.nn.dense, lambda a, w, b: a @ w.T + b, draw(3, 4), draw(5, 4), draw(5))
    agrees(lambda t: topi.nn.global_pool(t), lambda a: a.mean((2, 3), keepdims=True), x)
    agrees(lambda t: topi.nn.global_pool(t, "max"), lambda a: a.max((2, 3), keepdims=True), x)
    agrees(topi.nn.scale_shift_nchw, lambda a, s, h: a * s[:, None, None] + h[:, None, None], x, draw(3), draw(3))


def test_softmax_does_not_overflow() -> None:
    x = draw(3, 5, low=-1e4, high=1e4)

    def softmax(a: Array) -> Any:
        e = np.exp(a - a.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    agrees(lambda t: topi.nn.softmax(t), softmax, x)
    y = draw(3, 5)
    agrees(lambda t: topi.nn.log_softmax(t, 1), lambda a: np.log(softmax(a)), y)


def test_batch_norm_inference() -> None:
    x, scale, bias, mean = draw(2, 3, 4, 5), draw(3), draw(3), draw(3)
    var = draw(3, low=0.1)

    def reference(a: Array, g: Array, b: Array, m: Array, v: Array) -> Any:
        g, b, m, v = (p[:, None, None] for p in (g, b, m, v))
        return (a - m) / np.sqrt(v + 1e-3) * g + b

    agrees(lambda *t: topi.nn.batch_norm_inference(*t, epsilon=1e-3), reference, x, scale, bias, mean, var)


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), ((1, 2), (0, 1, 2, 1), (2, 1))])
def test_conv2d(stride: Any, padding: Any, dilation: Any) -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

    x, w = draw(2, 3, 7, 6), draw(4, 3, 3, 2)

    def reference(a: Array, k: Array) -> Any:
        top, left, bottom, right = (padding,) * 4 if isinstance(padding, int) else padding
        padded = np.pad(a, ((0, 0), (0, 0), (top, bottom), (left, right)))
        return torch.nn.functional.conv2d(
            torch.from_numpy(padded), torch.from_numpy(k), stride=stride, dilation=dilation
        ).numpy()

    agrees(lambda t, k: topi.nn.conv2d_nchw(t, k, stride, padding, dilation), reference, x, w)


def test_empty_tensors() -> None:
    x = draw(0, 3)
    agrees(lambda t: topi.sum(t, 0), lambda a: a.sum(0), x)
    agrees(lambda t: topi.reshape(t, (3, 0)), lambda a: a.reshape(3, 0), x)
    agrees(lambda t: topi.concatenate([t, t]), lambda a: np.concatenate([a, a]), x)
    agrees(lambda s, t: topi.concatenate([s, t]), lambda a, b: np.concatenate([a, b]), x, draw(2, 3))


@pytest.mark.parametrize(
    "mistake",
    [
        lambda x: topi.reshape(x, (5, 2)),
        lambda x: topi.squeeze(x, 0),
        lambda x: topi.split(x, 2, 1),
        lambda x: topi.matmul(x, x),
        lambda x: topi.broadcast_to(x, (2, 4)),
        lambda x: topi.sum(x, 2),
        lambda x: topi.transpose(x, (0, 2)),
        lambda x: topi.nn.softmax(x.astype("int32")),  # whose result was 0
    ],
)
def test_mistakes_are_refused(mistake: Callable[..., Any]) -> None:
    with pytest.raises((OperandError, RenormError)):
        mistake(te.placeholder((2, 3)))
