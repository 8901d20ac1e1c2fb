"""Operators that move elements: each result element is one element of an operand."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm import te
from renorm.core import dims
from renorm.core.errors import OperandError
from renorm.expr.nodes import (
    Expr,
    ExprLike,
    all_of,
    as_expr,
    binary,
    cast,
    const,
    if_then_else,
    maximum,
    minimum,
    select,
)
from renorm.te import tag
from renorm.te.tensor import element_of


def transpose(x: te.Tensor, axes: Sequence[int] | None = None) -> te.Tensor:
    """Axis k of the result is axis axes[k] of x; without axes the order is reversed."""
    rank = len(x.shape)
    order = [dims.normalize_axis(a, rank) for a in axes] if axes is not None else list(range(rank))[::-1]

    def element(*index: Expr) -> Expr:
        source = [index[order.index(a)] for a in range(rank)]
        return x[tuple(source)]

    return te.compute(tuple(x.shape[a] for a in order), element, name="T_transpose", tag=tag.INJECTIVE)


def reshape(x: te.Tensor, shape: Sequence[int]) -> te.Tensor:
    """The elements of x in order, in another shape (with as many elements; -1 stands for what is left)."""
    to = list(shape)
    if -1 in to:
        known = prod(d for d in to if d != -1)
        to[to.index(-1)] = prod(x.shape) // known if known else 0
    if prod(to) != prod(x.shape):
        raise OperandError(f"cannot reshape {list(x.shape)} to {to}", [f"{prod(x.shape)} elements and {prod(to)}"])
    runs = _runs(x.shape, to)

    def element(*index: Expr) -> Expr:
        source: list[Expr] = []
        for old, new in runs:
            source += unravel(
                ravel(index[new.start : new.stop], to[new.start : new.stop]), x.shape[old.start : old.stop]
            )
        return x[tuple(source)]

    return te.compute(tuple(to), element, name="T_reshape", tag=tag.INJECTIVE)


def _runs(a: Sequence[int], b: Sequence[int]) -> list[tuple[range, range]]:
    """Shapes of equal size cut into the shortest runs of axes with equal products: no index needs more // and % than it
    must."""
    if 0 in a:
        return [(range(len(a)), range(len(b)))]
    runs: list[tuple[range, range]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        from_i, from_j = i, j
        left = right = 1
        while left != right or (i == from_i and j == from_j):
            if (left <= right and i < len(a)) or j == len(b):
                left, i = left * a[i], i + 1
            else:
                right, j = right * b[j], j + 1
        runs.append((range(from_i, i), range(from_j, j)))
    return runs


def ravel(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The position of `index` in a contiguous tensor."""
    flat: Expr | None = None
    for i, extent in zip(index, shape):
        if extent != 1:
            flat = i if flat is None else flat * extent + i
    return const(0) if flat is None else flat


def unravel(flat: Expr, shape: Sequence[int]) -> list[Expr]:
    """The index of position `flat` of a contiguous tensor."""
    index: list[Expr] = []
    stride, is_outermost = prod(shape), True
    for extent in shape:
        stride = stride // extent if extent else 1
        if extent == 1:
            index.append(const(0, flat.dtype))
            continue
        quotient = flat // stride if stride != 1 else flat
        index.append(quotient if is_outermost else quotient % max(extent, 1))
        is_outermost = False
    return index


def expand_dims(x: te.Tensor, axis: int, num_newaxis: int = 1) -> te.Tensor:
    """Axes of extent 1 inserted at `axis`."""
    at = dims.normalize_axis(axis, len(x.shape) + 1)
    return unsqueeze(x, range(at, at + num_newaxis))


def unsqueeze(x: te.Tensor, axes: Sequence[int]) -> te.Tensor:
    """Axes of extent 1, at these places of the result."""
    rank = len(x.shape) + len(axes)
    new = {dims.normalize_axis(a, rank) for a in axes}
    old = iter(x.shape)
    shape = tuple(1 if k in new else next(old) for k in range(rank))
    return te.compute(
        shape,
        lambda *i: x[tuple(v for k, v in enumerate(i) if k not in new)],
        name="T_expand_dims",
        tag=tag.INJECTIVE,
    )


def squeeze(x: te.Tensor, axis: int | Sequence[int] | None = None) -> te.Tensor:
    """x without these axes of extent 1; without `axis`, without all of them."""
    rank = len(x.shape)
    if axis is None:
        gone = {k for k, extent in enumerate(x.shape) if extent == 1}
    else:
        gone = {dims.normalize_axis(a, rank) for a in ([axis] if isinstance(axis, int) else axis)}
    wide = [k for k in sorted(gone) if x.shape[k] != 1]
    if wide:
        raise OperandError(f"cannot squeeze axis {wide[0]} of {list(x.shape)}", ["its extent is not 1"])
    kept = [k for k in range(rank) if k not in gone]

    def element(*index: Expr) -> Expr:
        return x[tuple(index[kept.index(k)] if k in kept else const(0) for k in range(rank))]

    return te.compute(tuple(x.shape[k] for k in kept), element, name="T_squeeze", tag=tag.INJECTIVE)


def broadcast_to(x: te.Tensor, shape: Sequence[int]) -> te.Tensor:
    """x repeated along axes of extent 1, and along new leading axes."""
    to = tuple(shape)
    if dims.broadcast(x.shape, to) != to:
        raise OperandError(f"cannot broadcast {list(x.shape)} to {list(to)}")
    return te.compute(to, lambda *i: element_of(x, i, to), name="T_broadcast_to", tag=tag.BROADCAST)


def concatenate(tensors: Sequence[te.Tensor], axis: int = 0) -> te.Tensor:
    """Tensors one after the other along `axis`; all other extents are equal."""
    first = tensors[0]
    at = dims.normalize_axis(axis, len(first.shape))
    parts = [t for t in tensors if t.shape[at]] or [first]
    shape = list(first.shape)
    shape[at] = sum(t.shape[at] for t in tensors)

    def element(*index: Expr) -> Expr:
        starts = [sum(t.shape[at] for t in parts[:k]) for k in range(len(parts))]
        return select_part(index[at], starts, [_shifted(t, index, at, s) for t, s in zip(parts, starts)])

    return te.compute(tuple(shape), element, name="T_concat", tag=tag.INJECTIVE)


def _shifted(x: te.Tensor, index: Sequence[Expr], axis: int, start: int) -> Expr:
    return x[tuple(i - start if k == axis and start else i for k, i in enumerate(index))]


def select_part(position: Expr, starts: Sequence[int], values: Sequence[Expr]) -> Expr:
    """values[k] for the last k with starts[k] <= position, by bisection; only that one is evaluated."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return if_then_else(
        position < starts[half],
        select_part(position, starts[:half], values[:half]),
        select_part(position, starts[half:], values[half:]),
    )


def stack(tensors: Sequence[te.Tensor], axis: int = 0) -> te.Tensor:
    """Tensors of one shape along a new axis."""
    at = dims.normalize_axis(axis, len(tensors[0].shape) + 1)
    return concatenate([unsqueeze(t, [at]) for t in tensors], at)


def split(x: te.Tensor, sections: int | Sequence[int], axis: int = 0) -> list[te.Tensor]:
    """Pieces of x along `axis`: so many equal ones, or cut at these indices (as numpy.split)."""
    at = dims.normalize_axis(axis, len(x.shape))
    extent = x.shape[at]
    if isinstance(sections, int):
        if extent % sections:
            raise OperandError(f"cannot split axis {at} of {list(x.shape)} into {sections} equal parts")
        sections = [extent // sections * k for k in range(1, sections)]
    starts, stops = [0, *sections], [*sections, extent]
    return [section(x, at, a, b - a) for a, b in zip(starts, stops)]


def section(x: te.Tensor, axis: int, start: int, count: int) -> te.Tensor:
    """`count` slices of x from `start` on."""
    shape = list(x.shape)
    shape[axis] = count
    return te.compute(
        tuple(shape),
        lambda *i: x[tuple(v + start if k == axis and start else v for k, v in enumerate(i))],
        name="T_split",
        tag=tag.INJECTIVE,
    )


def strided_slice(
    x: te.Tensor, begin: Sequence[int], end: Sequence[int], strides: Sequence[int] | None = None
) -> te.Tensor:
    """x[begin:end:stride] along each axis by Python's rules; bounds that are missing take everything."""
    steps = list(strides or [])
    ranges = [
        range(extent)[
            slice(
                begin[k] if k < len(begin) else None,
                end[k] if k < len(end) else None,
                steps[k] if k < len(steps) else None,
            )
        ]
        for k, extent in enumerate(x.shape)
    ]
    return gather_ranges(x, ranges)


def gather_ranges(x: te.Tensor, ranges: Sequence[range]) -> te.Tensor:
    """The elements of x at these positions of each axis."""

    def at(i: Expr, r: range) -> Expr:
        scaled = i if r.step == 1 else i * r.step
        return scaled + r.start if r.start else scaled

    return te.compute(
        tuple(len(r) for r in ranges),
        lambda *index: x[tuple(at(i, r) for i, r in zip(index, ranges))],
        name="T_strided_slice",
        tag=tag.INJECTIVE,
    )


def flip(x: te.Tensor, axis: int = 0) -> te.Tensor:
    """x backwards along `axis`."""
    at = dims.normalize_axis(axis, len(x.shape))
    return gather_ranges(x, [range(n)[::-1] if k == at else range(n) for k, n in enumerate(x.shape)])


def take(x: te.Tensor, indices: te.Tensor, axis: int | None = None) -> te.Tensor:
    """x at `indices` along `axis` (of x flattened, without axis).

    Negative indices count from the end; what lies outside reads the nearest element, since a kernel cannot raise.
    """
    if axis is None:
        x, axis = reshape(x, (prod(x.shape),)), 0
    at, rank = dims.normalize_axis(axis, len(x.shape)), len(indices.shape)
    shape = (*x.shape[:at], *indices.shape, *x.shape[at + 1 :])

    def element(*index: Expr) -> Expr:
        chosen = within(indices[tuple(index[at : at + rank])], x.shape[at])
        return x[(*index[:at], chosen, *index[at + rank :])]

    return te.compute(shape, element, name="T_take", tag=tag.INJECTIVE)


def within(index: Expr, extent: int) -> Expr:
    """An index that came from data: negative ones count from the end, and the result is in [0, extent)."""
    wide = cast("int64", index)
    wrapped = select(wide < 0, wide + extent, wide)
    return cast("int32", maximum(minimum(wrapped, const(extent - 1, "int64")), const(0, "int64")))


def tile(x: te.Tensor, reps: Sequence[int]) -> te.Tensor:
    """x repeated reps[k] times along axis k, as numpy.tile."""
    rank = max(len(x.shape), len(reps))
    own = (1,) * (rank - len(x.shape)) + tuple(x.shape)
    times = (1,) * (rank - len(reps)) + tuple(reps)

    def element(*index: Expr) -> Expr:
        source = [i if t == 1 else i % max(n, 1) for i, n, t in zip(index, own, times)]
        return x[tuple(source[rank - len(x.shape) :])]

    return te.compute(tuple(n * t for n, t in zip(own, times)), element, name="T_tile", tag=tag.INJECTIVE)


def pad(
    x: te.Tensor,
    pad_before: Sequence[int],
    pad_after: Sequence[int] | None = None,
    pad_value: ExprLike = 0.0,
    mode: str = "constant",
    name: str = "PadInput",
) -> te.Tensor:
    """x with elements around it: `constant`, the `edge` repeated, `reflect`ed without the edge, or `wrap`ped around.

    pad_before, pad_after: elements per axis; negative ones take elements away (constant mode only).
    """
    before, after = tuple(pad_before), tuple(pad_after if pad_after is not None else pad_before)
    shape = tuple(n + b + a for n, b, a in zip(x.shape, before, after))
    value = as_expr(pad_value) if isinstance(pad_value, Expr) else const(pad_value, x.dtype)

    def source(i: Expr, n: int, b: int, a: int) -> Expr:
        shifted = i - b if b else i
        if (b, a) == (0, 0) or mode == "constant":
            return shifted
        if mode == "edge":
            return maximum(minimum(shifted, n - 1), 0)
        if mode == "wrap":
            return shifted % n
        if n == 1:
            return const(0, i.dtype)
        turned = shifted % (2 * (n - 1))
        return minimum(turned, 2 * (n - 1) - turned)

    def element(*index: Expr) -> Expr:
        at = [source(i, n, b, a) for i, n, b, a in zip(index, x.shape, before, after)]
        if mode != "constant":
            return x[tuple(at)]
        inside: list[Expr] = []
        for i, n, b, a in zip(index, x.shape, before, after):
            inside += [i >= b] if b > 0 else []
            inside += [i < n + b] if a > 0 else []
        if not inside:
            return x[tuple(at)]
        return if_then_else(all_of(*inside), x[tuple(at)], value)

    return te.compute(shape, element, name=name, tag="pad")


def where(condition: te.Tensor, x: te.Tensor, y: te.Tensor) -> te.Tensor:
    """x where condition holds, y elsewhere; all broadcast."""

    def element(c: Expr, a: Expr, b: Expr) -> Expr:
        return select(c if c.dtype == "bool" else binary("!=", c, const(0, c.dtype)), a, b)

    return te.broadcast(element, condition, x, y, name="T_where")
