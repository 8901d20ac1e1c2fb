"""A barrier stands where threads need one, and nowhere else."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from renorm.codegen.abi import Access, CompiledKernel
from renorm.driver.barriers import PIECE, Launch, chunks, waits
from renorm.runtime.program import Argument


def kernel(phases: tuple[int, ...], accesses: tuple[Access, ...]) -> CompiledKernel:
    return CompiledKernel("k", b"", phases, accesses, (), (), 0, 0, "", "")


def argument(kind: str, at: int, offset: int) -> Argument:
    return Argument(kind, at, offset) if kind in ("input", "output") else Argument(kind, 100 * at + offset)


ARGUMENTS = st.builds(
    argument,
    st.sampled_from(["input", "output", "arena", "arena", "arena", "weight"]),
    st.integers(0, 1),
    st.integers(0, 40),
)


@st.composite
def launches(draw: st.DrawFn) -> list[Launch]:
    found = list[Launch]()
    for _ in range(draw(st.integers(1, 6))):
        args = draw(st.lists(ARGUMENTS, min_size=1, max_size=4))
        writable = [k for k, a in enumerate(args) if a.kind in ("output", "arena")]
        some = st.sets(st.integers(0, len(args) - 1)).map(lambda s: tuple(sorted(s)))
        written = st.sets(st.sampled_from(writable)) if writable else st.just(set[int]())
        phases = draw(st.lists(st.sampled_from([1, 1, 5]), min_size=1, max_size=3))
        accesses = [Access(draw(some), tuple(sorted(draw(written))), 1.0) for _ in phases]
        nbytes = draw(st.lists(st.integers(0, 30), min_size=len(args), max_size=len(args)))
        found.append(Launch(kernel(tuple(phases), tuple(accesses)), args, nbytes))
    return found


def cells(launch: Launch, arguments: tuple[int, ...]) -> set[tuple[str, int]]:
    """Every byte of these arguments."""
    found = set[tuple[str, int]]()
    for k in arguments:
        a = launch.args[k]
        name = f"{a.kind}{a.at}" if a.kind in ("input", "output") else a.kind
        begin = a.offset if a.kind in ("input", "output") else a.at + a.offset
        found |= {(name, byte) for byte in range(begin, begin + launch.nbytes[k])}
    return found


@settings(deadline=None, max_examples=100)
@given(launches())
def test_against_every_byte(program: list[Launch]) -> None:
    found = waits(program)
    assert [len(w) for w in found] == [len(launch.kernel.phases) for launch in program]
    phases = [
        (cells(launch, a.reads), cells(launch, a.writes), extent == 1)
        for launch in program
        for extent, a in zip(launch.kernel.phases, launch.kernel.accesses)
    ]
    flat = [w for own in found for w in own]

    def conflict(i: int, j: int) -> bool:
        (reads, writes, serial), (later_reads, later_writes, later_serial) = phases[i], phases[j]
        clash = writes & (later_reads | later_writes) or reads & later_writes
        return bool(clash) and not (serial and later_serial)

    barriers = [0, *(j for j, w in enumerate(flat) if w), len(flat)]
    for begin, end in pairwise(barriers):
        # between two barriers no phase meets another
        assert not any(conflict(i, j) for j in range(begin, end) for i in range(begin, j))
        # and the barrier was put off as long as could be
        assert end == len(flat) or any(conflict(i, end) for i in range(begin, end))


def test_serial_phases_follow_each_other_on_one_thread() -> None:
    chain = [
        Launch(
            kernel((n,), (Access((0,), (1,), 1.0),)),
            [Argument("arena", 64 * i), Argument("arena", 64 * i + 64)],
            [64, 64],
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
