"""Memory of results: used again when nobody refers to it, and never before."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.frontends.models import model

import renorm
from renorm.runtime import pool
from renorm.runtime.pool import Pool

Array = np.ndarray[Any, Any]
F32 = np.dtype(np.float32)
MANY = 1 << 30


def array(p: Pool, n: int = 1 << 18) -> Array:
    return p.array((n,), F32, 4 * n)


def place(a: Array) -> int:
    return a.ctypes.data


def test_memory_that_nobody_refers_to_is_used_again() -> None:
    p = Pool(MANY)
    a = array(p)
    assert a.shape == (1 << 18,)
    assert a.dtype == F32
    assert a.flags.writeable
    assert a.flags.c_contiguous
    first = place(a)
    assert first % 4096 == 0
    del a
    assert p.idle_bytes == 1 << 20
    b = array(p)
    assert place(b) == first
    assert p.idle_bytes == 0
    assert place(array(p)) != first


def test_about_the_same_size_is_used_again() -> None:
    p = Pool(MANY)
    first = place(array(p, 1_000_000))
    a = p.array((3, 320_000), np.dtype(np.float16), 3 * 320_000 * 2)
    assert place(a) != first  # half of it: too small
    assert place(array(p, 999_000)) == first


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda a: a,
    "view": lambda a: a[5:],
    "view of views": lambda a: a.reshape(-1, 2).T[0, ::3][1:],
    "other dtype": lambda a: a.view(np.uint8)[7:],
    "subclass": lambda a: a.view(np.matrix),
    "memoryview": lambda a: memoryview(a)[3:],
    "array of a buffer": lambda a: np.frombuffer(memoryview(a), np.float32)[2:],
    "ctypes": lambda a: ctypes.c_float.from_buffer(a, 8),
    "capsule": lambda a: a.__dlpack__(),
    "from_dlpack": np.from_dlpack,
    "flat": lambda a: a.flat,
}


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("holder", HOLDERS)
def test_whoever_refers_to_a_part_keeps_all_of_it(holder: str) -> None:
    p = Pool(MANY)
    a = array(p)
    first, held = place(a), HOLDERS[holder](a)
    del a
    gc.collect()
    assert p.idle_bytes == 0
    assert place(array(p)) != first
    held = None
    gc.collect()
    assert held is None
    assert first in {place(x) for x in [array(p), array(p)]}


def test_a_tensor_of_torch_keeps_it() -> None:
    torch = pytest.importorskip("torch")
    p = Pool(MANY)
    a = array(p)
    first, held = place(a), torch.from_numpy(a)[1:]
    del a
    assert place(array(p)) != first
    del held
    assert first in {place(x) for x in [array(p), array(p)]}


def test_idle_bytes_are_bounded_and_the_sizes_used_last_are_kept() -> None:
    p = Pool(3 << 20)
    small, large = array(p, 1 << 17), [array(p), array(p), array(p)]
    of_small, of_large = place(small), {place(a) for a in large}
    del small
    large.clear()
    assert p.idle_bytes <= 3 << 20
    again = [array(p) for _ in range(3)]
    assert {place(a) for a in again} == of_large
    assert place(array(p, 1 << 17)) != of_small or p.idle_bytes == 0


def test_what_is_not_used_again_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(pool.time, "monotonic", lambda: now[0])
    p = Pool(MANY)
    del [array(p)][0]
    now[0] += pool.AGE / 2
    assert p.idle_bytes == 1 << 20
    now[0] += pool.AGE
    assert p.idle_bytes == 0


def test_larger_than_what_may_be_kept() -> None:
    p = Pool(1 << 16)
    a = array(p)
    a[:] = 1
    del a
    assert p.idle_bytes == 0


def test_threads_never_share_memory() -> None:
    p, wrong = Pool(MANY), list[int]()

    def work(number: int) -> None:
        held = list[Array]()
        for i in range(300):
            a = array(p, (1 << 14) * (1 + i % 3))
            a[:] = number
            held.append(a)
            if i % 4 == 3:
                wrong.extend(number for x in held if x[0] != number or x[-1] != number)
                held.clear()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert 0 < p.idle_bytes <= 8 * 4 * 3 * (1 << 16)


def test_garbage_that_is_collected_inside_of_the_pool() -> None:
    """A cycle holds memory and dies whenever the collector runs, also while the pool is in use by the same thread."""
    p = Pool(MANY)
    old = gc.get_threshold()
    gc.set_threshold(1)
    try:
        cycle: list[Any] = []
        for _ in range(200):
            cycle = [array(p, 1 << 14)]
            cycle.append(cycle)
        del cycle
    finally:
        gc.set_threshold(*old)
    gc.collect()
    assert p.idle_bytes > 0
    assert place(array(p, 1 << 14))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_has_a_pool_while_the_parent_is_inside() -> None:
    """There is nothing that another thread could have left half done."""

    def gives_distinct_arrays() -> bool:
        kept = [array(pool.RESULTS, 1 << 10) for _ in range(20)]
        return len({place(a) for a in kept}) == 20

    def recycle() -> None:
        while not stop.is_set():
            array(pool.RESULTS, 1 << 14)

    stop = threading.Event()
    thread = threading.Thread(target=recycle, daemon=True)
    thread.start()
    for _ in range(20):
        if not (child := os.fork()):
            code = 1
            try:
                code = 0 if gives_distinct_arrays() else 1
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()


def test_results_of_a_module_are_recycled_and_those_held_are_not() -> None:
    m = renorm.compile(model("relu (float[1, 65536] x) => (float[1, 65536] y) { y = Relu (x) }"))
    x = np.random.default_rng(0).standard_normal((1, 65536)).astype(np.float32)
    held = [m.run(x * k)[0] for k in range(4)]
    for k in range(len(held)):
        np.testing.assert_array_equal(held[k], np.maximum(x * k, 0))
    places = {place(y) for y in held}
    assert len(places) == 4
    held.clear()
    again = [m.run(x)[0] for _ in range(4)]
    assert {place(y) for y in again} == places
