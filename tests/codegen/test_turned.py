"""Rows of float32 that are turned round in registers: any rows and columns, against NumPy, and that there is code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import HOST, run_native

from renorm import te
from renorm.codegen.llvm import assembly, compile_kernel
from renorm.targets import find
from renorm.tir import interpret
from renorm.tir.nodes import Kernel
from renorm.tir.passes import prepare

NARROW = find("llvm -mcpu=haswell")


def turned(rows: int, columns: int, lanes: int, each: int, factor: float | None, at_once: int = 0) -> Kernel:
    """x[j, k] of `rows` x `columns` becomes y[k, j], lanes x each at a time. at_once: rows that one thread takes."""
    x = te.placeholder((rows, columns), "float32", "x")
    y = te.compute((columns, rows), lambda k, j: x[j, k] if factor is None else x[j, k] * factor, name="y")
    s = te.create_schedule(y.op)
    k, j = s[y].op.axis
    block, j = s[y].split(j, factor=at_once or rows)
    s[y].parallel(block)
    few, lane = s[y].split(j, factor=lanes)
    k, inner = s[y].split(k, factor=each)
    s[y].reorder(block, few, k, lane, inner)
    s[y].tensorize(lane)
    return prepare(te.lower(s, [x, y], name="turned"))


def is_made_of_vectors(kernel: Kernel) -> bool:
    code = assembly(compile_kernel(kernel, NARROW), NARROW)
    return "vshufps" in code and "vmovss" not in code and "vextractps" not in code


def check(kernel: Kernel, rows: int, columns: int, factor: float | None) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    for run in (interpret.run, lambda k, a: run_native(k, a, HOST)):
        run(kernel, [x, y := np.full((columns, rows), 7, np.float32)])
        np.testing.assert_array_equal(y, x.T * np.float32(1 if factor is None else factor))


@given(
    rows=st.integers(1, 40),
    each=st.sampled_from((2, 4, 8, 16)),
    times=st.integers(1, 3),
    lanes=st.sampled_from((4, 8, 16, 32)),
    factor=st.sampled_from((None, 0.125, -3.0)),
    at_once=st.sampled_from((0, 8, 16, 24)),
)
@settings(max_examples=40, deadline=None)
def test_any_size(rows: int, each: int, times: int, lanes: int, factor: float | None, at_once: int) -> None:
    check(turned(rows, each * times, lanes, each, factor, at_once), rows, each * times, factor)


@pytest.mark.parametrize("factor", [None, 0.5])
def test_whole_tiles_are_made_of_vectors(factor: float | None) -> None:
    assert is_made_of_vectors(turned(32, 16, 8, 8, factor))


def test_what_is_no_copy_of_rows_runs_as_loops() -> None:
    x = te.placeholder((16, 16), "float32", "x")
    y = te.compute((16, 16), lambda k, j: x[j, k] + 1.0, name="y")
    s = te.create_schedule(y.op)
    k, j = s[y].op.axis
    s[y].reorder(j, k)
    s[y].tensorize(j)
    kernel, held = prepare(te.lower(s, [x, y], name="sums")), np.arange(256, dtype=np.float32).reshape(16, 16)
    run_native(kernel, [held, found := np.zeros((16, 16), np.float32)], HOST)
    np.testing.assert_array_equal(found, held.T + 1)
