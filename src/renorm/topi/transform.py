"""Operators that move elements: each result element is one element of an operand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any, NamedTuple

from renorm import te
from renorm.core import dims, dtypes, shapes
from renorm.core.errors import OperandError
from renorm.core.spans import decided
from renorm.expr.bounds import open_truth
from renorm.expr.extents import differ, same_extent
from renorm.expr.nodes import (
    Expr,
    OpenVar,
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
from renorm.expr.rewrite import variables
from renorm.te import tag
from renorm.te.arguments import Extent, checked
from renorm.te.open_dims import OpenDims
from renorm.te.tensor import element_of


@checked("topi.")
def transpose(a: te.Tensor, axes: Sequence[int] | None = None) -> te.Tensor:
    """Axis k of the result is axis axes[k] of a; without axes the order is reversed."""
    rank = len(a.shape)
    order = [shapes.normalize_axis(k, rank) for k in axes] if axes is not None else list(range(rank))[::-1]
    if sorted(order) != list(range(rank)):
        raise OperandError(f"topi.transpose: axes {axes} of {a.name} {list(a.shape)}", ["expected each axis once"])

    def element(*index: Expr) -> Expr:
        source = [index[order.index(k)] for k in range(rank)]
        return a[tuple(source)]

    return te.compute(tuple(a.shape[k] for k in order), element, name="T_transpose", tag=tag.INJECTIVE)


@checked("topi.")
def reshape(a: te.Tensor, newshape: Sequence[Extent]) -> te.Tensor:
    """The elements of a in order, in another shape (with as many elements; -1 stands for what is left)."""
    open_dims = OpenDims()
    before, to = open_dims.shape(a.shape), list(open_dims.shape(newshape))
    total = dims.size(before)
    if to.count(-1) > 1 or any(isinstance(d, int) and d < -1 for d in to):
        raise OperandError(f"topi.reshape: {to} is not a shape", ["expected extents from 0 up, and -1 at most once"])
    if -1 in to:
        known = dims.size(d for d in to if d != -1)
        to[to.index(-1)] = total // known if known != 0 else 0
    if decided("==", dims.bounds(dims.size(to) - total)) is False:
        raise OperandError(f"cannot reshape {list(a.shape)} to {to}", [f"{total} elements and {dims.size(to)}"])
    runs = shapes.regrouping(before, to)
    only_ones = [n for n in before if n != 1] == [n for n in to if n != 1]  # come and go
    shape = tuple(open_dims.extent(d) for d in to)

    def element(*index: Expr) -> Expr:
        source: list[Expr] = []
        for old, new in runs:
            own = index[new.start : new.stop]
            if only_ones and len(old) == len(new) == 1:  # also at extent 1: all indices together are one number again
                source += own
            else:
                source += unravel(ravel(own, shape[new.start : new.stop]), a.shape[old.start : old.stop])
        return a[tuple(source)]

    return te.compute(shape, element, name="T_reshape", tag=tag.INJECTIVE)


def ravel(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The position of `index` in a contiguous tensor."""
    flat: Expr | None = None
    for i, extent in zip(index, shape):
        if not same_extent(extent, 1):
            flat = i if flat is None else flat * extent + i
    return const(0) if flat is None else flat


def unravel(flat: Expr, shape: Sequence[int]) -> list[Expr]:
    """The index of position `flat` of a contiguous tensor."""
    index: list[Expr] = []
    strides, is_outermost = list(accumulate(shape[:0:-1], mul, initial=1))[::-1], True
    for extent, stride in zip(shape, strides):
        if same_extent(extent, 1):
            index.append(const(0, flat.dtype))
            continue
        quotient = flat if same_extent(stride, 1) else flat // stride
        index.append(quotient if is_outermost else quotient % _positive(extent))
        is_outermost = False
    return index


@checked("topi.")
def expand_dims(a: te.Tensor, axis: int, num_newaxis: int = 1) -> te.Tensor:
    """Axes of extent 1 inserted at `axis`."""
    at = shapes.normalize_axis(axis, len(a.shape) + 1)
    if num_newaxis < 0:
        raise OperandError(f"topi.expand_dims: {num_newaxis} new axes")
    return unsqueeze(a, range(at, at + num_newaxis))


@checked("topi.")
def unsqueeze(x: te.Tensor, axes: Sequence[int]) -> te.Tensor:
    """Axes of extent 1, at these places of the result."""
    rank = len(x.shape) + len(axes)
    new = {shapes.normalize_axis(a, rank) for a in axes}
    if len(new) != len(axes):
        raise OperandError(f"topi.unsqueeze: axes {list(axes)} name one place twice")
    old = iter(x.shape)
    return reshape(x, [1 if k in new else next(old) for k in range(rank)])


@checked("topi.")
def squeeze(a: te.Tensor, axis: int | Sequence[int] | None = None) -> te.Tensor:
    """a without these axes of extent 1; without `axis`, without all of them."""
    rank = len(a.shape)
    if axis is None:
        gone = {k for k, extent in enumerate(a.shape) if extent == 1}
    else:
        gone = {shapes.normalize_axis(k, rank) for k in ([axis] if isinstance(axis, int) else axis)}
    wide = [k for k in sorted(gone) if a.shape[k] != 1]
    if wide:
        raise OperandError(f"cannot squeeze axis {wide[0]} of {list(a.shape)}", ["its extent is not 1"])
    return reshape(a, [extent for k, extent in enumerate(a.shape) if k not in gone])


@checked("topi.")
def broadcast_to(data: te.Tensor, shape: Sequence[Extent]) -> te.Tensor:
    """data repeated along axes of extent 1, and along new leading axes."""
    to: tuple[Any, ...] = tuple(shape)
    joint = te.tensor.broadcast_shape("topi.broadcast_to", data.shape, to)
    if len(joint) != len(to) or not all(map(same_extent, joint, to)):
        raise OperandError(f"cannot broadcast {list(data.shape)} to {list(to)}")
    return te.compute(to, lambda *i: element_of(data, i, to), name="T_broadcast_to", tag=tag.BROADCAST)


@checked("topi.")
def concatenate(a_tuple: Sequence[te.Tensor], axis: int = 0) -> te.Tensor:
    """Tensors one after the other along `axis`; all other extents are equal."""
    if not a_tuple:
        raise OperandError("topi.concatenate: there are no tensors")
    first = a_tuple[0]
    at = shapes.normalize_axis(axis, len(first.shape))
    others = [k for k in range(first.ndim) if k != at]
    if any(
        t.dtype != first.dtype or t.ndim != first.ndim or any(differ(t.shape[k], first.shape[k]) for k in others)
        for t in a_tuple
    ):
        raise OperandError(
            f"topi.concatenate: tensors do not fit along axis {at}",
            [f"{t.name} {t.dtype}{list(t.shape)}" for t in a_tuple],
            "all extents but that one, and all dtypes, must be equal",
        )
    parts = [t for t in a_tuple if not same_extent(t.shape[at], 0)] or [first]
    shape = list(first.shape)
    shape[at] = sum(t.shape[at] for t in a_tuple)

    def element(*index: Expr) -> Expr:
        starts = [sum(t.shape[at] for t in parts[:k]) for k in range(len(parts))]
        return select_part(index[at], starts, [_shifted(t, index, at, s) for t, s in zip(parts, starts)])

    return te.compute(tuple(shape), element, name="T_concat", tag=tag.INJECTIVE)


def _shifted(x: te.Tensor, index: Sequence[Expr], axis: int, start: int) -> Expr:
    return x[tuple(i - start if k == axis and not same_extent(start, 0) else i for k, i in enumerate(index))]


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


@checked("topi.")
def stack(a: Sequence[te.Tensor], axis: int = 0) -> te.Tensor:
    """Tensors of one shape along a new axis."""
    if len({t.shape for t in a}) != 1:
        raise OperandError("topi.stack: expected tensors of one shape", [f"{t.name} {list(t.shape)}" for t in a])
    at = shapes.normalize_axis(axis, len(a[0].shape) + 1)
    return concatenate([unsqueeze(t, [at]) for t in a], at)


@checked("topi.")
def split(ary: te.Tensor, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[te.Tensor]:
    """Pieces of ary along `axis`: so many equal ones, or cut at these indices (as numpy.split)."""
    at = shapes.normalize_axis(axis, len(ary.shape))
    extent = ary.shape[at]
    if isinstance(indices_or_sections, int):
        if indices_or_sections < 1 or extent % indices_or_sections:
            raise OperandError(f"cannot split axis {at} of {list(ary.shape)} into {indices_or_sections} equal parts")
        indices_or_sections = [extent // indices_or_sections * k for k in range(1, indices_or_sections)]
    starts, stops = [0, *indices_or_sections], [*indices_or_sections, extent]
    if any(b < a for a, b in zip(starts, stops)):
        raise OperandError(f"topi.split: cuts at {indices_or_sections} are not in order within 0 .. {extent}")
    whole = [range(n) for n in ary.shape]
    return [gather_ranges(ary, [*whole[:at], range(a, b), *whole[at + 1 :]]) for a, b in zip(starts, stops)]


@checked("topi.")
def strided_slice(
    a: te.Tensor, begin: Sequence[int], end: Sequence[int], strides: Sequence[int] | None = None
) -> te.Tensor:
    """a[begin:end:stride] along each axis by Python's rules; bounds that are missing take everything."""
    steps = list(strides or [])
    if 0 in steps or max(len(begin), len(end), len(steps)) > len(a.shape):
        raise OperandError(
            f"topi.strided_slice: begin {begin}, end {end}, strides {strides} of {a.name} {list(a.shape)}",
            ["expected at most one number per axis, and no stride of 0"],
        )
    ranges = [
        range(extent)[slice(*(given[k] if k < len(given) else None for given in (begin, end, steps)))]
        for k, extent in enumerate(a.shape)
    ]
    return gather_ranges(a, ranges)


class Taken(NamedTuple):
    """The positions start, start + step, ..., so many; start and count may be open. last: the last one that there is,
    where positions are known not to lie beyond by what cannot be proven here."""

    start: int
    step: int
    count: int
    last: int | None = None


@checked("topi.")
def gather_ranges(x: te.Tensor, ranges: Sequence[range | Taken]) -> te.Tensor:
    """The elements of x at these positions of each axis."""
    known = [(r, n) for r, n in zip(ranges, x.shape) if isinstance(r, range) and isinstance(n, int)]
    if len(ranges) != len(x.shape) or any(r and not (min(r) >= 0 and max(r) < n) for r, n in known):
        raise OperandError(f"topi.gather_ranges: {list(ranges)} are not positions in {x.name} {list(x.shape)}")

    def at(i: Expr, r: range | Taken) -> Expr:
        scaled = i if r.step == 1 else i * r.step
        position = scaled if same_extent(r.start, 0) else scaled + r.start
        return position if isinstance(r, range) or r.last is None else minimum(position, r.last)

    return te.compute(
        tuple(len(r) if isinstance(r, range) else r.count for r in ranges),
        lambda *index: x[tuple(at(i, r) for i, r in zip(index, ranges))],
        name="T_strided_slice",
        tag=tag.INJECTIVE,
    )


@checked("topi.")
def flip(a: te.Tensor, axis: int = 0) -> te.Tensor:
    """a backwards along `axis`."""
    at = shapes.normalize_axis(axis, len(a.shape))
    return gather_ranges(a, [range(n)[::-1] if k == at else range(n) for k, n in enumerate(a.shape)])


@checked("topi.")
def take(a: te.Tensor, indices: te.Tensor, axis: int | None = None, mode: str = "clip") -> te.Tensor:
    """a at `indices` along `axis` (of a flattened, without axis).

    mode: what indices outside read, since a kernel cannot raise: "clip" the nearest element, "wrap" the one that is
    left modulo the extent, "from_end" counts negative ones from the end, as NumPy does, and clips.
    """
    if mode not in ("clip", "wrap", "from_end"):
        raise OperandError(f"topi.take: {mode!r} is not a mode", ["known: clip, wrap, from_end"])
    if axis is None:
        a, axis = reshape(a, (prod(a.shape),)), 0
    at, rank = shapes.normalize_axis(axis, len(a.shape)), len(indices.shape)
    if not dtypes.is_int(indices.dtype):
        raise OperandError(f"topi.take: indices are {indices.dtype}", ["expected integers"])
    extent = a.shape[at]
    shape = (*a.shape[:at], *indices.shape, *a.shape[at + 1 :])

    def element(*index: Expr) -> Expr:
        given = indices[tuple(index[at : at + rank])]
        if mode == "from_end":
            chosen = within(given, extent)
        elif mode == "wrap":
            chosen = cast("int32", cast("int64", given) % _wide(_positive(extent)))
        else:
            chosen = _clipped(cast("int64", given), extent)
        return where_any(extent, a[(*index[:at], chosen, *index[at + rank :])])

    return te.compute(shape, element, name="T_take", tag=tag.INJECTIVE)


def where_any(extent: Extent, element: Expr) -> Expr:
    """Return an element that is read at a place which depends on no loop of that extent; of an axis that may be open
    and empty 0, which nobody computes then."""
    return te.if_then_else(extent > 0, element, const(0, element.dtype)) if _may_be_empty(extent) else element


@checked("topi.")
def within(index: Expr, extent: Extent) -> Expr:
    """An index that came from data: negative ones count from the end, and the result is in [0, extent)."""
    wide = cast("int64", index)
    wrapped = select(wide < 0, wide + _wide(extent), wide)
    return _clipped(wrapped, extent)


def _clipped(wide: Expr, extent: Any) -> Expr:
    last, first = _wide(extent - 1), const(0, "int64")
    if _may_be_empty(extent):  # of what is read where there is something (where_any), the end is to be proved
        return cast("int32", minimum(maximum(wide, first), last))
    return cast("int32", maximum(minimum(wide, last), first))


def _may_be_empty(extent: Any) -> bool:
    """Return whether an extent is open and may be 0: others are taken to be 1 at least."""
    is_open = isinstance(extent, Expr) and open_truth(extent > 0) is None
    return is_open and all(x.low == 0 for x in variables(extent) if isinstance(x, OpenVar))


def _wide(extent: Any) -> Expr:
    return cast("int64", as_expr(extent)) if isinstance(extent, Expr) else const(extent, "int64")


def _may_be_positive(extent: Any) -> bool:
    return open_truth(extent > 0) is not False if isinstance(extent, Expr) else extent > 0


def _positive(extent: Any) -> Any:
    """Return what counts as a divisor: of an axis without elements nothing is computed."""
    return extent if isinstance(extent, Expr) else max(extent, 1)


@checked("topi.")
def tile(a: te.Tensor, reps: Sequence[Extent]) -> te.Tensor:
    """a repeated reps[k] times along axis k, as numpy.tile."""
    if any(isinstance(n, int) and n < 0 for n in reps):
        raise OperandError(f"topi.tile: {list(reps)} times", ["expected numbers from 0 up"])
    rank = max(len(a.shape), len(reps))
    own = (1,) * (rank - len(a.shape)) + tuple(a.shape)
    times = (1,) * (rank - len(reps)) + tuple(reps)

    def element(*index: Expr) -> Expr:
        source = [i if same_extent(t, 1) else i % _positive(n) for i, n, t in zip(index, own, times)]
        read = a[tuple(source[rank - len(a.shape) :])]
        for n, t in zip(own, times):
            read = read if same_extent(t, 1) else where_any(n, read)
        return read

    return te.compute(tuple(n * t for n, t in zip(own, times)), element, name="T_tile", tag=tag.INJECTIVE)


PAD_MODES = ("constant", "edge", "reflect", "wrap")


@checked("topi.")
def pad(
    data: te.Tensor,
    pad_before: Sequence[Extent],
    pad_after: Sequence[Extent] | None = None,
    pad_value: float | Expr = 0.0,
    name: str = "PadInput",
    *,
    mode: str = "constant",
) -> te.Tensor:
    """data with elements around it: `constant`, the `edge` repeated, `reflect`ed without the edge, or `wrap`ped around.

    pad_before, pad_after: elements per axis; negative ones take elements away (constant mode only).
    """
    before: tuple[Any, ...] = tuple(pad_before)
    after: tuple[Any, ...] = before if pad_after is None else tuple(pad_after)
    if mode not in PAD_MODES:
        raise OperandError(f"topi.pad: {mode!r} is not a mode", [f"known: {', '.join(PAD_MODES)}"])
    if not len(before) == len(after) == len(data.shape):
        raise OperandError(
            f"topi.pad: {len(before)} and {len(after)} pads do not fit {data.name} of {len(data.shape)} axes"
        )
    if mode != "constant" and any(isinstance(p, int) and p < 0 for p in before + after):
        raise OperandError(f"topi.pad: negative pads {list(before)}, {list(after)} need mode constant, not {mode}")
    if mode != "constant" and any(
        same_extent(n, 0) and not (same_extent(b, 0) and same_extent(a, 0))
        for n, b, a in zip(data.shape, before, after)
    ):
        raise OperandError(f"topi.pad: {data.name} {list(data.shape)} is empty, so there is nothing to repeat")
    shape = tuple(n + b + a for n, b, a in zip(data.shape, before, after))
    value = as_expr(pad_value) if isinstance(pad_value, Expr) else const(pad_value, data.dtype)

    def source(i: Expr, n: Any, b: Any, a: Any) -> Expr:
        shifted = i if same_extent(b, 0) else i - b
        if mode == "constant" or (same_extent(b, 0) and same_extent(a, 0)):
            return shifted
        if mode == "edge":
            return maximum(minimum(shifted, n - 1), 0)
        if mode == "wrap":
            return shifted % n
        if same_extent(n, 1):
            return const(0, i.dtype)
        turned = shifted % (2 * (n - 1))  # n being open, it may be 1: a remainder by 0 is 0
        turned = minimum(turned, 2 * (n - 1) - turned)
        return maximum(minimum(turned, n - 1), 0) if isinstance(n, Expr) else turned  # what bounds are read off

    def element(*index: Expr) -> Expr:
        at = [source(i, n, b, a) for i, n, b, a in zip(index, data.shape, before, after)]
        if mode != "constant":
            return data[tuple(at)]
        inside = [i >= b for i, b in zip(index, before) if _may_be_positive(b)]
        inside += [i < n + b for i, n, b, a in zip(index, data.shape, before, after) if _may_be_positive(a)]
        if not inside:
            return data[tuple(at)]
        return if_then_else(all_of(*inside), data[tuple(at)], value)

    return te.compute(shape, element, name=name, tag="pad")


@checked("topi.")
def where(condition: te.Tensor, x: te.Tensor, y: te.Tensor) -> te.Tensor:
    """x where condition holds, y elsewhere; all broadcast."""

    def element(c: Expr, a: Expr, b: Expr) -> Expr:
        return select(c if c.dtype == "bool" else binary("!=", c, const(0, c.dtype)), a, b)

    return te.broadcast(element, condition, x, y, name="T_where")
