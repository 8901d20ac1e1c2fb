"""Ranks and branches for which the system has no thread: nobody waits for them, and the error says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from renorm import training
from renorm.errors import SynchronizationError

X = np.arange(24.0).reshape(8, 3)


@pytest.fixture
def threads_left(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets the system have so many threads left."""

    def threads_left(count: int) -> None:
        start = threading.Thread.start

        def few(thread: threading.Thread) -> None:
            nonlocal count
            count -= 1
            if count < 0:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", few)

    return threads_left


@pytest.mark.parametrize("left", [0, 1, 2])
def test_ranks(threads_left: Callable[[int], None], left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, since = training.Threads(3), time.monotonic()
    threads_left(left)
    with pytest.raises(SynchronizationError, match=f"rank {left} of 3 cannot start: the system gives no more threads"):
        ranks.run(lambda comm: training.moments(X[3 * comm.rank :][:3], comm=comm))
    assert time.monotonic() - since < 60  # 300 is how long a rank waits for others
    monkeypatch.undo()
    found = ranks.run(lambda comm: training.moments(X[3 * comm.rank :][:3], comm=comm))
    np.testing.assert_allclose(found[0].mean, X.mean(0))


def test_branches(threads_left: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def branch(comm: training.Communicator) -> object:
        return training.moments(X, comm=comm)

    (alone,) = training.Threads(1)
    before = threading.active_count()
    threads_left(1)  # for the first branch of two
    with pytest.raises(SynchronizationError, match="a branch cannot start: the system gives no more threads"):
        training.together(alone, branch, branch)
    monkeypatch.undo()
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() == before  # the first branch has been given up
