"""Shapes of results: broadcast, slices, regrouped axes, and windows of convolutions and pools; their only home.

Extents are Dims (core.dims). What is not known of an open one and must be so is taken to be so (`take`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from renorm.core.dims import Dim, Shape, Sym, bounds, format_shape, maximum, minimum, take
from renorm.core.errors import OperandError


def normalize_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front; negative axes count from the back."""
    if not -rank <= axis < rank:
        raise OperandError(
            f"axis {axis} is outside a tensor of rank {rank}", do=f"use an axis in [{-rank}, {rank - 1}]"
        )
    return axis % rank if rank else 0


def broadcast(*shapes: Sequence[Dim]) -> Shape:
    """Return the shape that NumPy broadcasting gives; a symbol against 1 gives the symbol, against an extent that
    extent."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = []
    for i in range(rank):
        extents: list[Dim] = [s[len(s) - rank + i] for s in shapes if len(s) - rank + i >= 0]
        others = {d for d in extents if d != 1}
        integers = {d for d in others if isinstance(d, int)}
        if len(integers) > 1:
            raise OperandError(
                f"shapes {' and '.join(format_shape(s) for s in shapes)} do not broadcast",
                [f"axis {i - rank} has extents {', '.join(str(d) for d in extents)}"],
                "extents must be equal, or 1",
            )
        # an unknown extent that meets a known one other than 1 must equal it, or be 1: either way the result is known
        joint = integers.pop() if integers else next(iter(sorted(others, key=str)), 1)
        for d in others if len(others) > 1 else ():
            take(d, "==", joint)
        result.append(joint)
    return tuple(result)


def is_scalar(shape: Sequence[Dim]) -> bool:
    """Return whether a shape has no axis, or one of extent 1; an open one is taken to be that."""
    for d in shape:
        take(d, "==", 1)
    return len(shape) <= 1 and all(d == 1 or not isinstance(d, int) for d in shape)


def spreads(shape: Sequence[Dim], to: Sequence[Dim]) -> bool:
    """Return whether `shape` broadcasts to `to` without making it larger; extents that are not known may fit."""
    try:
        joint = broadcast(shape, to)
    except OperandError:
        return False
    for d, e in zip(joint, to):
        take(d, "==", e)
    return len(joint) == len(to) and all(
        d == e or not (isinstance(d, int) and isinstance(e, int)) for d, e in zip(joint, to)
    )


def regrouping(before: Sequence[Any], after: Sequence[Any]) -> list[tuple[range, range]]:
    """Cut two shapes of one size into the shortest runs of axes (of `before`, of `after`) with equal products.

        [N, 6, 4] and [N, 2, 12]   ->   N | N,  6 4 | 2 12

    An index of a run is one number in mixed radix, on both sides. [n, h, 2, w, 2] and [n, 2*h, 2*w] are n | n,
    h 2 | 2*h, w 2 | 2*w: what divides an open extent is a part of it. From extents on that cannot be compared
    (symbols, unknown ones, products that are 0), all axes are one run.
    """
    found: list[tuple[range, range]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        first, (left, right) = (i, j), (before[i], after[j])
        i, j = i + 1, j + 1
        while left != right:
            if i < len(before) and _is_part(left, right, before[i]):
                left, i = left * before[i], i + 1
            elif j < len(after) and _is_part(right, left, after[j]):
                right, j = right * after[j], j + 1
            else:
                i, j, left = len(before), len(after), right
        found.append((range(first[0], i), range(first[1], j)))
    if i < len(before) or j < len(after):
        found.append((range(i, len(before)), range(j, len(after))))
    return found


def _is_part(extent: Any, whole: Any, following: Any) -> bool:
    """Return whether an extent times the following one may be the whole."""
    if isinstance(extent, int) and isinstance(whole, int):
        return extent < whole and isinstance(following, int)
    are_known = all(isinstance(d, (int, Sym)) for d in (extent, whole, following))
    return are_known and extent != 0 and isinstance(whole, Sym) and whole % extent == 0


def sliced(extent: Dim, taken: slice) -> tuple[Dim, int, Dim]:
    """Return (start, step, count) of x[taken] on an axis, by the rules of ops.slice; the step is a number. A symbolic
    extent is taken to be at least 1 where an end of it is a bound, and a symbolic bound to lie inside the axis."""
    start, stop, step = taken.start, taken.stop, 1 if taken.step is None else taken.step
    if isinstance(extent, int) and not isinstance(start, Sym) and not isinstance(stop, Sym):
        found = range(extent)[taken]
        return found.start, found.step, len(found)
    if step < 0:
        first = extent - 1 if start is None else _from_front(start, extent, -1)
        if isinstance(start, int) and start < -1:  # counted from before the first element, that one is the first
            first = minimum(maximum(0, extent + start), extent - 1)
        last: Dim = -1 if stop is None else _from_front(stop, extent, -1)
        return first, step, maximum(0, (first - last + (-step - 1)) // -step)
    first = 0 if start is None else _from_front(start, extent, 0)
    last = extent if stop is None else _from_front(stop, extent, 0)
    is_taken = isinstance(start, Sym) or isinstance(stop, Sym)
    is_certain = bounds(last - first - (extent - 1))[0] >= 0  # where the extent is taken to be at least 1
    span = last - first if is_taken or is_certain else maximum(0, last - first)
    return first, step, (span + (step - 1)) // step


def _from_front(bound: Any, extent: Dim, beyond: int) -> Dim:
    """A bound counted from the front, moved into the axis; beyond: where that ends when counting down, or 0."""
    if isinstance(bound, Sym):
        if bounds(bound)[1] <= 0:  # counted from the end, but 0 would not be
            take(bound, "<=", -1)
            bound = extent + bound
        take(bound, "<=", extent)
        take(0, "<=", bound)
        return bound
    if bound in (1, -1) and not beyond and not isinstance(extent, int):
        take(1, "<=", extent)
        return bound if bound == 1 else extent - 1
    if bound < 0:
        return maximum(beyond, extent + bound)
    return minimum(bound, extent + beyond)


def convolution_extent(extent: Dim, kernel: Dim, stride: int, dilation: int, before: Dim, after: Dim) -> Dim:
    """Output extent of a convolution along one axis: floor((extent + padding - reach) / stride) + 1."""
    return (extent + (before + after - dilation * (kernel - 1) - 1)) // stride + 1


def pool_extent(extent: Dim, kernel: Dim, stride: int, dilation: int, before: Dim, after: Dim, ceil_mode: bool) -> Dim:
    """Output extent of a pooling window; with ceil_mode a last window must still begin inside input or left padding."""
    reach = dilation * (kernel - 1) + 1
    span = extent + (before + after - reach)
    if not ceil_mode:
        return span // stride + 1
    count = (span + (stride - 1)) // stride + 1
    return minimum(count, (extent + (before + stride - 1)) // stride)  # (count - 1) * stride < extent + before


def transposed_extent(
    extent: Dim, kernel: Dim, stride: int, dilation: int, before: Dim, after: Dim, output_padding: int
) -> Dim:
    """Output extent of a transposed convolution along one axis."""
    return (extent - 1) * stride + (output_padding + dilation * (kernel - 1) + 1 - before - after)


def same_padding(extent: Dim, kernel: Dim, stride: int, dilation: int, lower: bool) -> tuple[Dim, Dim]:
    """Padding (before, after) so that output = ceil(extent / stride): ONNX auto_pad SAME_UPPER, or SAME_LOWER."""
    beyond = dilation * (kernel - 1)  # elements of a window after its first
    total = (extent + (stride - 1)) // stride * stride - stride + beyond + 1 - extent
    if bounds(beyond - (extent - 1) % stride)[0] < 0:  # the same: the last window begins at a multiple of the stride
        total = maximum(0, total)
    return (total - total // 2, total // 2) if lower else (total // 2, total - total // 2)
