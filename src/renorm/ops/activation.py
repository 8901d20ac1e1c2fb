"""Activations that have attributes. y is x's type; a formula without attributes is a row of unary.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.expr.nodes import Expr, call, const, maximum, minimum, select
from renorm.graph.attributes import Attribute, Float, String
from renorm.graph.ir import Node
from renorm.graph.op import OpDef
from renorm.ops.shared.composite import apply
from renorm.ops.shared.family import HOMOGENEOUS
from renorm.ops.unary import erf, unary
from renorm.topi import formulas


def activation(
    title: str,
    formula: str,
    element: Callable[[Any, Expr], Expr],
    numpy: Callable[[Any, Any], Any],
    attributes: Mapping[str, Attribute],
    **others: Any,
) -> type[OpDef]:
    """element, numpy: of the op (for its attributes) and x. others: as `unary` has them."""
    return unary(title, formula, element, numpy, attributes=attributes, domain=(-4, 4), module=__name__, **others)


def _gelu(op: Any, x: Expr) -> Expr:
    return formulas.gelu(x) if op.approximate == "none" else formulas.gelu_tanh(x)


def _gelu_numpy(op: Any, x: Any) -> Any:
    if op.approximate == "none":
        return x * (1 + erf(x / np.sqrt(2))) / 2
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def _gelu_in_onnx(op: Any, node: Node) -> Any:
    """Before opset 20."""
    (x,) = node.operands
    half, one, root, cubic = (np.asarray(f, dtypes.numpy_dtype(x.dtype)) for f in (0.5, 1, np.sqrt(0.5), 0.044715))
    if op.approximate == "none":
        inside = apply("erf", apply("mul", x, root))
    else:
        cube = apply("mul", apply("mul", apply("mul", x, x), x), cubic)
        inside = apply("tanh", apply("mul", apply("add", x, cube), np.asarray(np.sqrt(2 / np.pi), half.dtype)))
    return apply("mul", apply("mul", x, half), apply("add", inside, one))


def _swish_in_onnx(op: Any, node: Node) -> Any:
    """Before opset 24."""
    (x,) = node.operands
    scaled = x if op.alpha == 1 else apply("mul", x, np.asarray(op.alpha, dtypes.numpy_dtype(x.dtype)))
    return apply("mul", x, apply("sigmoid", scaled))


def _hard_sigmoid(op: Any, x: Expr) -> Expr:
    return maximum(minimum(x * op.alpha + op.beta, 1.0), 0.0)


def _shrink(op: Any, x: Expr) -> Expr:
    inside = select(x > op.lambd, x - op.bias, const(0.0, x.dtype))
    return select(x < -op.lambd, x + op.bias, inside)


TABLE: Sequence[type[OpDef]] = [
    activation(
        "LeakyRelu",
        "y = x where x >= 0, alpha * x elsewhere",
        lambda op, x: select(x < 0, x * op.alpha, x),
        lambda op, x: np.where(x < 0, op.alpha * x, x),
        {"alpha": Float(0.01)},
        tried=({}, {"alpha": 0.3}, {"alpha": -2}),
        commutes=HOMOGENEOUS,
    ),
    activation(
        "Elu",
        "y = x where x >= 0, alpha * (e^x - 1) elsewhere",
        lambda op, x: select(x < 0, formulas.expm1(x) * op.alpha, x),
        lambda op, x: np.where(x < 0, op.alpha * np.expm1(x), x),
        {"alpha": Float(1.0)},
        tried=({}, {"alpha": 2}),
    ),
    activation(
        "Selu",
        "y = gamma * x where x > 0, gamma * alpha * (e^x - 1) elsewhere",
        lambda op, x: select(x < 0, formulas.expm1(x) * op.alpha, x) * op.gamma,
        lambda op, x: op.gamma * np.where(x < 0, op.alpha * np.expm1(x), x),
        {"alpha": Float(1.67326319217681884765625), "gamma": Float(1.05070102214813232421875)},
        tried=({}, {"alpha": 2, "gamma": 3}),
    ),
    activation(
        "Celu",
        "y = x where x >= 0, alpha * (e^(x / alpha) - 1) elsewhere",
        lambda op, x: select(x < 0, formulas.expm1(x * (1 / op.alpha if op.alpha else np.inf)) * op.alpha, x),
        lambda op, x: np.where(x < 0, op.alpha * np.expm1(x / op.alpha), x),
        {"alpha": Float(1.0)},
        onnx=12,
        tried=({}, {"alpha": 2}),
    ),
    activation(
        "HardSigmoid",
        "y = max(0, min(1, alpha * x + beta))",
        _hard_sigmoid,
        lambda op, x: np.clip(op.alpha * x + op.beta, 0, 1),
        {"alpha": Float(0.2), "beta": Float(0.5)},
        tried=({}, {"alpha": 0.5, "beta": 0.6}),
    ),
    activation(
        "ThresholdedRelu",
        "y = x where x > alpha, 0 elsewhere",
        lambda op, x: select(x <= op.alpha, const(0.0, x.dtype), x),
        lambda op, x: np.where(x <= op.alpha, 0, x),
        {"alpha": Float(1.0)},
        onnx=10,
        tried=({}, {"alpha": -0.5}),
    ),
    activation(
        "Shrink",
        "y = x + bias where x < -lambd, x - bias where x > lambd, 0 elsewhere",
        _shrink,
        lambda op, x: np.where(x < -op.lambd, x + op.bias, np.where(x > op.lambd, x - op.bias, 0)),
        {"lambd": Float(0.5), "bias": Float(0.0)},
        onnx=9,
        tried=({}, {"lambd": 1, "bias": 0.25}),
    ),
    activation(
        "Swish",
        "y = x / (1 + e^(-alpha * x))",
        lambda op, x: x * call("sigmoid", x * op.alpha),
        lambda op, x: x * np.exp(-np.logaddexp(0, -op.alpha * x)),
        {"alpha": Float(1.0)},
        onnx=24,
        in_onnx=_swish_in_onnx,
        tried=({}, {"alpha": 1.702}),
    ),
    activation(
        "Gelu",
        "y = x * (1 + erf(x / sqrt 2)) / 2; or x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2 for tanh",
        _gelu,
        _gelu_numpy,
        {"approximate": String("none", among=("none", "tanh"))},
        onnx=20,
        in_onnx=_gelu_in_onnx,
        tried=({}, {"approximate": "tanh"}),
    ),
]
