"""Where values lie whose extents are open: as driver.buffers, but for whole buffers.

A value lies in a buffer of its own unless a kernel writes it over an operand that nobody needs any more and that it
reads only in passing (CompiledKernel.in_place), or it is fixed and lies within another one. A buffer is alive from the
first step that touches any of it to the last one: what lies in rows lies there for all sizes, or nobody knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from renorm.codegen.abi import CompiledKernel
from renorm.core.dims import Dim, bounds, is_static, size
from renorm.core.dtypes import itemsize
from renorm.driver.groups import KernelCall
from renorm.graph.ir import Graph, Value
from renorm.graph.strided_region import root
from renorm.passes.memory import OpenLifetime


@dataclass(frozen=True)
class OpenRegion:
    """Bytes of a buffer, in one run."""

    offset: Dim
    nbytes: Dim

    def overlaps(self, other: OpenRegion) -> bool:
        """Return whether they may share a byte."""
        gaps = (other.offset - self.offset - self.nbytes, self.offset - other.offset - other.nbytes)
        return self.nbytes != 0 and other.nbytes != 0 and all(bounds(gap)[0] < 0 for gap in gaps)


def open_nbytes(v: Value) -> Dim:
    """Return the bytes of a value: in blocks it has as many."""
    return size(v.shape) * itemsize(v.held_dtype)


class OpenBuffers:
    """calls, kernels: of each step."""

    def __init__(self, graph: Graph, calls: Sequence[KernelCall], kernels: Sequence[CompiledKernel]):
        self._moved: dict[Value, Value] = {}
        self._inputs, self._outputs = set(graph.inputs), set(graph.outputs)
        self._steps: dict[Value, list[int]] = {}  # that touch a buffer; one that does twice stands there twice
        for step, call in enumerate(calls):
            for v in (*(p.value for p in call.reads if not p.value.is_constant), *call.writes):
                self._steps.setdefault(self.region(v)[0], []).append(step)
        for step, (call, kernel) in enumerate(zip(calls, kernels, strict=True)):
            for written, read in kernel.in_place:
                if written >= len(call.reads) > read and self._write_over(
                    step, call.writes[written - len(call.reads)], call.reads[read].value
                ):
                    break

    def region(self, v: Value) -> tuple[Value, OpenRegion]:
        """Return the value whose buffer holds `v`, and where."""
        if is_static(v.shape):
            buffer, rows = root(v)
            region = OpenRegion(rows.offset, rows.end - rows.offset)
        else:
            buffer, region = v, OpenRegion(0, open_nbytes(v))
        while buffer in self._moved:
            buffer = self._moved[buffer]
        return buffer, region

    def lifetimes(self) -> dict[Value, OpenLifetime]:
        """Return the buffers in the arena, and when they are alive."""
        return {
            v: OpenLifetime(open_nbytes(v), min(steps), max(steps))
            for v, steps in self._steps.items()
            if self._is_in_arena(v)
        }

    def _is_in_arena(self, v: Value) -> bool:
        return not v.is_constant and v not in self._inputs and v not in self._outputs

    def _write_over(self, step: int, y: Value, x: Value) -> bool:
        """Put y where x is, or x where y will be, if nobody else needs those bytes. Return whether it did."""
        (of_y, at_y), (of_x, at_x) = self.region(y), self.region(x)
        whole = OpenRegion(0, open_nbytes(x))
        are_whole = at_x == at_y == whole == OpenRegion(0, open_nbytes(of_x)) == OpenRegion(0, open_nbytes(of_y))
        if of_x is of_y or not are_whole or not self._is_in_arena(of_x):
            return False
        if sum(s >= step for s in self._steps[of_x]) != 1:
            return False  # x is read later, or in this step once more
        if not self._is_in_arena(of_y):
            if of_y in self._inputs or of_y.is_constant or min(self._steps[of_y]) < step:
                return False
            of_x, of_y = of_y, of_x
        self._moved[of_y] = of_x
        self._steps[of_x] += self._steps.pop(of_y)
        return True
