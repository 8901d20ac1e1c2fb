"""Tensors and computes: names, shapes, broadcasting, dtypes of numbers, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from renorm import te, topi
from renorm.core.errors import InvalidExpression
from renorm.expr.nodes import Binary, Call, Const, Load, Select
from renorm.te.tensor import ComputeOp
from renorm.tir import interpret


def evaluate(t: te.Tensor, **arrays: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The value of a tensor with default loops; arrays by the names of its placeholders."""
    s = te.create_schedule(t.op)
    inputs = list(dict.fromkeys(x for stage in s.stages for x in stage.op.input_tensors if x.name in arrays))
    result = np.zeros(t.shape, t.dtype)
    interpret.run(te.lower(s, [*inputs, t]), [*(arrays[x.name] for x in inputs), result])
    return result


X = te.placeholder((3, 4), name="X")
K = te.reduce_axis((0, 4), name="k")


@pytest.mark.parametrize(
    ("tensor", "name"),
    [
        (X + 1, "T_add"), (1 - X, "T_subtract"), (X * X, "T_multiply"), (X / 2, "T_divide"), (X // 2, "T_floor_divide"),
        (X % 3, "T_mod"), (X**0.5, "T_power"), (te.maximum(X, 0), "T_maximum"), (X < 1, "T_less"),
    ],
)  # fmt: skip
def test_operators_name_their_results_as_tvm_does(tensor: te.Tensor, name: str) -> None:
    assert tensor.op.name == name
    assert [a.name for a in tensor.op.axis] == ["ax0", "ax1"]


def test_operators_of_axes_and_expressions_give_expressions() -> None:
    i = te.reduce_axis((0, 4), name="i")
    given = (2 - i, i // 3, 7 % i, -i, i < 2, 2.0 ** X[0, 0], np.float32(2) * X[0, 0])
    texts = ["(2 - i)", "(i//3)", "(7 % i)", "(0 - i)", "(i < 2)", "pow(2f, X[0, 0])", "(2f*X[0, 0])"]
    assert [str(e) for e in given] == texts
    with pytest.raises(InvalidExpression, match="operators on bits are absent: i cannot"):
        _ = i & 1


def test_functions_of_a_tensor_are_called_compute() -> None:
    y = te.sqrt(X)
    assert (y.op.name, [a.name for a in y.op.axis], y.op.tag) == ("compute", ["i0", "i1"], "elemwise")


def test_axes_take_the_names_of_parameters() -> None:
    names = [a.name for a in te.compute((2, 3, 4), lambda b, row, c, scale=2: X[row, c] * scale + b).op.axis]
    assert names == ["b", "row", "c"]
    assert [a.name for a in te.compute((2, 3), lambda *i: X(*i)).op.axis] == ["i0", "i1"]


@pytest.mark.parametrize("other", [(4,), (3, 1), (1, 4), (), (2, 3, 4), (2, 1, 1)])
def test_operators_broadcast_as_numpy_does(other: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((3, 4), dtype="float32"), rng.standard_normal(other, dtype="float32")
    t = te.placeholder(other, name="Z")
    np.testing.assert_array_equal(evaluate(X - t, X=x, Z=z), x - z)
    np.testing.assert_array_equal(evaluate(t - X, X=x, Z=z), z - x)


def test_numbers_take_the_dtype_of_what_they_meet() -> None:
    for dtype in ("float32", "float64", "float16", "int64", "int8"):
        t = te.placeholder((2,), dtype)
        assert (t * 2).dtype == (3 - t).dtype == dtype
    assert (te.placeholder((2,), "int32") * 0.5).dtype == "float32"
    h, w = X.shape
    assert te.compute((3,), lambda i: X[i, 0] / (h * w)).dtype == "float32"


@pytest.mark.parametrize("exponent", [1, 2, 3, 5, 8, -1, -3, 2.0])
def test_integer_powers_multiply(exponent: float) -> None:
    x = np.array([[-3, -1.5, -1, 0.5], [1, 2, 3, 4], [-2, -0.25, 7, 9]], "float32")
    y = te.power(X, exponent)
    assert not any(isinstance(e, Binary) and e.op == "pow" for e in _nodes(y))
    want = np.ones_like(x)
    for _ in range(abs(int(exponent))):
        want = want * x
    np.testing.assert_allclose(evaluate(y, X=x), want if exponent > 0 else 1 / want, rtol=1e-6)


@pytest.mark.parametrize(
    ("constant", "wanted"),
    [
        (lambda: te.const(0.1, "float32").astype("float64"), float(np.float32(0.1))),
        (lambda: te.cast("float32", te.cast("float16", te.const(1e30, "float64"))), np.inf),
        (lambda: (te.const(200, "uint8") + te.const(100, "uint8")).astype("int32"), 44),
        (lambda: te.truncdiv(te.const(-128, "int8"), te.const(-1, "int8")).astype("int32"), -128),
        (lambda: te.cast("uint64", -te.const(255, "uint32")), 2**32 - 255),
    ],
)
def test_constants_are_computed_as_data(constant: Any, wanted: float) -> None:
    assert evaluate(te.compute((1,), lambda i: constant(), name="T"))[0] == wanted


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (300, "uint8"),
        (-1, "uint64"),
        (128, "int8"),
        (np.nan, "int32"),
        (2**63, "int64"),
        (2**31, "int32"),
        (1.5, "int8"),
    ],
)
def test_what_a_dtype_does_not_hold_is_no_constant_of_it(number: float, dtype: str) -> None:
    with pytest.raises(InvalidExpression, match=f"is no constant of {dtype}"):
        te.const(number, dtype)


@pytest.mark.parametrize("number", [2**31, 2**40, -(2**31) - 1])
def test_int32_beside_a_number_that_it_does_not_hold_is_int64(run_on_cpu: Any, number: int) -> None:
    """The number was cut to 32 bits in machine code."""
    k = te.placeholder((3,), "int32", name="k")
    x = np.array([-(2**31), 7, 2**31 - 1], np.int32)
    for made, wanted in (
        (k < number, x < number),
        (k + number, x.astype(np.int64) + number),
        (k % number, x.astype(np.int64) % number),
        (te.max(k[0], number), np.array([max(-(2**31), number)])),
    ):
        t = made if isinstance(made, te.Tensor) else te.compute((1,), lambda i, made=made: made, name="T")
        out = np.zeros(t.shape, t.dtype)
        run_on_cpu(te.lower(te.create_schedule(t.op), [k, t]), [x, out])
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "uint32"])
def test_integers_beside_each_other_have_a_dtype_that_holds_both(dtype: str) -> None:
    k, narrow = te.placeholder((3,), dtype, name="k"), te.placeholder((3,), "int8", name="n")
    x = np.array([np.iinfo(dtype).min, 7, np.iinfo(dtype).max], dtype)
    n = np.array([-128, 127, 3], np.int8)
    for made, wanted in (
        (k < 300, x.astype(np.int64) < 300),
        (te.max(k[0], -1), np.array([max(int(x[0]), -1)])),
        (k + narrow, x + n),
        (k + (-200), x.astype(np.int64) - 200),
    ):
        t = made if isinstance(made, te.Tensor) else te.compute((1,), lambda i, made=made: made, name="T")
        np.testing.assert_array_equal(evaluate(t, k=x, n=n), wanted)


def test_no_integer_holds_numbers_of_uint64_and_negative_ones() -> None:
    k, n = te.placeholder((1,), "uint64", name="k"), te.placeholder((1,), "int32", name="n")
    assert (k + n).dtype == "uint64"
    for made in (lambda: te.max(k[0], -1), lambda: k[0] < -1, lambda: k[0] + 2**64):
        with pytest.raises(InvalidExpression, match="is no constant of uint64"):
            made()


def test_powers_of_integers() -> None:
    """A float exponent gives a float, whatever number it is; an inverse is no integer."""
    k = te.placeholder((2,), "int32", name="k")
    for exponent in (2.0, 2.5):
        y = te.power(k, exponent)
        assert y.dtype == "float32"
        np.testing.assert_allclose(evaluate(y, k=np.array([3, 100000], np.int32)), [3.0**exponent, 1e5**exponent])
    assert te.power(k, 2).dtype == "int32"
    with pytest.raises(InvalidExpression, match="to the power of -1 is no integer"):
        te.power(k, -1)


def _nodes(t: te.Tensor) -> list[Any]:
    from renorm.expr.rewrite import walk

    assert isinstance(t.op, ComputeOp)
    return list(walk(t.op.body))


def test_a_scalar_tensor_stands_for_its_element() -> None:
    z = te.placeholder((), name="z")
    y = te.compute((3,), lambda i: X[i, 0] * z + z)
    assert [t.name for t in y.op.input_tensors] == ["X", "z"]
    assert [type(e) for e in _nodes(te.compute((), lambda: z))] == [Load]
    assert (z + 1).shape == ()
    got = evaluate(y, X=np.ones((3, 4), "float32"), z=np.array(2, "float32"))
    np.testing.assert_array_equal(got, [4, 4, 4])


def test_input_tensors_come_once_in_order_of_first_appearance() -> None:
    a, b, c = (te.placeholder((3,), name=n) for n in "abc")
    y = te.compute((3,), lambda i: (b[i] - a[i]) / te.sqrt(c[i] + b[i]))
    assert y.op.input_tensors == (b, a, c)


def test_reductions_say_what_they_reduce() -> None:
    k = te.reduce_axis((1, 4), name="k")
    y = te.compute((3,), lambda i: te.max(X[i, k], axis=k, where=k < 3))
    assert y.op.reduce_axis == (k,)
    assert k.dom == (1, 3)
    x = np.arange(12, dtype="float32").reshape(3, 4)
    np.testing.assert_array_equal(evaluate(y, X=x), x[:, 1:3].max(1))


@pytest.mark.parametrize(("name", "count"), [("abs", 1), ("sign", 1), ("popcount", 1), ("fmod", 2)])
def test_functions_of_integers_take_bool(run_on_cpu: Any, name: str, count: int) -> None:
    """The interpreter of loops ended in a NameError."""
    x = te.placeholder((2,), "bool", name="X")
    t = te.compute((2,), lambda i: getattr(te, name)(*[x[i]] * count), name="T")
    out = np.ones(2, bool)
    run_on_cpu(te.lower(te.create_schedule(t.op), [x, t]), [np.array([False, True]), out])
    assert out.tolist() == [False, name != "fmod"]


@pytest.mark.parametrize(("combiner", "wanted"), [("sum", [2, 7]), ("prod", [2, 10]), ("max", [2, 5]), ("min", [2, 2])])
def test_reductions_over_no_axes_are_of_one_element(combiner: str, wanted: list[float]) -> None:
    """They were that element, whatever where= and init= said."""
    x = te.placeholder((2,), name="X")
    t = te.compute((2,), lambda i: getattr(te, combiner)(x[i], axis=[], where=x[i] > 4, init=2.0), name="T")
    np.testing.assert_array_equal(evaluate(t, X=np.array([1, 5], np.float32)), wanted)


def test_axes_compare_by_value_with_numbers_and_by_identity_with_axes() -> None:
    k, m = te.reduce_axis((0, 4), name="k"), te.reduce_axis((0, 4), name="m")
    assert k in [m, k]
    assert m not in [k]
    assert str(k == 2) == "(k == 2)"
    assert str(k != 2) == "(k != 2)"
    assert str(k.equal(m)) == "(k == m)"
    y = te.compute((3,), lambda i: te.sum(te.if_then_else(k == i, X[i, k], 0.0), axis=k))
    x = np.arange(12, dtype="float32").reshape(3, 4)
    np.testing.assert_array_equal(evaluate(y, X=x), x.diagonal())


@pytest.mark.parametrize(
    ("combiner", "dtype"), [(c, d) for c in ("sum", "prod", "max", "min") for d in ("int32", "float64")]
)
def test_reductions_over_nothing_give_the_identity(combiner: str, dtype: str) -> None:
    t = te.placeholder((2, 0), dtype, name="E")
    k = te.reduce_axis((0, 0), name="k")
    got = evaluate(te.compute((2,), lambda i: getattr(te, combiner)(t[i, k], axis=k)), E=np.zeros((2, 0), dtype))
    limit = np.inf if dtype == "float64" else None
    want = {"sum": 0, "prod": 1, "max": -limit if limit else -(2**31), "min": limit or 2**31 - 1}[combiner]
    np.testing.assert_array_equal(got, [want, want])


def test_max_and_min_of_two_are_elementwise() -> None:
    assert isinstance(te.max(X[0, 0], 0), Binary)
    assert te.min(X[0, 0], 3).dtype == "float32"


def test_limits_of_dtypes() -> None:
    for dtype in ("float32", "float64", "float16", "int8", "uint8", "int64"):
        limits = np.finfo(dtype) if "float" in dtype else np.iinfo(dtype)
        low, high = te.min_value(dtype), te.max_value(dtype)
        assert isinstance(low, Const)
        assert isinstance(high, Const)
        assert (low.value, high.value) == (limits.min, limits.max)


def test_conditions() -> None:
    i = te.reduce_axis((0, 3), "i")
    for empty, value in ((te.all(), True), (te.any(), False)):
        assert isinstance(empty, Const)
        assert empty.value is value
    for made, op in ((te.all([i > 0, i < 2]), "&&"), (te.any(i > 0, i < 2), "||")):
        assert isinstance(made, Binary)
        assert made.op == op
    assert isinstance(te.if_then_else(i < 2, X[0, 0], 0), Call)
    chosen = te.select(i < 2, X[0, 0], 0)
    assert isinstance(chosen, Select)
    assert isinstance(chosen.otherwise, Const)


@pytest.mark.parametrize("x", [np.array([0, 1, 2, -1], np.int32), np.array([0.0, 0.5, np.nan, -0.0], np.float32)])
def test_numbers_other_than_zero_are_true(x: np.ndarray[Any, Any]) -> None:
    v, truth = te.placeholder((4,), str(x.dtype), name="v"), x != 0
    k = te.reduce_axis((0, 4), "k")
    for element, expected in (
        (lambda i: te.if_then_else(v[i], 7, 5), np.where(truth, 7, 5)),
        (lambda i: te.select(v[i], 7, 5), np.where(truth, 7, 5)),
        (lambda i: te.all(v[i], i > 1), truth & (np.arange(4) > 1)),
        (lambda i: te.any(v[i]), truth),
        (lambda i: te.sum(k.var + i * 0, axis=k, where=v[k]), np.full(4, np.arange(4)[truth].sum())),
    ):
        np.testing.assert_array_equal(evaluate(te.compute((4,), element), v=x), expected)
    np.testing.assert_array_equal(evaluate(topi.logical_or(v, v), v=x), truth)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: te.compute((3,), lambda i: X[i]), "X has 2 axes but is indexed by 1"),
        (lambda: X[1] + 1, "X has 2 axes but is indexed by 1"),
        (lambda: X[0, 0, 0], "X has 2 axes but is indexed by 3"),
        (lambda: X[0, 0.5], "index 1 is float32"),
        (lambda: X[:, 0], "selects one element, not a slice"),
        (lambda: list(X), "cannot be iterated"),
        (lambda: X + te.placeholder((5,)), "do not broadcast"),
        (lambda: te.placeholder((2, -1)), "-1 is not an extent"),
        (lambda: te.placeholder((2, 2.5)), "2.5 is not an extent"),
        (lambda: te.placeholder((2,), "float31"), "'float31' is not a dtype"),
        (lambda: te.compute((2, 2), lambda i: X[i, 0]), "the shape has 2 axes, the function takes 1"),
        (lambda: te.compute((2,), lambda i, j: X[i, j]), "the shape has 1 axes, the function takes 2"),
        (lambda: te.compute((2,), lambda i: X), "shape (3, 4) stands where one element is needed"),
        (lambda: te.compute((2,), lambda i: "x"), "is not an expression"),
        (lambda: te.compute((3,), lambda i: X[i, te.reduce_axis((0, 4), "k")]), "uses k, which is not an axis"),
        (lambda: te.compute((3,), lambda i: te.sum(X[i, K], axis=K) + 1), "a sum stands inside another expression"),
        (lambda: te.sum(X[0, 0], axis=[X]), "is not a reduce axis"),  # pyright: ignore[reportArgumentType]
        (lambda: te.compute((3,), lambda i: te.sum(X[i, K] > 0, axis=K), "C"), "compute C: sum of bool"),
        (lambda: te.compute((3,), lambda i: (X[i, 0] > 0) + (i > 0), "C"), "compute C: + of bool"),
        (lambda: te.const(2**2000, "float32"), "an int of 2001 bits is no constant of float32"),
        (lambda: te.reduce_axis((3, 1), "k"), "ends at 1, before its start 3"),
        (lambda: te.reduce_axis((3,), "k"), "is not a pair"),
        (lambda: te.thread_axis("threadIdx.w"), "'threadIdx.w' is not an axis of the grid"),
        (lambda: te.thread_axis((1, 8), "threadIdx.x"), "does not start at 0"),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidExpression) as error:
        make()
    assert message in str(error.value)


def test_a_reduce_axis_belongs_to_one_compute() -> None:
    k = te.reduce_axis((0, 4), name="k")
    mean = te.compute((3,), lambda i: te.sum(X[i, k], axis=k), name="mean")
    square = te.compute((3,), lambda i: te.sum(X[i, k] * mean[i], axis=k), name="square")
    with pytest.raises(InvalidExpression, match="the reduce axis k is reduced over by mean and by square"):
        te.create_schedule(square.op)
