"""Little memory, few threads, few processes, and limits at random: a result is right, or an error says what is missing.

Each attempt is made in a child, with memory that is exhausted down to a few random pieces; then the limit is lifted,
and the same must be right.
"""

from __future__ import annotations

import _thread
import errno
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, NoReturn

import numpy as np
import pytest
from tests.frontends.models import running
from tests.stress._children import in_child
from tests.stress.attack import attack

import renorm
from renorm import ops, training
from renorm.core.dims import Sym
from renorm.driver.cache import SWITCH
from renorm.errors import LimitExceeded, RenormError
from renorm.graph.ir import Graph
from renorm.runtime import threads as teams

Array = np.ndarray[Any, Any]


def _network(channels: int, batch: Any, side: int = 12) -> Graph:
    g, rng, c = Graph("limited"), np.random.default_rng(0), 8
    v = g.input("x", "float32", (batch, c, side, side))
    for size in (3, 1):
        w = rng.standard_normal((channels, c, size, size)).astype(np.float32) / 8
        v, c = ops.relu(ops.conv(v, w, None, pads=(size // 2,) * 4)), channels
    g.outputs = [ops.softmax(ops.global_average_pool(v), axis=1), v]
    return g


@cache
def _expected(channels: int, batch: int) -> tuple[Array, list[Array]]:
    x = np.random.default_rng(batch).standard_normal((batch, 8, 12, 12)).astype(np.float32)
    return x, renorm.compile(_network(channels, batch), threads=1).run(x)


def _held() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _little_memory(rng: random.Random) -> Generator[None]:
    """Inside, the address space has a few pieces left, of random sizes."""
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    left = int(10 ** rng.uniform(4, 8))  # 10 KB to 100 MB
    resource.setrlimit(resource.RLIMIT_AS, (_held() + left + (1 << 20), unlimited[1]))
    pieces = list[Any]()
    for size in (1 << 20, 1 << 16, 1 << 13) if rng.random() < 0.7 else ():
        try:
            while True:
                pieces.append(bytearray(size))
        except MemoryError:
            pass
    rng.shuffle(pieces)
    while pieces and left > 0:
        left -= len(pieces.pop())
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, unlimited)


def _says_no_memory(error: BaseException | None) -> bool:
    """Whether an error is what Python raises where it gets no memory."""
    match error:
        case OSError():  # it looked for a module that is imported late
            return error.errno == errno.ENOMEM
        case SystemError():  # CPython 3.11 has no memory for the frame of a call, and forgets to say so
            return str(error) == "error return without exception set"
        case SyntaxError():  # its parser has none for a token of a file, which is read without error later
            return True
        case RenormError() if not isinstance(error, MemoryError):
            return isinstance(error.__cause__, OSError) or _says_no_memory(error.__cause__)
        case _:
            return isinstance(error, MemoryError)


@attack(limit_s=120, in_gate=4)
def memory(seed: int) -> None:
    """With little memory a network is compiled and runs right, or raises MemoryError; later all is right."""
    rng = random.Random(seed)
    channels, batch = rng.choice((8, 24)), rng.choice((1, 5))
    x, expected = _expected(channels, batch)
    graph = _network(channels, rng.choice((batch, Sym("N"))))
    again = renorm.compile(graph, threads=rng.randint(1, 3))

    def right(m: Any) -> None:
        for found, wanted in zip(m.run(x), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)

    def compiled() -> None:
        right(renorm.compile(graph, threads=rng.randint(1, 3)))

    def trained() -> None:
        moments = training.moments(x)
        np.testing.assert_allclose(moments.mean, x.mean((0, 2, 3), np.float64), atol=1e-6)

    def attempt() -> None:
        os.environ[SWITCH] = "0"
        calls: list[Callable[[], None]] = [compiled, lambda: right(again), trained]
        rng.shuffle(calls)
        for call in calls:
            with _little_memory(rng):
                try:
                    call()
                except Exception as error:
                    if not _says_no_memory(error):
                        raise
        for call in calls:
            call()

    in_child(attempt, 60)


_COLD = """
import os, resource, sys
import numpy as np
size = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (size, size))
try:
    import renorm
    from tests.stress import limits
    g = limits._network(8, 2)
    (found, _) = renorm.compile(g, threads=2).run(np.ones((2, 8, 12, 12), np.float32))
    assert abs(float(found.sum()) - 2) < 1e-4
except (MemoryError, ImportError, OSError) as error:  # numpy's and llvmlite's libraries are loaded, or not
    sys.exit(3)
"""


@attack(limit_s=120, in_gate=1)
def address_space(seed: int) -> None:
    """A process that may have little address space ends with a result or an error; from 400 MB on with a result."""
    rng = random.Random(seed)
    size = rng.choice((400, int(rng.uniform(150, 600)))) << 20
    environment = os.environ | {SWITCH: "0", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _COLD, str(size)], env=environment, capture_output=True, text=True, timeout=100
    )
    if size < 400 << 20 and "OpenBLAS" in done.stderr:  # which ends the process that imports NumPy
        return
    assert done.returncode in ((0, 3) if size < 400 << 20 else (0,)), (
        f"{size >> 20} MB: {done.returncode} {done.stderr}"
    )


@attack(limit_s=60, in_gate=3)
def threads_and_processes(seed: int) -> None:
    """Where only some threads and processes can be made, all is computed as with more of them, or an error says so."""
    rng = random.Random(seed)
    x, expected = _expected(8, 5)
    data = np.random.default_rng(seed).standard_normal((16, 3, 8)).astype(np.float32)
    left = rng.randrange(4)

    def attempt() -> None:
        nonlocal left
        os.environ |= {SWITCH: "0", "RENORM_NUM_THREADS": str(rng.randint(1, 6))}
        start = _thread.start_new_thread

        def few(*args: Any) -> int:
            nonlocal left
            left -= 1
            if left < 0:
                raise RuntimeError("can't start new thread")
            return start(*args)

        def none(*_: Any, **__: Any) -> NoReturn:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        fakes: list[tuple[Any, str, Any]] = [(threading, "_start_new_thread", few)]
        fakes += [(place, "start_new_thread", few) for place in (_thread, teams)]
        fakes += [(subprocess, "Popen", none)] if rng.random() < 0.5 else []
        for place, name, fake in fakes:
            setattr(place, name, fake)
        for found, wanted in zip(renorm.compile(_network(8, 5)).run(x), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
        m = renorm.compile(running(16, 3, 8), train_state=True)
        m.run(data)
        np.testing.assert_allclose(m.state["m"], data.mean((0, 2)) / 2, atol=1e-5)
        since, n = time.monotonic(), rng.randint(1, 4)
        try:
            whole = training.Threads(n).run(
                lambda comm: training.moments(np.array_split(data, n)[comm.rank], comm=comm)
            )
            np.testing.assert_allclose(whole[0].mean, data.mean((0, 2), np.float64), atol=1e-6)
        except RenormError as error:
            if "gives no more threads" not in str(error):
                raise
        assert time.monotonic() - since < 20

    in_child(attempt, 50)


_REGIONS = """
import os, resource, sys, threading, time
import numpy as np, torch, renorm
from renorm import ops
from renorm.graph.ir import Graph
from renorm.runtime import openmp, threads

threads.working, openmp.AGAIN_S = lambda threads: threads, 0.0
left, user = map(int, sys.argv[1:])
g = Graph("rows")
g.outputs = [ops.softmax(g.input("x", "float32", (256, 2048)))]
x = np.random.default_rng(left).standard_normal((256, 2048)).astype(np.float32)
expected = renorm.compile(g, threads=1).run(x)[0]
modules = [renorm.compile(g, threads=openmp.region(n, torch._C.__file__)) for n in (2, 3, 4)]
os.setuid(user)
most = len(os.listdir("/proc/self/task")) + left
resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
wrong = []

def run(k):
    for m in (modules[k % 3], modules[(k + 1) % 3]):
        if not (m.run(x)[0] == expected).all():
            wrong.append(k)

until, k = time.monotonic() + 3, 0
while time.monotonic() < until:
    callers = []
    for k in range(k, k + 2):
        try:
            (caller := threading.Thread(target=run, args=(k,))).start()
            callers.append(caller)
        except RuntimeError:
            pass
    for caller in callers:
        caller.join()
sys.exit(bool(wrong))
"""


@attack(limit_s=120, in_gate=1)
def regions(seed: int) -> None:
    """Threads that come and go enter regions of OpenMP where the system gives them threads, and are right anyway."""
    if os.geteuid() or find_spec("torch") is None:  # who is not root shares the limit with all of their processes
        return
    left, user = random.Random(seed).randrange(1, 20), 60_000 + os.getpid() % 5000
    done = subprocess.run(
        [sys.executable, "-c", _REGIONS, str(left), str(user)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, f"{left} threads: {done.returncode} {done.stderr}"


@attack(limit_s=60, in_gate=4)
def models(seed: int) -> None:
    """Limits at random: a network that is within them is right, one that is not is refused before it is made."""
    rng = random.Random(seed)
    channels = rng.choice((8, 24))
    x, expected = _expected(channels, 5)
    elements = max(5 * channels * 144, channels * channels, channels * 72)
    outside = 4 * (5 * 8 * 144 + 5 * channels * 145 + channels * 72 + channels * channels)
    for _ in range(4):
        of = rng.choice((rng.uniform(0.1, 10), rng.uniform(0.9, 1.1), 1.0))
        limits = rng.choice(
            (
                renorm.Limits(elements=int(of * elements)),
                renorm.Limits(bytes=int(of * outside)),
                renorm.Limits(nodes=rng.randrange(10)),
            )
        )
        batch: Any = rng.choice((5, Sym("N")))
        try:
            found = renorm.compile(_network(channels, batch), threads=rng.randint(1, 3), limits=limits).run(x)
        except LimitExceeded:  # weights and values between count too, which layouts make a little larger
            assert of < 4 or limits.nodes < 10
        else:
            assert limits.elements >= elements
            assert limits.bytes >= outside
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(a, b)
    huge, since = renorm.compile(_network(8, Sym("N")), limits=renorm.Limits(bytes=1 << 30)), time.monotonic()
    wide = np.broadcast_to(np.float32(0), (rng.randrange(10**6, 10**9), 8, 12, 12))
    with pytest.raises(LimitExceeded, match="bytes: "):
        huge.run(wide)
    assert time.monotonic() - since < 20
    for a, b in zip(renorm.compile(_network(channels, 5)).run(x), expected, strict=True):
        np.testing.assert_array_equal(a, b)
