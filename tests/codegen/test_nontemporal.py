"""Stores past the caches: a hint that changes no value, at any alignment, with tails, and that travels through text."""

from __future__ import annotations

import numpy as np
import pytest

import renorm
from renorm import te
from renorm.codegen import llvm
from renorm.core import target
from renorm.core.errors import InvalidLoops, InvalidSchedule
from renorm.driver.build import Loops
from renorm.ops import schedules
from renorm.targets import find
from renorm.tir import parse, verify


def scaled(n: int, dtype: str, lanes: int) -> tuple[te.Schedule, list[te.Tensor]]:
    a = te.placeholder((n,), dtype, name="A")
    b = te.compute((n,), lambda i: a[i] + a[i], name="B")
    s = te.create_schedule(b.op)
    block, lane = s[b].split(s[b].op.axis[0], factor=lanes)
    s[b].vectorize(lane)
    s[b].parallel(block)
    s[b].store_past_caches()
    return s, [a, b]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
@pytest.mark.parametrize("lanes", [1, 4, 12, 16, 20, 64])
@pytest.mark.parametrize("n", [64, 257])
def test_values_are_those_of_plain_stores_at_any_address(dtype: str, lanes: int, n: int):
    s, args = scaled(n, dtype, lanes)
    run = renorm.build(s, args)
    x = np.random.default_rng(n).integers(-50, 50, n).astype(dtype)
    memory = np.zeros(n + 128, dtype)
    aligned = -memory.ctypes.data // memory.itemsize % 64
    for start in (aligned, aligned + 1, aligned + 16 // memory.itemsize):
        memory[:] = 7
        run(x, memory[start : start + n])
        np.testing.assert_array_equal(memory[start : start + n], x + x)
        assert (np.delete(memory, np.s_[start : start + n]) == 7).all()


def test_the_hint_reaches_the_machine_and_survives_text():
    s, args = scaled(256, "float32", 16)
    loops = renorm.lower(s, args)
    assert isinstance(loops, Loops)
    assert "nontemporal B[" in str(loops)
    assert str(parse.parse(str(loops))) == str(loops)
    haswell = find("llvm -mcpu=haswell -mtriple=x86_64-unknown-linux-gnu")
    compiled = llvm.compile_kernel(loops.kernel, haswell)
    assert "!nontemporal" in compiled.llvm
    text = llvm.assembly(compiled, haswell)
    assert "vmovntps\t%ymm" in text
    assert "vmovntps\t%xmm" in text  # where memory begins as NumPy's does, 16 bytes behind a line


def test_only_outputs_that_are_no_reductions_can_pass_the_caches():
    a = te.placeholder((8, 8), "float32", name="A")
    b = te.compute((8, 8), lambda i, j: a[i, j] + 1.0, name="B")
    k = te.reduce_axis((0, 8), name="k")
    c = te.compute((8,), lambda i: te.sum(b[i, k], axis=k), name="C")
    s = te.create_schedule(c.op)
    with pytest.raises(InvalidSchedule, match="B cannot be stored past the caches: it is no output"):
        s[b].store_past_caches()
    with pytest.raises(InvalidSchedule, match="C cannot be stored past the caches: it is a reduction"):
        s[c].store_past_caches()


def test_the_verifier_refuses_the_hint_for_memory_that_dies_with_the_kernel():
    body = "allocate T[float32 * 1]\n  nontemporal T[0] = 1f\n  Y[0] = T[0]"
    with pytest.raises(InvalidLoops, match="T is stored to past the caches, but it does not outlive the kernel"):
        verify.verify(parse.parse(f"kernel k(Y: float32[1]) -> (Y) {{\n  {body}\n}}"))


@pytest.mark.parametrize(("rows", "expected"), [(1 << 10, False), (1 << 15, True)])
def test_large_results_pass_the_caches_and_small_ones_do_not(rows: int, expected: bool):
    a = te.placeholder((rows, 512), "float32", name="A")
    b = te.compute(a.shape, lambda i, j: a[i, j] + 1.0, name="B", tag="elemwise")
    s = te.create_schedule(b.op)
    schedules.injective(s, [b], target.parse("llvm"))
    assert ("nontemporal" in str(renorm.lower(s, [a, b]))) is expected


@pytest.mark.parametrize(("width", "expected"), [(1024, True), (1037, False)])
def test_rows_that_end_in_a_part_of_a_vector_are_stored_plainly(width: int, expected: bool):
    a = te.placeholder((1 << 14, width), "float32", name="A")
    scale = te.placeholder((1 << 14,), "float32", name="scale")
    b = te.compute(a.shape, lambda i, j: a[i, j] * scale[i], name="B", tag="broadcast")
    s = te.create_schedule(b.op)
    schedules.injective(s, [b], target.parse("llvm"))
    assert ("nontemporal" in str(renorm.lower(s, [a, scale, b]))) is expected
