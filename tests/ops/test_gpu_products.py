"""Matrix products on GPUs: tiles, parts of sums and few rows give NumPy's results, run as CUDA C on the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.gpu.host_assembler import needs_compiler
from tests.gpu.host_device import run

import renorm
from renorm import te, topi
from renorm.codegen.cuda.source import generate
from renorm.core.dtypes import numpy_dtype
from renorm.core.gpu import facts
from renorm.core.target import parse
from renorm.ops.schedules import gpu_few, gpu_products, gpu_stages
from renorm.ops.schedules.gpu_tiles import Tile, choose
from renorm.tir import interpret
from renorm.topi import layout

TARGET = parse("cuda -arch=sm_90")
TILES = {
    "wide": Tile(8, 8, 2, 2),
    "parts": Tile(4, 4, 2, 4, depth=16, parts=2),
    "narrow": Tile(2, 1, 4, 8, depth=32),
    "ahead": Tile(4, 4, 4, 8, is_ahead=True),
    "chosen": None,
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size are products."""
    monkeypatch.setattr(gpu_stages, "LEAST_WORK", 0)


def scheduled(outs: Sequence[te.Tensor], tile: Tile | None, monkeypatch: pytest.MonkeyPatch) -> te.Schedule:
    s = te.create_schedule([t.op for t in outs])
    if tile is not None:
        monkeypatch.setattr(gpu_products, "choose", lambda *_: tile)
        monkeypatch.setattr(gpu_few, "takes", lambda _: False)
    gpu_products.schedule(s, outs, TARGET)
    return s


def operands(
    m: int, n: int, k: int, turned: tuple[bool, bool], batch: tuple[int, ...] = (), dtype: str = "float32"
) -> list[te.Tensor]:
    shapes = ((k, m) if turned[0] else (m, k)), ((n, k) if turned[1] else (k, n))
    return [te.placeholder((*batch, *shape), name=name, dtype=dtype) for name, shape in zip("AB", shapes)]


def assert_gives(
    s: te.Schedule,
    args: Sequence[te.Tensor],
    reference: Callable[..., Any],
    outs: int = 1,
    runner: Any = run,
    rtol: float = 1e-5,
) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, size=t.shape).astype(numpy_dtype(t.dtype)) for t in args]
    for a in arrays[len(arrays) - outs :]:
        a[...] = 99
    runner(te.lower(s, args), arrays)
    found = reference(*(a.astype(np.float64) for a in arrays[: len(arrays) - outs]))
    for a, expected in zip(arrays[len(arrays) - outs :], found if outs > 1 else [found], strict=True):
        np.testing.assert_allclose(a.astype(np.float64), expected, rtol=rtol, atol=rtol)


def product_of(turned: tuple[bool, bool]) -> Callable[..., Any]:
    return lambda a, b: (a.swapaxes(-1, -2) if turned[0] else a) @ (b.swapaxes(-1, -2) if turned[1] else b)


@needs_compiler
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", [(16, 32, 32), (17, 35, 19), (8, 20, 1), (5, 4, 64)])
def test_products(
    shape: tuple[int, int, int], tile: str, turned: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = operands(*shape, turned)
    y = topi.matmul(a, b, turned[0], turned[1])
    assert_gives(scheduled([y], TILES[tile], monkeypatch), [a, b, y], product_of(turned))


@needs_compiler
@pytest.mark.parametrize("tile", TILES)
def test_batches_and_loops(tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops themselves too, without CUDA C."""
    for runner in (run, interpret.run):
        a, b = operands(9, 13, 21, (False, True), batch=(2, 3))
        y = topi.matmul(a, b, False, True)
        s = scheduled([y], TILES[tile], monkeypatch)
        assert_gives(s, [a, b, y], product_of((False, True)), runner=runner)


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 20, 128), (20, 1, 128), (1, 1, 40), (9, 13, 21)])
def test_more_matrices_than_a_grid_has_blocks_along_y(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks lie along x."""
    monkeypatch.setattr(gpu_stages, "MOST_BLOCKS", 2)
    a, b = operands(*shape, (False, True), batch=(5,))
    y = topi.matmul(a, b, False, True)
    s = scheduled([y], None, monkeypatch)
    (launch,) = generate(te.lower(s, [a, b, y]), TARGET).launches
    assert launch.grid[1:] == (1, 1)
    assert launch.grid[0] >= 5
    assert_gives(s, [a, b, y], product_of((False, True)))


@needs_compiler
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("shape", [(1, 20, 128), (3, 17, 100), (20, 2, 70), (1, 9, 2048), (8, 40, 64)])
def test_few_rows_or_columns(
    shape: tuple[int, int, int], turned: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = operands(*shape, turned)
    bias = te.placeholder((shape[1],), name="bias")
    y = topi.matmul(a, b, turned[0], turned[1])
    z = te.compute(y.shape, lambda i, j: te.max(y[i, j] + bias[j], 0.0), name="z")
    product = gpu_stages.contraction(y)
    assert product is not None
    assert gpu_few.takes(product)
    s = scheduled([z], None, monkeypatch)
    assert_gives(s, [a, b, bias, z], lambda a, b, c: np.maximum(product_of(turned)(a, b) + c, 0))
    assert_gives(scheduled([y], None, monkeypatch), [a, b, y], product_of(turned))


@needs_compiler
def test_views_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight in one block, whose rows of terms lie one after the other; a matrix that is turned before."""
    m, n, k = 19, 35, 24
    a, held = te.placeholder((k, m), name="A"), te.placeholder((1, k, 36), name="B")
    form = layout.Blocking(((0, 36),), 0)
    turned = te.compute((m, k), lambda i, j: a[j, i], name="turned")
    y = topi.matmul(turned, layout.view(held, (n, k), form), False, True)
    product = gpu_stages.contraction(y)
    assert product is not None
    assert all(product.is_plain(role) and not product.runs_along_terms(role) for role in ("rows", "columns"))
    s = scheduled([y], TILES["parts"], monkeypatch)
    assert_gives(s, [a, held, y], lambda a, b: a.T @ b[0, :, :n])


@needs_compiler
@pytest.mark.parametrize("rank", [(1, 2), (2, 1), (1, 1)])
def test_vectors(rank: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    a = te.placeholder((70,) if rank[0] == 1 else (11, 70), name="A")
    b = te.placeholder((70,) if rank[1] == 1 else (70, 13), name="B")
    y = topi.matmul(a, b)
    assert_gives(scheduled([y], None, monkeypatch), [a, b, y], np.matmul)


@needs_compiler
@pytest.mark.parametrize("tile", ["wide", "parts"])
@pytest.mark.parametrize("names", ["y", "z", "yz", "zw", "t", "zt", "r", "zr"])
def test_what_stands_after_a_product(names: str, tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands(11, 14, 40, (False, False))
    y = topi.matmul(a, b)
    z = te.compute(y.shape, lambda i, j: y[i, j] * 2.0 + 1.0, name="z")
    w = te.compute(y.shape, lambda i, j: te.sqrt(te.abs(z[i, j])), name="w")
    t = te.compute((14, 11), lambda i, j: z[j, i] + 1.0, name="t")
    k = te.reduce_axis((0, 14), name="k")
    r = te.compute((11,), lambda i: te.sum(z[i, k], axis=k), name="r")
    outs = [{"y": y, "z": z, "w": w, "t": t, "r": r}[name] for name in names]

    def reference(a: Any, b: Any) -> Any:
        z = a @ b * 2 + 1
        found = {"y": a @ b, "z": z, "w": np.sqrt(np.abs(z)), "t": z.T + 1, "r": z.sum(axis=1)}
        return [found[name] for name in names] if len(names) > 1 else found[names]

    s = scheduled(outs, TILES[tile], monkeypatch)
    assert_gives(s, [a, b, *outs], reference, outs=len(outs))


@needs_compiler
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("tile", TILES)
def test_dtypes(dtype: str, tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands(9, 20, 33, (False, True), dtype=dtype)
    y = topi.matmul(a, b, False, True)
    s = scheduled([y], TILES[tile], monkeypatch)
    assert_gives(s, [a, b, y], product_of((False, True)), rtol=1e-2 if "16" in dtype else 1e-6)


def test_what_is_no_product_has_launches_of_its_own() -> None:
    """No rows, a product of three factors, terms under a condition."""
    a, b = te.placeholder((6, 0), name="A"), te.placeholder((0, 5), name="B")
    empty = topi.matmul(a, b)
    x = te.placeholder((6, 7), name="X")
    k = te.reduce_axis((0, 7), name="k")
    three = te.compute((6, 6), lambda i, j: te.sum(x[i, k] * x[j, k] * x[0, k], axis=k), name="three", tag="matmul")
    for y, args in ((empty, [a, b]), (three, [x])):
        s = te.create_schedule(y.op)
        gpu_products.schedule(s, [y], TARGET)
        kernel = te.lower(s, [*args, y])
        arrays = [np.random.default_rng(1).normal(size=t.shape).astype(np.float32) for t in (*args, y)]
        interpret.run(kernel, arrays)
        xs = arrays[0].astype(np.float64)
        expected = np.zeros((6, 5)) if y is empty else np.einsum("ik,jk,k->ij", xs, xs, xs[0])
        np.testing.assert_allclose(arrays[-1], expected, rtol=1e-5, atol=1e-6)


def test_the_inner_loop_has_neither_conditions_nor_divisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of aligned extents; and vectors from memory to registers."""
    a, b = operands(256, 384, 64, (False, False))
    y = topi.matmul(a, b)
    s = scheduled([y], Tile(8, 8, 16, 16), monkeypatch)
    source = renorm.build(s, [a, b, y], target="cuda -arch=sm_90").get_source()
    assert not re.search(r"\bif \(", source)
    assert "?" not in source
    _, inner = source.rsplit("__syncthreads();", 1)
    assert not re.search(r"[/%] \d", inner)
    assert len(re.findall(r"\*\(const int4\*\)", source)) >= 4
    assert source.count("__global__") == 1


def test_tiles_follow_extents() -> None:
    gpu = facts("sm_90")
    large = choose(1, 4096, 4096, 4096, gpu)
    assert (large.rows, large.columns, large.parts) == (8, 8, 1)
    small = choose(1, 512, 49, 4608, gpu)
    assert small.parts > 1
    assert small.blocks(1, 512, 49) >= gpu.units
    for extents in ((1, 1, 1, 1), (3, 7, 5, 2), (1000, 1, 64, 3)):
        tile = choose(*extents, gpu)
        assert tile.threads <= 1024
        assert tile.depth * (tile.block_rows + tile.block_columns) * 4 <= gpu.static
