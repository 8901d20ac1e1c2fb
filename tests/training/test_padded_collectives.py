"""Messages of any length over collectives that take one length, on an engine that insists on that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from renorm import training
from renorm.errors import SynchronizationError
from renorm.training import padded_collectives
from renorm.training.communicators import Communicator
from renorm.training.padded_collectives import Bytes, Framed


class Strict(Framed):
    """Frames through Threads; other lengths on other ranks are an error there."""

    _engine = "Strict"

    def __init__(self, comm: Communicator, timeout: float = 30.0):
        super().__init__(comm.rank, comm.size, timeout)
        self.comm = comm
        self.lengths: list[int] = []

    def start(self, frame: Bytes) -> Any:
        self.lengths.append(len(frame))
        return Done(np.stack(self.comm.gather("frame", frame)))

    def call(self) -> None: ...

    def present(self) -> set[int]:
        return set(range(self.size))


class Done:
    def __init__(self, found: Bytes):
        self.found = found

    def is_done(self) -> bool:
        return True

    def frames(self) -> Bytes:
        return self.found


def on(n: int, work: Callable[[Strict], Any]) -> list[Any]:
    return training.Threads(n).run(lambda comm: work(Strict(comm)))


def test_one_collective_for_each_exchange_from_the_second_step_on() -> None:
    sizes = [10, 3000, 10, 50_000, 10, 700]  # layers with one name, as of one kind, are followed by various lengths

    def work(comm: Strict) -> list[int]:
        counts: list[int] = []
        for _ in range(3):
            before = len(comm.lengths)
            for size in sizes:
                for rank, array in enumerate(comm.gather("layer", np.full(size, comm.rank))):
                    assert np.array_equal(array, np.full(size, rank))
            counts.append(len(comm.lengths) - before)
        return counts

    for counts in on(3, work):
        assert counts[0] > len(sizes), "the first step learns how long messages are"
        assert counts[1:] == [len(sizes)] * 2


def test_small_messages_stay_small_beside_long_ones() -> None:
    def work(comm: Strict) -> list[int]:
        for _ in range(3):
            comm.gather("small", np.zeros(10))
            comm.gather("long", np.zeros(10_000))
        return comm.lengths[-2:]

    for small, long in on(2, work):
        assert small <= 8 + padded_collectives._SMALLEST
        assert long > 80_000


@given(lengths=st.lists(st.tuples(*[st.integers(0, 3000)] * 3), min_size=1, max_size=5))
def test_messages_of_other_lengths_on_each_rank_arrive_whole(lengths: list[tuple[int, int, int]]) -> None:
    def work(comm: Strict) -> None:
        for step, sizes in enumerate(lengths):
            messages = [b"%d %d\n" % (step, rank) + bytes([rank + 1]) * size * 7 for rank, size in enumerate(sizes)]
            assert comm.exchange(messages[comm.rank], 30.0) == messages

    on(3, work)


def test_layers_of_other_length_are_a_mismatch_and_no_broken_collective() -> None:
    def work(comm: Strict) -> None:
        comm.gather("warm", np.zeros(3))
        with pytest.raises(SynchronizationError, match="different layers"):
            comm.gather("layer", np.zeros(3 + 10_000 * comm.rank))
        assert len(comm.gather("layer", np.zeros(3))) == 3

    on(3, work)


def test_what_the_engine_says_is_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Strict):
        def start(self, frame: Bytes) -> Any:
            raise OSError("cable is cut")

        def present(self) -> set[int]:
            return {0}

    monkeypatch.setattr(padded_collectives, "GRACE", 0.05)
    with pytest.raises(SynchronizationError) as caught:
        Broken(training.Threads(2)[0]).gather("bn1", np.zeros(1))
    assert "rank 1 did not come to 'bn1'" in str(caught.value)
    assert "Strict says: cable is cut" in str(caught.value)
