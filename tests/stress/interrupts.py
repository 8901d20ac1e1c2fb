"""Interrupts at random moments: whatever they hit, the next run is right and nothing is left behind."""

from __future__ import annotations

import _thread
import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from tests.frontends.models import running
from tests.stress.attack import attack

import renorm
from renorm import ops, training
from renorm.core import locks
from renorm.core.dims import Sym
from renorm.driver.cache import SWITCH
from renorm.errors import Cancelled, ReentrancyError, TimeLimit
from renorm.graph.ir import Graph
from renorm.runtime import layout, module, threads

Array = np.ndarray[Any, Any]


class Interrupted(BaseException):
    """What an attack sends."""


def _begin(seed: int) -> random.Random:
    """However small the network and few the cores, the threads that it asks for run it."""
    module.WORTH_SHARING, threads.working = 0, lambda count: count
    return random.Random(seed)


def _network(batch: Any = 16) -> Graph:
    """Some kernels of several phases."""
    g, rng = Graph("interrupted"), np.random.default_rng(0)
    x = g.input("x", "float32", (batch, 8, 12, 12))
    for _ in range(3):
        w = rng.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8
        x = ops.relu(ops.conv(x, w, None, pads=(1, 1, 1, 1)))
    g.outputs = [ops.softmax(ops.global_average_pool(x), axis=1)]
    return g


def _batch(rng: random.Random, n: int = 16) -> Array:
    return np.random.default_rng(rng.randrange(1 << 30)).standard_normal((n, 8, 12, 12)).astype(np.float32)


def _signal_once(after: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, after)


def _kill(after: float) -> None:
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGALRM)).start()


def _main(after: float) -> None:
    threading.Timer(after, _thread.interrupt_main, (signal.SIGALRM,)).start()


def _exception(after: float) -> None:
    me = ctypes.c_ulong(threading.get_ident())
    send = ctypes.pythonapi.PyThreadState_SetAsyncExc
    threading.Timer(after, send, (me, ctypes.py_object(Interrupted))).start()


WAYS = (_signal_once, _kill, _main, _exception)


def _interrupted(
    rng: random.Random, within: float, call: Callable[[], object], ways: Sequence[Callable[[float], None]] = WAYS
) -> None:
    """Interrupts `call`, or what comes soon after it, in one of these ways."""

    def raise_it(*_: object) -> None:
        raise Interrupted

    signal.signal(signal.SIGALRM, raise_it)
    try:
        rng.choice(ways)(rng.uniform(1e-6, within))
        call()
        until = time.monotonic() + 2
        while time.monotonic() < until:  # until it comes, unless a finalizer met it, which Python prints
            time.sleep(0.01)
    except Interrupted:
        pass
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


def _whole() -> None:
    """No team is taken, no lock held, nobody busy, and no number of a worker was given twice."""
    assert threads._word(threads._process, layout.BUSY).value == 0
    assert threads._callers.words[layout.DEPTH // 8] == 0
    assert not [lock.name for lock in locks._locks() if not lock.take() or lock.release()]
    for team in list(threads._teams.values()):
        assert threads._word(team.pool, layout.FREE).value == 1
        assert team._entered.value < team.threads


def _attacked(rng: random.Random, call: Callable[[], object], check: Callable[[], None], times: int = 20) -> None:
    begin = time.perf_counter()
    with suppress(Interrupted):
        call()
    took = time.perf_counter() - begin
    for _ in range(times):
        _interrupted(rng, 1.2 * took, call)
        check()
        _whole()


@attack(limit_s=60, in_gate=3)
def runs(seed: int) -> None:
    """Later runs of one to four threads are right bit for bit, and those of other threads meanwhile."""
    rng = _begin(seed)
    x, single = _batch(rng), renorm.compile(_network(), threads=1)
    (expected,) = single.run(x)
    m, out = renorm.compile(_network(), threads=rng.randint(1, 4)), [np.empty_like(expected)]

    def call() -> None:
        for _ in range(rng.randint(1, 4)):
            rng.choice((lambda: m.run(x), lambda: m.run(x, out=out), lambda: m.run(x, timeout=60.0)))()

    def check() -> None:
        for _ in range(3):
            assert np.array_equal(m.run(x)[0], expected)

    _attacked(rng, call, check)


@attack(limit_s=60, in_gate=3)
def first_runs(seed: int) -> None:
    """A team whose first run is interrupted has no worker twice, and all runs are right."""
    rng = _begin(seed)
    x = _batch(rng)
    (expected,) = renorm.compile(_network(), threads=1).run(x)
    made = renorm.compile(_network(), threads=2)
    assert isinstance(made, renorm.Module)
    parts = made.program, made._objects, made._weights, made._walker
    for _ in range(10):
        threads._teams = {}  # so that the next module has a new team
        m: list[Any] = []

        def call(m: list[Any] = m) -> None:
            m.append(module.Module(*parts, threads=rng.randint(2, 4)))
            m[-1].run(x)

        # CPython gives what is sent to a thread that is starting another one to that
        _interrupted(rng, 3e-3, call, WAYS[:3])
        if not m:
            call()
        for _ in range(20):
            assert np.array_equal(m[-1].run(x)[0], expected)
        _whole()
        for team in threads._teams.values():
            team.close()


@attack(limit_s=60, in_gate=3)
def states(seed: int) -> None:
    """A state is that of before a run or of after it, all of it."""
    rng = _begin(seed)
    m = renorm.compile(running(64, 3, 16), train_state=True, threads=rng.randint(1, 4))
    x = np.random.default_rng(seed).standard_normal((64, 3, 16)).astype(np.float32)
    orbit = [m.state.copy()]
    for _ in range(4):
        m.run(x)
        orbit.append(m.state.copy())

    def call() -> None:
        m.state.update(orbit[0])
        m.run(x)
        m.run(x)

    def check() -> None:
        now = m.state.copy()
        at = [k for k, s in enumerate(orbit) if all(np.array_equal(now[n], a) for n, a in s.items())]
        assert at
        m.run(x)
        assert all(np.array_equal(m.state[n], a) for n, a in orbit[at[0] + 1].items())
        m.state.update(orbit[0])

    _attacked(rng, call, check)


@attack(limit_s=90, in_gate=2)
def training_kernels(seed: int) -> None:
    """A batch norm in training that is interrupted gives the same afterwards."""
    rng = _begin(seed)
    x = _batch(rng)
    scale = np.linspace(0.5, 2, 8, dtype=np.float32)
    expected = training.batch_norm(x, scale, scale)

    def check() -> None:
        found = training.batch_norm(x, scale, scale)
        assert all(np.array_equal(a, np.asarray(b)) for a, b in zip(found, expected) if isinstance(a, np.ndarray))

    _attacked(rng, lambda: training.batch_norm(x, scale, scale), check)


@attack(limit_s=120, in_gate=1)
def compiling(seed: int) -> None:
    """Compiling that is interrupted, of a network or of a new shape, succeeds the next time, with the same results."""
    rng = _begin(seed)
    os.environ[SWITCH] = "0"  # LLVM has to be asked
    x = _batch(rng, 3)
    (expected,) = renorm.compile(_network(3), threads=1).run(x)
    for _ in range(3):
        m = renorm.compile(_network(Sym("N")), threads=rng.randint(1, 3))
        _interrupted(rng, 0.3, lambda m=m: m.run(x))
        assert np.array_equal(m.run(x)[0], expected)
        _whole()


@attack(limit_s=60, in_gate=3)
def ended_from_other_threads(seed: int) -> None:
    """Runs that are cancelled, or out of time, while others of the team wait: each is right or ends with its reason."""
    rng = _begin(seed)
    x = _batch(rng)
    modules = [renorm.compile(_network(), threads=n) for n in (1, rng.randint(2, 4), 2)]
    (expected,) = modules[0].run(x)
    until, wrong = time.monotonic() + 0.5, list[str]()

    def work(own: random.Random) -> None:
        while time.monotonic() < until:
            m = own.choice(modules)
            limit = own.choice((None, 0.0, 1e-5, 1e-4, 1e-3, 60.0))
            try:
                if not np.array_equal(m.run(x, timeout=limit)[0], expected):
                    wrong.append(f"{m} with {limit}")
            except (Cancelled, TimeLimit):
                pass
            if own.random() < 0.2:
                own.choice(modules).cancel()

    workers = [threading.Thread(target=work, args=(random.Random(rng.random()),)) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong
    for m in modules:
        assert np.array_equal(m.run(x)[0], expected)
    _whole()


_DEEPEST, _MOST = 20, 500  # handlers in one another, and in all


@attack(limit_s=60, in_gate=3)
def handlers(seed: int) -> None:
    """Handlers that run the network in the middle of a run get what it gives, and so does who was interrupted; so do
    handlers that interrupt handlers."""
    rng = _begin(seed)
    x, m = _batch(rng), renorm.compile(_network(), threads=rng.randint(1, 4))
    (expected,) = m.run(x)
    wrong, met, depth = list[bool](), [0], [0]

    def handle(*_: object) -> None:
        # on a machine that does other work signals come faster than runs end, each of which would meet several
        if depth[0] == _DEEPEST or met[0] == _MOST:
            return
        met[0] += 1
        depth[0] += 1
        with suppress(ReentrancyError):
            if not np.array_equal(m.run(x)[0], expected):
                wrong.append(True)
        depth[0] -= 1

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, rng.uniform(2e-4, 5e-3))
    try:
        for _ in range(100):
            assert np.array_equal(m.run(x)[0], expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    assert met[0]
    assert not wrong
    _whole()
