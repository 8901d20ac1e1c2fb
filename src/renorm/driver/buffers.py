"""Where values lie: which buffer holds each, and at which steps its bytes are needed.

A value lies in a buffer of its own unless the graph says that it lies within another (Value.within), or a kernel writes
it over an operand that nobody needs any more and that it reads only in passing (CompiledKernel.in_place). The buffers
of inputs, outputs and constants are elsewhere; the others go to the arena, with the times at which each part of them is
alive.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise

from renorm.codegen.abi import CompiledKernel
from renorm.driver.groups import KernelCall
from renorm.driver.overlaps import RegionIndex
from renorm.graph.ir import Graph, Value
from renorm.graph.strided_region import StridedRegion, nbytes, root
from renorm.passes.memory import Lifetime

PIECES = 256  # runs of bytes of one buffer whose times are told apart


class _Touched:
    """The regions of one buffer that steps read or write. steps: of each region, in order; one that touches it twice
    stands there twice."""

    def __init__(self) -> None:
        self.steps: dict[StridedRegion, list[int]] = {}
        self._regions = RegionIndex()

    def add(self, region: StridedRegion, step: int) -> None:
        if region not in self.steps:
            self.steps[region] = []
            if region.nbytes:
                self._regions.add(region)
        insort(self.steps[region], step)

    def over(self, region: StridedRegion) -> list[list[int]]:
        """Steps of all regions that share bytes with one."""
        return [self.steps[p] for p in self._regions.overlapping(region)]


class Buffers:
    """calls, kernels: of each step."""

    def __init__(self, graph: Graph, calls: Sequence[KernelCall], kernels: Sequence[CompiledKernel]):
        self._moved: dict[Value, tuple[Value, int]] = {}
        self._inputs, self._outputs = set(graph.inputs), set(graph.outputs)
        self._touches: dict[Value, _Touched] = {}
        for step, call in enumerate(calls):
            for v in (*(p.value for p in call.reads if not p.value.is_constant), *call.writes):
                buffer, region = self.region(v)
                self._touches.setdefault(buffer, _Touched()).add(region, step)
        for step, (call, kernel) in enumerate(zip(calls, kernels, strict=True)):
            for written, read in kernel.in_place:
                if written >= len(call.reads) > read and self._write_over(
                    step, call.writes[written - len(call.reads)], call.reads[read].value
                ):
                    break

    def region(self, v: Value) -> tuple[Value, StridedRegion]:
        """Return the value whose buffer holds `v`, and where."""
        buffer, region = root(v)
        while buffer in self._moved:
            buffer, offset = self._moved[buffer]
            region = region.shifted(offset)
        return buffer, region

    def lifetimes(self) -> dict[Value, list[Lifetime]]:
        """Return the buffers in the arena, and when each part of them is alive."""
        return {v: _parts(t) for v, t in self._touches.items() if self._is_in_arena(v)}

    def _is_in_arena(self, v: Value) -> bool:
        return not v.is_constant and v not in self._inputs and v not in self._outputs

    def _write_over(self, step: int, y: Value, x: Value) -> bool:
        """Put y where x is, or x where y will be, if nobody else needs those bytes. Return whether it did."""
        size = nbytes(y)
        (of_y, at_y), (of_x, at_x) = self.region(y), self.region(x)
        if of_x is of_y or nbytes(x) != size or not self._is_in_arena(of_x) or max(at_y.rows, at_x.rows) > 1:
            return False
        over_x = self._touches[of_x].over(at_x)
        if any(steps[-1] > step for steps in over_x) or sum(len(s) - bisect_left(s, step) for s in over_x) != 1:
            return False  # x, or what shares its bytes, is read later, or in this step once more
        if self._is_in_arena(of_y) and nbytes(of_y) == size:
            self._move(of_y, of_x, at_x.offset)
            return True
        if nbytes(of_x) != size or of_y in self._inputs or of_y.is_constant:
            return False
        if any(steps[0] < step for steps in self._touches[of_y].over(at_y)):
            return False
        self._move(of_x, of_y, at_y.offset)
        return True

    def _move(self, buffer: Value, into: Value, offset: int) -> None:
        self._moved[buffer] = into, offset
        for region, steps in self._touches.pop(buffer).steps.items():
            for step in steps:
                self._touches[into].add(region.shifted(offset), step)


def _parts(touched: _Touched) -> list[Lifetime]:
    """Between two neighbouring ends of what is touched, bytes are alive from the first to the last touch."""
    alive = [(region, steps[0], steps[-1]) for region, steps in touched.steps.items()]
    if sum(region.rows * len(steps) for region, steps in touched.steps.items()) > PIECES:
        begin, end = min(p.offset for p, _, _ in alive), max(p.end for p, _, _ in alive)
        return [Lifetime(end - begin, min(s for _, s, _ in alive), max(s for _, _, s in alive), begin)]
    runs = [(begin, begin + p.run, first, last) for p, first, last in alive for begin in p.begins]
    ends = sorted({e for begin, end, _, _ in runs for e in (begin, end)})
    found: list[Lifetime] = []
    for begin, end in pairwise(ends):
        times = [(first, last) for low, high, first, last in runs if low <= begin and end <= high]
        if times:
            found.append(Lifetime(end - begin, min(t[0] for t in times), max(t[1] for t in times), begin))
    return found
