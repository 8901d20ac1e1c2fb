"""Batch norm over ranks in threads: any split of a batch is the whole batch, and what goes wrong changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.training.faults import FAULTS, check, outcome
from tests.training.splits import Batch, compare, computed, drawn, expected

from renorm import training
from renorm.core.dtypes import numpy_dtype
from renorm.errors import InvalidInput, RenormError, SynchronizationError
from renorm.training.communicators import Communicator


def split(batch: Batch, sizes: Sequence[int], **options: Any) -> list[dict[str, Any]]:
    """What each rank gets that has so many samples."""
    ends = np.cumsum([0, *sizes])
    return training.Threads(len(sizes)).run(
        lambda comm: computed(batch.part(ends[comm.rank], ends[comm.rank + 1]), comm, **options)
    )


MOST = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}  # of the largest value


@given(
    cuts=st.lists(st.integers(0, 5), max_size=4).map(sorted),
    ratio=st.sampled_from([0.0, 1.0, 100.0]),
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(5, 3, 7), (5, 4), (5, 3, 2, 3)]),
    axis=st.integers(-2, 2),
    dtype=st.sampled_from(list(MOST)),
    masked=st.booleans(),
)
@example(cuts=[0, 0, 5], ratio=100.0, seed=0, shape=(5, 3, 7), axis=1, dtype="float32", masked=False)  # empty ranks
@example(cuts=[1, 2, 3, 4], ratio=100.0, seed=1, shape=(5, 4), axis=-1, dtype="float32", masked=True)  # single values
@settings(max_examples=40, deadline=None)  # a size that first comes is compiled
def test_any_split_of_a_batch_is_the_whole_batch(
    cuts: list[int], ratio: float, seed: int, shape: tuple[int, ...], axis: int, dtype: str, masked: bool
) -> None:
    axis = min(axis, len(shape) - 1)
    batch = drawn(seed, shape, ratio, numpy_dtype(dtype), masked)
    ranks = split(batch, np.diff([0, *cuts, 5]).tolist(), axis=axis)
    compare(ranks, expected(batch), MOST[dtype])
    compare(ranks, computed(batch, axis=axis), MOST[dtype])


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 0, 2)])
@pytest.mark.parametrize("convention", ["torch", "tf_fused"])
def test_one_value_per_channel_on_a_rank(sizes: tuple[int, ...], convention: str) -> None:
    batch = drawn(1, (3, 4), 10.0)
    compare(split(batch, sizes, convention=convention), expected(batch))


@pytest.mark.parametrize("sizes", [(2, 3, 1), (1, 5, 0)])
def test_masks(sizes: tuple[int, ...]) -> None:
    batch = drawn(2, (6, 3, 5), 30.0, masked=True)
    batch.mask[2:] &= False  # ranks with samples, none of which counts
    compare(split(batch, sizes), expected(batch))


@pytest.mark.parametrize(("dtype", "most"), [(np.float64, 1e-12), (np.float16, 2e-3)])
def test_dtypes(dtype: Any, most: float) -> None:
    batch = drawn(3, (4, 2, 3, 5), 3.0, dtype)
    whole = expected(batch)
    compare(split(batch, (1, 3)), whole, most)


def test_ranks_of_other_spatial_size() -> None:
    """Samples of one layer need not have one size on all ranks: what counts is the values of a channel."""
    rng = np.random.default_rng(4)
    parts = [rng.normal(5, 2, (n, 3, h, 6)).astype(np.float32) for n, h in ((2, 5), (1, 9), (3, 1))]
    whole = np.concatenate([p.transpose(1, 0, 2, 3).reshape(3, -1) for p in parts], 1).astype(np.float64)
    for mean, var, count in training.Threads(3).run(lambda c: training.moments(parts[c.rank], comm=c)):
        assert count == whole.shape[1]
        assert np.allclose(mean, whole.mean(1), rtol=1e-6, atol=0)
        assert np.allclose(var, whole.var(1), rtol=1e-6, atol=0)


def test_one_collective_forward_and_one_backward() -> None:
    batch = drawn(5, (4, 3, 5), 1.0)

    def work(comm: Communicator) -> list[str]:
        sent: list[str] = []
        original = comm.gather_all

        def counted(items: Any) -> Any:
            sent.extend(label for label, _ in items)
            return original(items)

        comm.gather_all = counted  # pyright: ignore[reportAttributeAccessIssue]
        computed(batch.part(2 * comm.rank, 2 * comm.rank + 2), comm)
        return sent

    for sent in training.Threads(2).run(work):
        kinds = [label.split(" as ")[0].split(",")[0] for label in sent]
        assert kinds == ["batch_norm forward", "batch_norm backward"]


def test_parallel_branches_share_their_collectives() -> None:
    batches = [drawn(6, (4, 3, 5), 1.0), drawn(7, (4, 2), 50.0)]

    def work(comm: Communicator) -> Any:
        parts = [batch.part(comm.rank, comm.rank + 1 if comm.rank < 2 else 4) for batch in batches]
        return training.together(comm, *(lambda c, part=part: computed(part, c) for part in parts))

    results = training.Threads(3).run(work)
    for i, batch in enumerate(batches):
        compare([rank[i] for rank in results], expected(batch))


# what goes wrong


def attempts(n: int, work: Any) -> list[Any]:
    def attempt(comm: Communicator) -> Any:
        try:
            return work(comm)
        except RenormError as error:
            return error

    return training.Threads(n, timeout=60).run(attempt)


@pytest.mark.parametrize(
    "change",
    [
        {"scale": np.ones(4, np.float32)},
        {"x": np.zeros((2, 3, 5), np.int32)},
        {"mask": np.ones((2, 6), bool)},
        {"running_var": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_wrong_on_one_rank_is_told_on_all(change: dict[str, Any]) -> None:
    batch = drawn(8, (6, 3, 5), 1.0)
    running = batch.running_mean.copy(), batch.running_var.copy()
    outs = [np.full((2, 3, 5), 7, np.float32) for _ in range(3)]

    def work(comm: Communicator) -> Any:
        own = batch.part(2 * comm.rank, 2 * comm.rank + 2)
        own = own._replace(**change) if comm.rank == 1 else own
        return training.batch_norm(
            own.x, own.scale, own.bias, own.running_mean, own.running_var, mask=own.mask, comm=comm, out=outs[comm.rank]
        )

    errors = attempts(3, work)
    assert isinstance(errors[1], InvalidInput)
    for error in (errors[0], errors[2]):
        assert isinstance(error, SynchronizationError)
        assert "rank 1 failed" in error.headline
        assert errors[1].headline in str(error)
    assert all((out == 7).all() for out in outs)
    assert np.array_equal(batch.running_mean, running[0])
    assert np.array_equal(batch.running_var, running[1])


def test_other_channels_on_one_rank_is_a_mismatch() -> None:
    errors = attempts(3, lambda comm: training.moments(np.ones((2, 4 if comm.rank == 2 else 3, 5)), comm=comm))
    assert len({str(error) for error in errors}) == 1
    assert "different layers" in errors[0].headline
    assert [fact.split("'")[1] for fact in errors[0].facts] == [
        "moments, 3 channels of float64",
        "moments, 4 channels of float64",
    ]


def test_forward_beside_backward_is_a_mismatch_that_names_the_layers() -> None:
    batch = drawn(9, (2, 3, 5), 1.0)

    def work(comm: Communicator) -> Any:
        if comm.rank == 0:
            return training.batch_norm(batch.x, comm=comm.named("block1.bn2"))
        return training.batch_norm_backward(batch.dy, batch.x, epsilon=1e-5, comm=comm.named("block1.bn3"))

    for error in attempts(2, work):
        assert "'block1.bn2: batch_norm forward as torch (epsilon 1e-05), 3 channels of float32'" in error.facts[0]
        assert "'block1.bn3: batch_norm backward" in error.facts[1]


@pytest.mark.parametrize("name", FAULTS)
def test_what_one_rank_does_wrong_is_an_error_on_all(name: str) -> None:
    check(FAULTS[name], training.Threads(3, timeout=60).run(lambda comm: outcome(comm, FAULTS[name])))


def test_a_rank_that_dies_in_mid_collective_changes_nothing() -> None:
    batch = drawn(10, (4, 3, 5), 1.0)
    outs = [np.full((1, 3, 5), 7, np.float32) for _ in range(3)]

    def work(comm: Communicator) -> Any:
        if comm.rank == 2:
            return None  # does not come
        own = batch.part(comm.rank, comm.rank + 1)
        return training.batch_norm(own.x, running_mean=own.running_mean, running_var=own.running_var,
                                   comm=comm, out=outs[comm.rank])  # fmt: skip

    errors = attempts(3, work)
    for error in errors[:2]:
        assert (
            "rank 2 did not come to 'batch_norm forward as torch (epsilon 1e-05, momentum 0.1), 3 channels of float32'"
            in str(error)
        )
    assert all((out == 7).all() for out in outs)


def test_one_value_in_all_is_refused_on_all_ranks_where_torch_refuses_it() -> None:
    x = np.ones((1, 3), np.float32)
    for error in attempts(3, lambda comm: training.batch_norm(x[: comm.rank == 1], comm=comm)):
        assert isinstance(error, InvalidInput)
        assert "one value per channel" in str(error)


def test_all_ranks_empty() -> None:
    batch = drawn(11, (0, 3, 5), 1.0)
    for r in split(batch, (0, 0)):
        assert r["y"].shape == r["dx"].shape == (0, 3, 5)
        assert np.array_equal(r["running_mean"], batch.running_mean)
        assert np.array_equal(r["running_var"], batch.running_var)
        assert not r["dscale"].any()
        assert not r["dbias"].any()


# the article's two ranks; it prints group statistics, and not the inputs

GROUP_MEAN = np.array([0.45652372, 0.5745423, 0.65629953])
GROUP_VAR = np.array([0.0657616, 0.0710133, 0.00523123])
MOVING_MEAN = np.array([0.7282618, 0.78727114, 0.8281498])
MOVING_VAR = np.array([0.5328808, 0.53550667, 0.50261563])


def test_the_articles_update_from_group_statistics() -> None:
    ones = np.ones(3, np.float32)
    mean, var = training.update(ones, ones, GROUP_MEAN, GROUP_VAR, 8, convention="keras", momentum=0.5)
    assert np.allclose(mean, MOVING_MEAN, rtol=2e-6, atol=0)
    assert np.allclose(var, MOVING_VAR, rtol=2e-6, atol=0)


def test_two_ranks_print_what_the_article_prints() -> None:
    """From inputs (2, 1, 2, 3) on each rank that have these group statistics, but other means on each rank."""
    z = np.random.default_rng(12).standard_normal((2, 2, 1, 2, 3))
    z = (z - z.mean((0, 1, 2, 3))) / z.std((0, 1, 2, 3))
    x = (GROUP_MEAN + np.sqrt(GROUP_VAR) * z).astype(np.float32)
    ones = np.ones(3, np.float32)

    def work(comm: Communicator) -> Any:
        return training.batch_norm(
            x[comm.rank], ones, ones * 0, ones, ones, axis=-1, convention="keras", momentum=0.5, comm=comm
        )

    for r in training.Threads(2).run(work):
        assert r.count == 8, "two ranks of 2 x 1 x 2 values per channel: the divisor, not N * batch_size = 4"
        for found, printed in (
            (r.batch_mean, GROUP_MEAN), (r.batch_var, GROUP_VAR),
            (r.running_mean, MOVING_MEAN), (r.running_var, MOVING_VAR),
        ):  # fmt: skip
            assert np.allclose(found, printed, rtol=2e-6, atol=0)
