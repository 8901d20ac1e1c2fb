"""Statistics of parts, merged, are those of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from renorm import training
from renorm.errors import SynchronizationError
from renorm.training.merging import Statistics, merge, merged, merged_all, summed


def statistics(x: Any) -> Statistics:
    """Of rows of x, in float64; of none: what a kernel may leave there."""
    if not len(x):
        return Statistics(0, np.full(x.shape[1:], np.nan), np.full(x.shape[1:], np.nan))
    wide = x.astype(np.longdouble)
    mean = wide.mean(0)
    return Statistics(len(x), mean.astype(np.float64), ((wide - mean) ** 2).sum(0).astype(np.float64))


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any),
    ratio=st.sampled_from([0.0, 1.0, 100.0, 1e4, 1e8]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_split_gives_the_statistics_of_the_whole(sizes: list[int], ratio: float, seed: int) -> None:
    x = np.random.default_rng(seed).normal(ratio, 1.0, (sum(sizes), 3))
    parts = np.split(x, np.cumsum(sizes)[:-1])
    count, mean, m2 = merge([statistics(part) for part in parts])
    assert count == len(x)
    whole = statistics(x)
    assert np.abs(mean - whole.mean).max() <= 1e-15 * max(1.0, ratio) * len(sizes)
    # each mean is rounded to float64, by 1e-16 of itself, and that goes in squared or times a distance
    assert np.abs(m2 - whole.m2).max() <= (1e-14 + 1e-15 * ratio) * max(1.0, whole.m2.max()) * len(sizes)


def test_equal_values_have_exactly_that_mean_and_no_variance() -> None:
    part = np.full((7, 2), 0.1)
    count, mean, m2 = merge([Statistics(n, part[0], np.zeros(2)) for n in (3, 1, 5)])
    assert count == 9
    assert np.array_equal(mean, part[0])
    assert np.array_equal(m2, [0.0, 0.0])


def test_single_values_and_empty_ranks() -> None:
    parts = [statistics(np.zeros((0, 1))), statistics(np.array([[3.0]])), statistics(np.array([[5.0]]))]
    assert merge(parts) == (2, [4.0], [2.0])
    nothing = merge(parts[:1])
    assert nothing == (0, [0.0], [0.0])


@pytest.mark.parametrize("order", [0, 1])
def test_infinities_propagate_as_in_numpy(order: int) -> None:
    x = np.array([[1.0, np.inf, np.nan], [2.0, 1.0, 1.0]])[:: 1 - 2 * order]
    with np.errstate(invalid="ignore"):
        parts = [Statistics(1, row, row - row) for row in x]
        expected = x.mean(0), x.var(0) * 2
    _, mean, m2 = merge(parts)
    assert np.array_equal(mean, expected[0], equal_nan=True)
    assert np.array_equal(m2, expected[1], equal_nan=True)


def test_huge_values_do_not_overflow() -> None:
    x = np.array([[1e30], [-1e30], [3e30]])
    _, mean, m2 = merge([statistics(x[:1]), statistics(x[1:])])
    assert mean == pytest.approx(1e30, rel=1e-15)
    assert m2 == pytest.approx(8e60, rel=1e-15)


def test_ranks_have_the_same_bits_in_one_exchange_for_all_layers() -> None:
    rng = np.random.default_rng(3)
    layers = [rng.normal(50, 1, (9, channels)) for channels in (4, 1, 7)]
    ends = [0, 2, 2, 9]

    def work(comm: training.Communicator) -> Any:
        own = [statistics(x[ends[comm.rank] : ends[comm.rank + 1]]) for x in layers]
        one_by_one = [merged(comm, f"layer {i}", *part) for i, part in enumerate(own)]
        at_once = merged_all(comm, [(f"layer {i}", p.count, p.mean, p.m2) for i, p in enumerate(own)])
        sums = summed(comm, "backward", *(np.nan_to_num(part.m2) for part in own[1:]), np.array([float(own[0].count)]))
        return one_by_one, at_once, sums

    results = training.Threads(3).run(work)
    for one_by_one, at_once, sums in results:
        for x, a, b, c in zip(layers, one_by_one, at_once, results[0][0], strict=True):
            assert a.count == b.count == 9
            assert a.mean.tobytes() == b.mean.tobytes() == c.mean.tobytes()
            assert a.m2.tobytes() == b.m2.tobytes() == c.m2.tobytes()
            assert np.allclose(a.mean, x.mean(0), rtol=1e-14)
        assert [s.tobytes() for s in sums] == [s.tobytes() for s in results[0][2]]
        assert sums[2] == 9.0


def test_what_is_no_statistics_is_refused() -> None:
    with pytest.raises(SynchronizationError, match="layer: not the statistics of a batch"):
        merged(training.Alone(), "layer", 3, np.zeros(2), np.zeros(3))
    with pytest.raises(SynchronizationError, match="not the statistics of a batch"):
        merged(training.Alone(), "layer", -1, np.zeros(2), np.zeros(2))
