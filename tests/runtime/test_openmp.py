"""Runs on a parallel region of OpenMP: torch's, or a library written here, whose threads come as a test says."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from renorm.runtime import layout, openmp, threads

BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
NUMBER = ctypes.CFUNCTYPE(ctypes.c_int)


class Library:
    """Enters each region with threads of these numbers, one after another in their order, or at once. Whoever makes a
    region of it holds it, as a process holds its shared libraries: its functions are gone with it."""

    def __init__(self, numbers: Sequence[int], at_once: bool = False):
        self.numbers, self.at_once, self.asked = numbers, at_once, list[int]()
        self._own = threading.local()
        self._functions = PARALLEL(self._parallel), NUMBER(lambda: self._own.number)

    def region(self, size: int) -> openmp.ParallelRegion:
        return openmp.ParallelRegion(size, *(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self._functions))

    def _parallel(self, body: int, data: int, size: int, flags: int) -> None:
        self.asked.append(size)

        def enter(number: int) -> None:
            self._own.number = number
            BODY(body)(data)

        others = [threading.Thread(target=enter, args=(n,)) for n in self.numbers]
        for each in others:
            each.start()
            if not self.at_once:
                each.join()
        for each in others:
            each.join()


@pytest.fixture(autouse=True)
def nobody_has_entered() -> None:
    """A library may have its functions where those of another were, which is gone."""
    openmp.entrance.cache_clear()


@pytest.fixture
def torchs() -> Callable[[int], openmp.ParallelRegion]:
    """A region of so many threads of the library that torch calls."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def region(size: int) -> openmp.ParallelRegion:
        found = openmp.region(size, torch._C.__file__)
        assert found is not None
        return found

    return region


@pytest.mark.parametrize(
    "numbers",
    [(0, 1, 2), (2, 0, 1), (1, 2, 0), (0,), (0, 1), (1, 0)],
    ids=lambda numbers: "-".join(map(str, numbers)),
)
@pytest.mark.parametrize("chunk", [0, 4])
def test_threads_that_come_late_or_not_at_all(mirrors, mirrored, numbers, chunk):
    library = Library(numbers)
    m = mirrors(37, 6, library.region(3), chunk)
    assert (m.threads, m._team.threads) == (3, 3)
    for k in range(3):
        x = np.arange(37, dtype=np.float32) + k
        np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 6))
    assert library.asked == [3] * 4  # once more than there are runs, to have its threads
    parts = m.recorded(np.zeros(37, np.float32))[0].parts
    assert [bool(part.any()) for part in parts] == [t == numbers[0] for t in range(3)]  # who came first did all of it


def test_threads_at_once(mirrors, mirrored):
    for numbers in ((0, 1), (0, 1, 2), (4, 2, 0, 3, 1)):
        library = Library(numbers, at_once=True)
        m = mirrors(300, 12, library.region(5), 7)
        for k in range(10):
            x = np.arange(300, dtype=np.float32) + k
            np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 12))
    assert threads._word(threads._process, layout.BUSY).value == 0


def test_a_region_keeps_its_size_where_cores_are_fewer(mirrors, mirrored, monkeypatch):
    """Then some of its threads have nothing to do."""
    monkeypatch.setattr(threads, "working", lambda threads: min(threads, 2))
    library = Library((3, 2, 1, 0))
    m = mirrors(50, 4, library.region(4))
    x = np.arange(50, dtype=np.float32)
    np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 4))
    parts = m.recorded(x)[0].parts
    assert len(parts) == 2
    assert [bool(part.any()) for part in parts] == [False, True]
    assert library.asked == [4] * 3


def test_one_thread_enters_no_region(mirrors, mirrored):
    library = Library(())
    x = np.arange(50, dtype=np.float32)
    m = mirrors(50, 4, library.region(1))
    np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 4))
    assert not library.asked


def test_one_team_per_region(walker):
    a, b = Library((0,)).region(2), Library((0,)).region(2)
    assert len({id(threads.team(2, walker, "x86_64", r)) for r in (None, a, b, a, None)}) == 3


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_threads_of_torch(mirrors, mirrored, torchs, size):
    before = threading.active_count()
    m = mirrors(300, 12, torchs(size), 7)
    for k in range(20):
        x = np.arange(300, dtype=np.float32) + k
        np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 12))
    assert threading.active_count() == before


def test_a_region_within_a_region(mirrors, mirrored, torchs):
    """The inner one has one thread, unless OpenMP was asked for more levels. Both threads of the outer one run it."""
    region = torchs(3)
    m, number, found = mirrors(300, 12, region, 7), NUMBER(region.number), dict[int, bool]()

    @BODY
    def body(_: int) -> None:
        n = number()
        x = np.arange(300, dtype=np.float32) + n
        found[n] = all(np.array_equal(m.run(x)[0], mirrored(x, 12)) for _ in range(10))

    PARALLEL(region.parallel)(ctypes.cast(body, ctypes.c_void_p), None, 2, 0)
    assert found == {0: True, 1: True}


def test_callers_take_turns(mirrors, mirrored, torchs):
    """Those of one team. Regions of two sizes and a team without one run at once; each caller has OpenMP threads of
    its own."""
    modules = [mirrors(300, 12, of, 7) for of in (torchs(2), torchs(3), torchs(2), 2)]
    wrong = list[int]()

    def work(first: int) -> None:
        for k in range(60):
            x = np.arange(300, dtype=np.float32) + k
            if not np.array_equal(modules[(first + k) % 4].run(x)[0], mirrored(x, 12)):
                wrong.append(k)

    callers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert not wrong


def test_functions_of_two_libraries_are_no_region(torchs, monkeypatch):
    openmp.region.cache_clear()
    monkeypatch.setattr(openmp, "_base", lambda address: address)
    assert openmp.region(2, "libm.so.6") is None
    openmp.region.cache_clear()


def test_each_thread_asks_for_each_larger_region_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, given = list[int](), [True]

    def are_there(count: int) -> bool:
        asked.append(count)
        return given[0]

    monkeypatch.setattr(openmp, "are_there", are_there)
    library = Library((0,))
    at = openmp.Entrance(library.region(3).parallel)
    assert all(at.admits(n) for n in (1, 3, 3, 2, 3))  # after that of 2 the third thread is gone
    assert asked == [4, 4]
    assert library.asked == [3, 3]  # they are made at once
    given[0] = False
    assert not at.admits(4)
    assert not at.admits(5)  # so soon it is not asked again
    assert asked == [4, 4, 6]
    assert at.admits(3)
    monkeypatch.setattr(openmp, "AGAIN_S", 0.0)
    assert not at.admits(4)
    found = list[bool]()
    other = threading.Thread(target=lambda: found.append(at.admits(2)))
    other.start()
    other.join()
    assert found == [False]
    assert asked == [4, 4, 6, 6, 2]
    assert library.asked == [3, 3]
