"""Convolutions by Winograd's tiles, as machine code, against direct ones in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import renorm
from renorm import te
from renorm.codegen.llvm import compile_kernel
from renorm.core.target import parse
from renorm.driver.build import build
from renorm.graph.ir import Graph, Value
from renorm.ops import schedules
from renorm.ops.schedules import cpu_winograd, layout
from renorm.ops.schedules.cpu_winograd import Blocks
from renorm.ops.schedules.layout import Form
from renorm.ops.winograd import POINTS, matrices
from renorm.ops.winograd_conv import WinogradConv
from renorm.ops.winograd_weight import transformed_weight

Array = np.ndarray[Any, Any]

TARGETS = ["llvm", "llvm -mcpu=haswell"]
# batch, channels, results, height, width, pads: odd extents, tails in every direction, pads that differ
SETTINGS = [
    (1, 16, 16, 8, 8, (1, 1, 1, 1)),
    (2, 5, 7, 5, 37, (1, 1, 1, 1)),
    (3, 17, 33, 9, 13, (0, 0, 0, 0)),
    (1, 32, 48, 14, 14, (1, 1, 1, 1)),
    (1, 64, 80, 28, 17, (1, 0, 0, 1)),
    (2, 48, 16, 7, 7, (1, 1, 1, 1)),
    (1, 3, 20, 37, 5, (0, 1, 1, 0)),
    (1, 24, 100, 11, 22, (2, 3, 0, 1)),
    (1, 8, 16, 3, 3, (0, 0, 0, 0)),
]


class Case:
    """A convolution: arrays, and what it gives in float64."""

    def __init__(self, setting: tuple[Any, ...], bias: bool = True, scale: float = 1.0, seed: int | None = None):
        batch, c, k, h, w, self.pads = setting
        rng = np.random.default_rng(seed)
        self.x = (rng.standard_normal((batch, c, h, w)) * scale).astype(np.float32)
        self.w = rng.standard_normal((k, c, 3, 3)).astype(np.float32)
        self.b = rng.standard_normal(k).astype(np.float32) if bias else None

    def expected(self, x: Array | None = None) -> Array:
        top, left, bottom, right = self.pads
        padded = np.pad((self.x if x is None else x).astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
        b = None if self.b is None else torch.from_numpy(self.b.astype(np.float64))
        w = torch.from_numpy(self.w.astype(np.float64))
        return torch.nn.functional.conv2d(torch.from_numpy(padded), w, b).numpy()

    def apply(self, x: Value, tile: int) -> Value:
        u = transformed_weight(self.w, tile).astype(np.float32)
        return WinogradConv(tile=tile, pads=self.pads)(x, u, self.b)


def error(found: Array, expected: Array) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def graph(case: Case, tile: int) -> Graph:
    g = Graph()
    g.outputs = [case.apply(g.input("x", "float32", case.x.shape), tile)]
    return g


@pytest.mark.parametrize("m", POINTS)
def test_filtering_is_exact_in_rational_arithmetic(m: int) -> None:
    """Points, and so the matrices, are small: float64 holds every product of these integers nearly exactly."""
    a, g, b = matrices(m)
    rng = np.random.default_rng()
    d, taps = rng.integers(-9, 9, m + 2).astype(float), rng.integers(-9, 9, 3).astype(float)
    np.testing.assert_allclose(a @ ((g @ taps) * (b @ d)), np.correlate(d, taps), atol=1e-11)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tile", POINTS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_result_is_that_of_a_direct_convolution(setting: tuple[Any, ...], tile: int, target: str) -> None:
    case = Case(setting, bias=setting[0] != 2)
    (y,) = renorm.compile(graph(case, tile), target=target).run(case.x)
    assert error(y, case.expected()) < 4e-6


def packed(array: Array, form: Form) -> Array:
    out = np.empty(form.shape(array.shape), array.dtype)
    form.pack(array, out)
    return out


def force_blocks(monkeypatch: pytest.MonkeyPatch, by_channels: bool) -> None:
    """Blocks of two rows by two register tiles, and one order of loops."""
    choose = cpu_winograd.choose_blocks

    def chosen(*args: Any) -> Blocks:
        register = choose(*args).register
        return Blocks(register, 2, 2 * register.pixels, by_channels)

    monkeypatch.setattr(cpu_winograd, "choose_blocks", chosen)


@dataclass
class Program:
    """A scheduled tensor program with a residual and a relu behind it, and the arrays that it reads."""

    schedule: te.Schedule
    arguments: list[te.Tensor]
    arrays: list[Array]
    expected: Array


def program(case: Case, target: str, reads: bool, writes: bool, tile: int = 4) -> Program:
    """reads, writes: whether x, or residual and result, lie in blocks of channels."""
    machine = parse(target)
    form, weights = Form(((1, machine.lanes(4)),)), Form(((2, machine.lanes(4)),), first=2)
    u, plain = transformed_weight(case.w, tile).astype(np.float32), case.expected()
    residual = np.random.default_rng().standard_normal(plain.shape).astype(np.float32)
    expected = np.maximum(plain + residual, 0)

    def read(array: Array, form: Form | None, name: str) -> tuple[te.Tensor, te.Tensor, Array]:
        """A placeholder, the tensor to compute with, and the array to pass."""
        held = te.placeholder(form.shape(array.shape) if form else array.shape, "float32", name=name)
        return (held, layout.view(held, array.shape, form), packed(array, form)) if form else (held, held, array)

    given = [
        read(case.x, form if reads else None, "x"),
        read(u, weights, "u"),
        read(np.asarray(case.b), None, "b"),
        read(residual, form if writes else None, "r"),
    ]
    x, w, b, r = (tensor for _, tensor, _ in given)
    y = WinogradConv(tile=tile, pads=case.pads).compute(x, w, b)
    out = te.compute(y.shape, lambda *i: te.maximum(y[i] + r[i], 0.0), name="relu", tag="elemwise")
    out = layout.result(out, form) if writes else out
    s = te.create_schedule(out.op)
    schedules.winograd(s, [out], machine)
    arguments = [*(held for held, _, _ in given), out]
    return Program(s, arguments, [a for *_, a in given], packed(expected, form) if writes else expected)


@pytest.mark.parametrize("by_channels", [False, True])
@pytest.mark.parametrize(("reads", "writes"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("setting", [(2, 32, 48, 13, 30, (1, 1, 1, 1)), (1, 48, 32, 9, 6, (0, 0, 0, 0))])
def test_any_layout_and_either_order_of_loops(
    setting: tuple[Any, ...], target: str, reads: bool, writes: bool, by_channels: bool, monkeypatch: Any
) -> None:
    force_blocks(monkeypatch, by_channels)
    p = program(Case(setting), target, reads, writes)
    got = np.full(p.expected.shape, np.nan, np.float32)
    build(p.schedule, p.arguments, target)(*p.arrays, got)
    assert error(got, p.expected) < 4e-6


@pytest.mark.parametrize("tile", POINTS)
@pytest.mark.parametrize(
    "cpu",
    [
        "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4",
        "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell",
        "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1",
    ],
)
@pytest.mark.parametrize("setting", [(1, 64, 64, 56, 56, (1, 1, 1, 1)), (1, 64, 64, 13, 29, (1, 1, 1, 1))])
def test_products_and_transforms_stay_in_registers(setting: tuple[Any, ...], cpu: str, tile: int) -> None:
    p = program(Case(setting), cpu, reads=True, writes=True, tile=tile)
    compiled = compile_kernel(te.lower(p.schedule, p.arguments), parse(cpu))
    assert compiled.spills == 0


@pytest.mark.parametrize("scale", [1e-18, 1e18])
def test_error_is_relative_to_what_is_convolved(scale: float) -> None:
    case = Case((1, 16, 16, 9, 9, (1, 1, 1, 1)), bias=False, scale=scale)
    (y,) = renorm.compile(graph(case, 4)).run(case.x)
    assert error(y, case.expected()) < 4e-6


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("tile", POINTS)
def test_nan_stays_within_the_tiles_that_read_it(tile: int, value: float) -> None:
    case = Case((2, 16, 16, 20, 20, (1, 1, 1, 1)))
    case.x[1, 3, 9, 6] = value
    (y,) = renorm.compile(graph(case, tile)).run(case.x)
    reads = np.zeros((2, 20, 20), bool)  # results of tiles whose inputs, one to each side more, hold the element
    for p in range(0, 20, tile):
        for q in range(0, 20, tile):
            reads[1, p : p + tile, q : q + tile] = p - 1 <= 9 <= p + tile and q - 1 <= 6 <= q + tile
    clean = case.x.copy()
    clean[1, 3, 9, 6] = 0
    expected = np.moveaxis(case.expected(clean), 1, -1)
    got = np.moveaxis(y, 1, -1)
    assert not np.isfinite(got[1, 8:11, 5:8]).any()
    np.testing.assert_allclose(got[~reads], expected[~reads], atol=4e-6 * np.abs(expected).max())


def test_reference_of_the_op_is_the_convolution() -> None:
    """So that interpreters, and with them probes, compare with the truth."""
    case = Case((2, 5, 7, 11, 6, (1, 2, 0, 1)))
    op = WinogradConv(tile=4, pads=case.pads)
    y = op.reference(case.x.astype(np.float64), transformed_weight(case.w, 4), np.asarray(case.b, np.float64))
    assert error(y, case.expected()) < 1e-13


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((6, 6, 1, 14, 14, 64), 64),
        ((6, 6, 1, 7, 7, 128), 128),
        ((6, 6, 1, 4, 4, 256), 256),
        ((4, 4, 2, 1, 1, 512), 512),
    ],
)
def test_a_block_stays_in_the_cache(shape: tuple[int, ...], channels: int) -> None:
    target = parse("llvm -mcpu=znver4")
    blocks = cpu_winograd.choose_blocks(shape, channels, 16, target)
    tiles, planes = blocks.down * blocks.across, shape[0] * shape[1]
    products = tiles * planes * blocks.register.vectors * 16
    assert 4 * (products + (0 if blocks.by_channels else tiles * planes * channels)) <= target.cache_bytes
    assert blocks.register.pixels * blocks.register.vectors + blocks.register.vectors < target.vector_registers
