"""Branches share messages, and fail together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from renorm import training
from renorm.errors import SynchronizationError
from renorm.training.communicators import Array, Communicator


class Counted(Communicator):
    """Counts what goes out of a rank."""

    def __init__(self, comm: Communicator):
        super().__init__(comm.rank, comm.size, comm.timeout)
        self.comm = comm
        self.sent: list[list[str]] = []

    def exchange(self, message: bytes, timeout: float) -> Sequence[bytes]:
        return self.comm.exchange(message, timeout)

    def gather_all(self, items: Sequence[tuple[str, Array]]) -> list[list[Array]]:
        self.sent.append([label for label, _ in items])
        return super().gather_all(items)


def layers(name: str, steps: int, comm: Communicator) -> list[Any]:
    return [comm.gather(f"{name}{k}", np.full(k + 1, comm.rank + k)) for k in range(steps)]


def test_branches_of_unequal_length_cost_as_many_exchanges_as_the_longest() -> None:
    def work(comm: Communicator) -> Any:
        counted = Counted(comm)
        found = training.together(
            counted, lambda c: layers("a", 2, c), lambda c: layers("b", 4, c), lambda c: layers("c", 0, c)
        )
        return counted.sent, found

    for sent, found in training.Threads(3).run(work):
        assert sent == [["a0", "b0"], ["a1", "b1"], ["b2"], ["b3"]]
        assert [len(branch) for branch in found] == [2, 4, 0]
        for branch in found:
            for k, gathered in enumerate(branch):
                assert np.array_equal(gathered, [np.full(k + 1, rank + k) for rank in range(3)])


def test_branches_in_branches() -> None:
    def work(comm: Communicator) -> Any:
        counted = Counted(comm)
        training.together(
            counted,
            lambda c: layers("a", 1, c),
            lambda c: training.together(c, lambda d: layers("b", 1, d), lambda d: layers("c", 2, d)),
        )
        return counted.sent

    assert training.Threads(2).run(work) == [[["a0", "b0", "c0"], ["c1"]]] * 2


def test_branches_see_the_errstate_round_them() -> None:
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        training.together(training.Alone(), lambda _: np.ones(1) / np.zeros(1))


def test_a_branch_that_raises_ends_the_others_here_and_there() -> None:
    ended: list[int] = []

    def fails(comm: Communicator) -> None:
        comm.gather("first", np.zeros(1))
        with comm.guard("second"):
            if comm.rank == 1:
                raise ValueError("of a branch")
            comm.gather("second", np.zeros(1))

    def waits(comm: Communicator) -> None:
        try:
            layers("w", 5, comm)
        finally:
            ended.append(comm.rank)

    def work(comm: Communicator) -> Any:
        with pytest.raises((ValueError, SynchronizationError)) as caught:
            training.together(comm, waits, fails)
        return caught.value

    errors = training.Threads(3).run(work)
    assert isinstance(errors[1], ValueError)
    for error in (errors[0], errors[2]):
        assert "rank 1: ValueError: of a branch (at 'second')" in str(error)
    assert sorted(ended) == [0, 1, 2]


def test_a_branch_may_not_swallow_what_the_other_ranks_must_know() -> None:
    def swallows(comm: Communicator) -> None:
        with suppress(ValueError), comm.guard("first"):
            if comm.rank == 1:
                raise ValueError("of a branch")
            comm.gather("first", np.zeros(1))

    def work(comm: Communicator) -> Any:
        with pytest.raises((ValueError, SynchronizationError), match="of a branch") as caught, comm.guard("outside"):
            training.together(comm, swallows, lambda c: layers("w", 2, c))
        comm.gather("after", np.zeros(1))
        return type(caught.value)

    assert training.Threads(2, timeout=20).run(work) == [SynchronizationError, ValueError]


def test_other_branches_on_other_ranks() -> None:
    def work(comm: Communicator) -> Any:
        names = ("a", "b") if comm.rank else ("b", "a")
        with pytest.raises(SynchronizationError, match="different layers") as caught:
            training.together(comm, *(lambda c, name=name: layers(name, 1, c) for name in names))
        return caught.value.facts

    said = training.Threads(2).run(work)
    assert (
        said[0]
        == said[1]
        == (
            "rank 0: 'b0', int64[1] + 'a0', int64[1]",
            "rank 1: 'a0', int64[1] + 'b0', int64[1]",
        )
    )
