"""Attention on a matrix unit: loops against NumPy in float64 on every machine, by the interpreter; the code, where the
machine has AMX; that there is code, everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import HOST, run_native

from renorm import te
from renorm.codegen.llvm import compile_kernel
from renorm.core.dtypes import numpy_dtype
from renorm.core.target import Target
from renorm.ops import schedules
from renorm.ops.attention import Attention
from renorm.targets import find
from renorm.tir import interpret
from renorm.tir.nodes import Allocate, For, Kernel, Store, walk
from renorm.tir.passes import prepare
from renorm.topi import layout
from renorm.topi.layout import Blocking

AMX = find("llvm -mcpu=sapphirerapids")
BF16 = numpy_dtype("bfloat16")
ROUNDED = 2.0**-8  # weights have errors of at most half of that, of which few meet


@dataclass
class Program:
    """q, k, v, held in bfloat16, with or without a mask."""

    op: Attention
    operands: Sequence[Any]

    def lowered(self, target: Target = AMX) -> Kernel:
        placeholders, operands = list[te.Tensor](), list[te.Tensor]()
        for name, array in zip(("q", "k", "v", "mask"), self.operands):
            is_held = name != "mask"
            t = te.placeholder(array.shape, "bfloat16" if is_held else str(array.dtype), name)
            placeholders.append(t)
            operands.append(layout.view(t, array.shape, Blocking((), dtype="bfloat16")) if is_held else t)
        q, k, v, *mask = operands
        y = self.op.compute(q, k, v, mask[0] if mask else None)
        s = te.create_schedule(y.op)
        schedules.schedule(self.op, s, [y], target)
        return prepare(te.lower(s, [*placeholders, y], name="attend"))

    @property
    def arrays(self) -> list[Any]:
        """As memory holds them, amid numbers that must not be read."""
        return [*(_amid_nothing(a.astype(BF16)) for a in self.operands[:3]), *self.operands[3:]]

    def defined(self, op: Attention) -> Any:
        exact = [a if a.dtype == bool else a.astype(np.float64) for a in self.operands]
        with np.errstate(invalid="ignore"):  # of queries that take no key
            return op.reference(*(*exact, None)[:4])


def _amid_nothing(a: Any) -> Any:
    whole = np.full(a.size + 512, np.nan, a.dtype)
    part = whole[256 : 256 + a.size].reshape(a.shape)
    part[...] = a
    return part


def _numbers(rng: np.random.Generator, *shape: int) -> Any:
    """Numbers that bfloat16 has, as float32."""
    return rng.standard_normal(shape).astype(BF16).astype(np.float32)


def _check(program: Program, is_interpreted: bool) -> None:
    kernel = program.lowered()
    stored = {s.buffer.scope for s in walk(kernel.body) if isinstance(s, Store)}
    assert "tile" in stored
    compile_kernel(kernel, AMX)
    rounded = program.defined(program.op)
    exact = program.defined(program.op.with_attributes(multiplied_as=None, in_panels=False))
    most = np.abs(program.operands[2]).max()
    runs: list[Any] = [interpret.run] * is_interpreted
    runs += [lambda k, a: run_native(k, a, HOST, threads=2)] * HOST.has_tiles
    for run in runs:
        out = np.full(exact.shape, np.inf, np.float32)
        run(kernel, [*program.arrays, out])
        assert np.array_equal(np.isnan(out), np.isnan(exact))
        for expected, limit in ((rounded, ROUNDED / 4), (exact, ROUNDED)):
            assert np.nanmax(np.abs(out - expected), initial=0.0) <= limit * most


@st.composite
def programs(draw: st.DrawFn, is_small: bool = False) -> Program:
    groups, each = draw(st.integers(1, 2)), draw(st.integers(1, 1 if is_small else 3))
    b, h = 1 if is_small else draw(st.integers(1, 2)), groups * each
    rows, keys = draw(st.integers(16, 20 if is_small else 70)), draw(st.integers(16, 40 if is_small else 140))
    others = st.sampled_from((18,) if is_small else (32, 64, 80, 128))
    held = draw(st.one_of(st.integers(8, 10 if is_small else 24).map(lambda n: 2 * n), others))
    width = draw(st.one_of(st.integers(16, 20 if is_small else 50), others))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    operands = [_numbers(rng, b, h, rows, held), *(_numbers(rng, b, groups, keys, n) for n in (held, width))]
    shape = tuple(draw(st.sampled_from((1, e))) for e in (b, h, rows, keys))
    kind = draw(st.sampled_from(("none", "added", "infinite", "chosen", "causal")))
    if kind == "added":
        operands.append(rng.standard_normal(shape).astype(np.float32))
    if kind == "infinite":  # some queries may take no key
        operands.append(np.where(rng.random(shape) < 0.3, -np.inf, 0).astype(np.float32))
    if kind == "chosen":
        operands.append(rng.random(shape) < 0.7)
    if kind == "causal":
        operands.append(np.arange(keys) <= np.arange(rows)[:, None])
    flags = {name: draw(st.booleans()) for name in ("nan_is_zero", "empty_is_zero")}
    scale = draw(st.sampled_from((held**-0.5, 0.125, -0.25)))
    return Program(Attention(scale=scale, multiplied_as="bfloat16", in_panels=True, **flags), operands)


@given(programs())
@settings(max_examples=10, deadline=None)
def test_any_size(program: Program) -> None:
    _check(program, is_interpreted=False)


@given(programs(is_small=True))
@settings(max_examples=5, deadline=None)
def test_loops_mean_the_same(program: Program) -> None:
    _check(program, is_interpreted=True)


@pytest.mark.parametrize(("rows", "keys", "held", "width"), [(197, 197, 64, 64), (17, 48, 80, 80), (33, 65, 34, 128)])
def test_sizes_of_networks(rows: int, keys: int, held: int, width: int) -> None:
    rng = np.random.default_rng(rows)
    shapes = (rows, held), (keys, held), (keys, width)
    _check(
        Program(
            Attention(scale=0.125, multiplied_as="bfloat16", in_panels=True),
            [_numbers(rng, *shape) for shape in shapes],
        ),
        is_interpreted=False,
    )


def test_scores_that_differ_by_more_than_exponentials_can_hold() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (_numbers(rng, n, 32) for n in (20, 77, 77))
    _check(Program(Attention(scale=20.0, multiplied_as="bfloat16", in_panels=True), [q, k, v]), is_interpreted=False)


def test_weights_add_up_to_one() -> None:
    """Where all values are the same, so is the mixture, whatever rounding made of weights."""
    rng = np.random.default_rng(0)
    q, k, v = _numbers(rng, 20, 32), _numbers(rng, 77, 32), np.full((77, 16), 1.5, np.float32)
    program = Program(Attention(multiplied_as="bfloat16", in_panels=True), [q, k, v])
    out = np.zeros((20, 16), np.float32)
    interpret.run(program.lowered(), [*program.arrays, out])
    np.testing.assert_allclose(out, 1.5, rtol=1e-6)


def test_scores_stay_in_the_cache_of_a_core() -> None:
    """Of 2 x 1500 x 1500 scores each thread keeps those of one block of queries."""
    operands = [np.zeros((2, 1500, 32), np.float32)] * 3
    kernel = Program(Attention(multiplied_as="bfloat16", in_panels=True), operands).lowered()
    inside = [s for s in walk(kernel.body) if isinstance(s, For) and s.kind == "parallel"][-1]
    kept = sum(s.buffer.nbytes or 0 for s in walk(inside) if isinstance(s, Allocate))
    assert 1500 * 16 * 4 <= kept < 1 << 20  # in two versions, the last one of fewer queries


def test_machines_without_a_unit_run_it_as_loops() -> None:
    rng = np.random.default_rng(0)
    program = Program(Attention(multiplied_as="bfloat16", in_panels=True), [_numbers(rng, 2, 37, 16) for _ in range(3)])
    haswell = find("llvm -mcpu=haswell")
    kernel, out = program.lowered(haswell), np.zeros((2, 37, 16), np.float32)
    compile_kernel(kernel, haswell)
    interpret.run(kernel, [*program.arrays, out])
    assert np.abs(out - program.defined(program.op)).max() < ROUNDED
