"""About how long a kernel and the iterations of its phases take on one core, and what bounds it: tir.predicted, told
where arrays lie when a kernel begins.

Weights were last read a whole network ago: they come from the last cache, or from memory (`near`, `far`). Other arrays
were written by the kernel before, or by the phase before, and are in the second-level cache as far as all of them fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from renorm.codegen.abi import Estimate
from renorm.codegen.phases import Phase
from renorm.core import dtypes
from renorm.core.machine import FILL, Machine
from renorm.expr.nodes import Expr
from renorm.tir.footprints import lost
from renorm.tir.nodes import Buffer, Kernel
from renorm.tir.predicted import CYCLE, Predicted, Prediction
from renorm.tir.scope import typical


class Estimates:
    """of_iterations: nanoseconds of one iteration of each phase."""

    def __init__(self, kernel: Kernel, phases: Sequence[Phase], in_place: Sequence[tuple[int, int]], machine: Machine):
        self._second = FILL * machine.caches[1].nbytes
        self._weights = frozenset(p for p in kernel.params if p.name in kernel.attrs.get("weights", ()))
        same = {kernel.params[y]: kernel.params[x] for y, x in in_place}
        self._carried = frozenset(kernel.params) - self._weights
        self._beyond = lost(sum(map(_nbytes, self._carried - same.keys())), self._second)
        predictions = [Prediction(machine, phase.body, phase.lets, same) for phase in phases]
        near, far = ([p.at(self._far(of)) for p in predictions] for of in (0.0, 1.0))
        self.near, self.far = _sum(near), _sum(far)
        rounds = (max(1, typical(p.extent) if isinstance(p.extent, Expr) else p.extent) for p in phases)
        self.of_iterations = [round(p.cycles * CYCLE / n, 1) for p, n in zip(near, rounds)]

    def _far(self, weights: float) -> Callable[[Buffer], tuple[float, float, float]]:
        """Return which part of a buffer the caches do not have. weights: which part of these the last one has not."""

        def far(buffer: Buffer) -> tuple[float, float, float]:
            if buffer in self._weights:
                return 1.0, 1.0, weights
            return 1.0, self._beyond if buffer in self._carried else lost(_nbytes(buffer), self._second), 0.0

        return far


def _nbytes(buffer: Buffer) -> float:
    size = typical(buffer.size) if isinstance(buffer.size, Expr) else buffer.size
    return size * dtypes.itemsize(buffer.dtype)


def _sum(parts: Sequence[Predicted]) -> Estimate:
    """Of phases that follow each other: bounded by what bounds the longest one."""
    if not parts:
        return Estimate()
    longest = max(parts, key=lambda p: p.cycles)
    return Estimate(round(sum(p.cycles for p in parts) * CYCLE, 1), longest.bound)
