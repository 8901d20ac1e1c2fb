"""te.extern: loops that are given, at any extents, in every form that a kernel takes, and what schedules may not do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG
from tests.te.conftest import Run

import renorm
from renorm import te
from renorm.core.errors import InvalidExpression, InvalidLoops, InvalidSchedule
from renorm.targets import find
from renorm.te import interpret
from renorm.te.given_loops import Array, Loops
from renorm.te.text import show
from renorm.tir import parse
from renorm.tir.passes import prepare
from renorm.tir.verify import verify


def positions(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
    """Of each row the places of what is positive, in their order, then -1."""
    (x,) = inputs
    row = loops.round
    found = loops.allocate((1,), "int32", "found")
    found[0] = 0
    with loops.for_range(0, x.shape[1]) as i, loops.if_scope(x[row, i] > 0):
        at = loops.let(found[0], "at")
        with loops.if_scope(at >= 0, at < output.shape[1]):
            output[row, at] = i
        found[0] = at + 1
    end = loops.let(found[0], "end")
    with loops.if_scope(end >= 0), loops.for_range(end, output.shape[1]) as i:
        output[row, i] = -1


def positive(x: te.Tensor, most: Any) -> te.Tensor:
    return te.extern((x.shape[0], most), [x], positions, name="places", dtype="int32", rounds=x.shape[0])


def expected(x: np.ndarray[Any, Any], most: int) -> np.ndarray[Any, Any]:
    rows = np.full((x.shape[0], most), -1, np.int32)
    for row, found in zip(rows, (np.flatnonzero(r > 0)[:most] for r in x)):
        row[: found.size] = found
    return rows


def open_program() -> tuple[te.Schedule, list[te.Tensor], list[Any]]:
    """Given loops between two computes, over open extents, of which one is no product."""
    n, m, k = te.var("n"), te.var("m"), te.var("k")
    x = te.placeholder((n, m), name="x")
    padded = te.compute((n, m + 3), lambda i, j: te.if_then_else(j < m, x[i, te.min(j, m - 1)], 1.0), name="padded")
    found = positive(padded, k)
    y = te.compute((n, k), lambda i, j: found[i, j] * 2, name="y")
    s = te.create_schedule(y.op)
    s[found].parallel(found.op.axis[0])
    return s, [x, y], [n, m, k]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 2), (4, 7, 9), (2, 33, 36)], ids=str)
def test_one_kernel_serves_all_extents(sizes: tuple[int, int, int]) -> None:
    n, m, k = sizes
    s, args, _ = open_program()
    double = renorm.build(s, args, name="double")
    x, y = RNG.standard_normal((n, m)).astype(np.float32), np.zeros((n, k), np.int32)
    double(x, y)
    wanted = expected(np.concatenate([x, np.ones((n, 3), np.float32)], 1), k) * 2
    np.testing.assert_array_equal(y, wanted)


def test_a_program_at_known_extents_is_the_same(run_on_cpu: Run) -> None:
    s, args, (n, m, k) = open_program()
    s, (x, y) = te.specialize(s, args, {n: 3, m: 6, k: 4})
    kernel = te.lower(s, [x, y])
    verify(kernel)
    assert str(parse.parse(str(kernel))) == str(kernel)
    data = RNG.standard_normal((3, 6)).astype(np.float32)
    wanted = expected(np.concatenate([data, np.ones((3, 3), np.float32)], 1), 4) * 2
    for program in (kernel, prepare(kernel)):
        result = np.zeros((3, 4), np.int32)
        run_on_cpu(program, [data, result])
        np.testing.assert_array_equal(result, wanted)
    np.testing.assert_array_equal(interpret.run([y], {x: data})[0], wanted)
    assert "places: i32[3, 4]   extern(padded)" in show([y])


def test_rounds_run_in_threads_of_a_gpu(run: Run) -> None:
    x = te.placeholder((5, 9), name="x")
    y = positive(x, 4)
    s = te.create_schedule(y.op)
    block, thread = s[y].split(y.op.axis[0], factor=2)
    s[y].bind(block, te.thread_axis("blockIdx.x"))
    s[y].bind(thread, te.thread_axis("threadIdx.x"))
    kernel = te.lower(s, [x, y])
    verify(kernel, find("cuda -arch=sm_80"))
    data, result = RNG.standard_normal((5, 9)).astype(np.float32), np.zeros((5, 4), np.int32)
    run(prepare(kernel), [data, result])
    np.testing.assert_array_equal(result, expected(data, 4))
    assert "places" in renorm.build(s, [x, y], target="cuda -arch=sm_90").imported_modules[0].get_source()


def test_arrays_lie_within_others(run_on_cpu: Run) -> None:
    x = te.placeholder((3, 4), name="x", strides=(6, 1))
    y = positive(x, 2)
    s = te.create_schedule(y.op)
    s[y].store_within((5, 1))
    kernel = te.lower(s, [x, y])
    verify(kernel)
    data, result = RNG.standard_normal((3, 6)).astype(np.float32), np.full((3, 5), 7, np.int32)
    run_on_cpu(kernel, [data, result])
    np.testing.assert_array_equal(result[:, :2], expected(data[:, :4], 2))
    assert (result[:2, 2:] == 7).all()


def test_what_loops_store_twice_takes_no_memory_of_what_they_read(run_on_cpu: Run) -> None:
    """An element is stored in every round, from what is read at the same place: of a compute that would be in place."""

    def summed(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        (x,) = inputs
        with loops.for_range(0, 3), loops.for_range(0, x.shape[0], "j") as j:
            output[j] = x[j] + 1

    x = te.placeholder((4,), name="x")
    twice = te.compute((4,), lambda i: x[i] * 2, name="twice")
    more = te.extern((4,), [twice], summed)
    y = te.compute((4,), lambda i: more[i] * 2, name="y")
    s = te.create_schedule(y.op)
    te.schedule.AutoInlineInjective(s)  # neither inlines loops that are given nor what they read
    kernel = te.lower(s, [x, y])
    data, result = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    run_on_cpu(kernel, [data, result])
    np.testing.assert_array_equal(result, (data * 2 + 1) * 2)


def test_an_access_that_nothing_guards_is_no_program() -> None:
    def careless(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        (x,) = inputs
        with loops.for_range(0, x.shape[0]) as i:
            output[x[i]] = i

    x = te.placeholder((4,), "int32", name="x")
    y = te.extern((4,), [x], careless)
    with pytest.raises(InvalidLoops, match=r"may be outside its 4 elements.*must be clamped"):
        verify(te.lower(te.create_schedule(y.op), [x, y]))


def test_a_loop_that_ends_at_a_number_in_memory_is_inside(run_on_cpu: Run) -> None:
    def copied(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        x, count = inputs
        with loops.for_range(0, output.shape[0]) as i:
            output[i] = 0
        end = loops.let(count[0], "end")
        with loops.if_scope(end <= x.shape[0]), loops.for_range(0, end) as i:
            output[i] = x[i]

    n = te.var("n")
    for extent in (n, 5):
        x, count = te.placeholder((extent,), name="x"), te.placeholder((1,), "int32", name="count")
        y = te.extern((extent,), [x, count], copied)
        verify(te.lower(te.create_schedule(y.op), [x, count, y]))
    kernel = te.lower(te.create_schedule(y.op), [x, count, y])
    for end in (-3, 0, 2, 5, 6):
        result = np.zeros(5, np.float32)
        run_on_cpu(kernel, [np.arange(1, 6, dtype=np.float32), np.array([end], np.int32), result])
        wanted = [i + 1 if i < end <= 5 else 0 for i in range(5)]
        np.testing.assert_array_equal(result, wanted)


REFUSED: dict[str, Callable[[te.Schedule, te.Tensor, te.Tensor, te.Tensor], Any]] = {
    "vectorize": lambda s, x, y, z: s[y].vectorize(y.op.axis[0]),
    "compute_inline": lambda s, x, y, z: s[y].compute_inline(),
    "compute_at": lambda s, x, y, z: s[y].compute_at(s[z], z.op.axis[0]),
    "set_scope": lambda s, x, y, z: s[y].set_scope("local"),
    "store_root": lambda s, x, y, z: s[y].store_root(),
    "store_past_caches": lambda s, x, y, z: s[y].store_past_caches(),
    "cache_read": lambda s, x, y, z: s.cache_read(x, "global", [y]),
    "cache_write": lambda s, x, y, z: s.cache_write(y, "global"),
    "rfactor": lambda s, x, y, z: s.rfactor(y, y.op.axis[0]),
    "redefine": lambda s, x, y, z: s[y].redefine(lambda op: op.body),
}


@pytest.mark.parametrize("primitive", REFUSED)
def test_primitives_of_formulas_are_refused(primitive: str) -> None:
    x = te.placeholder((3, 4), name="x")
    y = positive(x, 2)
    z = te.compute(y.shape, lambda i, j: y[i, j] + 1, name="z")
    with pytest.raises(InvalidSchedule, match=f"{primitive} of te.extern, whose loops are given"):
        REFUSED[primitive](te.create_schedule(z.op), x, y, z)


def test_what_it_reads_is_an_array() -> None:
    x = te.placeholder((3, 4), name="x")
    twice = te.compute(x.shape, lambda i, j: x[i, j] * 2, name="twice")
    y = positive(twice, 2)
    s = te.create_schedule(y.op)
    s[twice].compute_inline()
    with pytest.raises(InvalidSchedule, match="twice is inlined, but places"):
        te.lower(s, [x, y])


def test_extents_come_from_the_arrays() -> None:
    n = te.var("n")
    x = te.placeholder((4,), name="x")

    def of_another(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        with loops.for_range(0, n) as i:
            output[te.min(i, 3)] = 0

    with pytest.raises(InvalidExpression, match="the body uses the extents n"):
        te.extern((4,), [x], of_another)
    with pytest.raises(InvalidExpression, match="is indexed by 2 numbers"):
        te.extern((4,), [x], lambda loops, inputs, output: loops.let(inputs[0][0, 1]))
    with pytest.raises(InvalidExpression, match="is float32, not an integer"):
        te.extern((4,), [x], lambda loops, inputs, output: loops.let(inputs[0][inputs[0][0]]))
    with pytest.raises(InvalidExpression, match="it needs a dtype"):
        te.extern((4,), [], lambda loops, inputs, output: None)
