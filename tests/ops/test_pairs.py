"""Sums of products of bfloat16 by instructions on pairs: loops against NumPy in float64 on every machine, by the
interpreter; the code, where the machine has AVX512_BF16; that there is code, everywhere."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import HOST, run_native
from tests.ops.test_matrix_unit import Program, check, numbers

from renorm import te
from renorm.codegen.llvm import assembly, compile_kernel
from renorm.core import machine
from renorm.core.dots import PAIRS
from renorm.core.dtypes import numpy_dtype
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.ops.conv import Conv
from renorm.ops.gemm import Gemm
from renorm.ops.schedules import dot_weights
from renorm.targets import find
from renorm.tir import interpret
from renorm.tir.passes import prepare
from renorm.topi.layout import Blocking

ZEN = find("llvm -mcpu=znver4")


@st.composite
def convolutions(draw: st.DrawFn) -> Program:
    whole = st.integers
    is_blocked = draw(st.booleans())
    channels, results = 16 * draw(whole(1, 3)), 16 * draw(whole(1, 5)) if is_blocked else draw(whole(16, 70))
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (1, 3), (2, 1)]))
    strides, dilations = ((draw(whole(1, 2)), draw(whole(1, 2))) for _ in range(2))
    pads = tuple(draw(whole(0, min(1, n - 1))) for n in kernel * 2)  # else a result may be of nothing but padding
    plane = (draw(whole(2 * kernel[0] - 1, 6)), draw(whole(2 * kernel[1] - 1, 35)))
    rng = np.random.default_rng(draw(whole(0, 2**32)))
    x, w = numbers(rng, draw(whole(1, 2)), channels, *plane), numbers(rng, results, channels, *kernel)
    form = dot_weights.vectors(0, 1, results, channels, 16, ZEN)
    assert form is not None
    blocks, bias = Blocking(((1, 16),), dtype="bfloat16"), rng.standard_normal(results).astype(np.float32)
    y = blocks if is_blocked else Blocking((), dtype="bfloat16")
    op = Conv(strides=strides, pads=pads, dilations=dilations)
    return Program(op, [x, w, bias], blocks, form, y, draw(st.booleans()), ZEN)


@given(convolutions())
@settings(max_examples=8, deadline=None)
def test_convolutions(program: Program) -> None:
    check(program)


@given(
    rows=st.integers(1, 70),
    depth=st.integers(1, 50).map(lambda n: 2 * n),
    columns=st.integers(16, 100),
    data=st.data(),
)
@settings(max_examples=8, deadline=None)
def test_products_of_matrices(rows: int, depth: int, columns: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    form = dot_weights.vectors(1, 0, columns, depth, None, ZEN)
    assert form is not None
    operands = [numbers(rng, rows, depth), numbers(rng, depth, columns), rng.standard_normal(columns).astype("float32")]
    plain = Blocking((), dtype="bfloat16")
    check(Program(Gemm(), operands, plain, form, plain, data.draw(st.booleans()), ZEN))


def test_weights_that_are_no_pairs_are_left_alone() -> None:
    assert dot_weights.vectors(1, 0, 32, 33, None, ZEN) is None
    assert dot_weights.vectors(1, 0, 8, 32, None, ZEN) is None


@pytest.mark.parametrize(
    ("cpu", "gains"),
    [("znver4", True), ("znver5", True), ("cooperlake", True), ("sapphirerapids", False), ("x86-64-v4", False)]
    + [("znver3", False), ("haswell", False)],
)
def test_cpus_on_which_pairs_gain(cpu: str, gains: bool) -> None:
    assert Machine.of(find(f"llvm -mcpu={cpu}")).dots.count(PAIRS) == gains


@pytest.mark.parametrize(
    ("vendor", "family", "model", "has", "gains"),
    [
        ("AuthenticAMD", 26, 68, ZEN.has, True),
        ("AuthenticAMD", 25, 33, find("llvm -mcpu=znver3").has, False),
        ("GenuineIntel", 6, 85, find("llvm -mcpu=cooperlake").has, True),
        ("GenuineIntel", 6, 85, find("llvm -mcpu=cascadelake").has, False),
        ("GenuineIntel", 6, 143, ZEN.has, False),
    ],
)
def test_this_machine_is_told_by_its_maker(vendor: str, family: int, model: int, has: Any, gains: bool) -> None:
    told = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}"
    with mock.patch.object(machine, "host_cpu", return_value=told):
        machine._of.cache_clear()
        assert Machine.of(Target(has=has)).dots.count(PAIRS) == gains
    machine._of.cache_clear()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lanes", [4, 8, 16, 12])
def test_what_there_is_no_instruction_for_runs_as_loops(lanes: int, dtype: str) -> None:
    x, w = te.placeholder((5, 32), dtype, "x"), te.placeholder((16, 2 * lanes, 2), dtype, "w")
    k = te.reduce_axis((0, 32), "k")

    def term(i: Any, j: Any) -> Any:
        return te.sum(x[i, k].astype("float32") * w[k // 2, j, k % 2].astype("float32"), axis=k)

    y = te.compute((5, 2 * lanes), term, name="y")
    s = te.create_schedule(y.op)
    sums = s.cache_write(y, "register")
    s[sums].compute_at(s[y], s[y].op.axis[0])
    vector, lane = s[sums].split(s[sums].op.axis[1], factor=lanes)
    steps, pair = s[sums].split(s[sums].op.reduce_axis[0], factor=2)
    s[sums].reorder(s[sums].op.axis[0], steps, vector, lane, pair)
    s[sums].unroll(vector)
    s[sums].tensorize(lane)
    kernel = prepare(te.lower(s, [x, w, y], name="sums"))
    has_code = dtype == "bfloat16" and lanes != 12
    assert ("vdpbf16ps" in assembly(compile_kernel(kernel, ZEN), ZEN)) is has_code
    rng = np.random.default_rng(0)
    a, b = numbers(rng, 5, 32), numbers(rng, 16, 2 * lanes, 2)
    held = [v.astype(numpy_dtype(dtype)) for v in (a, b)]
    expected = np.einsum("ikp,kjp->ij", a.reshape(5, 16, 2).astype(np.float64), b)
    for run in (interpret.run, lambda k, a: run_native(k, a, HOST)):
        run(kernel, [*held, found := np.zeros((5, 2 * lanes), np.float32)])
        assert np.allclose(found, expected, atol=1e-4)


def test_vectors_beyond_the_last_are_multiplied_as_well() -> None:
    """Tiles of 3 of 5 vectors: regnet_x took 10.4 ms on Zen 4, number by number; 2.9 ms."""
    x, w = te.placeholder((5, 32), "bfloat16", "x"), te.placeholder((5, 16, 16, 2), "bfloat16", "w")
    k = te.reduce_axis((0, 32), "k")

    def term(i: Any, v: Any, j: Any) -> Any:
        return te.sum(x[i, k].astype("float32") * w[v, k // 2, j, k % 2].astype("float32"), axis=k)

    y = te.compute((5, 5, 16), term, name="y")
    s = te.create_schedule(y.op)
    sums = s.cache_write(y, "register")
    rows, vectors, _ = s[y].op.axis
    tiles, _ = s[y].split(vectors, factor=3)
    s[y].reorder(tiles, rows)
    around = s[y].fuse(tiles, rows)
    s[y].parallel(around)
    s[sums].compute_at(s[y], around)
    row, vector, lane = s[sums].op.axis
    steps, pair = s[sums].split(s[sums].op.reduce_axis[0], factor=2)
    s[sums].reorder(row, steps, vector, lane, pair)
    s[sums].unroll(vector)
    s[sums].tensorize(lane)
    kernel = prepare(te.lower(s, [x, w, y], name="sums"))
    code = assembly(compile_kernel(kernel, ZEN), ZEN)
    assert "vdpbf16ps" in code
    assert "vfmadd" not in code
    rng = np.random.default_rng(0)
    a, b = numbers(rng, 5, 32), numbers(rng, 5, 16, 16, 2)
    expected = np.einsum("ikp,vkjp->ivj", a.reshape(5, 16, 2).astype(np.float64), b)
    held = [v.astype(numpy_dtype("bfloat16")) for v in (a, b)]
    for run in (interpret.run, lambda k, a: run_native(k, a, HOST)):
        run(kernel, [*held, found := np.zeros((5, 5, 16), np.float32)])
        assert np.allclose(found, expected, atol=1e-4)
