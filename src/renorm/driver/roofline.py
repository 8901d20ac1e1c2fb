"""The most that this machine can do: multiply-adds with operands in the first cache, and copying of memory.

Both are measured with kernels of our own, on as many threads as the network that is held against them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np

from renorm import te
from renorm.core import target as targets
from renorm.core.target import Target
from renorm.driver.build import build
from renorm.runtime.profile import Roofline
from renorm.targets import find

_DEPTH = 64  # steps of the reduction whose operands lie in the first cache
_TIMES = 1000  # how often it goes over them: about half a millisecond
_COPIED = 1 << 24  # float32 elements: 64 MiB, more than a last-level cache holds of two arrays
COPIED_BYTES = 2 * 4 * _COPIED  # that `copy` moves: what is read and what is written, each once
_SECONDS, _CALLS = 0.15, 10  # at least; the system needs some time to give each thread a core


@cache
def measure(threads: int, target: str = "llvm") -> Roofline:
    """Return the roofline of that many threads together, for code of that target. Takes about half a second, once."""
    return Roofline(_flops_per_second(threads, find(target)), _bytes_per_second(threads))


def _flops_per_second(threads: int, target: Target) -> float:
    call, flops = multiply_adds(threads, target)
    return flops / _fastest(call)


def multiply_adds(threads: int, target: Target) -> tuple[Callable[[], None], float]:
    """Return a function that multiplies matrices whose products stay in registers, 6 rows by 2 or 4 vectors, as
    registers allow, for about half a millisecond, and the operations of a call."""
    rows, columns = 6, target.lanes(4) * (4 if target.vector_registers >= 32 else 2)
    a, b = te.placeholder((_DEPTH, rows), name="a"), te.placeholder((_DEPTH, columns), name="b")
    times, k = te.reduce_axis((0, _TIMES), name="times"), te.reduce_axis((0, _DEPTH), name="k")
    c = te.compute((threads, rows, columns), lambda t, i, j: te.sum(a[k, i] * b[k, j], axis=[times, k]), name="c")
    s = te.create_schedule(c.op)
    held = s.cache_write(c, "register")
    s[c].parallel(c.op.axis[0])
    s[held].compute_at(s[c], c.op.axis[0])
    for stage in (c, held):  # registers have no index: all that goes over them is unrolled
        op = s[stage].op  # cache_write has left the reduction to `held`
        _, i, j = op.axis
        outer, inner = s[stage].split(j, factor=target.lanes(4))
        s[stage].reorder(*op.reduce_axis, i, outer, inner)
        s[stage].unroll(i)
        s[stage].unroll(outer)
        s[stage].vectorize(inner)
    run = build(s, [a, b, c], name="multiply_add", target=target, threads=threads)
    arrays = [np.ones(t.shape, np.float32) for t in (a, b, c)]
    return lambda: run(*arrays), 2.0 * _TIMES * _DEPTH * c.size


def _bytes_per_second(threads: int) -> float:
    call, nbytes = copy(threads)
    return nbytes / _fastest(call)


def copy(threads: int) -> tuple[Callable[[], None], int]:
    """Return a function that copies memory which no cache holds, and the bytes of a call: what is read and what is
    written, each once."""
    x = te.placeholder((_COPIED,), name="x")
    y = te.compute(x.shape, lambda i: x[i], name="y")
    s = te.create_schedule(y.op)
    outer, inner = s[y].split(y.op.axis[0], nparts=threads * 8)
    s[y].parallel(outer)
    s[y].vectorize(s[y].split(inner, factor=targets.parse("llvm").lanes(4))[1])
    s[y].store_past_caches()
    run = build(s, [x, y], name="copy", threads=threads)
    source, copied = np.ones(_COPIED, np.float32), np.zeros(_COPIED, np.float32)
    return lambda: run(source, copied), 2 * source.nbytes


def _fastest(call: Callable[[], None]) -> float:
    """Seconds that the fastest tenth of calls take: others were disturbed."""
    times = list[float]()
    begin = time.perf_counter()
    until = begin + _SECONDS
    while begin < until or len(times) < _CALLS:
        call()
        end = time.perf_counter()
        times.append(end - begin)
        begin = end
    return float(np.percentile(times, 10))
