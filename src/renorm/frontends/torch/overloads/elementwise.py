"""Overloads that compute each element by itself."""

from __future__ import annotations

import math
from typing import Any

from renorm import ops
from renorm.core.dtypes import is_float
from renorm.core.errors import UnsupportedOp
from renorm.frontends.torch.call import Call, Given, Operand
from renorm.frontends.torch.overloads.table import TABLE, reads
from renorm.graph.ir import Value

_SAME = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor", "log"),
    *("mish", "neg", "reciprocal", "relu", "rsqrt", "selu", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
)
_CALLED = {name: name for name in _SAME} | {
    "silu": "swish", "hardswish": "hard_swish", "negative": "neg", "absolute": "abs",
    "special_erf": "erf", "arctan": "atan", "special_expit": "sigmoid",
}  # fmt: skip
_AS_THEY_ARE = (
    *("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "lift_fresh", "lift", "positive", "real", "conj"),
    *("resolve_conj", "resolve_neg", "detach_copy", "alias_copy"),
)


def _unary(op: str) -> Any:
    def read(c: Call, x: Value) -> Any:
        wanted = c.cast(x, c.dtype)
        is_itself = (op in ("ceil", "floor") and not is_float(c.dtype)) or (op == "abs" and c.dtype == "bool")
        return wanted if is_itself else getattr(ops, op)(wanted)

    return read


for _name, _op in _CALLED.items():
    reads(_name)(_unary(_op))


@reads(*_AS_THEY_ARE)
def same(c: Call, x: Value, **layout: Any) -> Any:
    return x


@reads("_to_copy", "to.dtype", "to.dtype_layout", "to.device", "to.other", "to.prim_Device", "type_as", "_conj")
def converted(c: Call, x: Value, *others: Any, **layout: Any) -> Any:
    return c.cast(x, c.dtype)


@reads("round")
def _round(c: Call, x: Value) -> Any:
    return ops.round(x) if is_float(x.dtype) else x


@reads("round.decimals")
def _round_decimals(c: Call, x: Value, *, decimals: int = 0) -> Any:
    scale = c.number(10.0**decimals, x.dtype)
    return ops.div(ops.round(ops.mul(x, scale)), scale)


@reads("trunc", "fix")
def _trunc(c: Call, x: Value) -> Any:
    return ops.mul(ops.sign(x), ops.floor(ops.abs(x))) if is_float(x.dtype) else x


@reads("frac")
def _frac(c: Call, x: Value) -> Any:
    return ops.sub(x, _trunc(c, x))


@reads("square")
def _square(c: Call, x: Value) -> Any:
    return ops.mul(x, x)


@reads("exp2", "special_exp2")
def _exp2(c: Call, x: Value) -> Any:
    wanted = c.cast(x, c.dtype)
    return ops.pow(c.number(2.0, c.dtype), wanted)


@reads("expm1", "special_expm1")
def _expm1(c: Call, x: Value) -> Any:
    """exp(x) - 1 = tanh(x/2) * (exp(x) + 1), which loses no digits near 0; where that is inf * 1, exp(x) alone."""
    wanted = c.cast(x, c.dtype)
    half = ops.tanh(ops.mul(wanted, c.number(0.5, c.dtype)))
    return ops.mul(half, ops.add(ops.exp(wanted), c.number(1.0, c.dtype)))


@reads("log1p", "special_log1p")
def _log1p(c: Call, x: Value) -> Any:
    """log(1 + x): log(u) - ((u - 1) - x) / u with u = 1 + x rounded (Kahan), log(u) where u is infinite or 0."""
    wanted, one = c.cast(x, c.dtype), c.number(1.0, c.dtype)
    u = ops.add(wanted, one)
    lost = ops.div(ops.sub(ops.sub(u, one), wanted), u)
    zero = c.number(0.0, c.dtype)
    is_far = ops.logical_or(ops.isinf(u), ops.equal(u, zero))
    return ops.sub(ops.log(u), ops.where(is_far, zero, lost))


def _log(base: float) -> Any:
    def read(c: Call, x: Value) -> Any:
        return ops.mul(ops.log(c.cast(x, c.dtype)), c.number(1 / math.log(base), c.dtype))

    return read


def _times(factor: float) -> Any:
    def read(c: Call, x: Value) -> Any:
        return ops.mul(c.cast(x, c.dtype), c.number(factor, c.dtype))

    return read


reads("log2")(_log(2))
reads("log10")(_log(10))
reads("deg2rad")(_times(math.pi / 180))
reads("rad2deg")(_times(180 / math.pi))


@reads("erfc", "special_erfc")
def _erfc(c: Call, x: Value) -> Any:
    return ops.sub(c.number(1.0, c.dtype), ops.erf(c.cast(x, c.dtype)))


# --- activations ------------------------------------------------------------------------------------------------------


@reads("relu6")
def _relu6(c: Call, x: Value) -> Any:
    return ops.clip(x, c.number(0, x.dtype), c.number(6, x.dtype))


@reads("hardtanh")
def _hardtanh(c: Call, x: Value, low: float = -1.0, high: float = 1.0) -> Any:
    return ops.clip(x, c.number(low, x.dtype), c.number(high, x.dtype))


@reads("hardsigmoid")
def _hardsigmoid(c: Call, x: Value) -> Any:
    return ops.hard_sigmoid(x, alpha=1 / 6, beta=0.5)


@reads("gelu")
def _gelu(c: Call, x: Value, *, approximate: str = "none") -> Any:
    return ops.gelu(x, approximate=approximate)


@reads("elu")
def _elu(c: Call, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    if input_scale != 1:
        raise UnsupportedOp(f"elu with input_scale = {input_scale}")
    y = ops.elu(x, alpha=alpha)
    return y if scale == 1 else ops.mul(y, c.number(scale, x.dtype))


@reads("celu")
def _celu(c: Call, x: Value, alpha: float = 1.0) -> Any:
    return ops.celu(x, alpha=alpha)


@reads("leaky_relu")
def _leaky_relu(c: Call, x: Value, negative_slope: float = 0.01) -> Any:
    return ops.leaky_relu(x, alpha=negative_slope)


@reads("rrelu")
def _rrelu(c: Call, x: Value, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any) -> Any:
    if training:
        raise UnsupportedOp("rrelu in training draws slopes", do="export the module after .eval()")
    return ops.leaky_relu(x, alpha=(lower + upper) / 2)


@reads("prelu", "_prelu_kernel")
def _prelu(c: Call, x: Value, slope: Value) -> Any:
    shape = (slope.shape[0], *[1] * (x.rank - 2)) if slope.rank == 1 and x.rank > 1 else slope.shape
    return ops.prelu(x, c.reshaped(slope, shape))


@reads("softplus")
def _softplus(c: Call, x: Value, beta: float = 1.0, threshold: float = 20.0) -> Any:
    scale = c.number(beta, x.dtype)
    scaled = x if beta == 1 else ops.mul(x, scale)
    y = ops.softplus(scaled) if beta == 1 else ops.div(ops.softplus(scaled), scale)
    # log(1 + exp(t)) is t to the last digit of float32 from 17 on
    return y if threshold >= 17 else ops.where(ops.greater(scaled, c.number(threshold, x.dtype)), x, y)


@reads("log_sigmoid")
def _log_sigmoid(c: Call, x: Value) -> Any:
    return ops.neg(ops.softplus(ops.neg(x)))


@reads("log_sigmoid_forward")
def _log_sigmoid_forward(c: Call, x: Value) -> Any:
    return [_log_sigmoid(c, x), None]


@reads("sign", "sgn")
def _sign(c: Call, x: Value) -> Any:
    """0 of NaN, where ONNX keeps it."""
    zero, of = c.number(0, x.dtype), ops.cast
    if not is_float(x.dtype):
        return x if x.dtype == "bool" else ops.sign(x)
    return ops.sub(of(ops.greater(x, zero), to=x.dtype), of(ops.less(x, zero), to=x.dtype))


@reads("threshold")
def _threshold(c: Call, x: Value, threshold: float, value: float) -> Any:
    is_below = ops.less_or_equal(x, c.number(threshold, x.dtype))  # false of NaN, which stays
    return ops.where(is_below, c.number(value, x.dtype), x)


@reads("glu")
def _glu(c: Call, x: Value, dim: int = -1) -> Any:
    axis = dim % x.rank
    half = x.shape[axis] // 2
    a, b = c.sliced(x, axis, 0, half), c.sliced(x, axis, half, x.shape[axis])
    return ops.mul(a, ops.sigmoid(b))


@reads("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(c: Call, x: Value, p: float, train: bool) -> Any:
    if train and p:
        raise UnsupportedOp("dropout in training draws elements", do="export the module after .eval()")
    return x


@reads("native_dropout")
def _native_dropout(c: Call, x: Value, p: float, train: bool | None) -> Any:
    return [_dropout(c, x, p, bool(train)), None]


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _scaled(c: Call, x: Value, alpha: Any) -> Value:
    return x if alpha == 1 else ops.mul(x, c.number(alpha, x.dtype))


@reads("add.Tensor", "add.Scalar")
def _add(c: Call, a: Operand, b: Operand, alpha: Any = 1) -> Any:
    x, y = c.operand(a, c.dtype), c.operand(b, c.dtype)
    if c.dtype == "bool":
        return ops.logical_or(x, y) if alpha else c.expanded(x, c.shape)
    return ops.add(x, _scaled(c, y, alpha))


@reads("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar")
def _sub(c: Call, a: Operand, b: Operand, alpha: Any = 1) -> Any:
    return ops.sub(c.operand(a, c.dtype), _scaled(c, c.operand(b, c.dtype), alpha))


@reads("rsub.Tensor", "rsub.Scalar")
def _rsub(c: Call, a: Operand, b: Operand, alpha: Any = 1) -> Any:
    return _sub(c, b, a, alpha=alpha)


@reads("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar")
def _mul(c: Call, a: Operand, b: Operand) -> Any:
    x, y = c.operand(a, c.dtype), c.operand(b, c.dtype)
    return ops.logical_and(x, y) if c.dtype == "bool" else ops.mul(x, y)


@reads("div.Tensor", "div.Scalar", "true_divide.Tensor", "true_divide.Scalar", "divide.Tensor", "divide.Scalar")
def _div(c: Call, a: Operand, b: Operand) -> Any:
    return ops.div(c.operand(a, c.dtype), c.operand(b, c.dtype))


@reads("div.Tensor_mode", "div.Scalar_mode", "divide.Tensor_mode", "divide.Scalar_mode")
def _div_mode(c: Call, a: Operand, b: Operand, *, rounding_mode: str | None) -> Any:
    if rounding_mode is None:
        return _div(c, a, b)
    return _floored(c, a, b) if rounding_mode == "floor" else _truncated(c, a, b)


@reads("floor_divide", "floor_divide.Scalar")
def _floored(c: Call, a: Operand, b: Operand) -> Any:
    """Quotients of whole numbers are computed as such, rounded down."""
    x, y = c.operand(a, c.dtype), c.operand(b, c.dtype)
    if is_float(c.dtype):
        return ops.floor(ops.div(x, y))
    rest = ops.mod(x, y)  # has the sign of y, so that x - rest is a multiple
    return ops.div(ops.sub(x, rest), y)


def _truncated(c: Call, a: Operand, b: Operand) -> Any:
    y = ops.div(c.operand(a, c.dtype), c.operand(b, c.dtype))
    return _trunc(c, y) if is_float(c.dtype) else y


@reads("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def _remainder(c: Call, a: Operand, b: Operand) -> Any:
    x, y = c.operand(a, c.dtype), c.operand(b, c.dtype)
    if not is_float(c.dtype):
        return ops.mod(x, y)
    rest = ops.mod(x, y, fmod=True)
    zero = c.number(0.0, c.dtype)
    is_other = ops.logical_and(
        ops.logical_not(ops.equal(rest, zero)), ops.logical_xor(ops.less(rest, zero), ops.less(y, zero))
    )
    return ops.where(is_other, ops.add(rest, y), rest)


@reads("fmod.Tensor", "fmod.Scalar")
def _fmod(c: Call, a: Operand, b: Operand) -> Any:
    return ops.mod(c.operand(a, c.dtype), c.operand(b, c.dtype), fmod=True)


@reads("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar", "float_power.Tensor_Scalar", "float_power.Tensor_Tensor")
def _pow(c: Call, a: Operand, b: Operand) -> Any:
    return ops.pow(c.operand(a, c.dtype), c.operand(b, c.dtype))


@reads("maximum", "max.other", "fmax")
def _maximum(c: Call, a: Value, b: Value) -> Any:
    return _extreme(c, a, b, ops.max, ops.logical_or)


@reads("minimum", "min.other", "fmin")
def _minimum(c: Call, a: Value, b: Value) -> Any:
    return _extreme(c, a, b, ops.min, ops.logical_and)


def _extreme(c: Call, a: Operand, b: Operand, op: Any, of_truth: Any) -> Any:
    x, y = c.operand(a, c.dtype), c.operand(b, c.dtype)
    return of_truth(x, y) if c.dtype == "bool" else op([x, y])


@reads("clamp", "clip")
def _clamp(c: Call, x: Value, low: Any = None, high: Any = None) -> Any:
    held = [None if v is None else c.number(v, c.dtype) for v in (low, high)]
    return ops.clip(c.cast(x, c.dtype), *held)


@reads("clamp.Tensor", "clip.Tensor")
def _clamp_tensor(c: Call, x: Value, low: Given = None, high: Given = None) -> Any:
    y = c.cast(x, c.dtype)
    y = y if low is None else ops.max([y, c.cast(low, c.dtype)])
    return y if high is None else ops.min([y, c.cast(high, c.dtype)])


@reads("clamp_min", "clamp_min.Tensor")
def _clamp_min(c: Call, x: Value, low: Operand) -> Any:
    return _extreme(c, x, low, ops.max, ops.logical_or)


@reads("clamp_max", "clamp_max.Tensor")
def _clamp_max(c: Call, x: Value, high: Operand) -> Any:
    return _extreme(c, x, high, ops.min, ops.logical_and)


@reads("addcmul")
def _addcmul(c: Call, x: Value, a: Value, b: Value, *, value: Any = 1) -> Any:
    return ops.add(c.cast(x, c.dtype), _scaled(c, ops.mul(c.cast(a, c.dtype), c.cast(b, c.dtype)), value))


@reads("addcdiv")
def _addcdiv(c: Call, x: Value, a: Value, b: Value, *, value: Any = 1) -> Any:
    return ops.add(c.cast(x, c.dtype), _scaled(c, ops.div(c.cast(a, c.dtype), c.cast(b, c.dtype)), value))


@reads("lerp.Scalar", "lerp.Tensor")
def _lerp(c: Call, a: Value, b: Value, weight: Operand) -> Any:
    return ops.add(a, ops.mul(ops.sub(b, a), c.operand(weight, a.dtype)))


@reads("hypot")
def _hypot(c: Call, a: Value, b: Value) -> Any:
    x, y = c.cast(a, c.dtype), c.cast(b, c.dtype)
    return ops.sqrt(ops.add(ops.mul(x, x), ops.mul(y, y)))


@reads("atan2")
def _atan2(c: Call, a: Value, b: Value) -> Any:
    """The angle of (b, a): that of |a| and |b|, mirrored where b is negative, and where a is, be it -0."""
    y, x = c.cast(a, c.dtype), c.cast(b, c.dtype)
    opposite, adjacent, zero = ops.abs(y), ops.abs(x), c.number(0.0, c.dtype)
    are_0 = ops.logical_and(ops.equal(opposite, zero), ops.equal(adjacent, zero))
    are_infinite = ops.logical_and(ops.isinf(x), ops.isinf(y))
    slope = ops.where(are_infinite, c.number(1.0, c.dtype), ops.div(opposite, adjacent))
    angle = ops.atan(ops.where(are_0, zero, slope))
    is_left, is_below = (TABLE["signbit.default"](c, v) for v in (x, y))
    turned = ops.where(is_left, ops.sub(c.number(math.pi, c.dtype), angle), angle)
    return ops.where(is_below, ops.neg(turned), turned)


@reads("angle")
def _angle(c: Call, x: Value) -> Any:
    """Return the angle of a real number: 0 or half a circle; of NaN NaN."""
    wide = c.cast(x, c.dtype)
    turned = ops.where(ops.less(wide, c.number(0, c.dtype)), c.number(math.pi, c.dtype), c.number(0.0, c.dtype))
    return ops.where(ops.isnan(wide), wide, turned)


for _name in ("abs", "ceil", "exp", "floor", "log", "neg", "sqrt"):  # that decompositions end in
    reads(f"prims.{_name}.default")(TABLE[f"{_name}.default"])
for _name in ("add", "mul", "sub"):
    reads(f"prims.{_name}.default")(TABLE[f"{_name}.Tensor"])
