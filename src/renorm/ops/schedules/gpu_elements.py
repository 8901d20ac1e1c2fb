"""GPU: elementwise, broadcast and injective results, and windows: a thread computes one element, or a few neighbours.

    blockIdx.x, threadIdx.x over the elements, so that neighbouring threads write neighbours
      sums of windows in registers, their loops written out
      result = f(operands, sums)

Results of one shape that read the same, or each other, are computed in one launch where blocks cut them evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm import te
from renorm.core.dtypes import itemsize
from renorm.core.gpu import GpuFacts, facts
from renorm.core.target import Target
from renorm.ops.schedules import cuda, nesting, structure

WIDEST = 16  # bytes that a thread reads or writes as one


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """All that is elementwise is inlined, each window is computed in the threads of what is made of it."""
    statistics = [t for t in structure.stages(outs) if structure.is_statistic(t)]
    if statistics or any(0 in t.shape for t in structure.stages(outs)):
        cuda.schedule(s, outs, target)
        return
    nesting.inline(s, outs)
    launch(s, outs, facts(target.arch))


def launch(s: te.Schedule, outs: Sequence[te.Tensor], gpu: GpuFacts) -> None:
    """Launches for all stages that are neither inlined nor placed: what only elements are made of takes vectors, and
    results beside each other share a launch."""
    kept = cuda.kept_stages(s, outs)
    homes = [(t, cuda.home(s, t, kept)) for t in kept]
    alone = [t for t, place in homes if place is None and not structure.is_reduction(t)]
    hosts = {place for _, place in homes}
    free = [t for t in alone if t not in hosts and t.shape and not s[t].threads]
    for t in _with_guests(s, free, kept):
        _vectors(s, t, gpu)
    cuda.launch(s, outs)


def _vectors(s: te.Schedule, t: te.Tensor, gpu: GpuFacts) -> None:
    """A launch whose threads compute one element each, or several where these are neighbours in memory in all operands
    and threads are enough."""
    axes, width = list(s[t].op.axis), _width(s, t, gpu)
    if width == 1:
        cuda.bind(s, t)
        return
    joint = _joint(s, t)
    first = len(axes) - joint
    inner, lane = s[t].split(s[t].fuse(*axes[first:]), factor=width)
    cuda.bind_loop(s, t, s[t].fuse(*axes[:first], inner), cuda.THREADS)
    s[t].vectorize(lane)


def _width(s: te.Schedule, t: te.Tensor, gpu: GpuFacts) -> int:
    """Return how many neighbours one thread computes."""
    if not structure.joint_axes(t):  # neighbours are read one by one
        return 1
    run = prod(t.shape[len(t.shape) - _joint(s, t) :])
    busy = gpu.units * cuda.THREADS  # threads that keep a GPU busy
    return next((n for n in widths(t.dtype) if run % n == 0 and prod(t.shape) >= n * busy), 1)


def widths(dtype: str) -> list[int]:
    """Return how many neighbours a thread may write as one, most first."""
    return [n for n in (8, 4, 2) if n * itemsize(dtype) <= WIDEST]


def _joint(s: te.Schedule, t: te.Tensor) -> int:
    return max(1, min(structure.joint_axes(t), s[t].joint_axes()))


def _with_guests(s: te.Schedule, free: Sequence[te.Tensor], kept: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Those that have a launch of their own: others are computed in the threads of one of them."""
    left = list(free)
    for host in reversed(free):
        threads = _even(prod(host.shape))
        if not threads or host not in left:
            continue
        guests: list[te.Tensor] = []
        for t in reversed(left):
            if t is not host and t.shape == host.shape and _beside(s, t, [host, *guests], kept):
                guests.append(t)
        if not guests:
            continue
        thread = cuda.bind(s, host, threads)
        for t in guests:
            readers = cuda.kept_reads(s, t, kept)
            if readers:
                s[t].compute_at(s[host], thread)
                if not s[t].is_output and any(u not in (host, *guests) for u, _ in readers):
                    s[t].store_root()
            elif (like := structure.read_alike(t, host)) is not None:
                s[t].compute_with(s[host], thread, like)
        left = [t for t in left if t not in (host, *guests)]
    return left


def _even(count: int) -> int:
    """Return a number of threads of which whole blocks compute so many elements; 0 where there is no good one."""
    if count <= cuda.THREADS:
        return count
    return next((n for n in range(cuda.THREADS, cuda.THREADS // 4, -1) if count % n == 0), 0)


def _beside(s: te.Schedule, t: te.Tensor, together: Sequence[te.Tensor], kept: Sequence[te.Tensor]) -> bool:
    """Return whether each thread of a launch may compute the element of `t` at the place of its own; together: what it
    computes already, first the stage whose loops it has. What reads `t` there reads that very element; others that do
    come after the launch."""
    readers, host = cuda.kept_reads(s, t, kept), together[0]
    if not readers:
        return nesting.is_free(s, t) and structure.read_alike(t, host) is not None
    before = structure.stages(together)
    here = [(u, load) for u, load in readers if u in together]
    return (
        bool(here)
        and all(u in together or u not in before for u, _ in readers)
        and all(
            i is axis.var or axis.extent == 1
            for u, load in here
            for i, axis in zip(load.indices, u.op.axis, strict=True)
        )
    )
