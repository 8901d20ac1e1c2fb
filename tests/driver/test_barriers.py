"""A barrier stands where threads need one, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product

from hypothesis import given, settings
from hypothesis import strategies as st

from renorm.codegen.abi import Access, CompiledKernel
from renorm.core.dims import integer
from renorm.driver.barriers import BoundKernel, Operand, chunks, waits
from renorm.graph.strided_region import StridedRegion
from renorm.runtime.program import PIECE, Argument


def kernel(phases: tuple[int, ...], accesses: tuple[Access, ...]) -> CompiledKernel:
    return CompiledKernel("k", b"", phases, accesses, (), (), 0, 0, "", "")


def operand(kind: str, at: int, offset: int, run: int, rows: int = 1, gap: int = 1) -> Operand:
    region = StridedRegion.of(offset, run, rows, run + gap)
    return Operand(Argument(kind, at if kind in ("input", "output") else 100 * at, offset), region)


OPERANDS = st.builds(
    operand,
    st.sampled_from(["input", "output", "arena", "arena", "arena", "weight"]),
    st.integers(0, 1),
    st.integers(0, 40),
    st.one_of(st.integers(0, 30), st.integers(1, 4)),
    st.sampled_from([1, 1, 1, 2, 5]),
    st.integers(1, 9),
)


@st.composite
def launches(draw: st.DrawFn) -> list[BoundKernel]:
    found = list[BoundKernel]()
    for _ in range(draw(st.integers(1, 6))):
        operands = draw(st.lists(OPERANDS, min_size=1, max_size=4))
        writable = [k for k, o in enumerate(operands) if o.at.kind in ("output", "arena")]
        some = st.sets(st.integers(0, len(operands) - 1)).map(lambda s: tuple(sorted(s)))
        written = st.sets(st.sampled_from(writable)) if writable else st.just(set[int]())
        phases = draw(st.lists(st.sampled_from([1, 1, 5]), min_size=1, max_size=3))
        accesses = [Access(draw(some), tuple(sorted(draw(written))), 1.0) for _ in phases]
        found.append(BoundKernel(kernel(tuple(phases), tuple(accesses)), operands))
    return found


def rows_of(o: Operand) -> StridedRegion:
    assert isinstance(o.region, StridedRegion)
    return o.region


def cells(o: Operand) -> set[tuple[str, int]]:
    """Every byte of an argument."""
    is_apart = o.at.kind in ("input", "output")
    name, base = (f"{o.at.kind}{o.at.at}", 0) if is_apart else (o.at.kind, integer(o.at.at))
    return {(name, base + begin + byte) for begin in rows_of(o).begins for byte in range(rows_of(o).run)}


def share_cells(a: Operand, b: Operand) -> bool:
    return bool(cells(a) & cells(b))


def may_share_cells(a: Operand, b: Operand) -> bool:
    """Rows of different pitches are not told apart."""
    is_guessed = rows_of(a).rows > 1 < rows_of(b).rows and rows_of(a).pitch != rows_of(b).pitch
    return share_cells(a, b) or (is_guessed and a.at.kind == b.at.kind)


@settings(deadline=None, max_examples=100)
@given(launches())
def test_against_every_byte(program: list[BoundKernel]) -> None:
    found = waits(program)
    assert [len(w) for w in found] == [len(launch.kernel.phases) for launch in program]
    phases = [
        ([launch.operands[k] for k in a.reads], [launch.operands[k] for k in a.writes], extent == 1)
        for launch in program
        for extent, a in zip(launch.kernel.phases, launch.kernel.accesses)
    ]
    flat = [w for own in found for w in own]

    def conflict(i: int, j: int, meet: Callable[[Operand, Operand], bool] = share_cells) -> bool:
        (reads, writes, serial), (later_reads, later_writes, later_serial) = phases[i], phases[j]
        pairs = [*product(writes, [*later_reads, *later_writes]), *product(reads, later_writes)]
        return any(meet(a, b) for a, b in pairs) and not (serial and later_serial)

    barriers = [0, *(j for j, w in enumerate(flat) if w), len(flat)]
    for begin, end in pairwise(barriers):
        # between two barriers no phase meets another
        assert not any(conflict(i, j) for j in range(begin, end) for i in range(begin, j))
        # and the barrier was put off as long as could be
        assert end == len(flat) or any(conflict(i, end, may_share_cells) for i in range(begin, end))


def test_serial_phases_follow_each_other_on_one_thread() -> None:
    chain = [
        BoundKernel(
            kernel((n,), (Access((0,), (1,), 1.0),)),
            [Operand(Argument("arena", 64 * k), StridedRegion(0, 64)) for k in (i, i + 1)],
        )
        for i, n in enumerate([1, 1, 4, 1, 4, 4])
    ]
    assert waits(chain) == [(False,), (False,), (True,), (True,), (True,), (True,)]


def test_chunks_are_of_a_length_worth_taking() -> None:
    def of(extent: int, nanoseconds: float) -> int:
        return chunks(kernel((extent,), (Access((), (), nanoseconds),)))[0]

    assert of(1_000_000, 10.0) == PIECE // 10
    assert of(100, PIECE * 3.0) == 1
    assert of(3, PIECE * 3.0) == of(100, 10.0) == of(1, 1e9) == of(1000, 0.0) == 0
