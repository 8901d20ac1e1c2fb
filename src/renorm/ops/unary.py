"""Unary elementwise ops: one row each. Activations with attributes are in activation.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from renorm.core.dims import Sym
from renorm.core.dtypes import FLOATS, NUMBERS
from renorm.expr.nodes import Expr, Not, any_of, call, const, maximum, minimum
from renorm.graph.attributes import Attribute, Bool
from renorm.graph.op import OpDef, Reject, Sample
from renorm.graph.types import boolean, f16, f32, f64, i8, i32, i64
from renorm.ops.shared.composite import apply
from renorm.ops.shared.exact import Ratio
from renorm.ops.shared.family import HOMOGENEOUS, Elementwise, entry, method
from renorm.topi import formulas

SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan)


def unary(
    title: str,
    formula: str,
    element: Callable[..., Expr],
    numpy: Callable[..., Any],
    *,
    attributes: Mapping[str, Attribute] | None = None,
    tried: Sequence[Mapping[str, Any]] = ({},),
    onnx: int | Mapping[str, int] = 1,
    types: Sequence[str] = FLOATS,
    domain: tuple[float, float] = (-3.0, 3.0),
    result: str = "T",
    exact: Callable[[Any], Any] | None = None,
    onnx_ignored: Sequence[str] = (),
    commutes: str = "",
    magnifies: bool = False,
    in_onnx: Callable[..., Any] = OpDef.in_onnx,
    module: str = __name__,
) -> type[OpDef]:
    """element, numpy: functions of x, or, with attributes, of the op and x. tried: values of attributes in samples.
    domain: where samples are drawn from; all are tried on infinities and NaN too. result: dtype of the result.
    magnifies: large operands make large relative errors of theirs. module: the file with the row."""
    low, high = domain
    samples = [
        *(Sample(f32[2, 3, 5].between(low, high), **given) for given in tried),
        Sample(f32[()].between(low, high)),
        Sample(f32[0, 4]),
        Sample(f64[9].between(low, high)),
        Sample(f16[7].between(low, high), tolerance=2e-3),
        *(Sample(f32[len(SPECIAL)].of(SPECIAL), **given) for given in tried),
    ]
    samples += [Sample(i64[5]), Sample(i32[2, 3]), Sample(i8[4])] if types == NUMBERS else []
    return entry(
        Elementwise,
        title,
        formula,
        module,
        signature=f"x: T[*S] -> y: {result}[*S]",
        types={"T": types},
        onnx={title: onnx} if isinstance(onnx, int) else onnx,
        onnx_ignored=("consumed_inputs", *onnx_ignored),
        infer=method(lambda x: None),
        commutes=commutes,
        element=element if attributes else method(element),
        numpy=numpy if attributes else method(numpy),
        in_onnx=in_onnx,
        known_element=None if exact is None else staticmethod(exact),
        samples=samples,
        rejects=[
            Reject(boolean[3], because="x is bool"),
            Reject(f32[3], because="has no attribute 'slope'", slope=1),
            *([] if types == NUMBERS else [Reject(i32[3], because="int32")]),
        ],
        **({"wants_digits": method(lambda index: "errors of large operands grow in it")} if magnifies else {}),
        **(attributes or {}),
    )


def intrinsic(name: str) -> Callable[[Expr], Expr]:
    return lambda x: call(name, x)


def _floor(x: Any) -> Any:
    return x if isinstance(x, (int, Sym)) else x.floor() if isinstance(x, Ratio) else np.floor(x)


def _ceil(x: Any) -> Any:
    return x if isinstance(x, (int, Sym)) else x.ceil() if isinstance(x, Ratio) else np.ceil(x)


def erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[float])(x) if np.size(x) else np.asarray(x, float)


def _isinf(op: Any, x: Expr) -> Expr:
    found: list[Expr] = [x.equal(const(math.inf, x.dtype))] if op.detect_positive else []
    found += [x.equal(const(-math.inf, x.dtype))] if op.detect_negative else []
    return any_of(*found)


def _sigmoid(x: Any) -> Any:
    return np.exp(-np.logaddexp(0.0, -x))


TABLE = [
    # title, formula, element, NumPy, since which opset, where it is sampled
    unary("Abs", "y = |x|", intrinsic("abs"), np.abs, types=NUMBERS),
    unary("Neg", "y = -x", lambda x: -x, np.negative, types=NUMBERS, exact=lambda x: -x),
    unary("Sign", "y = -1, 0 or 1", intrinsic("sign"), np.sign, types=NUMBERS, onnx=9),
    unary("Exp", "y = e^x", intrinsic("exp"), np.exp, magnifies=True),
    unary("Log", "y = ln x", intrinsic("log"), np.log, domain=(0.01, 9)),
    unary("Sqrt", "y = x^(1/2)", intrinsic("sqrt"), np.sqrt, domain=(0, 9)),
    unary(
        "Rsqrt",
        "y = x^(-1/2)",
        intrinsic("rsqrt"),
        lambda x: 1 / np.sqrt(x),
        domain=(0.1, 9),
        onnx={},
        in_onnx=lambda op, node: apply("reciprocal", apply("sqrt", node.operands[0])),
    ),
    unary("Reciprocal", "y = 1 / x", lambda x: const(1.0, x.dtype) / x, lambda x: 1 / x, domain=(0.1, 9)),
    unary("Floor", "y = the greatest integer not above x", intrinsic("floor"), np.floor, exact=_floor),
    unary("Ceil", "y = the least integer not below x", intrinsic("ceil"), np.ceil, exact=_ceil),
    unary("Round", "y = the nearest integer, halves to even", intrinsic("round"), np.rint, onnx=11),
    unary("Sin", "y = sin x", intrinsic("sin"), np.sin, onnx=7, magnifies=True),
    unary("Cos", "y = cos x", intrinsic("cos"), np.cos, onnx=7, magnifies=True),
    unary("Tan", "y = tan x", intrinsic("tan"), np.tan, onnx=7, domain=(-1.4, 1.4), magnifies=True),
    unary("Asin", "y = arcsin x", intrinsic("asin"), np.arcsin, onnx=7, domain=(-1, 1)),
    unary("Acos", "y = arccos x", intrinsic("acos"), np.arccos, onnx=7, domain=(-1, 1)),
    unary("Atan", "y = arctan x", intrinsic("atan"), np.arctan, onnx=7),
    unary("Sinh", "y = (e^x - e^-x) / 2", intrinsic("sinh"), np.sinh, onnx=9, magnifies=True),
    unary("Cosh", "y = (e^x + e^-x) / 2", intrinsic("cosh"), np.cosh, onnx=9, magnifies=True),
    unary("Asinh", "y = ln(x + sqrt(x^2 + 1))", intrinsic("asinh"), np.arcsinh, onnx=9),
    unary("Acosh", "y = ln(x + sqrt(x^2 - 1))", intrinsic("acosh"), np.arccosh, onnx=9, domain=(1, 9)),
    unary("Atanh", "y = ln((1 + x) / (1 - x)) / 2", intrinsic("atanh"), np.arctanh, onnx=9, domain=(-0.9, 0.9)),
    unary("Erf", "y = 2/sqrt(pi) * integral of e^(-t^2) from 0 to x", intrinsic("erf"), erf, onnx=9),
    unary("Tanh", "y = (e^x - e^-x) / (e^x + e^-x)", intrinsic("tanh"), np.tanh),
    unary("Sigmoid", "y = 1 / (1 + e^-x)", intrinsic("sigmoid"), _sigmoid),
    unary(
        "Relu",
        "y = max(x, 0)",
        lambda x: maximum(x, const(0, x.dtype)),
        lambda x: np.where(x < 0, 0, x),
        types=NUMBERS,
        commutes=HOMOGENEOUS,
    ),
    unary("Softplus", "y = ln(1 + e^x)", formulas.softplus, lambda x: np.logaddexp(0.0, x)),
    unary("Softsign", "y = x / (1 + |x|)", lambda x: x / (1.0 + call("abs", x)), lambda x: x / (1 + np.abs(x))),
    unary("Mish", "y = x * tanh(ln(1 + e^x))", formulas.mish, lambda x: x * np.tanh(np.logaddexp(0.0, x)), onnx=18),
    unary(
        "HardSwish",
        "y = x * max(0, min(1, x / 6 + 1/2))",
        lambda x: x * maximum(minimum(x * (1 / 6) + 0.5, 1.0), 0.0),
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        onnx=14,
    ),
    unary(
        "Isinf",
        "y = whether x is +inf (detect_positive) or -inf (detect_negative)",
        _isinf,
        lambda op, x: (np.isposinf(x) & op.detect_positive) | (np.isneginf(x) & op.detect_negative),
        attributes={"detect_negative": Bool(True), "detect_positive": Bool(True)},
        tried=({}, {"detect_negative": 0}, {"detect_positive": 0}, {"detect_negative": 0, "detect_positive": 0}),
        onnx={"IsInf": 10},
        result="bool",
    ),
    unary("Isnan", "y = whether x is not a number", intrinsic("isnan"), np.isnan, onnx={"IsNaN": 9}, result="bool"),
    entry(
        Elementwise,
        "LogicalNot",
        "y = not x",
        __name__,
        signature="x: bool[*S] -> y: bool[*S]",
        onnx={"Not": 1},
        infer=method(lambda x: None),
        element=method(Not),
        numpy=method(np.logical_not),
        known_element=staticmethod(lambda x: not x),
        samples=[Sample(boolean[2, 3]), Sample(boolean[()])],
        rejects=[Reject(f32[2], because="x is float32")],
    ),
]
