"""Kernels whose hot loops spill: refused, lowered again for fewer registers, and right whichever is taken."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

import renorm
from renorm import te
from renorm.core.target import Target, parse
from renorm.driver import cache as caches
from renorm.driver import kernels
from renorm.graph import registry
from renorm.graph.ir import Graph
from renorm.ops.schedules import cpu_rows
from renorm.ops.schedules.tiles import Tile

HOST = parse("llvm")
LANES, REGISTERS = HOST.lanes(4), HOST.vector_registers
ROWS, DEPTH = 3 * REGISTERS, 24
Rows = Callable[[Target], int]


def product() -> Graph:
    rng = np.random.default_rng(0)
    g = Graph("product")
    w = rng.integers(-4, 5, (DEPTH, LANES)).astype(np.float32)
    g.outputs = [renorm.ops.gemm(g.input("x", "float32", (ROWS, DEPTH)), w)]
    return g


def check(module: Any) -> None:
    """Whole numbers, whose sums are exact."""
    x = RNG.integers(-4, 5, (ROWS, DEPTH)).astype(np.float32)
    w = np.random.default_rng(0).integers(-4, 5, (DEPTH, LANES)).astype(np.float32)
    np.testing.assert_array_equal(module.run(x)[0], x @ w)


@pytest.fixture
def tiled() -> Generator[Callable[[Rows], None]]:
    """Has matrix products hold that many accumulators, of one vector each."""

    def override(rows: Rows) -> None:
        def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
            (out,) = outs
            accumulator = s.cache_write(out, "register")
            row, column = s[out].op.axis
            tile, row = s[out].split(row, factor=rows(target))
            s[out].unroll(row)
            s[out].vectorize(column)
            s[accumulator].compute_at(s[out], tile)
            row, column = s[accumulator].op.axis
            s[accumulator].reorder(*s[accumulator].op.reduce_axis, row, column)
            s[accumulator].unroll(row)
            s[accumulator].vectorize(column)

        registry.override("gemm", target="llvm", schedule=schedule)

    yield override
    registry.override("gemm", target="llvm")


def test_a_kernel_that_spills_is_lowered_again(tiled: Callable[[Rows], None]) -> None:
    tiled(lambda target: target.vector_registers + 2)
    module = renorm.compile(product())
    (kernel,) = module.report.kernels
    assert kernel.spills == module.kernel(kernel.name).spills == 0
    assert module.report.code.refused == 1
    assert module.report.code.unique == 1
    check(module)


def test_one_that_does_not_is_left_alone(tiled: Callable[[Rows], None]) -> None:
    seen = list[int]()
    tiled(lambda target: seen.append(target.vector_registers) or 4)
    module = renorm.compile(product())
    assert set(seen) == {REGISTERS}
    assert module.report.code.refused == 0
    check(module)


def test_where_all_spill_the_least_is_taken_and_reported(tiled: Callable[[Rows], None]) -> None:
    tiled(lambda target: 3 * REGISTERS // 2 if target.spare == 0 else REGISTERS + 1 + target.spare)
    module = renorm.compile(product())
    (kernel,) = module.report.kernels
    found = list[int]()
    for spare in (REGISTERS // 16, REGISTERS // 4):
        tiled(lambda target, spare=spare: REGISTERS + 1 + spare)
        (other,) = renorm.compile(product()).report.kernels
        found.append(other.spills)
    assert 0 < kernel.spills == found[0] < found[1]
    assert f"{kernel.spills} spills" in str(module.report)
    check(module)


@pytest.mark.usefixtures("cached")
def test_the_cache_gives_what_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cpu_rows, "choose_tile", lambda pixels, vectors, machine, **_: (Tile(machine.registers + 2, 1), 1.0)
    )
    cold = renorm.compile(product())
    assert (cold.report.code.compiled, cold.report.code.refused) == (1, 1)
    warm = renorm.compile(product())
    assert (warm.report.code.compiled, warm.report.code.refused) == (0, 0)
    (kernel,) = warm.report.kernels
    assert kernel.spills == warm.kernel(kernel.name).spills == 0
    assert warm.kernel(kernel.name).loops == cold.kernel(kernel.name).loops
    check(cold)
    check(warm)


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(caches.SWITCH, "1")
    monkeypatch.setenv(caches.DIRECTORY, str(tmp_path / "cache"))
    monkeypatch.setattr(kernels, "_SOURCES", "sources")  # also while somebody edits them


def test_an_artifact_tells_what_spills(tiled: Callable[[Rows], None], tmp_path: Path) -> None:
    tiled(lambda target: 3 * REGISTERS // 2)
    module = renorm.compile(product())
    module.save(tmp_path / "product.renorm")
    assert module.report.kernels[0].spills > 0
    assert renorm.load(tmp_path / "product.renorm").report.kernels == module.report.kernels
