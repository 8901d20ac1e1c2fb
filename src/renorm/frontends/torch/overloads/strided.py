"""Views by strides: y[i..] is the element at begin + sum of i * stride in memory, of an operand without gaps there.

Axes whose windows overlap are one group of positions, in steps of its unit; groups are digits of a place in memory:

    [.., n, 2 w, h] by strides [.., w h, h, 1]  ->  rows of h, gathered by i w + j;  h as it lies
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.errors import UnsupportedOp
from renorm.frontends.torch.call import Call
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value

Axis = tuple[int, int]  # of a result: its extent, and its stride


@reads("as_strided", "as_strided_copy")
def _as_strided(
    c: Call, x: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    held = c.given[0]
    if not all(isinstance(n, int) for n in (*held.shape, *held.stride(), *size, *stride)):
        raise UnsupportedOp(f"strides {[*stride]} of open extents")
    order = sorted(range(x.rank), key=lambda a: (-held.stride(a), held.shape[a]))
    if 0 in size:
        return c.filled(0, x.dtype, tuple(size))
    inner = [math.prod(held.shape[a] for a in order[k + 1 :]) for k in range(x.rank)]
    if any(held.stride(a) != n for a, n in zip(order, inner) if held.shape[a] > 1):
        raise UnsupportedOp(f"a view by strides of an operand that has gaps in memory, {held.stride()}")
    begin = 0 if storage_offset is None else storage_offset - held.storage_offset()
    end = begin + sum((n - 1) * s for n, s in zip(size, stride)) + 1
    if begin < 0 or end > held.numel():
        raise UnsupportedOp(f"elements {begin} to {end - 1} in memory are read, of an operand of {held.numel()}")
    memory = c.reshaped(ops.transpose(x, perm=tuple(order)) if x.rank else x, (held.numel(),))
    moving = sorted((a for a, n in enumerate(size) if n > 1 and stride[a]), key=lambda a: -stride[a])
    y = _digits(c, memory, begin, _groups([(size[a], stride[a]) for a in moving]))
    places = [*moving, *(a for a in range(len(size)) if a not in moving)]
    y = c.reshaped(y, (*(size[a] for a in moving), *[1] * (len(size) - len(moving))))
    return c.expanded(ops.transpose(y, perm=tuple(np.argsort(places).tolist())), tuple(size))


def _unit(group: Sequence[Axis]) -> int:
    return math.gcd(*(s for _, s in group))


def _reach(axes: Sequence[Axis]) -> int:
    """Return how far the last element of axes lies behind their first."""
    return sum((n - 1) * s for n, s in axes)


def _groups(axes: Sequence[Axis]) -> list[list[Axis]]:
    """Return axes, which are given by falling strides, in groups: what is behind one lies within its unit, which is a
    whole number of the next one's."""
    groups = [[axis] for axis in axes]

    def is_digit(k: int) -> bool:
        behind = [axis for group in groups[k + 1 :] for axis in group]
        unit = _unit(groups[k])
        return not behind or (_reach(behind) < unit and unit % _unit(groups[k + 1]) == 0)

    while (wrong := next((k for k in reversed(range(len(groups))) if not is_digit(k)), None)) is not None:
        groups[wrong : wrong + 2] = [[*groups[wrong], *groups[wrong + 1]]]
    return groups


def _digits(c: Call, memory: Value, begin: int, groups: Sequence[Sequence[Axis]]) -> Value:
    """Return the elements of groups of axes, one axis of the result for each of theirs, and one of 1 element."""
    units = [*map(_unit, groups), 1]
    counts = [*(_reach(group) // unit + 1 for group, unit in zip(groups, units)), 1]
    radices = [counts[0], *(a // b for a, b in pairwise(units))]
    end = begin + math.prod(radices)
    total = memory.shape[0]
    assert isinstance(total, int)
    y = c.sliced(memory, 0, begin, min(end, total))
    if end > total:  # which nothing reads
        y = ops.pad(y, pads=np.array([0, end - total]))
    y = c.reshaped(y, tuple(radices))
    for k in reversed(range(len(counts))):
        if k < len(groups) and len(groups[k]) > 1:
            steps = (np.arange(n) * (s // units[k]) for n, s in groups[k])
            y = ops.gather(y, c.graph.constant(sum(np.ix_(*steps)), "positions"), axis=k)
        elif counts[k] != radices[k]:
            y = c.sliced(y, k, 0, counts[k])
    return y
