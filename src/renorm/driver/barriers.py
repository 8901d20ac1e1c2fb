"""Which phases must wait for all threads, and how many iterations of each a thread takes at a time.

    wait(p)  iff  since the last wait some other thread may have written what p reads, or touched what p writes

Memory is compared by byte ranges. A phase of one iteration is thread 0's: what it touched, thread 0 need not wait for.
Anything else may run on any thread, since threads that are done take work from others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from renorm.codegen.abi import Access, CompiledKernel
from renorm.runtime.program import Argument

PIECE = 30_000  # ns that a thread takes at a time: far above what taking costs, far below what a time slice lasts
PIECES = 8  # a phase of fewer is split evenly: there is little to give away


@dataclass(frozen=True)
class Launch:
    """A kernel with the addresses of its arguments, and how many bytes each has."""

    kernel: CompiledKernel
    args: Sequence[Argument]
    nbytes: Sequence[int]


@dataclass(frozen=True)
class _Touch:
    base: tuple[str, int]
    begin: int
    end: int
    writes: bool
    is_serial: bool

    def orders(self, later: _Touch) -> bool:
        """Whether `later` must come after this one and threads alone do not see to it."""
        return (
            (self.writes or later.writes)
            and self.base == later.base
            and self.begin < later.end
            and later.begin < self.end
            and not (self.is_serial and later.is_serial)
        )


def waits(launches: Sequence[Launch]) -> list[tuple[bool, ...]]:
    """For each launch, whether each of its phases needs a barrier before it."""
    since: list[_Touch] = []  # what was touched since the last barrier
    found: list[tuple[bool, ...]] = []
    for launch in launches:
        own: list[bool] = []
        for extent, access in zip(launch.kernel.phases, launch.kernel.accesses, strict=True):
            touches = _touches(launch, access, extent == 1)
            must = any(a.orders(b) for a in since for b in touches)
            since = touches if must else [*since, *touches]
            own.append(must)
        found.append(tuple(own))
    return found


def chunks(kernel: CompiledKernel) -> tuple[int, ...]:
    """Iterations that a thread takes at a time, by phase; 0 splits a phase evenly."""
    found = list[int]()
    for extent, access in zip(kernel.phases, kernel.accesses, strict=True):
        chunk = max(1, ceil(PIECE / max(access.nanoseconds, 0.1)))
        found.append(chunk if extent >= PIECES * chunk else 0)
    return tuple(found)


def _touches(launch: Launch, access: Access, is_serial: bool) -> list[_Touch]:
    def touch(k: int, writes: bool) -> _Touch:
        a = launch.args[k]
        is_shared = a.kind in ("arena", "weight")
        begin = a.offset + (a.at if is_shared else 0)
        return _Touch((a.kind, 0 if is_shared else a.at), begin, begin + launch.nbytes[k], writes, is_serial)

    reads = [touch(k, False) for k in access.reads if launch.args[k].kind not in ("input", "weight")]
    return [t for t in (*reads, *(touch(k, True) for k in access.writes)) if t.begin < t.end]
