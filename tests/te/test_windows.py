"""Arguments that lie in a part of a larger array: what they read and write, and that all else stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from tests.te.conftest import Run

import renorm
from renorm import te
from renorm.core.errors import InvalidExpression, InvalidSchedule
from renorm.core.target import Target
from renorm.ops.schedules import cpu_injective
from renorm.tir import interpret


def _strides(shape: tuple[int, ...], gaps: tuple[int, ...]) -> tuple[int, ...]:
    """Of an array of `shape` of which each axis is followed by some elements more."""
    steps, step = list[int](), 1
    for extent, gap in zip(reversed(shape), reversed(gaps)):
        steps.insert(0, step)
        step = step * extent + gap
    return tuple(steps)


def _program(shape: tuple[int, ...], of_x: tuple[int, ...] | None, of_y: tuple[int, ...] | None) -> te.Schedule:
    x = te.placeholder(shape, name="x", strides=of_x)
    z = te.placeholder(shape[1:], name="z")
    y = te.compute(shape, lambda *i: x[i] * 2 + z[i[1:]], name="y")
    s = te.create_schedule(y.op)
    if of_y is not None:
        s[y].store_within(of_y)
    cpu_injective.schedule(s, [y], Target())
    return s


def _check(run: Run, shape: tuple[int, ...], of_x: tuple[int, ...] | None, of_y: tuple[int, ...] | None) -> None:
    s = _program(shape, of_x, of_y)
    y = s.outputs[0].output(0)
    kernel = te.lower(s, [*y.op.input_tensors, y])
    rng = np.random.default_rng(0)
    x, z, held = (rng.standard_normal(p.size).astype(np.float32) for p in kernel.params)
    before = held.copy()
    view_x, view_y, view_before = (
        as_strided(a, shape, [4 * n for n in steps or _strides(shape, (0,) * len(shape))])
        for a, steps in ((x, of_x), (held, of_y), (before, of_y))
    )
    expected = view_x * 2 + z.reshape(shape[1:])
    run(kernel, [x, z, held])
    np.testing.assert_array_equal(view_y, expected)
    view_y[...] = view_before
    np.testing.assert_array_equal(held, before)


GAPS = st.lists(st.sampled_from([0, 0, 1, 5, 16]), min_size=3, max_size=3)


@given(st.tuples(st.integers(1, 4), st.integers(1, 5), st.sampled_from([1, 3, 16, 33])), GAPS, GAPS)
def test_elements_between_are_left_alone(shape: tuple[int, ...], gaps_x: list[int], gaps_y: list[int]) -> None:
    _check(interpret.run, shape, _strides(shape, tuple(gaps_x)), _strides(shape, tuple(gaps_y)))


@pytest.mark.parametrize("gap", [(0, 7, 0), (0, 0, 3), (0, 16, 1)])
@pytest.mark.parametrize("is_read", [False, True])
def test_both_ends(run_on_cpu: Run, gap: tuple[int, ...], is_read: bool) -> None:
    """Enough elements for threads and whole vectors, with tails."""
    shape = (5, 23, 67)
    strides = _strides(shape, gap)
    _check(run_on_cpu, shape, strides if is_read else None, None if is_read else strides)


def test_axes_behind_a_gap_run_over_memory_as_one() -> None:
    shape = (4, 8, 16)
    s = _program(shape, _strides(shape, (0, 64, 0)), _strides(shape, (0, 32, 0)))
    assert s[s.outputs[0].output(0)].joint_axes() == 2
    assert len(s[s.outputs[0].output(0)].leaf_iter_vars) == 3  # the first axis; 8 * 16 elements in blocks of a vector


def test_a_reduction_keeps_its_sums_where_they_end(run_on_cpu: Run) -> None:
    x = te.placeholder((6, 40), name="x")
    k = te.reduce_axis((0, 40), name="k")
    y = te.compute((6,), lambda i: te.sum(x[i, k], axis=k), name="y")
    s = te.create_schedule(y.op)
    s[y].store_within((3,))
    kernel = te.lower(s, [x, y])
    data, held = np.random.default_rng(0).standard_normal(240).astype(np.float32), np.full(16, 7, np.float32)
    run_on_cpu(kernel, [data, held])
    np.testing.assert_allclose(held[::3], data.reshape(6, 40).sum(1), rtol=1e-4)
    assert (np.delete(held, np.arange(0, 16, 3)) == 7).all()


def test_what_is_no_output_has_no_place() -> None:
    x = te.placeholder((4, 4), name="x")
    y = te.compute((4, 4), lambda i, j: x[i, j] + 1, name="y")
    s = te.create_schedule(te.compute((4, 4), lambda i, j: y[i, j] * 2, name="z").op)
    with pytest.raises(InvalidSchedule, match="y cannot be stored within"):
        s[y].store_within((8, 1))


@pytest.mark.parametrize("strides", [(8,), (3, 1), (1, 4), (8, 0), (8, -1), (8, 1, 1)])
def test_strides_that_do_not_belong_to_the_shape(strides: tuple[int, ...]) -> None:
    with pytest.raises(InvalidExpression, match="cannot lie with strides"):
        te.placeholder((4, 4), name="x", strides=strides)


def test_a_kernel_of_its_own_takes_what_holds_an_argument() -> None:
    s = _program((3, 4), (6, 1), (5, 1))
    y = s.outputs[0].output(0)
    x, z, held = np.arange(16, dtype=np.float32), np.ones(4, np.float32), np.zeros(14, np.float32)
    renorm.build(s, [*y.op.input_tensors, y])(x, z, held)
    assert held.tolist() == [1, 3, 5, 7, 0, 13, 15, 17, 19, 0, 25, 27, 29, 31]
