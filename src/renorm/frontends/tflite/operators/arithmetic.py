"""Operators element by element. They stay in the order of axes that their operands have already."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.errors import UnsupportedOp
from renorm.frontends.tflite.call import ACTIVATIONS, Call, Reader
from renorm.frontends.tflite.emission import Emission, Writer
from renorm.frontends.tflite.tensors import NUMBER, First, to_first
from renorm.graph.ir import Node, Value


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

READERS: dict[str, Reader] = {
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


# --- written ----------------------------------------------------------------------------------------------------------


def _written(kind: str, options: str = "", **fields: str) -> Writer:
    """All operands in one order. fields: options by the attributes that they are."""

    def write(e: Emission) -> None:
        operands, is_last = e.aligned([v for v in e.node.inputs if v is not None])
        given = {field: e.attribute(name) for field, name in fields.items()}
        e.either(is_last, kind, operands, options, 1, **given)

    return write


def _fusing(kind: str, options: str) -> Writer:
    def write(e: Emission) -> None:
        operands, is_last = e.aligned([e.operand(0), e.operand(1)])
        e.either(is_last, kind, operands, options, 1, fused_activation_function=e.fused)

    return write


def clipping(node: Node) -> str | None:
    """The operator that a clip with constant limits is."""
    known = {(0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1", (0.0, 1.0): "RELU_0_TO_1"}
    limits = [v.data for v in node.inputs[1:] if v is not None and v.data is not None and v.data.size == 1]
    return known.get((float(limits[0].item()), float(limits[1].item()))) if len(limits) == 2 else None


def _clip(e: Emission) -> None:
    """A clip that is an activation, or a maximum and a minimum."""
    x, low, high = e.operand(0), e.optional(1), e.optional(2)
    kind = clipping(e.node)
    (at,), is_last = e.aligned([x])
    if kind is not None:
        e.either(is_last, kind, [at])
        return
    steps = [(k, v) for k, v in (("MAXIMUM", low), ("MINIMUM", high)) if v is not None]
    if not steps:
        _identity(e)
    for n, (operator, v) in enumerate(steps):
        inputs = [at, e.form.plain(v)]
        if n == len(steps) - 1:
            e.either(is_last, operator, inputs, "MaximumMinimumOptions")
        else:
            at = e.form.like(at, f"{e.node.name}.low")
            e.form.operator(operator, inputs, [at], "MaximumMinimumOptions")


def _several(e: Emission) -> None:
    operands, is_last = e.aligned([v for v in e.node.inputs if v is not None])
    kinds = {"sum": "ADD_N", "max": "MAXIMUM", "min": "MINIMUM"}
    options = "AddNOptions" if e.node.op.name == "sum" else "MaximumMinimumOptions"
    if len(operands) > 2 and e.node.op.name != "sum":
        raise UnsupportedOp(f"{e.node.op.name} of {len(operands)} operands is not written")
    e.either(is_last, kinds[e.node.op.name], operands, options)


def _cast_written(e: Emission) -> None:
    numbers = e.form.schema.enums["TensorType"]
    (x,), is_last = e.aligned([e.operand(0)])
    before, after = (numbers[NUMBER[d]] for d in (e.operand(0).dtype, e.result.dtype))
    e.either(is_last, "CAST", [x], "CastOptions", in_data_type=before, out_data_type=after)


def _pow(e: Emission) -> None:
    if e.operand(0).dtype != e.operand(1).dtype:
        raise UnsupportedOp("POW is of one type only")
    operands, is_last = e.aligned([e.operand(0), e.operand(1)])
    e.either(is_last, "POW", operands, "PowOptions")


def _elu(e: Emission) -> None:
    if e.attribute("alpha") != 1:
        raise UnsupportedOp(f"ELU has alpha = 1, not {e.attribute('alpha'):g}")
    (x,), is_last = e.aligned([e.operand(0)])
    e.either(is_last, "ELU", [x])


def _gelu(e: Emission) -> None:
    (x,), is_last = e.aligned([e.operand(0)])
    e.either(is_last, "GELU", [x], "GeluOptions", approximate=e.attribute("approximate") == "tanh")


def _identity(e: Emission) -> None:
    e.plain("RESHAPE", [e.form.plain(e.operand(0)), e.form.shape(e.result)], "ReshapeOptions")


def _batch_norm(e: Emission) -> None:
    """x * k + shift, k = scale / sqrt(var + epsilon): the formats have no batch norm."""
    if e.attribute("training_mode"):
        raise UnsupportedOp("batch norm with statistics of the batch is not written")
    scale, bias, mean, var = (e.data(i, "its parameter").astype(np.float64) for i in range(1, 5))
    k = scale / np.sqrt(var + e.attribute("epsilon"))
    x, dtype, form = e.operand(0), dtypes.numpy_dtype(e.result.dtype), e.form
    factor, shift = (form.constant(a.astype(dtype), e.node.name) for a in (k, bias - mean * k))
    at = form.last(x)
    scaled = form.like(at, f"{e.node.name}.scaled")
    form.operator("MUL", [at, factor], [scaled], "MulOptions")
    e.last("ADD", [scaled, shift], "AddOptions", fused_activation_function=e.fused)


_FUSING = {
    "add": ("ADD", "AddOptions"),
    "div": ("DIV", "DivOptions"),
    "mul": ("MUL", "MulOptions"),
    "sub": ("SUB", "SubOptions"),
}
_OPTIONS = {
    "abs": "AbsOptions", "cos": "CosOptions", "exp": "ExpOptions", "neg": "NegOptions", "sign": "SignOptions",
    "hard_swish": "HardSwishOptions", "logical_not": "LogicalNotOptions",
}  # fmt: skip
_COMPARING = {
    "equal": ("EQUAL", "EqualOptions"), "greater": ("GREATER", "GreaterOptions"), "less": ("LESS", "LessOptions"),
    "greater_or_equal": ("GREATER_EQUAL", "GreaterEqualOptions"), "less_or_equal": ("LESS_EQUAL", "LessEqualOptions"),
    "logical_and": ("LOGICAL_AND", "LogicalAndOptions"), "logical_or": ("LOGICAL_OR", "LogicalOrOptions"),
}  # fmt: skip

WRITERS: dict[str, Writer] = {
    **{name: _written(kind, _OPTIONS.get(name, "")) for kind, name in _UNARY.items()},
    **{name: _fusing(*found) for name, found in _FUSING.items()},
    **{name: _written(*found) for name, found in _COMPARING.items()},
    "batch_norm": _batch_norm,
    "cast": _cast_written,
    "clip": _clip,
    "elu": _elu,
    "gelu": _gelu,
    "identity": _identity,
    "leaky_relu": _written("LEAKY_RELU", "LeakyReluOptions", alpha="alpha"),
    "max": _several,
    "min": _several,
    "pow": _pow,
    "prelu": _written("PRELU"),
    "relu": _written("RELU"),
    "sum": _several,
    "tanh": _written("TANH"),
    "where": _written("SELECT_V2", "SelectV2Options"),
}
FUSING = (*_FUSING, "batch_norm")
