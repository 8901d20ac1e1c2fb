"""Operators of StableHLO in TensorFlow Lite files against NumPy, and against LiteRT where that runs them; transposed
convolutions and dilated tensors beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.frontends.test_tflite_operators import Case, Fed, build, check, f, i, scalar
from tests.frontends.tflite_files import File, litert
from tests.random_numbers import RNG

import renorm
from renorm.errors import UnsupportedOp

X, Y = f(2, 3, 4), f(2, 3, 4)
INTEGERS = np.asarray([[-7, 5, 0], [127, -128, 3]], np.int32)
OTHERS = np.asarray([[3, -2, 1], [5, 7, -2]], np.int32)
ALL = np.int64


def l(*values: Any) -> Any:  # noqa: E743
    return np.asarray(values, np.int64)


UNARY: dict[str, Callable[[Any], Any]] = {
    "ABS": np.abs, "CBRT": np.cbrt, "COSINE": np.cos, "EXPONENTIAL": np.exp, "FLOOR": np.floor, "NEGATE": np.negative,
    "TANH": np.tanh, "LOGISTIC": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip
BINARY: dict[str, Callable[..., Any]] = {
    "ADD": np.add, "DIVIDE": np.divide, "MAXIMUM": np.maximum, "MINIMUM": np.minimum, "MULTIPLY": np.multiply,
    "SUBTRACT": np.subtract, "REMAINDER": np.fmod,
}  # fmt: skip

CASES: list[tuple[Case, Any]] = [
    *((Case(f"STABLEHLO_{name}", [Fed(X)]), apply(X)) for name, apply in UNARY.items()),
    *((Case(f"STABLEHLO_{name}", [Fed(X), Fed(Y)]), apply(X, Y)) for name, apply in BINARY.items()),
    *((Case(f"STABLEHLO_{name}", [Fed(np.abs(X) + 1)]), apply(np.abs(X) + 1)) for name, apply in
      (("LOG", np.log), ("RSQRT", lambda x: x**-0.5))),
    (Case("STABLEHLO_POWER", [Fed(np.abs(X)), Fed(Y)]), np.abs(X) ** Y),
    (Case("STABLEHLO_SELECT", [Fed(X > 0), Fed(X), Fed(Y)]), np.where(X > 0, X, Y)),
    (Case("STABLEHLO_CLAMP", [scalar(-0.5, "float32"), Fed(X), scalar(0.3, "float32")]), np.clip(X, -0.5, 0.3)),
    (Case("STABLEHLO_AND", [Fed(INTEGERS), Fed(OTHERS)], outs=("int32",)), INTEGERS & OTHERS),
    (Case("STABLEHLO_OR", [Fed(X > 0), Fed(Y > 0)], outs=("bool",)), (X > 0) | (Y > 0)),
    (Case("STABLEHLO_SHIFT_LEFT", [Fed(INTEGERS), Fed(i([1, 3, 0], [0, 2, 5]))], outs=("int32",)),
     INTEGERS << i([1, 3, 0], [0, 2, 5])),
    *((Case("STABLEHLO_COMPARE", [Fed(INTEGERS), Fed(OTHERS)], "StablehloCompareOptions",
            {"comparison_direction": k}, ("bool",)), apply(INTEGERS, OTHERS))
      for k, apply in enumerate((np.equal, np.not_equal, np.greater_equal, np.greater, np.less_equal, np.less))),
    (Case("STABLEHLO_CONVERT", [Fed(INTEGERS)]), INTEGERS.astype(np.float32)),
    (Case("STABLEHLO_RESHAPE", [Fed(X)]), X.reshape(4, 6)),
    (Case("STABLEHLO_TRANSPOSE", [Fed(X)], "StablehloTransposeOptions", {"permutation": l(2, 0, 1)}),
     X.transpose(2, 0, 1)),
    (Case("STABLEHLO_BROADCAST_IN_DIM", [Fed(f(3, 1))], "StablehloBroadcastInDimOptions",
          {"broadcast_dimensions": l(1, 2)}), (2, 3, 5)),
    (Case("STABLEHLO_BROADCAST_IN_DIM", [Fed(f(3, 2))], "StablehloBroadcastInDimOptions",
          {"broadcast_dimensions": l(2, 0)}), (2, 5, 3)),
    (Case("STABLEHLO_CONCATENATE", [Fed(X), Fed(Y)], "StablehloConcatenateOptions", {"dimension": 1}),
     np.concatenate([X, Y], 1)),
    (Case("STABLEHLO_SLICE", [Fed(X)], "StablehloSliceOptions",
          {"start_indices": l(1, 0, 1), "limit_indices": l(2, 3, 4), "strides": l(1, 2, 2)}), X[1:2, 0:3:2, 1:4:2]),
    (Case("STABLEHLO_IOTA", [], "StablehloIotaOptions", {"iota_dimension": 1}, ("int32",)),
     np.broadcast_to(np.arange(3, dtype=np.int32)[:, None], (2, 3, 4))),
    (Case("STABLEHLO_DYNAMIC_SLICE", [Fed(X), Fed(scalar(1)), Fed(scalar(5)), Fed(scalar(-1))],
          "StablehloDynamicSliceOptions", {"slice_sizes": l(1, 2, 4)}), X[1:2, 1:3]),
    (Case("STABLEHLO_DYNAMIC_UPDATE_SLICE", [Fed(X), Fed(Y[:, :2]), Fed(scalar(0)), Fed(scalar(9)), Fed(scalar(0))]),
     np.concatenate([X[:, :1], Y[:, :2]], 1)),
    (Case("STABLEHLO_DOT_GENERAL", [Fed(X), Fed(f(2, 4, 5))], "StablehloDotGeneralOptions",
          {"lhs_batching_dimensions": l(0), "rhs_batching_dimensions": l(0), "lhs_contracting_dimensions": l(2),
           "rhs_contracting_dimensions": l(1)}), "bij,bjk->bik"),
    (Case("STABLEHLO_DOT_GENERAL", [Fed(X), Fed(f(5, 3))], "StablehloDotGeneralOptions",
          {"lhs_contracting_dimensions": l(1), "rhs_contracting_dimensions": l(1)}), "bij,ki->bjk"),
]  # fmt: skip


def expectation(case: Case, expected: Any) -> Any:
    if isinstance(expected, str):
        return np.einsum(expected, *(x.data for x in case.xs))
    if not isinstance(expected, tuple):
        return expected
    x, places = case.xs[0].data, list(case.fields["broadcast_dimensions"])
    turned = x.transpose(np.argsort(places))
    return np.broadcast_to(turned.reshape([x.shape[places.index(a)] if a in places else 1 for a in range(3)]), expected)


@pytest.mark.parametrize(("case", "expected"), CASES, ids=lambda v: str(v) if isinstance(v, Case) else "")
def test_stablehlo(case: Case, expected: Any) -> None:
    e = np.asarray(expectation(case, expected))
    file, names, given = File(), list[str](), list[str]()
    for n, x in enumerate(case.xs):
        is_fed = isinstance(x, Fed)
        names.append(file.tensor(f"x{n}", x.data.shape, x.data.dtype.name) if is_fed else file.constant(f"x{n}", x))
        given += names[-1:] if is_fed else []
    file.tensor("y", e.shape, case.outs[0])
    file.operator(case.kind, names, ["y"], case.options, **case.fields)
    (found,) = renorm.compile(file.written(given, ["y"])).run(*(x.data for x in case.xs if isinstance(x, Fed)))
    assert (found.dtype.name, found.shape) == (case.outs[0], e.shape)
    np.testing.assert_allclose(found, e, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("low", "high", "between"),
    [((0, 1, 2), (3, 0, 0), (0, 0, 0)), ((0, 1, 0), (0, 2, 0), (1, 0, 2)), ((-1, 0, 1), (0, -2, 0), (0, 1, 0))],
)
def test_padding_around_and_between(low: Any, high: Any, between: Any) -> None:
    fields = {"edge_padding_low": l(*low), "edge_padding_high": l(*high), "interior_padding": l(*between)}
    check(Case("STABLEHLO_PAD", [Fed(X), scalar(1.5, "float32")], "StablehloPadOptions", fields))


@pytest.mark.parametrize("steps", [(1, 2, 3), (1, 1, 1), (3, 1, 2)])
def test_dilated_tensors(steps: Any) -> None:
    check(Case("DILATE", [Fed(X), i(*steps), scalar(-1, "float32")], "DilateOptions"))


@pytest.mark.parametrize(("kind", "apply"), [("ADD", np.sum), ("MAXIMUM", np.max), ("MULTIPLY", np.prod)])
def test_reductions_by_a_body_of_one_operator(kind: str, apply: Any) -> None:
    file = File()
    body = file.subgraph()
    for name in ("a", "b", "c"):
        body.tensor(name, ())
    body.operator(f"STABLEHLO_{kind}", ["a", "b"], ["c"])
    file.tensor("x", X.shape)
    file.constant("start", np.float32(2))
    file.tensor("y", (3,))
    number = file.call(body, ["a", "b"], ["c"])
    file.operator(
        "STABLEHLO_REDUCE",
        ["x", "start"],
        ["y"],
        "StablehloReduceOptions",
        dimensions=l(0, 2),
        body_subgraph_index=number,
    )
    begun = {"ADD": np.add, "MAXIMUM": np.maximum, "MULTIPLY": np.multiply}[kind]
    found = renorm.compile(file.written(["x"], ["y"])).run(X)[0]
    np.testing.assert_allclose(found, begun(apply(X, axis=(0, 2)), 2), rtol=1e-5)


def convolution(**more: Any) -> bytes:
    """As CONV_2D with channels last, weights [H, W, I, O]."""
    file = File()
    file.tensor("x", (2, 7, 6, 3))
    file.constant("w", f(3, 2, 3, 5))
    file.tensor("y", (2, 4, 5, 5))
    fields = {
        "window_strides": l(2, 1), "padding": l(1, 1, 0, 0), "rhs_dilation": l(1, 1), "input_feature_dimension": 3,
        "input_spatial_dimensions": l(1, 2), "kernel_input_feature_dimension": 2, "kernel_output_feature_dimension": 3,
        "kernel_spatial_dimensions": l(0, 1), "output_feature_dimension": 3, "output_spatial_dimensions": l(1, 2),
        "feature_group_count": 1, "batch_group_count": 1,
    }  # fmt: skip
    file.operator("STABLEHLO_CONVOLUTION", ["x", "w"], ["y"], "StablehloConvolutionOptions", **fields | more)
    return file.written(["x"], ["y"])


def test_a_convolution() -> None:
    content, x = convolution(), f(2, 7, 6, 3)
    graph = renorm.read(content)
    (w,) = (v.data for v in graph.constants.values() if v.rank == 4)
    w = np.asarray(w)
    w = w.transpose(2, 3, 1, 0) if w.shape[:2] == (5, 3) else w
    wide = np.pad(x, [(0, 0), (1, 1), (0, 0), (0, 0)]).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 2), axis=(1, 2))[:, ::2]
    np.testing.assert_allclose(
        renorm.compile(content).run(x)[0], np.einsum("nhwcij,ijco->nhwo", windows, w), rtol=1e-4, atol=1e-4
    )
    with pytest.raises(UnsupportedOp, match="spreads its operand"):
        renorm.read(convolution(lhs_dilation=l(2, 2)))


@pytest.mark.parametrize(("padding", "out"), [(0, (6, 4, 9)), (0, (5, 4, 8)), (1, (7, 3, 10))])
@pytest.mark.parametrize("activation", [0, 1])
def test_transposed_convolutions_over_three_axes(padding: int, out: tuple[int, ...], activation: int) -> None:
    strides, kernel = (2, 1, 3), (3, 1, 2)
    sizes = [-(-n // s) if padding == 0 else -(-(n - k + 1) // s) for n, s, k in zip(out, strides, kernel)]
    fields = {
        "padding": padding, "stride_d": 2, "stride_h": 1, "stride_w": 3, "fused_activation_function": activation,
    }  # fmt: skip
    xs = [i(2, *out, 4), f(*kernel, 4, 3), Fed(f(2, *sizes, 3)), f(4)]
    check(Case("CONV_3D_TRANSPOSE", xs, "Conv3DOptions", fields))


@pytest.mark.parametrize("is_same", [True, False])
def test_mediapipes_transposed_convolution(is_same: bool) -> None:
    """As TRANSPOSE_CONV that says its result's shape."""
    file, plain, w, b = File(), File(), f(4, 3, 2, 5), f(4)
    out = (2, 10, 18, 4) if is_same else (2, 11, 17, 4)
    for each in (file, plain):
        each.tensor("x", (2, 5, 6, 5))
        each.constant("w", w)
        each.constant("b", b)
        each.tensor("y", out)
    custom = np.asarray([1 if is_same else 2, 3, 2, 0, 0], "<i4").tobytes()
    file.operator("Convolution2DTransposeBias", ["x", "w", "b"], ["y"], custom=custom)
    plain.constant("shape", i(*out))
    fields = {"padding": 0 if is_same else 1, "stride_h": 2, "stride_w": 3}
    plain.operator("TRANSPOSE_CONV", ["shape", "w", "x", "b"], ["y"], "TransposeConvOptions", version=3, **fields)
    x = f(2, 5, 6, 5)
    (expected,) = litert(plain.written(["x"], ["y"]), x)
    found = renorm.compile(file.written(["x"], ["y"])).run(x)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_transposed_convolution_of_an_open_batch() -> None:
    """Its result's shape is made of the shape of x, as converters of Keras write it."""
    file = File()
    file.tensor("x", (-1, 4, 5, 3))
    for name, data in (("from", [0]), ("to", [1]), ("step", [1])):
        file.constant(name, i(*data))
    for name, size in (("h", 8), ("w", 15), ("c", 2)):
        file.constant(name, scalar(size))
    file.constant("weight", f(2, 3, 2, 3))
    for name, shape, dtype in (
        ("s", (4,), "int32"),
        ("n", (), "int32"),
        ("p", (4,), "int32"),
        ("y", (1, 8, 15, 2), "float32"),
    ):
        file.tensor(name, shape, dtype)
    file.operator("SHAPE", ["x"], ["s"], "ShapeOptions", out_type=2)
    file.operator("STRIDED_SLICE", ["s", "from", "to", "step"], ["n"], "StridedSliceOptions", shrink_axis_mask=1)
    file.operator("PACK", ["n", "h", "w", "c"], ["p"], "PackOptions", values_count=4)
    file.operator("TRANSPOSE_CONV", ["p", "weight", "x"], ["y"], "TransposeConvOptions", stride_h=2, stride_w=3)
    content = file.written(["x"], ["y"])
    module = renorm.compile(content)
    for batch in (1, 3):
        x = RNG.standard_normal((batch, 4, 5, 3)).astype(np.float32)
        np.testing.assert_allclose(module.run(x)[0], litert(content, x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"])
def test_as_litert(kind: str) -> None:
    content, xs = build(Case(f"STABLEHLO_{kind}", [Fed(X), Fed(Y)]))
    np.testing.assert_allclose(renorm.compile(content).run(*xs)[0], litert(content, *xs)[0], rtol=1e-6)
