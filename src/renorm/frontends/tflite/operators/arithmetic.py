"""Operators element by element. They stay in the order of axes that their operands have already."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.orders import First
from renorm.frontends.tflite import activations, quantized
from renorm.frontends.tflite.call import OperatorCall
from renorm.frontends.tflite.emission import Emission
from renorm.frontends.tflite.operator import ALL, Operator, Reader
from renorm.frontends.tflite.tensors import NUMBER
from renorm.graph.ir import Value
from renorm.ops.shared.quantization import is_single

# --- read -------------------------------------------------------------------------------------------------------------


def _same(call: OperatorCall) -> Value | First:
    view = call.aligned()
    return view.result(call.op(*view.values))


def _composed(apply: Callable[..., Value]) -> Reader:
    """Of all operands."""

    def read(call: OperatorCall) -> Value | First:
        view = call.aligned()
        return view.result(apply(*view.values))

    return read


def _unary(apply: Callable[[OperatorCall, Value], Value]) -> Reader:
    """Of the first operand, and options."""

    def read(call: OperatorCall) -> Value | First:
        view = call.aligned(0)
        return view.result(apply(call, view.values[0]))

    return read


def _activation(name: str) -> Reader:
    return _composed(lambda x: activations.apply(name, x))


def _floor_div(a: Value, b: Value) -> Value:
    if a.dtype.startswith("float"):
        return ops.floor(ops.div(a, b))
    return ops.div(ops.sub(a, ops.mod(a, b)), b)  # the rest has the sign of b, so the division leaves none


def _floor_mod(a: Value, b: Value) -> Value:
    if a.dtype.startswith("float"):
        return ops.sub(a, ops.mul(ops.floor(ops.div(a, b)), b))
    return ops.mod(a, b)


def _cast(call: OperatorCall, x: Value) -> Value:
    """Of a quantized tensor, its integers."""
    whole = quantized.held(x)
    return ops.cast(x if whole is None else whole, to=call.outputs[0].dtype)


def _gelu(call: OperatorCall, x: Value) -> Value:
    return ops.gelu(x, approximate="tanh" if call.option("approximate", 0) else "none")


def _leaky_relu(call: OperatorCall, x: Value) -> Value:
    return ops.leaky_relu(x, alpha=call.option("alpha", 0))


def _square(x: Value) -> Value:
    return ops.mul(x, x)


def _zeros(x: Value) -> Value:
    shape = ops.shape(x) if not x.type.is_static else np.asarray(x.shape, np.int64)
    return ops.expand(x.graph.constant(np.asarray(0, x.dtype), "zero"), shape=shape)


def _atan2(y: Value, x: Value) -> Value:
    """Return the angle of (x, y): that of y / x, a half turn further where x is negative."""
    zero, pi = np.asarray(0, y.dtype), np.asarray(np.pi, y.dtype)
    are_infinite = ops.logical_and(ops.isinf(x), ops.isinf(y))
    a, b = (ops.where(are_infinite, ops.sign(v), v) for v in (y, x))
    ratio = ops.where(ops.logical_and(ops.equal(a, zero), ops.equal(b, zero)), a, ops.div(a, b))
    turn = ops.where(ops.less(a, zero), -pi, pi)
    return ops.add(ops.atan(ratio), ops.where(ops.less(b, zero), turn, zero))


def _fake_quant(call: OperatorCall, x: Value) -> Value:
    """The nearest of 2^bits numbers between two, of which one is zero."""
    low, high = float(call.option("min", 0.0)), float(call.option("max", 0.0))
    least = 1 if call.option("narrow_range", False) else 0
    bits = int(call.option("num_bits", 8))
    if not 2 <= bits <= 16 or not low < high:
        raise InvalidModel(f"FAKE_QUANT of {bits} bits from {low:g} to {high:g}; expected 2 to 16 bits, min < max")
    most = (1 << bits) - 1
    step = np.float32((high - low) / (most - least))
    zero = np.float32(np.clip(np.floor(least - low / step + 0.5), least, most))
    low, high = np.float32((least - zero) * step), np.float32((most - zero) * step)
    steps = ops.floor(ops.add(ops.div(ops.sub(ops.clip(x, low, high), low), step), np.float32(0.5)))
    return ops.add(ops.mul(steps, step), low)


def _right_shift(x: Value, by: Value) -> Value:
    """By a negative number of bits not at all, by all bits or more as far as they go."""
    return ops.bit_shift(x, ops.max(by, np.asarray(0, by.dtype)), direction="RIGHT")


# --- written ----------------------------------------------------------------------------------------------------------


def _same_written(e: Emission) -> None:
    e.operator(*e.aligned())


def _of_two(e: Emission) -> None:
    operands, is_last = e.aligned()
    if len(operands) > 2:
        raise UnsupportedOp(f"{e.node.op.name} of {len(operands)} operands is not written")
    if len(operands) == 1:
        _identity(e)
    else:
        e.operator(operands, is_last)


def _dequantized(e: Emission) -> None:
    if e.subgraph.elements(e.result) is None:  # else constants are written as numbers
        e.operator(*e.aligned(e.operand(0)))


def _quantized(e: Emission) -> None:
    if not is_single(e.operand(1).shape):
        raise UnsupportedOp("QUANTIZE has one scale for all elements")
    e.operator(*e.aligned(e.operand(0)))


def _clip(e: Emission) -> None:
    """A clip that is an activation, or a maximum and a minimum."""
    x, low, high = e.operand(0), e.optional(1), e.optional(2)
    kind = activations.cutting(e.node)
    (at,), is_last = e.aligned(x)
    if kind is not None:
        e.operator([at], is_last, kind=kind)
        return
    steps = [(k, v) for k, v in (("MAXIMUM", low), ("MINIMUM", high)) if v is not None]
    if not steps:
        _identity(e)
    for n, (kind, v) in enumerate(steps):
        inputs = [at, e.subgraph.plain(v)]
        if n == len(steps) - 1:
            e.operator(inputs, is_last, kind=kind)
        else:
            at = e.subgraph.like(at, f"{e.node.name}.low")
            e.subgraph.operator(kind, inputs, [at])


def _identity(e: Emission) -> None:
    e.reshaped(e.subgraph.plain(e.operand(0)))


def _cast_written(e: Emission) -> None:
    before, after = (e.number("TensorType", NUMBER[v.dtype]) for v in (e.operand(0), e.result))
    e.operator(*e.aligned(), in_data_type=before, out_data_type=after)


def _pow(e: Emission) -> None:
    if e.operand(0).dtype != e.operand(1).dtype:
        raise UnsupportedOp("POW is of one type only")
    _same_written(e)


def _elu(e: Emission) -> None:
    if e.attribute("alpha") != 1:
        raise UnsupportedOp(f"ELU has alpha = 1, not {e.attribute('alpha'):g}")
    _same_written(e)


def _gelu_written(e: Emission) -> None:
    e.operator(*e.aligned(), approximate=e.attribute("approximate") == "tanh")


def _leaky_relu_written(e: Emission) -> None:
    e.operator(*e.aligned(), alpha=e.attribute("alpha"))


def _batch_norm(e: Emission) -> None:
    """x * k + shift, k = scale / sqrt(var + epsilon): the formats have no batch norm."""
    if e.attribute("training_mode"):
        raise UnsupportedOp("batch norm with statistics of the batch is not written")
    scale, bias, mean, var = (e.data(i, "its parameter").astype(np.float64) for i in range(1, 5))
    k = scale / np.sqrt(var + e.attribute("epsilon"))
    x, dtype, form = e.operand(0), dtypes.numpy_dtype(e.result.dtype), e.subgraph
    factor, shift = (form.constant(a.astype(dtype), e.node.name) for a in (k, bias - mean * k))
    at = form.last(x)
    scaled = form.like(at, f"{e.node.name}.scaled")
    form.operator("MUL", [at, factor], [scaled])
    e.operator([scaled, shift], True, kind="ADD")


# --- both -------------------------------------------------------------------------------------------------------------

_SAME = {
    "ABS": "abs", "ADD_N": "sum", "CEIL": "ceil", "COS": "cos", "EQUAL": "equal", "EXP": "exp", "FLOOR": "floor",
    "GREATER": "greater", "GREATER_EQUAL": "greater_or_equal", "HARD_SWISH": "hard_swish", "LESS": "less",
    "LESS_EQUAL": "less_or_equal", "LOG": "log", "LOGICAL_AND": "logical_and", "LOGICAL_NOT": "logical_not",
    "LOGICAL_OR": "logical_or", "LOGISTIC": "sigmoid", "NEG": "neg", "PRELU": "prelu", "ROUND": "round",
    "RSQRT": "rsqrt", "SIGN": "sign", "SIN": "sin", "SQRT": "sqrt", "TANH": "tanh",
}  # fmt: skip
_FUSING = {"ADD": "add", "DIV": "div", "MUL": "mul", "SUB": "sub"}

OPERATORS = [
    *(Operator(kind, op, _same, _same_written) for kind, op in _SAME.items()),
    *(Operator(kind, op, _same, _same_written, fuses=True) for kind, op in _FUSING.items()),
    *(Operator(name, read=_activation(name)) for name in activations.CUTTING if name != "RELU"),
    Operator("", "batch_norm", write=_batch_norm, fuses=True),
    Operator("ATAN2", read=_composed(_atan2)),
    Operator("BITWISE_XOR", read=_composed(ops.bitwise_xor)),
    Operator("CAST", "cast", _unary(_cast), _cast_written),
    Operator("", "clip", write=_clip),
    Operator(
        "DEQUANTIZE", "dequantize_linear", _unary(lambda _, x: x), _dequantized
    ),  # both sides stand for the same real numbers
    Operator("ELU", "elu", _same, _elu),
    Operator("DENSIFY", read=_unary(lambda _, x: x)),  # its operand was read dense
    Operator("FAKE_QUANT", read=_unary(_fake_quant)),
    Operator("FLOOR_DIV", read=_composed(_floor_div)),
    Operator("FLOOR_MOD", read=_composed(_floor_mod)),
    Operator("GELU", "gelu", _unary(_gelu), _gelu_written),
    Operator("", "identity", write=_identity, picks=[0]),
    Operator("LEAKY_RELU", "leaky_relu", _unary(_leaky_relu), _leaky_relu_written),
    Operator("MAXIMUM", "max", _same, _of_two, picks=ALL),
    Operator("MINIMUM", "min", _same, _of_two, picks=ALL),
    Operator("NOT_EQUAL", read=_composed(lambda a, b: ops.logical_not(ops.equal(a, b)))),
    Operator("POW", "pow", _same, _pow),
    Operator("QUANTIZE", "quantize_linear", _unary(lambda _, x: x), _quantized),
    Operator("RELU", "relu", _same, _same_written),
    Operator("RIGHT_SHIFT", read=_composed(_right_shift)),
    Operator("SELECT_V2", "where", _same, _same_written, picks=[1, 2]),
    Operator("SQUARE", read=_composed(_square)),
    Operator("SQUARED_DIFFERENCE", read=_composed(lambda a, b: _square(ops.sub(a, b)))),
    Operator("ZEROS_LIKE", read=_composed(_zeros)),
]
