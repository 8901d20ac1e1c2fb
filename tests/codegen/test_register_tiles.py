"""A register-blocked product out of plain loops: its accumulators stay in registers, and it runs near the peak."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.codegen.native import HOST, Native, program

from renorm.codegen.llvm import assembly, compile_kernel
from renorm.expr.nodes import Broadcast, Expr, Load, Ramp, Var, binary, const
from renorm.targets import find
from renorm.tir.nodes import Allocate, Buffer, For, Kernel, Let, Seq, Stmt, Store
from renorm.tir.rounds import MOST

LANES = HOST.vector_bytes // 4
AVX512 = find("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4")


def unrolled(var: Var, extent: int, body: Stmt) -> Stmt:
    return For(var, const(0), const(extent), "unrolled", body)


def vector(base: Expr) -> Expr:
    return Ramp(base, const(1), LANES)


def product(rows: int, vectors: int, depth: int, step: int, repeats: int) -> Kernel:
    """out = x[rows, depth] @ w[depth, vectors*LANES], with `step` of the depth unrolled, done `repeats` times."""
    columns = vectors * LANES
    x, w = Buffer("x", "float32", rows * depth), Buffer("w", "float32", depth * columns)
    out, tile = Buffer("out", "float32", rows * columns), Buffer("tile", "float32", rows * columns, "register")
    r, v, k, s, again = (Var(name) for name in ("r", "v", "k", "s", "again"))
    at = vector(r * columns + v * LANES)
    deep = k * step + s
    multiplied = binary(
        "*", Broadcast(Load(x, [r * depth + deep]), LANES), Load(w, [vector(deep * columns + v * LANES)])
    )
    added = Store(tile, at, binary("+", Load(tile, [at]), multiplied))

    def over_tile(body: Stmt) -> Stmt:
        return unrolled(r, rows, unrolled(v, vectors, body))

    parts = (
        over_tile(Store(tile, at, Broadcast(const(0.0), LANES))),
        For(k, const(0), const(depth // step), "serial", unrolled(s, step, over_tile(added))),
        over_tile(Store(out, at, Load(tile, [at]))),
    )
    loop = For(again, const(0), const(repeats), "serial", Allocate(tile, Seq(parts)))
    return program("product", (x, w, out), loop)


def peak_loop(rounds: int) -> Kernel:
    """Fused multiply-adds on registers only: as many accumulators as hide their latency."""
    count = 12 if HOST.vector_registers == 16 else 24
    x, out = Buffer("x", "float32", LANES), Buffer("out", "float32", count * LANES)
    sums = Buffer("sums", "float32", count * LANES, "register")
    a, r, j = Var("a", "float32", LANES), Var("r"), Var("j")
    at = vector(j * LANES)
    step = Store(sums, at, binary("+", Load(sums, [at]), binary("*", a, a)))
    parts = (
        unrolled(j, count, Store(sums, at, Broadcast(const(0.0), LANES))),
        For(r, const(0), const(rounds), "serial", unrolled(j, count, step)),
        unrolled(j, count, Store(out, at, Load(sums, [at]))),
    )
    return program("peak", (x, out), Let(a, Load(x, [vector(const(0))]), Allocate(sums, Seq(parts))))


def fastest(call: Callable[[], None], times: int = 7) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@pytest.mark.parametrize(("rows", "vectors"), [(6, 4), (8, 3), (28, 1)] if LANES == 16 else [(6, 2), (4, 2)])
def test_the_product_is_right(rows: int, vectors: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (rows, 32)).astype(np.float32)
    w = rng.integers(-4, 5, (32, vectors * LANES)).astype(np.float32)
    out = np.empty((rows, vectors * LANES), np.float32)
    Native(compile_kernel(product(rows, vectors, 32, 4, 1), HOST))(x, w, out)
    np.testing.assert_array_equal(out, x @ w)


@pytest.mark.parametrize("step", [1, 16])
@pytest.mark.parametrize(("rows", "vectors"), [(6, 4), (8, 3), (14, 1), (28, 1)])
@pytest.mark.skipif(LANES != 16, reason="the tile is for vectors of 16 floats")
def test_the_hot_loop_does_not_touch_the_stack(rows: int, vectors: int, step: int) -> None:
    compiled = compile_kernel(product(rows, vectors, 64, step, 1), AVX512)
    together = max(n for n in (1, 2, 4, 8, 16) if n == 1 or n * step * rows * vectors <= MOST)
    assert assembly(compiled, AVX512).count("vfmadd") == rows * vectors * step * together
    assert compiled.spills == 0


def aligned(array: Any) -> Any:
    """Return the array at a cache line: a vector that crosses one takes two loads."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    made = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


@pytest.mark.slow
@pytest.mark.skipif(LANES != 16, reason="the tile is for vectors of 16 floats")
def test_the_6x4_tile_reaches_85_percent_of_the_peak() -> None:
    rounds, depth, repeats = 1_000_000, 128, 8000  # 32 KiB of weights, which first-level caches hold
    peak, tile = (
        Native(compile_kernel(peak_loop(rounds), HOST)),
        Native(compile_kernel(product(6, 4, depth, 1, repeats), HOST)),
    )
    rng = np.random.default_rng(0)
    x, w = (aligned(rng.standard_normal(shape).astype(np.float32)) for shape in ((6, depth), (depth, 64)))
    out, sums = np.empty((6, 64), np.float32), np.empty(24 * 16, np.float32)
    ratios = []
    for _ in range(15):  # both in turn, so that a change of clock or load hits both; neighbours can only slow it down
        top = 24 * 16 * 2 * rounds / fastest(lambda: peak(x[0, :16].copy(), sums), 3)
        ratios.append(6 * 64 * depth * repeats * 2 / fastest(lambda: tile(x, w, out), 3) / top)
        if ratios[-1] >= 0.85:
            return
    raise AssertionError(f"{max(ratios):.2f} of the peak")
