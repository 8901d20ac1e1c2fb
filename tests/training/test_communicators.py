"""Ranks that meet all get the same; ranks that do not all say who and where, and none waits for ever."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm import training
from renorm.errors import SynchronizationError
from renorm.training import communicators, merging, thread_ranks
from renorm.training.communicators import Communicator


def outcomes(ranks: training.Threads, work: Callable[[Communicator], Any]) -> list[Any]:
    """What each rank's `work` returned or raised."""

    def attempt(comm: Communicator) -> Any:
        try:
            return work(comm)
        except Exception as error:
            return error

    return ranks.run(attempt)


def test_each_rank_gets_all_arrays_in_rank_order() -> None:
    def work(comm: Communicator) -> list[Any]:
        return [comm.gather("a", np.full((2, 3), comm.rank + k, np.float32)) for k in range(5)]

    for per_rank in training.Threads(4).run(work):
        for k, gathered in enumerate(per_rank):
            assert [array.dtype for array in gathered] == [np.float32] * 4
            assert np.array_equal(gathered, [np.full((2, 3), rank + k) for rank in range(4)])


def test_several_arrays_travel_in_one_message() -> None:
    class Counting(thread_ranks._Thread):
        exchanges = 0

        def exchange(self, message: bytes, timeout: float) -> Sequence[bytes]:
            self.exchanges += 1
            return super().exchange(message, timeout)

    room = thread_ranks._Room(2)
    ranks = [Counting(room, rank, 2, 10.0) for rank in range(2)]
    sent = [("a", np.arange(3)), ("b", np.ones((2, 1))), ("c", np.zeros((0, 4), np.float16))]
    got: list[Any] = [None, None]

    def work(rank: int) -> None:
        got[rank] = ranks[rank].gather_all([(label, array + np.asarray(rank, array.dtype)) for label, array in sent])

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for per_item in got:
        for (_, array), (first, second) in zip(sent, per_item, strict=True):
            assert np.array_equal(first, array)
            assert np.array_equal(second, array + 1)
            assert second.dtype == array.dtype
    assert [rank.exchanges for rank in ranks] == [1, 1]


def test_alone_gives_back_what_it_got() -> None:
    comm = training.Alone()
    assert (comm.rank, comm.size) == (0, 1)
    (array,) = comm.gather("a", np.arange(4.0))
    assert np.array_equal(array, np.arange(4.0))


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (("layer 2, forward", np.zeros(3)), "rank 2: 'layer 2, forward', float64[3]"),
        (("layer 1, forward", np.zeros(5)), "rank 2: 'layer 1, forward', float64[5]"),
        (("layer 1, forward", np.zeros(3, np.float32)), "rank 2: 'layer 1, forward', float32[3]"),
    ],
)
def test_ranks_at_different_layers_all_name_both(other: tuple[str, Any], named: str) -> None:
    ranks = training.Threads(3)

    def work(comm: Communicator) -> Any:
        return comm.gather(*other) if comm.rank == 2 else comm.gather("layer 1, forward", np.zeros(3))

    errors = outcomes(ranks, work)
    assert len({str(error) for error in errors}) == 1, "all ranks say the same"
    assert isinstance(errors[0], SynchronizationError)
    assert errors[0].facts == ("ranks 0 and 1: 'layer 1, forward', float64[3]", named)


def test_ranks_go_on_together_after_a_mismatch() -> None:
    def work(comm: Communicator) -> Any:
        with pytest.raises(SynchronizationError, match="different layers"):
            comm.gather(f"layer {comm.rank}", np.zeros(1))
        return comm.gather("layer", np.array([comm.rank]))

    for gathered in training.Threads(3).run(work):
        assert np.array_equal(np.concatenate(gathered), [0, 1, 2])


def test_a_named_layer_is_in_the_error() -> None:
    errors = outcomes(
        training.Threads(2), lambda comm: comm.named(f"stage{comm.rank}.bn").gather("forward", np.zeros(1))
    )
    assert errors[0].facts == ("rank 0: 'stage0.bn: forward', float64[1]", "rank 1: 'stage1.bn: forward', float64[1]")


def test_a_rank_that_raises_first_tells_the_others() -> None:
    def work(comm: Communicator) -> Any:
        with comm.named("bn1").guard("forward"):
            if comm.rank == 1:
                raise ValueError("x has 3 channels")
            comm.named("bn1").gather("forward", np.zeros(2))

    start = time.monotonic()
    errors = outcomes(training.Threads(3), work)
    assert time.monotonic() - start < communicators.FAREWELL
    assert isinstance(errors[1], ValueError)
    for error in (errors[0], errors[2]):
        assert isinstance(error, SynchronizationError)
        assert error.headline.startswith("rank 1 failed")
        assert "rank 1: ValueError: x has 3 channels (at 'bn1: forward')" in error.facts


def test_guards_in_guards_tell_an_error_once() -> None:
    """Round a training, a layer and a call; the ranks meet again afterwards."""

    def call(comm: Communicator, wrapped: bool) -> None:
        try:
            with comm.named("bn1").guard("layer"), comm.guard("call"):
                if comm.rank == 1:
                    raise ValueError("x has 3 channels")
                comm.gather("call", np.zeros(2))
        except (ValueError, SynchronizationError) as error:
            if wrapped:  # as Keras does
                raise ValueError(f"in call(): {error}") from None
            raise

    def work(comm: Communicator) -> Any:
        said = list[str]()
        for wrapped in (False, True):
            with pytest.raises((ValueError, SynchronizationError)) as caught, comm.guard("training"):
                call(comm, wrapped)
            said.append(str(caught.value))
            assert len(comm.gather("after", np.zeros(1))) == 3
        return said

    for rank, said in enumerate(training.Threads(3, timeout=20).run(work)):
        for text in said:
            assert "x has 3 channels" in text
            assert rank == 1 or "rank 1: ValueError: x has 3 channels (at 'call')" in text


def test_an_error_between_layers_is_told_by_the_guard_round_them() -> None:
    def work(comm: Communicator) -> Any:
        with comm.guard("training"):
            comm.gather("bn1", np.zeros(1))
            if comm.rank == 2:
                raise KeyError("user code")
            comm.gather("bn2", np.zeros(1))

    errors = outcomes(training.Threads(3, timeout=20), work)
    assert isinstance(errors[2], KeyError)
    for error in errors[:2]:
        assert "rank 2: KeyError: 'user code' (at 'training')" in error.facts


def test_what_one_rank_cannot_send_is_told_though_it_is_an_error_of_synchronization() -> None:
    def work(comm: Communicator) -> Any:
        with comm.guard("layer"):
            merging.merged(comm, "bn1", -1 if comm.rank == 0 else 1, np.zeros(3), np.zeros(3))

    errors = outcomes(training.Threads(2, timeout=20), work)
    assert "not the statistics of a batch" in errors[0].headline
    assert errors[1].headline.startswith("rank 0 failed")


def test_an_error_of_other_ranks_is_told_to_these() -> None:
    """Two groups: what the ranks of one have all got, those of the other have not."""
    pairs, whole = training.Threads(2, timeout=20), training.Threads(3, timeout=20)

    def work(comm: Communicator) -> Any:
        with comm.guard("outer"):
            if comm.rank < 2:
                pairs[comm.rank].gather(f"layer {comm.rank}", np.zeros(1))
            comm.gather("outer", np.zeros(1))

    errors = outcomes(whole, work)
    assert "different layers" in errors[0].headline
    assert errors[2].headline.startswith("ranks 0 and 1 failed")


def test_a_rank_that_dies_in_mid_exchange_is_named_at_once() -> None:
    """Bare threads, which nobody runs for them: one ends while the others wait."""
    ranks = training.Threads(3, timeout=60)
    errors: list[BaseException] = []

    def waits(comm: Communicator) -> None:
        comm.gather("first", np.zeros(1))
        try:
            comm.gather("bn1", np.zeros(1))
        except SynchronizationError as error:
            errors.append(error)

    def dies(comm: Communicator) -> None:
        comm.gather("first", np.zeros(1))

    threads = [threading.Thread(target=dies if c.rank == 1 else waits, args=(c,)) for c in ranks]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - start < 50
    assert len(errors) == 2
    for error in errors:
        assert "rank 1 did not come to 'bn1'" in str(error)
        assert "rank 1 has ended" in str(error)


def test_run_raises_what_a_rank_raised_and_ends_the_others() -> None:
    def work(comm: Communicator) -> Any:
        if comm.rank == 2:
            raise ZeroDivisionError("of rank 2")
        return comm.gather("bn1", np.zeros(1))

    ranks = training.Threads(3)
    with pytest.raises(ZeroDivisionError, match="of rank 2"):
        ranks.run(work)
    assert len(ranks.run(lambda comm: comm.gather("bn1", np.zeros(1)))) == 3, "and can be run again"


def test_a_timeout_names_who_is_missing_and_the_rest_is_refused() -> None:
    ranks = training.Threads(3, timeout=0.3)
    errors: dict[int, list[str]] = {0: [], 2: []}

    def work(comm: Communicator) -> None:
        for _ in range(2):
            try:
                comm.gather("bn1", np.zeros(1))
            except SynchronizationError as error:
                errors[comm.rank].append(str(error))

    threads = [threading.Thread(target=work, args=(ranks[rank],)) for rank in errors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for first, second in errors.values():
        assert first.startswith("rank 1 did not come to 'bn1' within 0.3 s")
        assert "timeout=" in first
        assert second.startswith("the ranks had lost each other before: rank 1 did not come to 'bn1'")


def test_two_threads_may_not_share_a_rank() -> None:
    ranks = training.Threads(2, timeout=60)
    waits = threading.Thread(target=lambda: ranks[0].gather("a", np.zeros(1)))
    waits.start()
    while not ranks[0]._room._slots:
        time.sleep(0.001)
    with pytest.raises(SynchronizationError, match="two threads use the communicator of rank 0"):
        ranks[0].gather("b", np.zeros(1))
    ranks[1].gather("a", np.zeros(1))
    waits.join()


@pytest.mark.parametrize(("name", "missing"), [("Mpi", "mpi4py"), ("TorchGroup", "torch")])
def test_a_library_that_is_not_there(name: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("renorm.training.mpi", "renorm.training.torch_group"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delitem(vars(training), name, raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SynchronizationError, match=f"training.{name}: .*{missing}") as caught:
        getattr(training, name)
    assert "pip install" in str(caught.value)


def test_what_cannot_travel_or_is_no_number_of_ranks() -> None:
    with pytest.raises(SynchronizationError, match="numbers that NumPy knows"):
        training.Alone().gather("a", np.array(["text"]))
    with pytest.raises(SynchronizationError, match="at least 1, not 0"):
        training.Threads(0)
    with pytest.raises(SynchronizationError, match="positive number of seconds"):
        training.Threads(2, timeout=0)


PROGRAM = ["a", "b", "a", "c"]


@given(
    size=st.integers(2, 4),
    faults=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(["skip", "other", "raise", "return"])),
        min_size=1,
        max_size=3,
    ),
)
@settings(deadline=None)
def test_an_exchange_succeeds_on_all_ranks_or_on_none(size: int, faults: list[tuple[int, int, str]]) -> None:
    """Whatever ranks do wrong, and wherever: nobody waits, and all have taken part in the same exchanges."""
    at = {(rank, step): fault for rank, step, fault in faults}

    def work(comm: Communicator) -> list[Any]:
        done: list[Any] = []
        for step, label in enumerate(PROGRAM):
            fault = at.get((comm.rank, step), "")
            if fault == "return":
                return done
            if fault == "skip":
                continue
            try:
                with comm.guard(label):
                    if fault == "raise":
                        raise ValueError
                    gathered = comm.gather("x" if fault == "other" else label, np.array([10 * comm.rank + step]))
                    done.append([int(array[0]) for array in gathered])
            except (ValueError, SynchronizationError):
                return done
        return done

    start = time.monotonic()
    first, *others = training.Threads(size, timeout=60).run(work)
    assert time.monotonic() - start < 30
    assert all(other == first for other in others)
