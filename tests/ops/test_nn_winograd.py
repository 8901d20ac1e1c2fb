"""Convolutions by Winograd's tiles, as machine code, against direct ones in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

import renorm
from renorm import te
from renorm.codegen.llvm import compile_kernel
from renorm.driver.build import build
from renorm.graph.ir import Graph, Value
from renorm.ops import schedules
from renorm.ops.schedules import cpu_winograd, structure, tiles
from renorm.ops.schedules.winograd_blocks import Blocks, Work, choose
from renorm.ops.schedules.winograd_registers import Register
from renorm.ops.shared.tiled import Tiled
from renorm.ops.shared.winograd import BLOCK
from renorm.ops.shared.winograd_weight import transformed_weight
from renorm.ops.winograd_conv import WinogradConv, WinogradConvTranspose
from renorm.targets import find
from renorm.te.mirror import Mirror
from renorm.tir.verify import verify
from renorm.topi import layout
from renorm.topi.layout import Blocking

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Setting:
    """A convolution. x: its shape; pads: before and after both axes."""

    x: tuple[int, int, int, int]
    results: int
    tile: tuple[int, int] = (4, 4)
    taps: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    transposed: bool = False
    joined: bool = False


# odd extents, tails in every direction, pads that differ, channels that fill no vectors
SETTINGS = [
    Setting((2, 5, 5, 37), 7),
    Setting((3, 17, 9, 13), 33, pads=(0, 0, 0, 0)),
    Setting((1, 64, 28, 17), 80, pads=(1, 0, 0, 1)),
    Setting((2, 48, 7, 7), 16, tile=(2, 2)),
    Setting((1, 24, 11, 3), 100, tile=(3, 3), pads=(2, 3, 0, 1)),
    Setting((2, 20, 17, 12), 40, strides=(2, 2)),
    Setting((1, 32, 21, 9), 16, tile=(3, 3), strides=(2, 2), pads=(0, 1, 1, 0)),
    Setting((1, 6, 23, 20), 24, tile=(2, 2), taps=(7, 7), strides=(2, 2), pads=(3, 3, 3, 3)),
    Setting((1, 16, 9, 17), 32, tile=(2, 2), taps=(5, 5), pads=(2, 2, 2, 2)),
    Setting((2, 32, 9, 17), 17, tile=(1, 2), taps=(1, 7), pads=(0, 3, 0, 3)),
    Setting((1, 16, 13, 6), 48, tile=(4, 1), taps=(3, 1), pads=(1, 0, 1, 0)),
    Setting((8, 32, 4, 4), 32, tile=(2, 2), taps=(4, 4), strides=(2, 2), transposed=True),
    Setting((3, 16, 5, 7), 20, tile=(4, 4), taps=(4, 4), strides=(2, 2), pads=(1, 0, 2, 1), transposed=True),
    Setting((1, 33, 6, 5), 16, tile=(3, 2), taps=(3, 5), strides=(2, 3), pads=(0, 2, 1, 0), transposed=True),
    Setting((2, 64, 28, 17), 80, pads=(1, 0, 0, 1), joined=True),
    Setting((3, 20, 17, 12), 33, tile=(2, 3), strides=(2, 2), joined=True),
    Setting((2, 32, 9, 17), 17, tile=(1, 2), taps=(1, 7), pads=(0, 3, 0, 3), joined=True),
    Setting((3, 16, 5, 7), 20, tile=(4, 4), taps=(4, 4), strides=(2, 2), transposed=True, joined=True),
]


class Case:
    """A convolution: arrays, and what it gives in float64."""

    def __init__(self, setting: Setting, bias: bool = True, scale: float = 1.0):
        self.setting = setting
        channels = (setting.x[1], setting.results) if setting.transposed else (setting.results, setting.x[1])
        self.x = (RNG.standard_normal(setting.x) * scale).astype(np.float32)
        self.w = RNG.standard_normal((*channels, *setting.taps)).astype(np.float32)
        self.b = RNG.standard_normal(setting.results).astype(np.float32) if bias else None
        kind = WinogradConvTranspose if setting.transposed else WinogradConv
        self.op: Tiled = kind(
            tile=setting.tile,
            pads=setting.pads,
            strides=setting.strides,
            kernel_shape=setting.taps,
            joined=setting.joined,
        )

    def expected(self, x: Array | None = None) -> Array:
        top, left, bottom, right = self.setting.pads
        data = torch.from_numpy((self.x if x is None else x).astype(np.float64))
        b = None if self.b is None else torch.from_numpy(self.b.astype(np.float64))
        w = torch.from_numpy(self.w.astype(np.float64))
        if self.setting.transposed:
            y = torch.nn.functional.conv_transpose2d(data, w, b, self.setting.strides).numpy()
            return y[:, :, top : y.shape[2] - bottom, left : y.shape[3] - right]
        padded = torch.nn.functional.pad(data, (left, right, top, bottom))
        return torch.nn.functional.conv2d(padded, w, b, self.setting.strides).numpy()

    def weight(self, transformed: bool) -> Array:
        """As the op takes it."""
        if not transformed:
            return self.w
        filters = self.op.filters(self.setting.x[2:], self.setting.taps)
        return transformed_weight(self.w.swapaxes(0, self.op.result_axis), filters).astype(np.float32)

    def apply(self, x: Value, transformed: bool = False) -> Value:
        return self.op(x, self.weight(transformed), self.b)


def error(found: Array, expected: Array) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def graph(case: Case, transformed: bool = False) -> Graph:
    g = Graph()
    g.outputs = [case.apply(g.input("x", "float32", case.x.shape), transformed)]
    return g


@pytest.mark.parametrize(("target", "transformed"), [("llvm", False), ("llvm", True), ("llvm -mcpu=haswell", False)])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_result_is_that_of_a_direct_convolution(setting: Setting, transformed: bool, target: str) -> None:
    case = Case(setting, bias=setting.x[0] != 2)
    (y,) = renorm.compile(graph(case, transformed), target=target).run(case.x)
    assert error(y, case.expected()) < 6e-6


def packed(array: Array, form: Blocking) -> Array:
    out = np.empty(form.shape(array.shape), array.dtype)
    form.pack(array, out)
    return out


@dataclass
class Program:
    """A scheduled tensor program with a residual and a relu behind it, and the arrays that it reads."""

    schedule: te.Schedule
    arguments: list[te.Tensor]
    arrays: list[Array]
    expected: Array


def program(case: Case, target: str, reads: bool, writes: bool, transformed: bool) -> Program:
    """reads, writes: whether x, or residual and result, lie in blocks of channels."""
    machine = find(target)
    axis = 2 if transformed else case.op.result_axis
    form, weights = Blocking(((1, machine.lanes(4)),)), Blocking(((axis, machine.lanes(4)),), first=axis)
    plain = case.expected()
    residual = RNG.standard_normal(plain.shape).astype(np.float32)
    expected = np.maximum(plain + residual, 0)

    def read(array: Array, form: Blocking | None, name: str) -> tuple[te.Tensor, te.Tensor, Array]:
        """A placeholder, the tensor to compute with, and the array to pass."""
        held = te.placeholder(form.shape(array.shape) if form else array.shape, "float32", name=name)
        return (held, layout.view(held, array.shape, form), packed(array, form)) if form else (held, held, array)

    given = [
        read(case.x, form if reads else None, "x"),
        read(case.weight(transformed), weights, "w"),
        read(np.asarray(case.b), None, "b"),
        read(residual, form if writes else None, "r"),
    ]
    x, w, b, r = (tensor for _, tensor, _ in given)
    y = case.op.compute(x, w, b)
    out = te.compute(y.shape, lambda *i: te.maximum(y[i] + r[i], 0.0), name="relu", tag="elemwise")
    out = layout.result(out, form) if writes else out
    s = te.create_schedule(out.op)
    schedules.winograd(s, [out], machine)
    arguments = [*(held for held, _, _ in given), out]
    return Program(s, arguments, [a for *_, a in given], packed(expected, form) if writes else expected)


@pytest.mark.parametrize("by_channels", [False, True, None])
@pytest.mark.parametrize(
    ("reads", "writes", "target"),
    [
        (False, False, "llvm"),
        (True, False, "llvm"),
        (False, True, "llvm -mcpu=haswell"),
        (True, True, "llvm"),
        (True, True, "llvm -mcpu=haswell"),
    ],
)
@pytest.mark.parametrize(
    "setting",
    [
        Setting((3, 24, 13, 30), 48),
        Setting((3, 48, 5, 6), 32, tile=(2, 2), taps=(4, 4), strides=(2, 2), transposed=True),
        Setting((3, 24, 13, 30), 48, joined=True),
    ],
    ids=["conv", "conv_transpose", "joined"],
)
def test_any_layout_and_order_of_loops(
    setting: Setting, reads: bool, writes: bool, target: str, by_channels: bool | None, monkeypatch: Any
) -> None:
    """by_channels: None for weights that the kernel transforms. Blocks have two rows of tiles by two images or one, or
    two registers of the one row."""
    images = 2 if setting.transposed else 1
    rows, columns = (1, 6) if setting.joined else (2, 3)

    def chosen(work: Work) -> tuple[Blocks, float]:
        return Blocks(Register(images, 1, 3, 1), images, rows, columns, by_channels is not False), 1.0

    monkeypatch.setattr(cpu_winograd, "choose", chosen)
    p = program(Case(setting), target, reads, writes, transformed=by_channels is not None)
    got = np.full(p.expected.shape, np.nan, np.float32)
    build(p.schedule, p.arguments, target)(*p.arrays, got)
    assert error(got, p.expected) < 6e-6


@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize(
    "cpu",
    [
        "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4",
        "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell",
        "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1",
    ],
)
@pytest.mark.parametrize(
    "setting",
    [
        Setting((1, 64, 56, 56), 64),
        Setting((1, 64, 13, 29), 64, tile=(2, 2)),
        Setting((8, 64, 8, 8), 64, tile=(2, 2), taps=(4, 4), strides=(2, 2), transposed=True),
    ],
    ids=["whole", "tails", "conv_transpose"],
)
def test_products_and_transforms_stay_in_registers(setting: Setting, cpu: str, transformed: bool) -> None:
    p = program(Case(setting), cpu, reads=True, writes=True, transformed=transformed)
    assert compile_kernel(te.lower(p.schedule, p.arguments), find(cpu)).spills == 0


def test_products_read_tiles_that_lie_side_by_side() -> None:
    target = "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell"
    p = program(Case(Setting((1, 64, 56, 56), 64)), target, reads=True, writes=True, transformed=True)
    (line,) = (t for t in str(te.lower(p.schedule, p.arguments)).splitlines() if "*const" in t or "]*w[" in t)
    assert f"(q*{BLOCK})" in line[line.index("transformed[") :]


@pytest.mark.parametrize("transformed", [False, True])
def test_what_fills_up_blocks_is_not_read(transformed: bool) -> None:
    """Blocks of 8 channels in memory, of 16 in the kernel."""
    case, target = Case(Setting((3, 24, 37, 41), 40)), "llvm -mcpu=haswell"
    p = program(case, target, reads=True, writes=True, transformed=transformed)
    verify(te.lower(p.schedule, p.arguments), find(target))


@pytest.mark.parametrize("scale", [1e-18, 1e18])
def test_error_is_relative_to_what_is_convolved(scale: float) -> None:
    case = Case(Setting((1, 16, 9, 9), 16), bias=False, scale=scale)
    (y,) = renorm.compile(graph(case)).run(case.x)
    assert error(y, case.expected()) < 6e-6


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("tile", [2, 4])
def test_nan_stays_within_the_tiles_that_read_it(tile: int, value: float) -> None:
    case = Case(Setting((2, 16, 20, 20), 16, tile=(tile, tile)))
    case.x[1, 3, 9, 6] = value
    (y,) = renorm.compile(graph(case)).run(case.x)
    reads = np.zeros((2, 20, 20), bool)  # results of tiles whose inputs, one to each side more, hold the element
    for p in range(0, 20, tile):
        for q in range(0, 20, tile):
            reads[1, p : p + tile, q : q + tile] = p - 1 <= 9 <= p + tile and q - 1 <= 6 <= q + tile
    clean = case.x.copy()
    clean[1, 3, 9, 6] = 0
    expected = np.moveaxis(case.expected(clean), 1, -1)
    got = np.moveaxis(y, 1, -1)
    assert not np.isfinite(got[1, 8:11, 5:8]).any()
    np.testing.assert_allclose(got[~reads], expected[~reads], atol=6e-6 * np.abs(expected).max())


@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_reference_of_the_op_is_the_convolution(setting: Setting, transformed: bool) -> None:
    """So that interpreters, and with them probes, compare with the truth."""
    case = Case(setting)
    w = case.w.astype(np.float64)
    if transformed:
        filters = case.op.filters(setting.x[2:], setting.taps)
        w = transformed_weight(w.swapaxes(0, case.op.result_axis), filters)
    y = case.op.reference(case.x.astype(np.float64), w, np.asarray(case.b, np.float64))
    assert error(y, case.expected()) < 1e-13


@pytest.mark.parametrize("x", [(1, 128, 28, 28), (1, 96, 17, 17)])
def test_weights_that_a_kernel_transforms_are_read_where_they_are(x: tuple[int, int, int, int]) -> None:
    cpu = "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell"
    p = program(Case(Setting(x, 192)), cpu, reads=True, writes=True, transformed=False)
    verify(te.lower(p.schedule, p.arguments))


@pytest.mark.parametrize("shape", [(6, 6, 1, 7, 7, 192), (3, 6, 1, 6, 12, 384), (6, 6, 2, 4, 4, 96)])
def test_weights_that_a_kernel_transforms_are_read_in_whole_blocks(shape: tuple[int, ...]) -> None:
    """Three vectors of 32 bytes begin in the middle of a block of 16 channels, which the verifier refused."""
    target = find("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell").machine_target
    for _, register in Work.of(shape, 128, 8, target, True).registers():
        assert register.vectors in (1, 2, 4)


def test_blocks_hold_all_tiles_without_padding() -> None:
    """Weights that come from memory are then read once, while all tiles of 5 rows are multiplied with them."""
    target = find("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids")
    work = Work.of((5, 5, 1, 5, 5, 256), 256, 16, target.machine_target, False)
    assert 5 in {b.rows for _, r in work.registers() if r.rows == 1 for b in work.candidates(r)}
    chosen, cost = choose(work)
    assert (chosen.rows, chosen.columns) == (5, 5)
    assert cost > 1


@pytest.mark.parametrize("transforms_weights", [False, True])
@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((6, 6, 1, 14, 14, 64), 64),
        ((6, 6, 1, 7, 7, 128), 128),
        ((6, 6, 1, 4, 4, 256), 256),
        ((6, 6, 8, 2, 2, 256), 512),
        ((4, 4, 2, 1, 1, 512), 512),
    ],
)
def test_a_block_stays_in_the_cache(shape: tuple[int, ...], channels: int, transforms_weights: bool) -> None:
    target = find("llvm -mcpu=znver4")
    blocks, cost = choose(Work.of(shape, channels, 16, target, transforms_weights))
    planes, vectors = shape[0] * shape[1], blocks.register.vectors
    products = blocks.tiles * planes * vectors * 16
    assert 4 * (products + (0 if blocks.by_channels else blocks.tiles * planes * channels)) <= target.cache_bytes
    assert blocks.register.tiles * vectors + vectors < target.vector_registers
    assert blocks.by_channels or not transforms_weights
    assert cost >= 1


def computed(register: Register, down: int, across: int) -> int:
    """Return how many tiles of a plane of open extents are computed, one row of a register at a time."""
    assert register.rows == register.images == 1
    return down * sum(times * length for times, length in tiles.pieces(across, register.columns))


@pytest.mark.parametrize("cpu", ["znver4", "haswell"])
@pytest.mark.parametrize("typical", [1, 3, 4, 5, 7, 13, 26, 52])
def test_tiles_of_open_planes_fit_narrow_ones(cpu: str, typical: int) -> None:
    """One that just fills the typical plane, 5 rows by 5 columns, computes a multiple of all others."""
    target = find(f"llvm -mcpu={cpu}")
    work = Work.of((6, 6, 1, typical, typical, 256), 256, target.lanes(4), target, False)
    open_work = replace(work, is_open=(False, True, True))
    chosen = choose(open_work)[0].register
    for across in range(1, 4 * typical):
        most = 4.0 if across == 1 else 2.0 if across <= typical / 4 else 1.7 if across < 8 else 1.25
        assert computed(chosen, typical, across) <= most * typical * across, (chosen, across)
    assert {r.rows for _, r in open_work.registers()} == {1}


@pytest.mark.parametrize("cpu", ["znver4", "haswell"])
@pytest.mark.parametrize("typical", [3, 4, 7, 13])
def test_tiles_of_joined_rows_fit_few_tiles(cpu: str, typical: int) -> None:
    """A plane of one column of tiles is as long a row as one of one line: sums end once in it."""
    target = find(f"llvm -mcpu={cpu}")
    shape = (6, 6, 1, 1, typical**2, 256)
    work = Work.of(shape, 256, target.lanes(4), target, True, (False, False, False, False, True, False), 2)
    assert work.is_open == (0, 0, 2)
    chosen = choose(work)[0].register
    for count in range(1, 4 * typical**2):
        most = 4.0 if count == 1 else 2.0 if count < 4 else 1.7 if count < 8 else 1.4 if count < 16 else 1.25
        assert computed(chosen, 1, count) <= most * count, (chosen, count)


def test_open_planes_are_joined_where_kernels_transform_weights() -> None:
    h, w = te.var("h"), te.var("w")
    conv = WinogradConv(tile=(4, 4), pads=(1, 1, 1, 1), kernel_shape=(3, 3))
    for plane, weight, rows in (((h, w), 4, 1), ((h, 9), 4, 1), ((12, 9), 4, 3), ((12, w), 3, 3)):
        kernel = te.placeholder((5, 3, 3, 3) if weight == 4 else (36, 3, 5), name="w")
        y = conv.compute(te.placeholder((2, 3, *plane), name="x"), kernel, None)
        stages = {t.op.tag: t for t in structure.stages([y])}
        assert stages["winograd_products"].shape[3] == rows
        joined = sum(not isinstance(e, int) for e in plane) if weight == 4 else 0
        assert stages["winograd"].op.attrs["joined"] == joined


def test_tiles_of_an_open_batch_hold_whole_planes() -> None:
    target = find("llvm -mcpu=znver4")
    work = Work.of((6, 6, 2, 2, 2, 512), 512, 16, target, False, (False, False, True, False, False, False))
    assert work.is_open == (True, False, False)
    found = [r for _, r in work.registers()]
    assert (found[0].rows, found[0].columns) == (2, 2)
    assert found[0].images * 4 * found[0].vectors <= work.machine.registers


def test_schedules_know_which_axes_are_open() -> None:
    n = te.var("n")
    x = te.placeholder((n, 8), name="x")
    y = te.compute((n, 8), lambda i, j: x[i, j] * 2, name="y")
    whole = te.create_schedule(y.op)
    s, (_, fixed) = te.specialize(whole, [x, y], {n: 5})
    assert s.open_axes(fixed) == (False, False)
    s.mirror = Mirror(s, whole)
    assert s.open_axes(fixed) == (True, False)
    copy = s.cache_write(fixed, "local")
    assert s.open_axes(copy) == (True, False)
