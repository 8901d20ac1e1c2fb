"""CPU: elementwise, broadcast and injective stages. One pass over the result, vectors along memory, threads outside."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm import te
from renorm.core.dtypes import itemsize
from renorm.core.target import Target
from renorm.ops.schedules import nesting, structure

# Bytes that a last-level cache holds, about: of a larger result nothing useful is left there when it is read.
LAST_LEVEL = 32 << 20


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Everything but the results is inlined; each result is one nest."""
    nesting.inline(s, outs)
    for out in outs:
        nest(s, out, target)


def nest(s: te.Schedule, out: te.Tensor, target: Target) -> te.IterVar | None:
    """Threads over the outer axes, vectors over the axes that run over memory as one. Gives the loop around a vector,
    None where there is no such loop."""
    axes = list(s[out].op.axis)
    if not axes:
        return None
    memory = s[out].joint_axes()
    joint = max(1, min(structure.joint_axes(out), memory))
    if joint == 1 and itemsize(out.dtype) == 1 and (crossed := _crossed(out, target)) is not None:
        return _cross(s, out, *crossed)
    pixels = min(structure.joint_rows(out), max(0, memory - 1)) if joint == 1 else 0
    inner = s[out].fuse(*axes[len(axes) - joint :])
    extent = prod(out.shape[len(axes) - joint :])
    outer = axes[: len(axes) - joint]
    lanes = structure.lanes_of(out, target)
    vector = inner
    blocks: list[te.IterVar] = []
    turned = _turned(out, lanes) if joint == 1 and extent > lanes else None
    if turned is not None:  # its elements are picked one by one: where a ragged vector costs more than short ones
        lanes = next((n for n in (lanes, lanes // 2, lanes // 4) if n and extent % n == 0), lanes)
    is_ragged = turned is not None and extent % lanes > 0
    store(s, out, joint, lanes)
    if extent > lanes:
        block, vector = s[out].split(inner, factor=lanes)
        blocks = [block]
    if extent > 1:
        s[out].vectorize(vector)
    width, tile = 1, list[te.IterVar]()
    if turned is not None:  # a line of memory is used up before vectors go on along their axis
        k, width = turned
        outer[k], within = s[out].split(outer[k], factor=width)
        tile = [within]
        s[out].reorder(*outer, *blocks, within, vector)
    length = -(-extent // lanes)
    if pixels and not blocks:  # a vector is one block of channels, and pixels follow one another
        length = prod(out.shape[len(outer) - pixels : len(outer)])
        outer, blocks = outer[:-pixels], [s[out].fuse(*outer[-pixels:])]
    loops = [*outer, *blocks, *tile]
    if prod(out.shape) < nesting.PARALLEL_FROM:
        return loops[-1] if loops else None
    count = prod(out.shape[: len(outer)]) // width
    # too few planes to share out evenly: threads share their blocks as well, in runs; but a loop of which only the last
    # block is ragged stays whole, so that no condition stands in the others
    if count < (nesting.FEW if is_ragged else nesting.PIECES) and blocks:
        run, block = s[out].split(blocks[0], nparts=_parts(length, -(-nesting.PIECES // count)))
        outer, blocks = [*outer, run], [block]
    if outer:
        loops = [*nesting.share(s, out, outer), *blocks, *tile]
    elif blocks:
        s[out].parallel(blocks[0])
    return loops[-1] if loops else None


def nests(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """A nest for each; but what reads the same elements as one before it is computed in that one's loops."""
    placed = list[tuple[te.Tensor, te.IterVar | None]]()
    for out in outs:
        if not (nesting.is_free(s, out) and any(beside(s, out, other, loop, target) for other, loop in placed)):
            placed.append((out, nest(s, out, target)))


def beside(s: te.Schedule, t: te.Tensor, other: te.Tensor, loop: te.IterVar | None, target: Target) -> bool:
    """Computes `t` in the loop of `other` around a vector of neighbours, with what that reads there, and gives whether
    it can: whether they read the same elements, and neighbours in a vector are neighbours along an axis."""
    joint = min(structure.joint_axes(other), s[other].joint_axes())
    is_fused = sum(extent > 1 for extent in other.shape[len(other.shape) - joint :]) > 1
    like = None if loop is None or is_fused or 0 in t.shape else structure.read_alike(t, other)
    if loop is None or like is None:
        return False
    compute_with(s, t, other, loop, like, target)
    return True


def compute_with(
    s: te.Schedule, t: te.Tensor, other: te.Tensor, loop: te.IterVar, like: te.Tensor, target: Target
) -> None:
    """`t` in a loop of `other`, in vectors along its last axis."""
    s[t].compute_with(s[other], loop, like)
    lanes = structure.lanes_of(t, target)
    store(s, t, 1, lanes)
    _, lane = s[t].split(s[t].op.axis[-1], factor=lanes)
    s[t].vectorize(lane)


def _turned(out: te.Tensor, line: int) -> tuple[int, int] | None:
    """(axis before the last of `out`, how many of it to compute vector beside vector), where an operand lies along that
    axis and the last one runs across its memory: a line of memory then is used up while it is in the first cache.
    line: elements of such a line."""
    *own, last = [axis.var for axis in out.op.axis]
    for load in structure.stored_reads(out):
        across = [i for i in load.indices[:-1] if structure.depends_on(i, last)]
        if not across or structure.depends_on(load.indices[-1], last):
            continue
        for k, var in enumerate(own):
            if structure.coefficient(load.indices[-1], var) == 1:
                width = max(w for w in range(1, line + 1) if out.shape[k] % w == 0)
                return (k, width) if 4 * width >= line else None
    return None


def _crossed(out: te.Tensor, target: Target) -> tuple[int, int] | None:
    """(axis of `out` along which an operand lies, and how many of it a vector holds), where the last axis is short and
    runs across that operand's memory: bytes that are picked from a vector are stored four times as fast as numbers are
    gathered."""
    sources = [structure.source_of(load).op for load in structure.stored_reads(out)]
    if out.shape[-1] > structure.lanes_of(out, target) or not all(isinstance(op, te.PlaceholderOp) for op in sources):
        return None
    if (found := _turned(out, 1)) is None:
        return None
    k, _ = found
    lanes = next((n for n in (16, 8, 4) if out.shape[k] % n == 0), 1)
    return (k, lanes) if lanes > 1 else None


def _cross(s: te.Schedule, out: te.Tensor, k: int, lanes: int) -> te.IterVar:
    """Vectors along axis k, of which the elements of each are stored across memory."""
    axes = list(s[out].op.axis)
    block, vector = s[out].split(axes[k], factor=lanes)
    outer = [axis for i, axis in enumerate(axes[:-1]) if i != k]
    s[out].reorder(*outer, block, axes[-1], vector)
    s[out].vectorize(vector)
    if prod(out.shape) >= nesting.PARALLEL_FROM:
        nesting.share(s, out, [*outer, block])
    return axes[-1]


def store(s: te.Schedule, out: te.Tensor, joint: int, lanes: int) -> None:
    """A result larger than any cache is stored past the caches, in vectors of `lanes` along its last `joint` axes as
    one. Not where each run of them ends in a part of a vector: a line that is stored in both ways goes to memory in
    parts, which took three times as long as plain stores of rows of 100 elements."""
    run = prod(out.shape[len(out.shape) - joint :])
    is_whole = run % lanes == 0 or run == prod(out.shape)
    if is_whole and s[out].is_output and prod(out.shape) * itemsize(out.dtype) > LAST_LEVEL:
        s[out].store_past_caches()


def _parts(extent: int, wanted: int) -> int:
    """Into how many parts to cut a loop: as many as wanted or a few more, so that they are alike where that can be."""
    return next((n for n in range(wanted, min(extent, 2 * wanted) + 1) if extent % n == 0), min(wanted, extent))
