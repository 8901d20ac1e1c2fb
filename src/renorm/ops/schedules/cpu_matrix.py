"""CPU: sums of products of bfloat16 by a matrix unit, whose registers hold tiles of accumulators.

    for each panel of channels, each tile of pixels
      tile[pixels][channels] = 0
      for each block of what is summed: tile += x[pixels][block] * w[block][channels]    one instruction for 16 x 16
      rows = tile                                                                        in the first-level cache
      result = ... of rows                                                               vectors of channels

Weights lie in panels: for each pair of what is summed over, all channels of the panel, two and two. Padding is a copy,
since all rows of a register are multiplied alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from renorm import te
from renorm.core.machine import Machine, MatrixUnit
from renorm.core.target import Target
from renorm.expr.nodes import Load, Reduce
from renorm.ops.schedules import cpu_injective, products, structure
from renorm.ops.schedules.tiles import parts
from renorm.topi import layout
from renorm.topi.layout import Blocking


def panels(axis: int, summed: int, channels: int, depth: int, target: Target) -> Blocking | None:
    """Return how memory holds constant weights that the matrix unit multiplies, None where it does not take them.

    axis: of the channels of the result; summed: that which is summed over; depth: of how many of its elements, side by
    side in the data, blocks are."""
    unit = Machine.of(target).matrix
    block = next((d for d in range(unit.depth, 0, -2) if depth % d == 0), 0) if unit else 0
    if unit is None or channels < 1 or channels % unit.columns or block < unit.depth // 2:
        return None
    width = unit.columns * (unit.side if channels > unit.columns else 1)
    return Blocking(((summed, block // 2), (axis, width), (summed, 2)), axis, "bfloat16")


def takes(main: te.Tensor, target: Target) -> bool:
    """Return whether a sum of products runs on the matrix unit: of weights in panels and of bfloat16 in memory, over
    which no condition stands."""
    body = main.op.body if isinstance(main.op, te.ComputeOp) else None
    if not target.has_tiles or not isinstance(body, Reduce) or body.condition is not None:
        return False
    forms = [form for x in structure.reads(main) if (form := _form(x)) is not None and form.dtype == "bfloat16"]
    return len(forms) == 2 and any(map(_is_panel, forms))


def _is_panel(form: Blocking) -> bool:
    return len(form.cuts) == 3 and form.cuts[2] == (form.cuts[0][0], 2)


def _form(load: Load) -> Blocking | None:
    return layout.form_of(load.source) if isinstance(load.source, te.Tensor) else None


def schedule(s: te.Schedule, main: te.Tensor, tail: te.Tensor, target: Target) -> None:
    """Schedules a sum that the unit `takes`, whose elements are finished in `tail`: main itself, or an elementwise
    stage after it."""
    unit = Machine.of(target).matrix
    assert unit is not None
    weights, summed = next((f, _summed(main, x, f)) for x in structure.reads(main) if (f := _form(x)) and _is_panel(f))
    (_, half), (_, width), _ = weights.cuts
    is_matmul = main.op.tag == "matmul"
    channel = len(main.shape) - 1 if is_matmul else 1
    pixels = list(range(channel))[-1:] if is_matmul else list(range(2, len(main.shape)))
    axes, is_blocked = list(s[tail].op.axis), layout.is_result(tail)
    if is_blocked and products.is_pointwise(main):  # every pixel is made of one: a tile need not end where a row does
        whole, main = main, s.cache_write(main, "local", joined=len(pixels))
        s[whole].compute_inline()
        axes[2:-1] = [cpu_injective.fuse(s, tail, axes[2:-1])]
        pixels = [2]
    elif tail is main:
        main = s.cache_write(main, "local")
    s[main].set_scope("local")
    accumulators = s.cache_write(main, "tile")
    height, length = choose([main.shape[i] for i in pixels], width, unit)

    # the result: panels, tiles of pixels
    vector, within = axes[-1], list[te.IterVar]()
    if not is_blocked:
        panel, vector = s[tail].split(axes[channel], factor=width)
    elif (panel := axes[1]) and tail.shape[-1] < width:
        panel, block = s[tail].split(panel, factor=width // tail.shape[-1])
        within.append(block)
    around = {i: a for i, a in enumerate(axes[: len(main.shape)]) if i != channel}
    inside = list[te.IterVar]()
    for i, n in zip(pixels[-2:], (height, length)[-len(pixels[-2:]) :]):
        around[i], inner = s[tail].split(around[i], factor=n)
        inside.append(inner)
    images = [] if is_matmul else [around.pop(0)]
    order = [*images, panel, *around.values()]
    lies_in_rows = is_blocked or is_matmul
    s[tail].reorder(*order, *within, *([*inside, vector] if lies_in_rows else [vector, *inside]))
    s[tail].vectorize(vector if lies_in_rows or not inside else inside[-1])
    around_tiles = cpu_injective.share(s, tail, order, prod(main.shape) * products.terms(accumulators))

    # the sums, and the copy out of the unit
    for t in (main, accumulators):
        s[t].compute_at(s[tail], around_tiles[-1])
        own = list(s[t].op.axis)
        tile = [own[i] for i in pixels[-2:]] + [own[channel]]
        loops = [a for a in own if a not in tile]
        if t is accumulators:
            sums = list(s[t].op.reduce_axis)
            sums[summed], inner = s[t].split(sums[summed], factor=2 * half)
            loops, tile = [*loops, *sums], [*tile, *s[t].split(inner, factor=2)]
        s[t].reorder(*loops, *tile)
        s[t].tensorize(tile[0])


def _summed(main: te.Tensor, load: Load, weights: Blocking) -> int:
    """Return which axis of a sum runs along the pairs of weights."""
    index = load.indices[weights.cuts[2][0]]
    return next(i for i, k in enumerate(main.op.reduce_axis) if structure.coefficient(index, k.var) == 1)


def choose(extents: Sequence[int], width: int, unit: MatrixUnit) -> tuple[int, int]:
    """Return of how many rows of a plane, and how many pixels of each, a tile is: what takes the fewest cycles for all.
    extents: of the plane; width: channels of a panel."""
    plane = (1, *extents)[-2:]
    best, least = (1, 1), inf
    for height in range(1, min(plane[0], unit.side) + 1):
        for length in range(1, min(plane[1], unit.rows * (unit.side if height == 1 else 1)) + 1):
            cycles = sum(
                a * b * unit.step(unit.registers(rows, pixels), width // unit.columns)
                for a, rows in parts(plane[0], height)
                for b, pixels in parts(plane[1], length)
            )
            if cycles < least:
                best, least = (height, length), cycles
    return best
