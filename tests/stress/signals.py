"""Signals from other threads and processes at random moments, with handlers that call renorm: each call is right, or an
error that says why, and nobody waits for ever."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from tests.frontends.models import running
from tests.stress.attack import attack
from tests.stress.interrupts import Interrupted, _batch, _begin, _network, _whole

import renorm
from renorm import ops, training
from renorm.core.dims import Sym
from renorm.driver.cache import SWITCH
from renorm.errors import Cancelled, ReentrancyError
from renorm.graph.ir import Graph

Array = np.ndarray[Any, Any]
Handler = Callable[[], None]
_libc = ctypes.CDLL(None)

_SENDER = """
import os, random, signal, sys, time
process, seed, least, most = int(sys.argv[1]), *map(float, sys.argv[2:])
rng = random.Random(seed)
for _ in range(400):
    if os.getppid() != process:
        break
    time.sleep(rng.uniform(least, most))
    os.kill(process, signal.SIGUSR1)
"""


@contextmanager
def _signals(rng: random.Random, handle: Handler, least: float, most: float) -> Generator[None]:
    """Inside, SIGUSR1 comes from another process, or from a thread to any thread; between two of them these seconds."""
    stop, depth = threading.Event(), [0]

    def handler(*_: object) -> None:
        if depth[0] > 3:  # signals may come faster than they are handled
            return
        depth[0] += 1
        try:
            handle()
        finally:
            depth[0] -= 1

    def send(own: random.Random) -> None:
        while not stop.wait(own.uniform(least, most)):
            target = own.choice(threading.enumerate())
            _libc.tgkill(os.getpid(), target.native_id or 0, signal.SIGUSR1)  # that has ended meanwhile, perhaps

    signal.signal(signal.SIGUSR1, handler)
    thread, process = threading.Thread(target=send, args=(random.Random(rng.random()),)), None
    if rng.random() < 0.5:
        thread.start()
    else:
        arguments = [str(os.getpid()), str(rng.random()), str(least), str(most)]
        process = subprocess.Popen([sys.executable, "-S", "-c", _SENDER, *arguments])
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        stop.set()
        if process is None:
            thread.join()
        else:
            process.kill()
            process.wait()


class _Wrong(list[str]):
    """What was wrong inside of handlers."""

    def unless(self, is_right: bool, what: str) -> None:
        if not is_right:
            self.append(what)


@attack(limit_s=90, in_gate=3)
def handlers(seed: int) -> None:
    """Handlers that run networks, change states, cancel, train and raise: numbers are right, and nobody hangs."""
    rng, wrong = _begin(seed), _Wrong()
    x, m = _batch(rng), renorm.compile(_network(), threads=rng.randint(1, 4))
    (expected,) = renorm.compile(_network(), threads=1).run(x)
    data = np.random.default_rng(seed).standard_normal((64, 3, 16)).astype(np.float32)
    stateful = renorm.compile(running(64, 3, 16), train_state=True, threads=rng.randint(1, 3))
    start = stateful.state.copy()
    (normal,) = stateful.run(data)
    mean = training.moments(data).mean

    def runs() -> None:
        wrong.unless(np.array_equal(m.run(x)[0], expected), "a run")

    def trains() -> None:
        wrong.unless(np.array_equal(training.moments(data).mean, mean), "moments")

    def with_state() -> None:
        stateful.state.update(start)
        wrong.unless(np.array_equal(stateful.run(data)[0], normal), "a run with state")
        wrong.unless(all(np.isfinite(a).all() for a in stateful.state.copy().values()), "a state")

    may_raise = [False]

    def raises() -> None:
        if may_raise[0]:
            may_raise[0] = False
            raise Interrupted

    def interrupted(call: Handler) -> None:
        with suppress(Interrupted):
            may_raise[0] = True
            with suppress(Cancelled, ReentrancyError):
                call()
            may_raise[0] = False

    may = rng.sample([runs, trains, with_state, m.cancel, raises], rng.randint(1, 5))

    def handle() -> None:
        with suppress(ReentrancyError, Cancelled):
            rng.choice(may)()

    others = [
        threading.Thread(target=lambda: [_not_cancelled(runs) for _ in range(30)]) for _ in range(rng.randint(0, 2))
    ]
    with _signals(rng, handle, 1e-4, 10 ** rng.uniform(-3.5, -2)):
        for each in others:
            each.start()
        for _ in range(60):
            interrupted(rng.choice((runs, trains, with_state)))
    for each in others:
        each.join()
    assert not wrong, wrong
    for call in (runs, trains, with_state):
        call()
    assert not wrong, wrong
    _whole()


def _not_cancelled(call: Handler) -> None:
    with suppress(Cancelled):
        call()


def _small(batch: Any) -> Graph:
    g = Graph("small")
    x = g.input("x", "float32", (batch, 8))
    g.outputs = [ops.softmax(ops.relu(x), axis=1)]
    return g


@attack(limit_s=120, in_gate=2)
def compilers(seed: int) -> None:
    """Handlers that compile, or need a new shape, while a network is compiled: all of them are right."""
    rng, wrong = _begin(seed), _Wrong()
    os.environ[SWITCH] = "0"  # LLVM has to be asked
    inputs = {n: np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32) for n in range(1, 9)}
    grows = renorm.compile(_small(Sym("N")), threads=rng.randint(1, 3))

    def right(found: Array, x: Array) -> bool:
        of = np.exp(np.maximum(x, 0).astype(np.float64))
        return np.allclose(found, of / of.sum(1, keepdims=True), rtol=1e-4)

    def compiles() -> None:
        n, x = rng.choice([*inputs.items()])
        wrong.unless(right(renorm.compile(_small(n), threads=rng.randint(1, 3)).run(x)[0], x), f"compiled, {n}")

    def specializes() -> None:
        n, x = rng.choice([*inputs.items()])
        wrong.unless(right(grows.run(x)[0], x), f"specialized, {n}")

    left = [2]

    def handle() -> None:
        if left[0] > 0:
            left[0] -= 1
            with suppress(ReentrancyError):
                rng.choice((compiles, specializes))()

    with _signals(rng, handle, 1e-3, 0.1):
        for _ in range(2):
            rng.choice((compiles, specializes))()
    assert not wrong, wrong
    _whole()
