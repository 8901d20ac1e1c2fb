"""How topi is called: by TVM's names and positions, and what is said of arguments that do not fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.topi.test_topi import agrees, draw

from renorm import te, topi
from renorm.core.errors import InvalidExpression, OperandError, RenormError

# parameters of TVM 0.6 to 0.8 by position; what stands behind them is renorm's, and given by name alone
FORMS = {
    "add": "lhs rhs", "power": "lhs rhs", "less": "lhs rhs", "exp": "x", "cast": "x dtype", "clip": "x a_min a_max",
    "full": "shape dtype fill_value", "full_like": "x fill_value", "arange": "start stop step dtype",
    "sum": "data axis keepdims", "prod": "data axis keepdims", "max": "data axis keepdims",
    "min": "data axis keepdims", "all": "data axis keepdims", "any": "data axis keepdims",
    "argmax": "data axis keepdims select_last_index", "argmin": "data axis keepdims select_last_index",
    "elemwise_sum": "xs", "expand_dims": "a axis num_newaxis", "transpose": "a axes", "flip": "a axis",
    "strided_slice": "a begin end strides", "reshape": "a newshape", "squeeze": "a axis",
    "concatenate": "a_tuple axis", "stack": "a axis", "split": "ary indices_or_sections axis",
    "take": "a indices axis mode", "matmul": "a b transp_a transp_b", "tile": "a reps", "where": "condition x y",
    "broadcast_to": "data shape",
    "nn.relu": "x", "nn.leaky_relu": "x alpha", "nn.prelu": "x slope axis", "nn.flatten": "data",
    "nn.dense": "data weight bias out_dtype", "nn.softmax": "x axis", "nn.log_softmax": "x axis",
    "nn.pad": "data pad_before pad_after pad_value name",
    "nn.conv2d_nchw": "Input Filter stride padding dilation out_dtype",
    "nn.global_pool": "data pool_type layout", "nn.scale_shift_nchw": "Input Scale Shift",
}  # fmt: skip


def found(name: str) -> Callable[..., Any]:
    return getattr(topi.nn, name[3:]) if name.startswith("nn.") else getattr(topi, name)


@pytest.mark.parametrize("name", FORMS)
def test_parameters_are_those_of_tvm(name: str) -> None:
    parameters = inspect.signature(found(name)).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == FORMS[name].split()


def test_the_fifth_argument_of_pad_is_a_name() -> None:
    x = draw(3)
    padded = topi.nn.pad(te.placeholder((3,)), (1,), (1,), 0.0, "pad_temp")
    assert padded.op.name == "pad_temp"
    agrees(lambda t: topi.nn.pad(t, (1,), (1,), 0.0, "pad_temp"), lambda a: np.pad(a, 1), x)


@pytest.mark.parametrize(("kernel", "dilation"), [((3, 3), 1), ((2, 4), 1), ((3, 2), 2)])
def test_padding_by_name(kernel: tuple[int, int], dilation: int) -> None:
    x, w = te.placeholder((1, 2, 9, 8)), te.placeholder((3, 2, *kernel))
    assert topi.nn.conv2d_nchw(x, w, 1, "SAME", dilation).shape == (1, 3, 9, 8)
    assert topi.nn.conv2d_nchw(x, w, 1, "VALID", dilation).shape == topi.nn.conv2d_nchw(x, w, 1, 0, dilation).shape


def test_sum_of_tensors() -> None:
    agrees(lambda *t: topi.elemwise_sum([*t]), lambda *a: sum(a), draw(3, 4), draw(3, 4), draw(3, 4))


def test_convolution_accumulates_in_the_dtype_asked_for() -> None:
    x = np.full((1, 2, 4, 4), 100, np.int8)
    agrees(lambda t: topi.nn.conv2d_nchw(t, t, 1, "VALID", 1, "int32"), lambda a: np.full((1, 1, 1, 1), 32 * 100**2), x)


def test_without_tensors_an_expression_is_given() -> None:
    assert topi.add(1, 2).value == 3
    i = te.compute((4,), lambda i: topi.add(i, 1).astype("float32"))
    assert i.shape == (4,)


X = te.placeholder((2, 3), name="X")
IMAGE, KERNEL = te.placeholder((1, 2, 8, 8), name="image"), te.placeholder((4, 2, 3, 3), name="kernel")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: topi.pad(X, (1, 1), mode="mirror"), "'mirror' is not a mode"),
        (lambda: topi.pad(X, (1,)), "do not fit X of 2 axes"),
        (lambda: topi.pad(X, (1, 1), (1, 1), "zero"), "pad_value is str 'zero'"),  # pyright: ignore[reportArgumentType]
        (lambda: topi.nn.global_pool(IMAGE, "median"), "'median'"),
        (lambda: topi.nn.global_pool(IMAGE, "max", "NCWH"), "'NCWH'"),
        (lambda: topi.nn.conv2d_nchw(IMAGE, KERNEL, 1, "same"), "padding is 'same'"),
        (lambda: topi.nn.conv2d_nchw(IMAGE, KERNEL, 0), "stride is [0, 0]"),
        (lambda: topi.nn.conv2d_nchw(IMAGE, IMAGE, 1, (1, 2, 3)), "padding is [1, 2, 3]"),
        (lambda: topi.nn.conv2d_nchw(IMAGE, X), "expected 4 axes"),
        (lambda: topi.nn.conv2d_nchw(KERNEL, te.placeholder((1, 3, 3, 3))), "has 2 channels, not 3"),
        (lambda: topi.take(X, te.placeholder((2,), "int32"), 0, "raise"), "'raise' is not a mode"),
        (lambda: topi.take(X, X), "indices are float32"),
        (lambda: topi.sum("X"), "data is str 'X'"),
        (lambda: topi.sum(X, "rows"), "expected an int or a sequence of ints or None"),
        (lambda: topi.sum(X, axis=0, keep_dims=True), "it is sum(data, axis=None, keepdims=False)"),
        (lambda: topi.sum(X, 0, "yes"), "expected True or False"),
        (lambda: topi.clip(X, 0), "missing a required argument: 'a_max'"),  # pyright: ignore[reportCallIssue]
        (lambda: topi.reshape(X, (-1, -1)), "-1 at most once"),
        (lambda: topi.reshape(X, 2.5), "newshape is float 2.5"),  # pyright: ignore[reportArgumentType]
        (lambda: topi.transpose(X, (0, 0)), "expected each axis once"),
        (lambda: topi.concatenate([]), "there are no tensors"),
        (lambda: topi.concatenate([X, te.placeholder((2, 4))]), "do not fit along axis 0"),
        (lambda: topi.split(X, 0), "into 0 equal parts"),
        (lambda: topi.split(X, [2, 1]), "not in order"),
        (lambda: topi.strided_slice(X, [0], [2], [0]), "no stride of 0"),
        (lambda: topi.arange(0, 3, 0), "no finite sequence"),
        (lambda: topi.tile(X, [-1]), "expected numbers from 0 up"),
        (lambda: topi.add(X, np.ones(3)), "ndarray"),
        (lambda: topi.add("a", "b"), "is not an expression"),
        (lambda: topi.nn.prelu(IMAGE, te.placeholder((3,))), "has 2 channels"),
        (lambda: topi.elemwise_sum([]), "expected tensors of one shape"),
        (lambda: X & 1, "operators on bits are absent"),
        (lambda: 1 << X[0, 0], "operators on bits are absent"),
        (lambda: ~te.reduce_axis((0, 3)), "operators on bits are absent"),
        (lambda: topi.cast(X, "float31"), "is not a dtype"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(mistake: Callable[[], Any], message: str) -> None:
    with pytest.raises(RenormError) as refused:
        mistake()
    assert message in str(refused.value)


def test_unknown_reductions_are_refused() -> None:
    from renorm.topi.reduction import reduce

    with pytest.raises(OperandError, match="known: sum, prod, max, min"):
        reduce("median", X)


@pytest.mark.parametrize("divide", [lambda a, b: a / b, lambda a, b: b / a])
def test_quotients_of_integers_say_how_to_round(divide: Callable[[Any, Any], Any]) -> None:
    i = te.placeholder((3,), "int32", name="I")
    axis = te.reduce_axis((0, 3))
    for a, b in ((i, 2), (i, i), (i[0], 2), (axis, 2), (axis.var, axis), (i, axis.var), (te.const(3), te.const(2))):
        with pytest.raises(InvalidExpression, match="truncdiv rounds toward zero"):
            divide(a, b)
    assert divide(i, 2.0).dtype == divide(axis, 2.0).dtype == "float32"
    x, y = np.array([-7, 7, 9], np.int32), np.array([2, -2, 4], np.int32)
    agrees(te.truncdiv, lambda a, b: np.trunc(a / b), x, y)
    agrees(topi.divide, lambda a, b: np.trunc(a / b), x, y)
    agrees(te.floordiv, np.floor_divide, x, y)
    agrees(te.truncmod, np.fmod, x, y)
    agrees(te.fma, lambda a, b, c: a * b + c, x * 4_000_001, y, x, tolerance=0)
