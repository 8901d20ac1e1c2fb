"""Routines of native code, and pieces of the walker, each compiled and called alone."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from renorm.codegen.llvm.routine import INT, ORDERED, RELAXED, Number, Pointer, Routine, Truth, module_text, routine
from renorm.codegen.llvm.walk import prepare, share, take
from renorm.codegen.llvm.walk_call import Run
from renorm.codegen.llvm.walk_system import advance, environment, set_standard_environment
from renorm.core.errors import InternalError
from renorm.runtime import layout, loader


@pytest.fixture
def native(assemble):
    """Definition -> the function, of words."""

    def native(definition, machine="x86_64"):
        image = loader.load([assemble(module_text(machine, definition), machine)], machine)
        function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)(image.address(0, definition.name))
        return lambda *words, image=image: function(*words, *[0] * (6 - len(words)))

    return native


def address(words: np.ndarray) -> int:
    return words.ctypes.data


@routine()
def total(f: Routine, words: Pointer, count: Number) -> Number:
    """Return the sum of words, up to the first that is negative."""
    sum = f.variable(0)
    with f.count(count) as k:
        word = (words + k * 8).load()
        f.give(sum.value, when=word < 0)
        sum.value += word
    return sum.value


@routine()
def root(f: Routine, n: Number) -> Number:
    """Return the largest k with k k <= n, by the longest way."""
    k = f.variable(0)
    with f.forever():
        following = k.value + 1
        f.stop(following * following >= n + 1)
        k.value = following
    return k.value


@routine()
def claim(f: Routine, words: Pointer, is_first: Truth) -> Number:
    """Use each atomic access once."""
    seen = words.load_atomic(RELAXED)
    was = words.fetch_add(ORDERED, 5)
    with f.when(is_first) as first:
        (words + 8).store_atomic(ORDERED, 7, INT)
    with f.otherwise(first):
        (words + 8).store_atomic(RELAXED, 9)
    swapped, kept = words.exchange(seen + 5, 1), words.exchange(0, 2)
    return was * 4 + swapped.convert("zext", "i64") * 2 + kept.convert("zext", "i64")


@routine()
def both(f: Routine, words: Pointer) -> Number:
    return claim(f, words, True) * 100 + claim(f, words + 16, False)


def test_loops_and_early_returns(native):
    words = np.array([1, 2, 3, -1, 5])
    assert [native(total)(address(words), n) for n in range(6)] == [0, 1, 3, 6, 6, 6]
    assert [native(root)(n) for n in (0, 1, 3, 4, 8, 9, 10**4)] == [0, 1, 1, 2, 2, 3, 100]


def test_atomics_and_routines_that_call_each_other(native):
    words = np.array([3, -1, 4, -1])
    assert native(both)(address(words)) == (3 * 4 + 2) * 100 + 4 * 4 + 2
    assert words.tolist() == [1, (-1 << 32) + 7, 1, 9]


@routine()
def share_of(f: Routine, extent: Number, thread: Number, threads: Number) -> Number:
    return share(extent, thread, threads)


def test_shares_are_even_and_cover_the_extent(native):
    begin = native(share_of)
    for extent in (0, 1, 5, 64, 1000):
        for threads in (1, 2, 3, 7, 64):
            ends = [begin(extent, t, threads) for t in range(threads + 1)]
            assert (ends[0], ends[-1]) == (0, extent)
            assert set(np.diff(ends)) <= {extent // threads, -(-extent // threads)}


def test_patches_and_counters(native):
    slots, bases = np.zeros(2, np.int64), np.array([1000, 2000])
    patches = np.array([[address(slots), 1, 8], [address(slots) + 8, 0, 24]])
    counters = np.ones(12, np.int64)
    context = np.zeros(layout.CONTEXT_WORDS, np.int64)
    fields = {layout.PATCHES: address(patches), layout.PATCH_COUNT: 2, layout.BASES: address(bases)}
    fields |= {layout.COUNTERS: address(counters), layout.ROW: 32}
    for field, word in fields.items():
        context[field // 8] = word
    native(prepare)(address(context), 2)
    assert slots.tolist() == [2008, 1024]
    assert counters.tolist() == [0] * 8 + [1] * 4


@routine()
def take_of(f: Routine, context: Pointer, record: Pointer, thread: Number, threads: Number) -> Number:
    return take(f, Run(f.null, context, f.null), record, thread, threads, f.null)


def test_a_thread_takes_chunks_of_its_own_share_first_then_of_the_others(native):
    taken = list[tuple[int, int, int]]()

    @ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
    def phase(args, low, high, thread):
        taken.append((low, high, thread))

    counters, record = np.zeros(3 * 16, np.int64), np.zeros(layout.RECORD // 8, np.int64)
    record[:4] = ctypes.cast(phase, ctypes.c_void_p).value or 0, 0, 10, 3
    context = np.zeros(layout.CONTEXT_WORDS, np.int64)
    context[[layout.COUNTERS // 8, layout.ROW // 8]] = address(counters), layout.LINE
    counters[2 * 16] = 3  # of the last share, [7, 10), all is taken
    assert native(take_of)(address(context), address(record), 1, 3) == 7
    assert taken == [(4, 7, 1), (0, 3, 1), (3, 4, 1)]


def test_who_adds_wakes_those_who_sleep(native):
    called = list[tuple[int, ...]]()

    @ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)
    def syscall(*words):
        called.append(words)
        return 0

    process, word, sleepers = (
        np.zeros(layout.PROCESS_BYTES // 8, np.int64),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
    )
    pool = np.zeros(layout.POOL_BYTES // 8, np.int64)
    process[layout.SYSCALL // 8] = ctypes.cast(syscall, ctypes.c_void_p).value or 0
    pool[layout.PROCESS // 8] = address(process)
    add = native(advance)
    add(address(pool), address(word), 3, address(sleepers))
    assert (word[0], called) == (3, [])
    sleepers[0] = 1
    add(address(pool), address(word), 4, address(sleepers))
    assert word[0] == 7
    assert [w[1:3] for w in called] == [(address(word), 129)]


@routine()
def standard(f: Routine) -> Number:
    set_standard_environment(f)
    return environment(f)


def test_kernels_run_with_all_exceptions_masked(native):
    assert native(standard)() & 0xFFC0 == 8064


def test_text_is_for_the_machine_asked_for():
    assert "aarch64.set.fpcr" in module_text("aarch64", standard)
    assert "ldmxcsr" in module_text("x86_64", standard)


def test_two_routines_of_one_name_are_refused() -> None:
    @routine()
    def total(f: Routine, n: Number) -> Number:
        return n

    first = globals()["total"]

    @routine()
    def caller(f: Routine, n: Number) -> Number:
        return total(f, n) + first(f, f.null, n)

    with pytest.raises(InternalError, match="two routines are named total"):
        module_text("x86_64", caller)
