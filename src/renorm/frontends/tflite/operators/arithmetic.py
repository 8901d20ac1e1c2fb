"""Operators element by element. They stay in the order of axes that their operands have already."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from renorm import ops
from renorm.frontends.tflite.call import ACTIVATIONS, Call, Reader
from renorm.frontends.tflite.tensors import First, to_first
from renorm.graph.ir import Value


def aligned(call: Call, indices: range | None = None) -> tuple[list[Value], bool]:
    """Operands that broadcast against each other, all in one order; whether that has channels first."""
    tensors = [call.tensor(i) for i in indices or range(len(call.inputs))]
    rank = max(t.value.rank for t in tensors)
    if not any(t.is_first for t in tensors):
        return [t.stored() for t in tensors], False
    if any(t.value.rank not in (0, rank) and t.value.data is None for t in tensors):
        return [t.stored() for t in tensors], False
    return [t.first() if t.value.rank in (0, rank) else _spread(call, t.stored(), rank) for t in tensors], True


def _spread(call: Call, constant: Value, rank: int) -> Value:
    """A constant of fewer axes, which stand under the last of `rank`, with channels first."""
    assert constant.data is not None
    whole = constant.data.reshape([1] * (rank - constant.rank) + list(constant.data.shape))
    return call.graph.constant(np.ascontiguousarray(whole.transpose(to_first(rank))), constant.name, constant.source)


def elementwise(apply: Callable[..., Value]) -> Reader:
    def read(call: Call) -> Value | First:
        operands, is_first = aligned(call)
        return First(apply(*operands)) if is_first else apply(*operands)

    return read


def with_options(apply: Callable[..., Value], *names: str) -> Reader:
    """One operand, and options in order."""

    def read(call: Call) -> Value | First:
        (x,), is_first = aligned(call, range(1))
        y = apply(x, *(call.option(n, 0) for n in names))
        return First(y) if is_first else y

    return read


def _floor_div(a: Value, b: Value) -> Value:
    if a.dtype.startswith("float"):
        return ops.floor(ops.div(a, b))
    return ops.div(ops.sub(a, ops.mod(a, b)), b)  # the rest has the sign of b, so the division leaves none


def _floor_mod(a: Value, b: Value) -> Value:
    if a.dtype.startswith("float"):
        return ops.sub(a, ops.mul(ops.floor(ops.div(a, b)), b))
    return ops.mod(a, b)


def _square(x: Value) -> Value:
    return ops.mul(x, x)


def _squared_difference(a: Value, b: Value) -> Value:
    return _square(ops.sub(a, b))


def _cast(call: Call) -> Value | First:
    (x,), is_first = aligned(call, range(1))
    y = ops.cast(x, to=call.outputs[0].dtype)
    return First(y) if is_first else y


def _prelu(x: Value, slope: Value) -> Value:
    return ops.prelu(x, slope)


def _passed_on(call: Call) -> Value | First:
    """QUANTIZE and DEQUANTIZE: both sides stand for the same real numbers, and constants are dequantized already."""
    x = call.tensor(0)
    return First(x.first()) if x.is_first else x.stored()


def _select(condition: Value, x: Value, otherwise: Value) -> Value:
    return ops.where(condition, x, otherwise)


def _zeros(x: Value) -> Value:
    shape = ops.shape(x) if not x.type.is_static else np.asarray(x.shape, np.int64)
    return ops.expand(x.graph.constant(np.asarray(0, x.dtype), "zero"), shape=shape)


def _unary(name: str) -> Reader:
    return elementwise(lambda x: getattr(ops, name)(x))


def _binary(name: str) -> Reader:
    return elementwise(lambda a, b: getattr(ops, name)(a, b))


def _many(name: str) -> Reader:
    return elementwise(lambda *xs: getattr(ops, name)(*xs))


_UNARY = {
    "ABS": "abs", "CEIL": "ceil", "COS": "cos", "ELU": "elu", "EXP": "exp", "FLOOR": "floor",
    "HARD_SWISH": "hard_swish", "LOG": "log", "LOGICAL_NOT": "logical_not", "LOGISTIC": "sigmoid", "NEG": "neg",
    "ROUND": "round", "RSQRT": "rsqrt", "SIGN": "sign", "SIN": "sin", "SQRT": "sqrt",
}  # fmt: skip
_BINARY = {
    "ADD": "add", "DIV": "div", "EQUAL": "equal", "GREATER": "greater", "GREATER_EQUAL": "greater_or_equal",
    "LESS": "less", "LESS_EQUAL": "less_or_equal", "LOGICAL_AND": "logical_and", "LOGICAL_OR": "logical_or",
    "MAXIMUM": "max", "MINIMUM": "min", "MUL": "mul", "POW": "pow", "SUB": "sub",
}  # fmt: skip

OPERATORS: dict[str, Reader] = {
    **{kind: _unary(name) for kind, name in _UNARY.items()},
    **{kind: _binary(name) for kind, name in _BINARY.items()},
    **{kind: elementwise(ACTIVATIONS[kind]) for kind in ("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "TANH")},
    "ADD_N": _many("sum"),
    "CAST": _cast,
    "DEQUANTIZE": _passed_on,
    "FLOOR_DIV": elementwise(_floor_div),
    "FLOOR_MOD": elementwise(_floor_mod),
    "GELU": with_options(lambda x, fast: ops.gelu(x, approximate="tanh" if fast else "none"), "approximate"),
    "LEAKY_RELU": with_options(lambda x, alpha: ops.leaky_relu(x, alpha=alpha), "alpha"),
    "NOT_EQUAL": elementwise(lambda a, b: ops.logical_not(ops.equal(a, b))),
    "PRELU": elementwise(_prelu),
    "QUANTIZE": _passed_on,
    "SELECT_V2": elementwise(_select),
    "SQUARE": elementwise(_square),
    "SQUARED_DIFFERENCE": elementwise(_squared_difference),
    "ZEROS_LIKE": elementwise(_zeros),
}
