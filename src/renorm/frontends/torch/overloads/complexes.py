"""Overloads of complex numbers, as pairs of real ones (frontends.torch.pairs)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from renorm import ops
from renorm.core.errors import UnsupportedOp
from renorm.frontends.torch.call import Call, power_of
from renorm.frontends.torch.overloads.table import PAIRS, TABLE, reads_pairs
from renorm.frontends.torch.pairs import Pair, are_among, each, gives_pairs, joined, of_two, parts_of, split
from renorm.graph.ir import Value

MOST_FACTORS = 64  # of a power that is a product

_MOVED = (  # all of it linear in its one operand of numbers
    *("alias", "clone", "contiguous", "detach", "detach_copy", "lift_fresh", "lift_fresh_copy", "resolve_conj"),
    *("resolve_neg", "positive", "view", "view_copy", "reshape", "_unsafe_view", "flatten.using_ints", "unflatten.int"),
    *("squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze", "view_as", "reshape_as", "_reshape_copy", "ravel"),
    *("permute", "permute_copy", "transpose.int", "swapaxes", "swapdims", "t", "numpy_T", "mT", "movedim.int"),
    *("movedim.intlist", "moveaxis.int", "moveaxis.intlist", "expand", "expand_as", "broadcast_to", "repeat", "tile"),
    *("repeat_interleave.self_int", "split.Tensor", "split_with_sizes", "chunk", "unbind.int", "slice.Tensor"),
    *("narrow", "select.int", "flip", "roll", "unfold", "index.Tensor", "index_select", "gather", "diagonal", "tril"),
    *("triu", "neg", "negative", "sum", "sum.dim_IntList", "mean", "mean.dim", "cumsum", "atleast_1d", "atleast_2d"),
    *("atleast_3d", "tensor_split.sections", "take", "diag", "masked_select", "unsafe_chunk", "unsafe_split.Tensor"),
    *(
        "reflection_pad1d",
        "reflection_pad2d",
        "replication_pad1d",
        "replication_pad2d",
        "as_strided",
        "as_strided_copy",
    ),
)
_MADE = (
    *("zeros", "zeros_like", "zero", "new_zeros", "ones", "ones_like", "new_ones", "empty.memory_format"),
    *("empty_like", "new_empty", "new_empty_strided"),
)
_FILLED = "full", "full_like", "new_full", "fill.Scalar", "fill.Tensor", "scalar_tensor"  # by their last operand
_MIXED = {  # at these places are numbers of the result, of which some may be real
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), (0,)),
    **dict.fromkeys(("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar"), (0, 1)),
    **dict.fromkeys(("copy", "slice_scatter", "select_scatter", "diagonal_scatter"), (0, 1)),
    **dict.fromkeys(("where.self", "where.ScalarSelf", "where.ScalarOther"), (1, 2)),
    **dict.fromkeys(("index_put", "_unsafe_index_put", "masked_fill.Scalar", "masked_fill.Tensor"), (0, 2)),
    **dict.fromkeys(("masked_scatter", "constant_pad_nd"), (0, 2)),
    **dict.fromkeys(("scatter.src", "scatter.value", "scatter_add", "index_add", "index_copy", "pad"), (0, 3)),
    **dict.fromkeys(("index_fill.int_Scalar", "index_fill.int_Tensor"), (0, 3)),
}
_PRODUCTS = (
    *("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar", "mm", "bmm", "matmul", "mv", "dot", "outer"),
    *("ger", "linalg_matmul"),
)


def _full(name: str) -> str:
    return name if "." in name else f"{name}.default"


def _by_parts(name: str, mixed: Sequence[int] = ()) -> Callable[..., Any]:
    def read(c: Call, *given: Any, **named: Any) -> Any:
        if not gives_pairs(c):  # what is like a complex tensor in its shape alone
            return TABLE[name](c, *(parts_of(x)[0] for x in given), **named)
        if are_among(named) or not are_among(given):
            raise UnsupportedOp(f"{name} of such complex numbers")
        return each(c, TABLE[name], given, named, mixed)

    return read


def _made(name: str, is_filled: bool) -> Callable[..., Any]:
    """Return a reader of what is made of one number: it has no imaginary part unless the number has."""

    def read(c: Call, *given: Any, **named: Any) -> Any:
        parts = [parts_of(x) for x in given]
        real = TABLE[name](c, *(p for p, _ in parts), **named)
        if not gives_pairs(c):
            return real
        imaginary = parts[-1][1] if is_filled else None
        return Pair(real, c.filled(0 if imaginary is None else imaginary, c.dtype, real.shape))

    return read


for _name in map(_full, _MOVED):
    reads_pairs(_name)(_by_parts(_name))
for _name in map(_full, (*_MADE, *_FILLED)):
    reads_pairs(_name)(_made(_name, _name.removesuffix(".default") in _FILLED))
for _name, _places in _MIXED.items():
    reads_pairs(_name)(_by_parts(_full(_name), _places))


def _product(name: str) -> Callable[..., Any]:
    def read(c: Call, x: Any, y: Any) -> Any:
        return of_two(partial(TABLE[name], c), x, y)

    return read


for _name in map(_full, _PRODUCTS):
    reads_pairs(_name)(_product(_name))
multiplied = PAIRS["mul.Tensor"]


@reads_pairs("einsum")
def _einsum(c: Call, equation: str, operands: Sequence[Any], *_: Any, **__: Any) -> Any:
    found, *others = operands
    if len(others) > 1:
        raise UnsupportedOp(f"{len(operands)} operands of complex numbers")
    if not others:
        return Pair(*(ops.einsum([v], equation=equation) for v in found))
    return of_two(lambda a, b: ops.einsum([c.cast(a, c.dtype), c.cast(b, c.dtype)], equation=equation), found, *others)


@reads_pairs("linear")
def _linear(c: Call, x: Any, weight: Any, bias: Any = None) -> Any:
    y = of_two(lambda a, b: TABLE["linear.default"](c, a, b), x, weight)
    return y if bias is None else Pair(*(v if b is None else ops.add(v, b) for v, b in zip(y, parts_of(bias))))


@reads_pairs("vdot")
def _vdot(c: Call, x: Any, y: Any) -> Any:
    return of_two(ops.matmul, conjugate(c, x), y)


# --- parts ------------------------------------------------------------------------------------------------------------


@reads_pairs("view_as_complex")
def _view_as_complex(c: Call, x: Value) -> Any:
    return split(c, x)


@reads_pairs("view_as_real", "view_as_real_copy")
def _view_as_real(c: Call, x: Pair) -> Any:
    return joined(x)


@reads_pairs("broadcast_tensors")
def _broadcast_tensors(c: Call, tensors: Sequence[Any]) -> Any:
    shapes = [c.extents.shape(x.shape) for x in c.results]
    return [
        Pair(*(c.expanded(v, n) for v in x)) if isinstance(x, Pair) else c.expanded(x, n)
        for x, n in zip(tensors, shapes)
    ]


@reads_pairs("complex")
def _complex(c: Call, real: Value, imaginary: Value) -> Any:
    return Pair(*c.spread([real, imaginary]))


@reads_pairs("polar")
def _polar(c: Call, size: Value, angle: Value) -> Any:
    return Pair(*c.spread([ops.mul(size, ops.cos(angle)), ops.mul(size, ops.sin(angle))]))


@reads_pairs("real")
def _real(c: Call, x: Pair) -> Any:
    return x.real


@reads_pairs("imag")
def _imaginary(c: Call, x: Pair) -> Any:
    return x.imaginary


@reads_pairs("conj", "_conj", "conj_physical", "_conj_physical")
def conjugate(c: Call, x: Any) -> Any:
    """Return a - i b; of real numbers these."""
    return Pair(x.real, ops.neg(x.imaginary)) if isinstance(x, Pair) else x


@reads_pairs("adjoint", "matrix_H")
def _adjoint(c: Call, x: Pair) -> Any:
    return conjugate(c, Pair(*(TABLE["mT.default"](c, v) for v in x)))


@reads_pairs("_to_copy", "to.dtype", "to.dtype_layout", "to.device", "to.other", "to.prim_Device", "type_as")
def _converted(c: Call, x: Any, *others: Any, **layout: Any) -> Any:
    """Return numbers of another dtype: the imaginary part is lost where that is real, and 0 where they were."""
    real, imaginary = (None if v is None else c.cast(v, c.dtype) for v in parts_of(x))
    assert real is not None
    if not gives_pairs(c):
        return real
    return Pair(real, c.filled(0, c.dtype, real.shape) if imaginary is None else imaginary)


# --- numbers ----------------------------------------------------------------------------------------------------------


@reads_pairs("abs", "absolute")
def size_of(c: Call, x: Pair) -> Any:
    """sqrt(a a + b b), of parts in units of the greater one: no square is beyond the dtype."""
    a, b = map(ops.abs, x)
    most, least = ops.max([a, b]), ops.min([a, b])
    is_plain = ops.logical_or(ops.equal(most, c.number(0.0, a.dtype)), ops.isinf(most))
    ratio = ops.div(least, ops.where(is_plain, c.number(1.0, a.dtype), most))
    return ops.where(is_plain, most, ops.mul(most, ops.sqrt(ops.add(ops.mul(ratio, ratio), c.number(1.0, a.dtype)))))


@reads_pairs("angle")
def _angle(c: Call, x: Pair) -> Any:
    return TABLE["atan2.default"](c, x.imaginary, x.real)


def _square_of_size(x: Pair) -> Value:
    return ops.add(ops.mul(x.real, x.real), ops.mul(x.imaginary, x.imaginary))


@reads_pairs("div.Tensor", "div.Scalar", "true_divide.Tensor", "divide.Tensor", "divide.Scalar")
def _div(c: Call, x: Any, y: Any) -> Any:
    """x / w = x conj(w) / |w|^2, of w in units of its greater part."""
    x, y = (Pair(*(c.cast(v, c.dtype) for v in z)) if isinstance(z, Pair) else z for z in (x, y))
    p, q = parts_of(y)
    if q is None:
        return Pair(*(ops.div(v, c.operand(p, c.dtype)) for v in x))
    if not isinstance(y, Pair):
        return multiplied(c, x, 1 / y)
    unit = ops.max([ops.abs(p), ops.abs(q)])
    unit = ops.where(ops.equal(unit, c.number(0.0, p.dtype)), c.number(1.0, p.dtype), unit)
    w = Pair(ops.div(p, unit), ops.div(q, unit))
    made = multiplied(c, x, conjugate(c, w))
    return Pair(*(ops.div(ops.div(v, _square_of_size(w)), unit) for v in made))


@reads_pairs("reciprocal")
def _reciprocal(c: Call, x: Pair) -> Any:
    return _div(c, c.number(1.0, c.dtype), x)


@reads_pairs("square")
def _square(c: Call, x: Pair) -> Any:
    return multiplied(c, x, x)


@reads_pairs("pow.Tensor_Scalar")
def _pow(c: Call, x: Pair, exponent: Any) -> Any:
    """A whole power is a product of squares; any other one |z|^p (cos p t + i sin p t), t the angle of z."""
    if isinstance(exponent, complex):
        raise UnsupportedOp("a power of complex exponent")
    if exponent == 0:
        return Pair(*(c.filled(n, c.dtype, x.real.shape) for n in (1.0, 0.0)))
    if exponent == int(exponent) and abs(exponent) <= MOST_FACTORS:
        found = power_of(partial(multiplied, c), x, abs(int(exponent)))
        return found if exponent > 0 else _reciprocal(c, found)
    size = ops.pow(size_of(c, x), c.number(exponent, c.dtype))
    return _polar(c, size, ops.mul(_angle(c, x), c.number(exponent, c.dtype)))


@reads_pairs("sqrt")
def _sqrt(c: Call, x: Pair) -> Any:
    return _pow(c, x, 0.5)


@reads_pairs("rsqrt")
def _rsqrt(c: Call, x: Pair) -> Any:
    return _pow(c, x, -0.5)


@reads_pairs("exp")
def _exp(c: Call, x: Pair) -> Any:
    return _polar(c, ops.exp(x.real), x.imaginary)


def _log(base: float) -> Callable[..., Any]:
    def read(c: Call, x: Pair) -> Any:
        return scaled(c, Pair(ops.log(size_of(c, x)), _angle(c, x)), 1 / math.log(base))

    return read


reads_pairs("log")(_log(math.e))
reads_pairs("log2")(_log(2))
reads_pairs("log10")(_log(10))


@reads_pairs("pow.Tensor_Tensor", "float_power.Tensor_Tensor")
def _pow_of_each(c: Call, x: Any, exponent: Any) -> Any:
    """e^(w log z); of 0 it is 0 where the real part of w is positive, and 1 where w is 0."""
    z, w = (
        Pair(c.cast(p, c.dtype), c.filled(0, c.dtype, p.shape) if q is None else c.cast(q, c.dtype))
        for p, q in map(parts_of, (x, exponent))
    )
    found = _exp(c, multiplied(c, w, PAIRS["log.default"](c, z)))
    one, zero = (c.number(n, c.dtype) for n in (1.0, 0.0))
    exponent_is_0 = _equal(c, w, 0)
    is_0 = ops.logical_and(_equal(c, z, 0), ops.greater(w.real, zero))
    real = ops.where(exponent_is_0, one, ops.where(is_0, zero, found.real))
    return Pair(real, ops.where(ops.logical_or(is_0, exponent_is_0), zero, found.imaginary))


# --- angles of complex numbers ----------------------------------------------------------------------------------------


def scaled(c: Call, x: Pair, factor: float) -> Pair:
    """Return complex numbers times a real one."""
    return x if factor == 1 else Pair(*(ops.mul(v, c.number(factor, v.dtype)) for v in x))


def _of_angles(first: Any, second: Any, sign: int = 1) -> Callable[..., Any]:
    """f(a + i b) of two products, each of a function of a and one of b."""

    def read(c: Call, x: Pair) -> Any:
        real, imaginary = (ops.mul(f(x.real), g(x.imaginary)) for f, g in (first, second))
        return Pair(real, imaginary if sign > 0 else ops.neg(imaginary))

    return read


reads_pairs("sin")(_of_angles((ops.sin, ops.cosh), (ops.cos, ops.sinh)))
reads_pairs("cos")(_of_angles((ops.cos, ops.cosh), (ops.sin, ops.sinh), -1))
reads_pairs("sinh")(_of_angles((ops.sinh, ops.cos), (ops.cosh, ops.sin)))
reads_pairs("cosh")(_of_angles((ops.cosh, ops.cos), (ops.sinh, ops.sin)))


@reads_pairs("tanh")
def _tanh(c: Call, x: Pair) -> Any:
    """With t = tanh a and u = tan b: (t + i u) / (1 + i t u)."""
    t, u = ops.tanh(x.real), ops.tan(x.imaginary)
    return _div(c, Pair(t, u), Pair(c.filled(1.0, t.dtype, t.shape), ops.mul(t, u)))


@reads_pairs("sigmoid")
def _sigmoid(c: Call, x: Pair) -> Any:
    """(1 + tanh(z / 2)) / 2."""
    y = scaled(c, _tanh(c, scaled(c, x, 0.5)), 0.5)
    return Pair(ops.add(y.real, c.number(0.5, y.real.dtype)), y.imaginary)


@reads_pairs("sgn")
def _sgn(c: Call, x: Pair) -> Any:
    size = size_of(c, x)
    return _div(c, x, ops.where(ops.equal(size, c.number(0.0, c.dtype)), c.number(1.0, c.dtype), size))


@reads_pairs("eq.Tensor", "eq.Scalar")
def _equal(c: Call, x: Any, y: Any) -> Any:
    parts = ([0 if v is None else v for v in parts_of(z)] for z in (x, y))
    return ops.logical_and(*(ops.equal(*c.promoted(a, b)) for a, b in zip(*parts)))


@reads_pairs("ne.Tensor", "ne.Scalar")
def _unequal(c: Call, x: Any, y: Any) -> Any:
    return ops.logical_not(_equal(c, x, y))


def _any_of(test: Callable[[Any], Any]) -> Callable[..., Any]:
    def read(c: Call, x: Pair) -> Any:
        return ops.logical_or(*map(test, x))

    return read


reads_pairs("isnan")(_any_of(ops.isnan))
reads_pairs("isinf")(_any_of(ops.isinf))


@reads_pairs("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar")
def _norm(c: Call, x: Pair, *others: Any, **named: Any) -> Any:
    return TABLE["linalg_vector_norm.default"](c, size_of(c, x), *others, **named)
