"""Forks at random moments of what other threads do: the child can do all of it too, and its results are right."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from tests.stress._children import in_child
from tests.stress.attack import attack

import renorm
from renorm import training

Array = np.ndarray[Any, Any]
Work = Callable[[random.Random], None]


def _affine(extent: str) -> Any:
    from tests.frontends.models import model  # what imports onnx is attacked too

    return model(f"affine (float[{extent}, 8] x) => (float[{extent}, 8] y) {{ a = Add (x, x) y = Relu (a) }}")


def _drawn(rng: random.Random, *shape: int) -> Array:
    return np.random.default_rng(rng.randrange(1 << 30)).standard_normal(shape).astype(np.float32)


def _compiles(rng: random.Random) -> None:
    n = rng.randrange(1, 50)
    x = _drawn(rng, n, 8)
    np.testing.assert_array_equal(renorm.compile(_affine(str(n)), threads=2).run(x)[0], np.maximum(x + x, 0))


@cache
def _open() -> Any:
    return renorm.compile(_affine("n"), threads=2)


def _specializes(rng: random.Random) -> None:
    x = _drawn(rng, rng.randrange(1, 200), 8)
    np.testing.assert_array_equal(_open().run(x)[0], np.maximum(x + x, 0))


@cache
def _stateful() -> Any:
    from tests.frontends.models import running

    return renorm.compile(running(64, 3, 16), train_state=True, threads=2)


def _runs_with_state(rng: random.Random) -> None:
    """Whatever it was before: after thirty runs on one batch the state is that batch's."""
    m, x = _stateful(), _drawn(rng, 64, 3, 16)
    with _alone:
        for _ in range(30):
            m.run(x)
        m.state.update(after := m.state.copy())
    np.testing.assert_allclose(after["m"], x.mean((0, 2)), atol=1e-5)
    np.testing.assert_allclose(after["v"], x.var((0, 2)), atol=1e-5)


def _trains(rng: random.Random) -> None:
    x = _drawn(rng, rng.randrange(2, 40), 3).astype(np.float64)
    found = training.moments(x)
    np.testing.assert_allclose(found.mean, x.mean(0), atol=1e-12)
    np.testing.assert_allclose(found.var, x.var(0), atol=1e-12)


_WORK: tuple[Work, ...] = (_compiles, _specializes, _runs_with_state, _trains)
_alone = threading.RLock()  # of who looks at the state over several runs


@attack(limit_s=240, in_gate=3)
def at_work(seed: int) -> None:
    """A child that is made while threads compile, specialise, run with state and train does all of that, right."""
    global _alone
    rng = random.Random(seed)
    os.environ["RENORM_CACHE"] = "0"  # LLVM has to be asked
    _compiles(rng)  # imports are the other attack's
    stop, errors = threading.Event(), list[BaseException]()

    def repeat(work: Work, own: random.Random) -> None:
        try:
            while not stop.is_set():
                work(own)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=repeat, args=(w, random.Random(rng.random())), daemon=True)
        for w in rng.sample(_WORK, rng.randrange(1, 3))
    ]
    for thread in threads:
        thread.start()

    def all_of_it() -> None:
        global _alone
        _alone = threading.RLock()  # not renorm's
        for work in rng.sample(_WORK, len(_WORK)):
            work(rng)

    try:
        for _ in range(2):
            time.sleep(rng.random() * 0.3)
            in_child(all_of_it, 100)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors, errors


@attack(limit_s=240, in_gate=1)
def at_first_use(seed: int) -> None:
    """A child that is made while a thread imports what compiles, and compiles for the first time, can do so too."""
    assert "renorm.driver.compile" not in sys.modules
    in_child(lambda: _at_first_use(random.Random(seed)), 220)


def _at_first_use(rng: random.Random) -> None:
    os.environ["RENORM_CACHE"] = "0"
    threading.Thread(target=rng.choice(_WORK), args=(random.Random(rng.random()),), daemon=True).start()
    time.sleep(rng.random() * 1.5)
    in_child(lambda: [work(rng) for work in _WORK], 100)
