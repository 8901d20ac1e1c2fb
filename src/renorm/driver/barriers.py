"""Which phases must wait for all threads, and how many iterations of each a thread takes at a time.

    wait(p)  iff  since the last wait some other thread may have written what p reads, or touched what p writes,
                  or worked in private memory that is cut into pieces of another size: there the pieces overlap

Memory is compared by regions, rows of bytes; where extents are open, by what is so for all of them: two buffers are
apart that are alive at one step. A phase of one iteration is thread 0's: what it touched, thread 0 need not
wait for. Anything else may run on any thread, since threads that are done take work from others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from renorm.codegen.abi import Access, CompiledKernel
from renorm.core.dims import Dim, integer, static, substitute
from renorm.driver.open_buffers import OpenRegion
from renorm.driver.overlaps import RegionIndex
from renorm.graph.strided_region import StridedRegion
from renorm.runtime.program import PIECES, Argument, iterations


@dataclass(frozen=True)
class Operand:
    """An argument. region: which bytes of its buffer the kernel may touch."""

    at: Argument
    region: StridedRegion | OpenRegion


@dataclass(frozen=True)
class BoundKernel:
    """A kernel with its arguments: parameters, then workspaces. extents: what the kernel's stand for."""

    kernel: CompiledKernel
    operands: Sequence[Operand]
    extents: tuple[Dim, ...] = ()

    def of(self, dim: Dim) -> Dim:
        """Return an extent of the kernel as one of the network."""
        return substitute(dim, dict(zip(self.kernel.extents, self.extents, strict=True)))


@dataclass(frozen=True)
class _Touch:
    base: tuple[str, int]
    region: Any
    writes: bool
    is_serial: bool


class _Touched:
    """Regions that were touched since the last barrier."""

    def __init__(self) -> None:
        # by base, whether written, whether serial
        self._regions: dict[tuple[tuple[str, int], bool, bool], RegionIndex] = {}
        self._held: set[_Touch] = set()

    def add(self, touch: _Touch) -> None:
        if touch not in self._held:  # a long row of phases touches the same regions again and again
            self._held.add(touch)
            self._regions.setdefault((touch.base, touch.writes, touch.is_serial), RegionIndex()).add(touch.region)

    def orders(self, later: _Touch) -> bool:
        """Return whether something of it must be over before `later`, and threads alone do not see to it. Only what
        would be so is looked at: of thread 0's alone there may be thousands at one region."""
        return any(
            (writes or later.writes)
            and not (is_serial and later.is_serial)
            and (held := self._regions.get((later.base, writes, is_serial))) is not None
            and any(True for _ in held.overlapping(later.region))
            for writes in (True, False)
            for is_serial in (True, False)
        )


class _OpenTouched:
    """The same where extents are open. lives: first and last step of each buffer in the arena, by its number."""

    def __init__(self, lives: Sequence[tuple[int, int]]):
        self._lives = lives
        self._held = dict[tuple[tuple[str, int], bool, bool], set[OpenRegion]]()

    def add(self, touch: _Touch) -> None:
        self._held.setdefault((touch.base, touch.writes, touch.is_serial), set()).add(touch.region)

    def orders(self, later: _Touch) -> bool:
        """Return whether something of it must be over before `later`, and threads alone do not see to it."""
        return any(
            (writes or later.writes)
            and not (is_serial and later.is_serial)
            and self._may_meet(base, later.base)
            and (base != later.base or any(later.region.overlaps(r) for r in held))
            for (base, writes, is_serial), held in self._held.items()
        )

    def _may_meet(self, base: tuple[str, int], other: tuple[str, int]) -> bool:
        """Return whether memory of both may be the same."""
        if base == other or base[0] != "buffer" or other[0] != "buffer":
            return base == other
        (first, last), (begin, end) = self._lives[base[1]], self._lives[other[1]]
        return last < begin or end < first


def waits(launches: Sequence[BoundKernel], lives: Sequence[tuple[int, int]] | None = None) -> list[tuple[bool, ...]]:
    """For each launch, whether each of its phases needs a barrier before it. lives: where extents are open, first and
    last step of each buffer in the arena."""

    def nothing() -> _Touched | _OpenTouched:
        return _Touched() if lives is None else _OpenTouched(lives)

    since = nothing()
    pieces: set[Dim] = set()  # of private memory, in bytes (codegen.abi), that threads have worked in since then
    found: list[tuple[bool, ...]] = []
    for launch in launches:
        own: list[bool] = []
        for extent, access in zip(launch.kernel.phases, launch.kernel.accesses, strict=True):
            touches = _touches(launch, access, extent == 1)
            piece = {launch.of(launch.kernel.scratch)} - {0}
            must = any(since.orders(touch) for touch in touches) or bool(piece and pieces - piece)
            since = nothing() if must else since
            for touch in touches:
                since.add(touch)
            pieces = piece if must else pieces | piece
            own.append(must)
        found.append(tuple(own))
    return found


def chunks(kernel: CompiledKernel) -> tuple[int, ...]:
    """Iterations that a thread takes at a time, by phase; 0 splits a phase evenly."""
    found = list[int]()
    for extent, access in zip(static(kernel.phases), kernel.accesses, strict=True):
        chunk = iterations(access.nanoseconds)
        found.append(chunk if extent >= PIECES * chunk else 0)
    return tuple(found)


def _touches(launch: BoundKernel, access: Access, is_serial: bool) -> list[_Touch]:
    def touch(k: int, writes: bool) -> _Touch:
        a, region = launch.operands[k].at, launch.operands[k].region
        if isinstance(region, StridedRegion) and a.kind == "arena":  # buffers may lie where others lay
            return _Touch((a.kind, 0), region.shifted(integer(a.at)), writes, is_serial)
        return _Touch((a.kind, integer(a.at)), region, writes, is_serial)

    reads = [touch(k, False) for k in access.reads if launch.operands[k].at.kind not in ("input", "weight")]
    return [t for t in (*reads, *(touch(k, True) for k in access.writes)) if t.region.nbytes != 0]
