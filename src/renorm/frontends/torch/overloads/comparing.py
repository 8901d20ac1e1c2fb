"""Overloads that give truth values, and those that choose by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from renorm import ops
from renorm.core.dtypes import is_float
from renorm.core.errors import UnsupportedOp
from renorm.frontends.torch.call import Call, Given, Operand
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value
from renorm.ops.shared.grouped_rows import places_among


def _compared(op: Callable[..., Any]) -> Any:
    def read(c: Call, a: Operand, b: Operand) -> Any:
        x, y = c.promoted(a, b)
        if x.dtype == "bool" and op is not ops.equal:
            x, y = c.cast(x, "uint8"), c.cast(y, "uint8")
        return op(x, y)

    return read


for _name, _other, _op in (
    ("eq", "", ops.equal),
    ("lt", "less", ops.less),
    ("le", "less_equal", ops.less_or_equal),
    ("gt", "greater", ops.greater),
    ("ge", "greater_equal", ops.greater_or_equal),
):
    reads(*(f"{n}.{kind}" for n in (_name, _other) if n for kind in ("Tensor", "Scalar")))(_compared(_op))


@reads("ne.Tensor", "ne.Scalar", "not_equal.Tensor", "not_equal.Scalar")
def _ne(c: Call, a: Operand, b: Operand) -> Any:
    return ops.logical_not(ops.equal(*c.promoted(a, b)))


def truth(c: Call, x: Operand) -> Value:
    """Return where elements are not 0."""
    if isinstance(x, Value) and x.dtype != "bool":
        return ops.logical_not(ops.equal(x, c.number(0, x.dtype)))
    return c.operand(x, "bool")


def _of_truth(op: Callable[..., Any]) -> Any:
    def read(c: Call, *operands: Value) -> Any:
        return op(*(truth(c, x) for x in operands))

    return read


reads("logical_and")(_of_truth(ops.logical_and))
reads("logical_or")(_of_truth(ops.logical_or))
reads("logical_xor")(_of_truth(ops.logical_xor))
reads("logical_not")(_of_truth(ops.logical_not))


def _bitwise(of_truth: Callable[..., Any], of_integers: Callable[..., Any]) -> Any:
    def read(c: Call, *operands: Operand) -> Any:
        return (of_truth if c.dtype == "bool" else of_integers)(*(c.operand(x, c.dtype) for x in operands))

    return read


for _name, _of_truth_values, _of_integers in (
    ("and", ops.logical_and, ops.bitwise_and),
    ("or", ops.logical_or, ops.bitwise_or),
    ("xor", ops.logical_xor, ops.bitwise_xor),
):
    _names = [f"bitwise_{_name}.{kind}" for kind in ("Tensor", "Scalar", "Scalar_Tensor")]
    reads(*_names, f"__{_name}__.Tensor", f"__{_name}__.Scalar")(_bitwise(_of_truth_values, _of_integers))
reads("bitwise_not")(_bitwise(ops.logical_not, ops.bitwise_not))


def _shifted(direction: str) -> Any:
    def read(c: Call, x: Operand, by: Operand) -> Any:
        return ops.bit_shift(c.operand(x, c.dtype), c.operand(by, c.dtype), direction=direction.upper())

    return read


for _name in ("left", "right"):
    reads(*(f"bitwise_{_name}_shift.{kind}" for kind in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")))(_shifted(_name))
    reads(*(f"__{_name[0]}shift__.{kind}" for kind in ("Tensor", "Scalar")))(_shifted(_name))


@reads("signbit")
def _signbit(c: Call, x: Value) -> Value:
    """Return whether a sign is there, which NaN and 0 may have, too."""
    if not is_float(x.dtype):
        return c.filled(False, "bool", x.shape) if x.dtype == "bool" else ops.less(x, c.number(0, x.dtype))
    wide = x.dtype if x.dtype == "float64" else "float32"
    bits = ops.bit_cast(c.cast(x, wide), to="int64" if wide == "float64" else "int32")
    return ops.less(bits, c.number(0, bits.dtype))


@reads("copysign.Tensor", "copysign.Scalar")
def _copysign(c: Call, x: Value, sign: Operand) -> Any:
    magnitude = ops.abs(c.cast(x, c.dtype))
    return ops.where(_signbit(c, c.operand(sign, c.dtype)), ops.neg(magnitude), magnitude)


@reads("isnan")
def _isnan(c: Call, x: Value) -> Any:
    return ops.isnan(x) if is_float(x.dtype) else c.filled(False, "bool", x.shape)


@reads("isinf")
def _isinf(c: Call, x: Value) -> Any:
    return ops.isinf(x) if is_float(x.dtype) else c.filled(False, "bool", x.shape)


@reads("isfinite")
def _isfinite(c: Call, x: Value) -> Any:
    return ops.logical_not(ops.logical_or(_isnan(c, x), _isinf(c, x)))


@reads("isclose")
def _isclose(c: Call, a: Value, b: Value, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    near = ops.less_or_equal(
        ops.abs(ops.sub(a, b)), ops.add(c.number(atol, a.dtype), ops.mul(ops.abs(b), c.number(rtol, a.dtype)))
    )
    near = ops.logical_or(ops.logical_and(near, _isfinite(c, b)), ops.equal(a, b))
    return ops.logical_or(near, ops.logical_and(ops.isnan(a), ops.isnan(b))) if equal_nan else near


@reads("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar", "prims.where.default")
def _where(c: Call, condition: Value, a: Operand, b: Operand) -> Any:
    return ops.where(truth(c, condition), c.operand(a, c.dtype), c.operand(b, c.dtype))


@reads("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(c: Call, x: Value, mask: Value, value: Operand) -> Any:
    return ops.where(truth(c, mask), c.operand(value, x.dtype), x)


@reads("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(c: Call, x: Operand, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Any:
    return c.cast(_places_among(c, boundaries, x, right), c.dtype)


@reads("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    c: Call,
    boundaries: Value,
    x: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Given = None,
) -> Any:
    if sorter is not None:
        raise UnsupportedOp("numbers are searched for in another order (sorter)")
    return c.cast(_places_among(c, boundaries, x, side == "right" if side else right), c.dtype)


def _places_among(c: Call, boundaries: Value, x: Operand, right: bool) -> Value:
    a, b = c.promoted(boundaries, x)
    if a.rank != 1 and a.shape[:-1] != b.shape[:-1]:
        raise UnsupportedOp(f"numbers {b.type} are searched for in {a.type}")
    return places_among(a, b, right)
