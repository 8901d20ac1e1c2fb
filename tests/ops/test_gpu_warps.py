"""Products of 16 bits, and of tf32, on tensor cores: NumPy's results, as loops that threads run alone and as warps run
the CUDA C."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.exhaustive import one_of
from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler
from tests.gpu.host_device import run
from tests.ops.test_gpu_products import assert_gives, operands, product_of

import renorm
from renorm import te
from renorm.codegen.cuda.source import generate
from renorm.core.dtypes import numpy_dtype
from renorm.core.target import parse
from renorm.graph.ir import Graph
from renorm.ops.schedules import gpu_few, gpu_products, gpu_stages
from renorm.ops.schedules.gpu_tiles import WarpTile
from renorm.passes import mixed_precision
from renorm.passes.pipeline import optimize
from renorm.tir import interpret

TARGET = parse("cuda -arch=sm_90")
# (times 16 rows, times 8 columns), (warps along rows, along columns)
TILES = {
    "one": WarpTile(2, 2, 8, 4, 32),
    "warps": WarpTile(2, 4, 16, 8, 32),
    "large": WarpTile(8, 4, 8, 8, 32),
    "parts": WarpTile(2, 2, 8, 8, 32, parts=2),
    "ahead": WarpTile(2, 4, 8, 8, 32, is_ahead=True),
    "chosen": None,
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size are products."""
    monkeypatch.setattr(gpu_stages, "LEAST_WORK", 0)


def scheduled(out: te.Tensor, tile: WarpTile | None, monkeypatch: pytest.MonkeyPatch) -> te.Schedule:
    s = te.create_schedule(out.op)
    if tile is not None:
        monkeypatch.setattr(gpu_products, "choose_of_warps", lambda *_: tile)
        monkeypatch.setattr(gpu_few, "takes", lambda _: False)
    gpu_products.schedule(s, [out], TARGET)
    return s


def wide(t: te.Tensor, *at: Any) -> Any:
    return te.cast("float32", t[at])


def product(a: te.Tensor, b: te.Tensor, turned: tuple[bool, bool]) -> te.Tensor:
    """Return the stage of a matrix product, which sums in float32."""
    (m, depth), n = (a.shape[::-1] if turned[0] else a.shape), b.shape[0 if turned[1] else 1]
    k = te.reduce_axis((0, depth), name="k")

    def element(i: Any, j: Any) -> Any:
        x = wide(a, k, i) if turned[0] else wide(a, i, k)
        return te.sum(x * (wide(b, j, k) if turned[1] else wide(b, k, j)), axis=k)

    return te.compute((m, n), element, name="y", tag="matmul")


ALL_TURNS = [(False, False), (False, True), (True, False), (True, True)]
CASES = [(tile, turned) for tile in TILES if tile != "ahead" for turned in ALL_TURNS]


@needs_compiler
@pytest.mark.parametrize(
    ("tile", "turned", "dtype"),
    [p for d in ("float16", "bfloat16", "tf32") for p in one_of(1 if d == "float16" else 3, [(*c, d) for c in CASES])],
)
def test_products(tile: str, turned: tuple[bool, bool], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_products(((16, 8, 32), (33, 21, 47), (64, 40, 160)), tile, turned, dtype, monkeypatch)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float16", "tf32"])
@pytest.mark.parametrize(("turned", "is_copied"), [((False, True), True), ((True, False), False)])
def test_products_that_copy_ahead(turned: Any, is_copied: bool, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of terms that lie side by side; others are loaded and stored."""
    assert_products(((33, 21, 47), (64, 40, 160)), "ahead", turned, dtype, monkeypatch)
    a, b = operands(64, 40, 160, turned, dtype=dtype)
    y = product(a, b, turned)
    text = generate(te.lower(scheduled(y, TILES["ahead"], monkeypatch), [a, b, y]), TARGET).source
    assert ("__pipeline_memcpy_async" in text) == is_copied
    assert text.count("__syncthreads") == 1


def assert_products(
    sizes: Any, tile: str, turned: tuple[bool, bool], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for m, n, k in sizes:
        a, b = operands(m, n, k, turned, dtype=dtype)
        y = product(a, b, turned)
        s = scheduled(y, TILES[tile], monkeypatch)
        assert "renorm_mma" in generate(te.lower(s, [a, b, y]), TARGET).source
        for runner in (run, interpret.run) if k == 47 else (run,):
            assert_gives(s, [a, b, y], product_of(turned), runner=runner)


@needs_compiler
@pytest.mark.parametrize("tile", ["warps", "parts", "ahead", "chosen"])
@pytest.mark.parametrize(
    ("groups", "channels", "kernel", "strides"),
    [(1, (24, 40), 3, 1), (1, (32, 17), 1, 1), (1, (3, 16), 7, 2), (2, (64, 48), 3, 2)],
)
def test_convolutions(
    groups: int, channels: tuple[int, int], kernel: int, strides: int, tile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of float16, with padding, of channels that fill rounds of terms and of others."""
    if TILES[tile] is not None:
        monkeypatch.setattr(gpu_products, "choose_of_warps", lambda *_: TILES[tile])
    host_device.register()
    rng = np.random.default_rng(2)
    weight = rng.integers(-4, 5, size=(channels[1], channels[0] // groups, kernel, kernel)).astype(np.float32)
    g = Graph("convolution")
    x = g.input("x", "float16", (2, channels[0], 11, 13))
    pads = (kernel // 2,) * 4
    options: dict[str, Any] = {"strides": (strides, strides), "pads": pads, "group": groups}
    g.outputs = [renorm.ops.relu(renorm.ops.conv(x, weight.astype(np.float16), **options))]
    m = renorm.compile(g, target="cuda -arch=host")
    assert any("renorm_mma" in m.kernel(name).source for name in m.report.kernels)
    data = rng.integers(-4, 5, size=(2, channels[0], 11, 13)).astype(np.float16)
    np.testing.assert_array_equal(m.run(data)[0], renorm.compile(g, target="llvm").run(data)[0])


@needs_compiler
@pytest.mark.parametrize(("precision", "most"), [("bfloat16", 2e-2), ("tf32", 2e-3)])
def test_a_network_in_fewer_digits(precision: str, most: float) -> None:
    """What a precision has memory hold is what tensor cores multiply: of products with weights, all of many rows; the
    first one's data is an input, which is rounded as it is read."""
    host_device.register()
    rng = np.random.default_rng(3)
    g = Graph("network")
    x: Any = g.input("x", "float32", (2, 16, 12, 12))
    for channels, kernel in ((48, 3), (40, 1), (32, 3)):
        weight = (rng.normal(size=(channels, x.shape[1], kernel, kernel)) / kernel / x.shape[1] ** 0.5).astype(
            np.float32
        )
        x = renorm.ops.relu(renorm.ops.conv(x, weight.astype(np.float32), pads=(kernel // 2,) * 4))
    x = renorm.ops.reshape(x, (2, 32 * 144))
    g.outputs = [renorm.ops.gemm(x, (rng.normal(size=(32 * 144, 24)) / 70).astype(np.float32))]
    data = rng.normal(size=(2, 16, 12, 12)).astype(np.float32)
    exact = renorm.compile(g, target="llvm").run(data)[0]
    m = renorm.compile(g, target="cuda -arch=host", precision=precision, verify=True)
    assert m.report.arithmetic.startswith(f"products of {precision} on tensor cores")
    sources = [m.kernel(name).source for name in m.report.kernels]
    assert sum(f"renorm_mma_{precision}" in text for text in sources) == 3
    error = np.abs(m.run(data)[0] - exact).max() / np.abs(exact).max()
    assert 1e-5 < error < most
    older = renorm.compile(g, target="cuda -arch=sm_75", precision=precision)
    assert not any("mma" in older.kernel(name).source for name in older.report.kernels)


@needs_compiler
@pytest.mark.parametrize(("precision", "dtype"), [("bfloat16", "float32"), ("tf32", "float32"), ("fast", "float16")])
def test_weights_lie_as_tensor_cores_take_them(precision: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms side by side: of matrices and of windows, where results are no whole tiles."""
    monkeypatch.setattr(mixed_precision, "SMALL", 1)
    host_device.register()
    rng = np.random.default_rng(5)

    def weight(*shape: int) -> Any:
        return (rng.integers(-3, 4, size=shape) / 8).astype(dtype)

    g = Graph("network")
    x: Any = g.input("x", dtype, (1, 16, 9, 11))
    x = renorm.ops.relu(renorm.ops.conv(x, weight(24, 16, 3, 3), pads=(1, 1, 1, 1)))
    x = renorm.ops.conv(x, weight(40, 24, 1, 1), strides=(2, 2))
    x = renorm.ops.reshape(x, (40, 30))
    x = renorm.ops.relu(renorm.ops.matmul(x, weight(30, 48)))
    g.outputs = [renorm.ops.gemm(x, weight(48, 33), weight(33), alpha=0.5)]
    m = renorm.compile(g, target="cuda -arch=host", precision=precision)
    products = {n.name: n.op for n in m.graph.nodes if n.op.is_product}
    assert [op.name for op in products.values()] == ["implicit_gemm", "implicit_gemm", "gemm", "gemm"]
    assert all(op.values.get("along_terms", op.values.get("transB")) for op in products.values())
    given = rng.integers(-4, 5, size=(1, 16, 9, 11)).astype(dtype)
    expected = renorm.compile(g, target="llvm", opt_level=0).run(given)[0].astype(np.float64)
    found = m.run(given)[0].astype(np.float64)
    assert np.abs(found - expected).max() <= 2e-2 * np.abs(expected).max()
    assert sum("renorm_mma" in m.kernel(k.name).source for k in m.report.kernels) >= 3


@pytest.mark.parametrize(
    ("arch", "precision", "dtype", "turns"),
    [
        ("sm_90", "tf32", "float32", True),
        ("sm_75", "tf32", "float32", False),
        ("sm_90", "fast", "float32", False),
        ("sm_75", "fast", "float16", True),
        ("sm_75", "fast", "bfloat16", False),
        ("sm_90", "exact", "float16", False),
    ],
)
def test_where_weights_are_turned(arch: str, precision: str, dtype: str, turns: bool) -> None:
    g = Graph("network")
    x = g.input("x", dtype, (64, 32))
    w = g.constant(np.ones((32, 48), numpy_dtype(dtype)), dtype=dtype)
    g.outputs = [renorm.ops.matmul(x, w)]
    g, _ = optimize(g, target=parse(f"cuda -arch={arch}"), precision=precision)
    (node,) = (n for n in g.nodes if n.op.is_product)
    assert bool(node.op.values.get("transB")) is turns
