"""CPU: depthwise convolutions: every channel is filtered alone, so there is nothing to share but what windows overlap.

    out[R pixels] += x[pixel + tap] * w[tap]      a vector of channels, or, where channels are not side by side in
                                                  memory, rows of pixels times one number

All taps of a window row are written out: neighbouring windows then share their loads, and each vector of x is read
once per row of taps instead of once per tap.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm import te
from renorm.core.dtypes import compute_dtype, itemsize
from renorm.core.target import Target
from renorm.ops.schedules import cpu_injective, layout

STRIP = 32 * 1024  # bytes of padded rows; one more strip passes through the cache meanwhile
UNROLLED = 160  # multiply-adds of one tile beyond which rows of taps are a loop


def is_depthwise(main: te.Tensor) -> bool:
    """Whether every channel of the result is made of the channel of its own number alone."""
    assert isinstance(main.op, te.ComputeOp)
    groups = int((main.op.attrs or {}).get("groups", 1))
    return main.op.tag == "conv" and groups == main.shape[1] > 1 and main.op.reduce_axis[0].extent == 1


def schedule(s: te.Schedule, main: te.Tensor, tail: te.Tensor, pads: Sequence[te.Tensor], target: Target) -> None:
    """Schedules `main`, whose elements are finished in `tail`; pads: what is padded for it, strip by strip."""
    lanes = target.lanes(itemsize(compute_dtype(main.dtype)))
    place = _over_channels if layout.is_result(tail) else _over_pixels
    strip = place(s, main, tail, target, lanes)
    for pad in pads:
        s[pad].compute_at(s[tail], strip)
        own = list(s[pad].op.axis)
        inner = own[-1]
        if pad.shape[-1] > lanes:
            _, inner = s[pad].split(inner, factor=lanes)
        s[pad].vectorize(inner)


def rows_per_strip(main: te.Tensor, lanes: int) -> int:
    """Rows of the result that are computed from one strip of padded rows, which stays in the cache."""
    assert isinstance(main.op, te.ComputeOp)
    if len(main.shape) < 4:
        return 1
    height, width = main.shape[-2:]
    step = main.op.attrs["strides"]
    row = width * step[-1] * lanes * 4
    most = max(4, STRIP // (row * step[-2]))
    return -(-height // -(-height // most))


def pixels_per_tile(width: int, taps: int, registers: int) -> int:
    """How many accumulators, as many as registers hold beside a row of taps and the vectors that it reads; even parts
    of a row."""
    most = max(1, min(width, 16, registers - 2 * taps - 2 if taps < registers // 4 else registers // 2))
    return -(-width // -(-width // most))


def _over_channels(s: te.Schedule, main: te.Tensor, tail: te.Tensor, target: Target, lanes: int) -> te.IterVar:
    """Vectors of channels; gives the loop over strips."""
    n, block, *spatial, lane = list(s[tail].op.axis)
    width = pixels_per_tile(tail.shape[-2], _taps(main)[-1], target.vector_registers)
    row, pixel = s[tail].split(spatial[-1], factor=width)
    strips, rows = _strips(s, tail, spatial, rows_per_strip(main, lanes))
    order = [n, block, *strips]
    s[tail].reorder(*order, *rows, row, pixel, lane)
    s[tail].unroll(pixel)
    s[tail].vectorize(lane)
    if prod(tail.shape) >= cpu_injective.PARALLEL_FROM:
        order = cpu_injective.share(s, tail, order)
    s[main].set_scope("register")
    s[main].compute_at(s[tail], row)
    n, channel, *spatial = list(s[main].op.axis)
    s[main].reorder(n, *spatial[:-1], *s[main].op.reduce_axis, spatial[-1], channel)
    s[main].vectorize(channel)
    s[main].unroll(spatial[-1])
    _unroll_taps(s, main, width)
    return order[-1]


def _strips(
    s: te.Schedule, tail: te.Tensor, spatial: Sequence[te.IterVar], height: int
) -> tuple[list[te.IterVar], list[te.IterVar]]:
    """The loops over strips, and over the rows of one."""
    if len(spatial) == 1:
        return [], []
    strip, row = s[tail].split(spatial[-2], factor=height)
    return [*spatial[:-2], strip], [row]


def _over_pixels(s: te.Schedule, main: te.Tensor, tail: te.Tensor, target: Target, lanes: int) -> te.IterVar:
    """Vectors of pixels, as many rows as registers hold; gives the loop over strips."""
    accumulator = s.cache_write(main, "register") if tail is main else main
    s[accumulator].set_scope("register")
    n, channel, *spatial = list(s[tail].op.axis)
    chunk, lane = s[tail].split(spatial[-1], factor=min(lanes, tail.shape[-1]))
    height, within = 1, [lane]
    strips, rows = list[te.IterVar](), list[te.IterVar]()
    if len(spatial) > 1:
        height = pixels_per_tile(tail.shape[-2], 2 * _taps(main)[-1], target.vector_registers)
        block, row = s[tail].split(spatial[-2], factor=height)
        strip, block = s[tail].split(block, factor=max(1, rows_per_strip(main, 1) // height))
        strips, rows, within = [*spatial[:-2], strip], [block], [row, lane]
        s[tail].unroll(row)
    order = [n, channel, *strips]
    s[tail].reorder(*order, *rows, chunk, *within)
    s[tail].vectorize(lane)
    if prod(tail.shape) >= cpu_injective.PARALLEL_FROM:
        order = cpu_injective.share(s, tail, order)
    s[accumulator].compute_at(s[tail], chunk)
    own = list(s[accumulator].op.axis)
    inner = own[-2:] if len(spatial) > 1 else own[-1:]
    outer = [a for a in own if a not in inner]
    s[accumulator].reorder(*outer, *s[accumulator].op.reduce_axis, *inner)
    for axis in inner[:-1]:
        s[accumulator].unroll(axis)
    s[accumulator].vectorize(inner[-1])
    _unroll_taps(s, accumulator, height)
    return order[-1]


def _taps(main: te.Tensor) -> list[int]:
    assert isinstance(main.op, te.ComputeOp)
    return [a.extent for a in main.op.reduce_axis[1:]]


def _unroll_taps(s: te.Schedule, stage: te.Tensor, pixels: int) -> None:
    """Writes out the taps from the last axis on, as long as a tile stays short."""
    written = pixels
    for axis in reversed(s[stage].op.reduce_axis[1:]):
        written *= axis.extent
        if written > UNROLLED:
            break
        s[stage].unroll(axis)
