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

UNROLLED = 160  # multiply-adds of one tile beyond which rows of taps are a loop


def is_depthwise(main: te.Tensor) -> bool:
    """Whether every channel of the result is made of the channel of its own number alone."""
    assert isinstance(main.op, te.ComputeOp)
    groups = int((main.op.attrs or {}).get("groups", 1))
    return main.op.tag == "conv" and groups == main.shape[1] > 1 and main.op.reduce_axis[0].extent == 1


def schedule(s: te.Schedule, main: te.Tensor, tail: te.Tensor, target: Target) -> None:
    """Schedules `main`, whose elements are finished in `tail`."""
    lanes = target.lanes(itemsize(compute_dtype(main.dtype)))
    if layout.is_result(tail):
        _over_channels(s, main, tail, target)
    else:
        _over_pixels(s, main, tail, target, lanes)


def pixels_per_tile(width: int, taps: int, registers: int) -> int:
    """How many accumulators, as many as registers hold beside a row of taps and the vectors that it reads; even parts
    of a row."""
    most = max(1, min(width, 16, registers - 2 * taps - 2 if taps < registers // 4 else registers // 2))
    return -(-width // -(-width // most))


def _over_channels(s: te.Schedule, main: te.Tensor, tail: te.Tensor, target: Target) -> None:
    n, block, *spatial, lane = list(s[tail].op.axis)
    width = pixels_per_tile(tail.shape[-2], _taps(main)[-1], target.vector_registers)
    row, pixel = s[tail].split(spatial[-1], factor=width)
    order = [n, block, *spatial[:-1], row]
    s[tail].reorder(*order, pixel, lane)
    s[tail].unroll(pixel)
    s[tail].vectorize(lane)
    if prod(tail.shape) >= cpu_injective.PARALLEL_FROM:
        order = cpu_injective.share(s, tail, order)
    s[main].set_scope("register")
    s[main].compute_at(s[tail], order[-1])
    n, channel, *spatial = list(s[main].op.axis)
    s[main].reorder(n, *spatial[:-1], *s[main].op.reduce_axis, spatial[-1], channel)
    s[main].vectorize(channel)
    s[main].unroll(spatial[-1])
    _unroll_taps(s, main, width)


def _over_pixels(s: te.Schedule, main: te.Tensor, tail: te.Tensor, target: Target, lanes: int) -> None:
    accumulator = s.cache_write(main, "register") if tail is main else main
    s[accumulator].set_scope("register")
    n, channel, *spatial = list(s[tail].op.axis)
    vector = min(lanes, tail.shape[-1])
    chunk, lane = s[tail].split(spatial[-1], factor=vector)
    order, within = [n, channel, *spatial[:-1], chunk], [lane]
    rows = 1
    if len(spatial) > 1:
        rows = pixels_per_tile(tail.shape[-2], 2 * _taps(main)[-1], target.vector_registers)
        strip, row = s[tail].split(spatial[-2], factor=rows)
        order, within = [n, channel, *spatial[:-2], strip, chunk], [row, lane]
        s[tail].unroll(row)
    s[tail].reorder(*order, *within)
    s[tail].vectorize(lane)
    if prod(tail.shape) >= cpu_injective.PARALLEL_FROM:
        order = cpu_injective.share(s, tail, order)
    s[accumulator].compute_at(s[tail], order[-1])
    own = list(s[accumulator].op.axis)
    inner = own[-2:] if len(spatial) > 1 else own[-1:]
    outer = [a for a in own if a not in inner]
    s[accumulator].reorder(*outer, *s[accumulator].op.reduce_axis, *inner)
    for axis in inner[:-1]:
        s[accumulator].unroll(axis)
    s[accumulator].vectorize(inner[-1])
    _unroll_taps(s, accumulator, rows)


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
