"""Operations of keras.ops, which functional models have as nodes of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.errors import UnsupportedOp
from renorm.frontends.keras.call import Call, Made, Tensor
from renorm.frontends.keras.layers.activating import applied
from renorm.frontends.keras.layers.norms import unit
from renorm.frontends.keras.layers.table import computes
from renorm.frontends.orders import First, to_first
from renorm.graph.ir import Value

# --- element by element -----------------------------------------------------------------------------------------------

_BINARY: Mapping[str, Callable[[Value, Value], Value]] = {
    "Add": ops.add, "Subtract": ops.sub, "Multiply": ops.mul, "Divide": ops.div, "TrueDivide": ops.div,
    "Power": ops.pow, "Maximum": lambda a, b: ops.max([a, b]), "Minimum": lambda a, b: ops.min([a, b]),
    "Greater": ops.greater, "GreaterEqual": ops.greater_or_equal, "Less": ops.less, "LessEqual": ops.less_or_equal,
    "Equal": ops.equal, "NotEqual": lambda a, b: ops.logical_not(ops.equal(a, b)),
    "LogicalAnd": ops.logical_and, "LogicalOr": ops.logical_or,
}  # fmt: skip
_UNARY: Mapping[str, Callable[[Value], Value]] = {
    "Absolute": ops.abs, "Abs": ops.abs, "Negative": ops.neg, "Exp": ops.exp, "Log": ops.log, "Sqrt": ops.sqrt,
    "Rsqrt": ops.rsqrt, "Square": lambda x: ops.mul(x, x), "Sin": ops.sin, "Cos": ops.cos, "Tan": ops.tan,
    "Floor": ops.floor, "Ceil": ops.ceil, "Round": ops.round, "Sign": ops.sign, "Erf": ops.erf,
    "Arcsin": ops.asin, "Arccos": ops.acos, "Arctan": ops.atan, "Sinh": ops.sinh, "Cosh": ops.cosh,
    "StopGradient": lambda x: x, "Copy": lambda x: x,
    "Reciprocal": ops.reciprocal, "LogicalNot": ops.logical_not, "Tanh": ops.tanh, "Isnan": ops.isnan,
}  # fmt: skip


_OF_ANY = ("Absolute", "Abs", "Negative", "Square", "Round", "Sign", "StopGradient", "Copy", "LogicalNot")


def _kind(x: Any) -> str:
    """Return the dtype of an argument; of a number of Python's, or an array of such, "int" or "float"."""
    name = x.value.dtype if isinstance(x, Tensor) else dtypes.from_numpy(np.asarray(x).dtype)
    is_weak = not isinstance(x, Tensor) and dtypes.itemsize(name) == 8
    return ("float" if dtypes.is_float(name) else "int") if is_weak else name


def _promoted(given: Sequence[Any]) -> str:
    """Return the dtype in which Keras computes with arguments."""
    kinds = [_kind(x) for x in given]
    floats = set(kinds) & set(dtypes.FLOATS)
    if floats:
        return "float32" if floats == {"float16", "bfloat16"} else max(floats, key=dtypes.itemsize)
    whole = [k for k in kinds if k in dtypes.INTS]
    kind = str(np.result_type(*whole)) if whole else "int32" if "int" in kinds else "bool"
    return "float32" if "float" in kinds or dtypes.is_float(kind) else kind


def _converted(c: Call, given: Sequence[Any], kind: str) -> list[Tensor]:
    """Return arguments as tensors of a dtype."""
    own = dtypes.numpy_dtype(kind)
    return [c.converted(x, kind) if isinstance(x, Tensor) else c.held(np.asarray(x).astype(own)) for x in given]


def operands(c: Call, given: Sequence[Any]) -> list[Tensor]:
    """Return arguments as tensors of the dtype in which Keras computes with them."""
    return _converted(c, given, _promoted(given))


def _real(c: Call, *given: Any) -> list[Tensor]:
    """Return arguments as floating point."""
    kind = _promoted(given)
    return _converted(c, given, kind if dtypes.is_float(kind) else "float32")


for _name, _op in _BINARY.items():

    def _binary(c: Call, a: Any, b: Any, name: str = _name, op: Any = _op) -> Made:
        if name.startswith("Logical"):
            return c.joined(_converted(c, [a, b], "bool"), op)
        return c.joined(_real(c, a, b) if name.endswith("Divide") else operands(c, [a, b]), op)

    computes(_name)(_binary)

for _name, _unary_op in _UNARY.items():

    def _unary(c: Call, x: Tensor, name: str = _name, op: Any = _unary_op) -> Made:
        return c.each(x if name in _OF_ANY else _real(c, x)[0], op)

    computes(_name)(_unary)

for _name in (
    "Relu", "Relu6", "LeakyRelu", "Elu", "Celu", "Selu", "Softplus", "Softsign", "Squareplus", "SoftShrink",
    "HardShrink", "SparsePlus", "Silu", "Gelu", "TanhShrink", "HardTanh", "Sigmoid", "LogSigmoid", "SparseSigmoid",
    "HardSigmoid", "HardSilu", "Mish", "ReLU", "Softmax", "LogSoftmax", "Glu",
):  # fmt: skip

    def _activation(c: Call, x: Tensor, *args: Any, **kwargs: Any) -> Made:
        kind = c.layer.kind
        name = {"ReLU": "relu"}.get(kind) or "".join(f"_{k.lower()}" if k.isupper() else k for k in kind)[1:]
        if args:
            raise UnsupportedOp(f"{kind} with arguments {args}")
        return applied(c, x, name, {**c.layer.config, **kwargs})

    computes(_name)(_activation)


def _like(number: int) -> Any:
    def read(c: Call, x: Tensor) -> Made:
        value = x.stored()
        return c.expanded(c.scalar(number, c.option("dtype") or value.dtype), value.shape)

    return read


computes("ZerosLike")(_like(0))
computes("OnesLike")(_like(1))


@computes("Clip")
def _clip(c: Call, x: Tensor, x_min: Any = None, x_max: Any = None) -> Made:
    low, high = (c.option(k) if given is None else given for k, given in (("x_min", x_min), ("x_max", x_max)))
    own, *ends = (t.value for t in operands(c, [x, low, high]))
    return First(ops.clip(own, *ends)) if x.is_first else ops.clip(own, *ends)


@computes("Cast")
def _cast(c: Call, x: Tensor, dtype: Any = None) -> Made:
    to = str(dtype or c.option("dtype"))
    if to not in dtypes.BY_NAME:
        raise UnsupportedOp(f"a cast to {to}")
    return c.each(x, lambda v: c.cast(v, to))


@computes("Where")
def _where(c: Call, condition: Any, a: Any = None, b: Any = None) -> Made:
    return c.joined([*_converted(c, [condition], "bool"), *operands(c, [a, b])], ops.where)


@computes("Log1p")
def _log_of_more(c: Call, x: Tensor) -> Made:
    return c.each(_real(c, x)[0], lambda v: ops.log(ops.add(v, c.scalar(1, v.dtype))))


@computes("Expm1")
def _exp_less(c: Call, x: Tensor) -> Made:
    return c.each(_real(c, x)[0], lambda v: ops.sub(ops.exp(v), c.scalar(1, v.dtype)))


@computes("Normalize")
def _normalize(c: Call, x: Tensor) -> Made:
    if c.count("order", 2) != 2:
        raise UnsupportedOp(f"a norm of order {c.option('order')}")
    return unit(c, x.stored(), _axes(c, x, None))


# --- along axes -------------------------------------------------------------------------------------------------------

_REDUCING: Mapping[str, Any] = {
    "Mean": ops.reduce_mean, "Sum": ops.reduce_sum, "Max": ops.reduce_max, "Min": ops.reduce_min,
    "Prod": ops.reduce_prod, "Logsumexp": ops.reduce_log_sum_exp,
}  # fmt: skip
for _name, _reduce in _REDUCING.items():

    def _reduced(
        c: Call, x: Tensor, axis: Any = None, keepdims: bool | None = None, name: str = _name, op: Any = _reduce
    ) -> Made:
        if name in ("Mean", "Logsumexp"):
            (x,) = _real(c, x)
        elif name in ("Sum", "Prod") and dtypes.itemsize(x.value.dtype) < 4 and not dtypes.is_float(x.value.dtype):
            (x,) = _converted(c, [x], "int32")
        axes, keeps = _axes(c, x, axis), bool(c.option("keepdims") if keepdims is None else keepdims)
        if x.is_first and keeps:
            order = to_first(x.value.rank)
            return c.each(x, lambda v: op(v, axes=tuple(order.index(a) for a in axes), keepdims=True))
        return op(x.stored(), axes=axes, keepdims=keeps)

    computes(_name)(_reduced)


def _axes(c: Call, x: Tensor, axis: Any) -> tuple[int, ...]:
    """Return the axes that an operation is told, counted from the front; all where it is told none."""
    given, rank = c.option("axis") if axis is None else axis, x.value.rank
    held = range(rank) if given is None else [given] if isinstance(given, int) else given
    return tuple(sorted(int(a) % rank for a in held))


def _of_truth(is_any: bool) -> Any:
    def read(c: Call, x: Tensor, axis: Any = None, keepdims: bool | None = None) -> Made:
        value = c.cast(c.cast(x.stored(), "bool"), "int32")
        op = ops.reduce_max if is_any else ops.reduce_min
        keeps = bool(c.option("keepdims") if keepdims is None else keepdims)
        return ops.greater(op(value, axes=_axes(c, x, axis), keepdims=keeps), c.scalar(0, "int32"))

    return read


computes("Any")(_of_truth(is_any=True))
computes("All")(_of_truth(is_any=False))


def _of_variance(has_root: bool) -> Any:
    def read(c: Call, x: Tensor, axis: Any = None, keepdims: bool | None = None) -> Made:
        value, axes = _real(c, x)[0].stored(), _axes(c, x, axis)
        keeps = bool(c.option("keepdims") if keepdims is None else keepdims)
        distance = ops.sub(value, ops.reduce_mean(value, axes=axes, keepdims=True))
        variance = ops.reduce_mean(ops.mul(distance, distance), axes=axes, keepdims=keeps)
        return ops.sqrt(variance) if has_root else variance

    return read


computes("Var")(_of_variance(has_root=False))
computes("Std")(_of_variance(has_root=True))


def _of_greatest(op: Any) -> Any:
    def read(c: Call, x: Tensor, axis: Any = None, keepdims: bool | None = None) -> Made:
        axes = _axes(c, x, axis)
        if len(axes) != 1:
            raise UnsupportedOp("the place of an extreme of several axes")
        keeps = bool(c.option("keepdims") if keepdims is None else keepdims)
        return c.cast(op(x.stored(), axis=axes[0], keepdims=keeps), "int32")

    return read


computes("Argmax")(_of_greatest(ops.arg_max))
computes("Argmin")(_of_greatest(ops.arg_min))


# --- products ---------------------------------------------------------------------------------------------------------


@computes("Matmul")
def _matmul(c: Call, a: Any, b: Any) -> Made:
    return ops.matmul(*(t.stored() for t in operands(c, [a, b])))


@computes("Einsum")
def _einsum(c: Call, *given: Any) -> Made:
    tensors = [x for x in given if not isinstance(x, str)]
    equation = next((x for x in given if isinstance(x, str)), c.option("subscripts"))
    return ops.einsum([t.stored() for t in operands(c, tensors)], equation=str(equation))
