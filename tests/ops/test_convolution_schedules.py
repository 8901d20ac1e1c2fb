"""Schedules of convolutions on the CPU, in every layout and for every kind of CPU: against torch in float64, and that
no hot loop keeps accumulators on the stack."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import HOST, run_native

from renorm import te
from renorm.codegen.llvm import compile_kernel
from renorm.core.target import Target
from renorm.driver.kernels import SPARE
from renorm.graph.layout import Layout
from renorm.graph.types import TensorType
from renorm.ops import schedules
from renorm.ops.conv import Conv
from renorm.ops.conv_transpose import ConvTranspose
from renorm.ops.schedules import cpu_transposed, tiles
from renorm.targets import find
from renorm.tir.nodes import For, If, walk
from renorm.tir.passes import prepare
from renorm.topi import layout
from renorm.topi.layout import Blocking

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

LANES = HOST.lanes(4)


@dataclass
class Case:
    """A convolution with a ReLU behind it. reads, writes: whether x and y lie in blocks of channels."""

    op: Any
    x: Any
    w: Any
    b: Any
    reads: bool = False
    writes: bool = False

    def lowered(self, target: Target) -> tuple[Any, list[Any], Blocking | None]:
        """The kernel, the arrays that it reads, and the form of what it writes."""
        lanes = target.lanes(4)
        channels = Blocking.of(Layout(1, lanes))
        forms = [channels if self.reads else None, self._weight(lanes), None]
        given, views = list[te.Tensor](), list[Any]()
        for name, array, form in zip("xwb", (self.x, self.w, self.b), forms, strict=True):
            held = te.placeholder(form.shape(array.shape) if form else array.shape, name=name)
            given.append(held)
            views.append(layout.view(held, array.shape, form) if form else held)
        y = self.op.compute(*views)
        y = te.compute(y.shape, lambda *i: te.maximum(y[i], te.const(0, "float32")), name="relu", tag="elemwise")
        out = layout.result(y, channels) if self.writes else y
        s = te.create_schedule(out.op)
        schedules.schedule(self.op, s, [out], target)
        arrays = [a.copy() for a in (self.x, self.w, self.b)]
        for i, form in enumerate(forms):
            if form:
                packed = np.zeros(form.shape(arrays[i].shape), np.float32)
                form.pack(arrays[i], packed)
                arrays[i] = packed
        return te.lower(s, [*given, out], name="conv"), arrays, channels if self.writes else None

    def _weight(self, lanes: int) -> Blocking:
        types = [TensorType("float32", self.x.shape), TensorType("float32", self.w.shape), None]
        axis, summed = self.op.channel_axis(1, types), self.op.summed_axis(1, types)
        cuts = [(axis, lanes)]
        if self.reads and summed is not None:
            cuts.insert(0, (summed, lanes))
        return Blocking(tuple(cuts), first=axis)

    def run(self) -> Any:
        kernel, arrays, form = self.lowered(HOST)
        expected = self.by_torch()
        out = np.full(form.shape(expected.shape) if form else expected.shape, np.nan, np.float32)
        run_native(prepare(kernel), [*arrays, out], HOST, threads=2)
        if form is None:
            return out
        index = np.indices(expected.shape)
        return out[tuple(form.index(list(index)))]

    def by_torch(self) -> Any:
        rank, op = self.x.ndim - 2, self.op
        x, w, b = (torch.from_numpy(a.astype(np.float64)) for a in (self.x, self.w, self.b))
        attributes: dict[str, Any] = {"stride": op.along("strides", rank), "groups": op.group}
        attributes |= {"dilation": op.along("dilations", rank), "padding": [p for p, _ in op.explicit_pads(rank)]}
        kind = f"conv{'_transpose' if isinstance(op, ConvTranspose) else ''}{rank}d"
        return torch.relu(getattr(torch.nn.functional, kind)(x, w, b, **attributes)).numpy()


def case(
    kind: str,
    shape: tuple[int, ...],
    channels: int,
    kernel: tuple[int, ...],
    strides: Any = None,
    dilations: Any = None,
    group: int = 1,
    pads: Any = None,
    seed: int = 0,
    **layouts: bool,
) -> Case:
    rng = np.random.default_rng(seed)

    def normal(*extents: int) -> Any:
        return rng.standard_normal(extents).astype(np.float32)

    attributes = {"strides": strides, "dilations": dilations, "group": group, "pads": pads}
    if kind == "conv":
        op, w = Conv(**attributes), normal(channels, shape[1] // group, *kernel)
    else:
        op, w = ConvTranspose(**attributes), normal(shape[1], channels // group, *kernel)
    return Case(op, normal(*shape), w, normal(channels), **layouts)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Channels about the size of a vector and more; rows longer and shorter than a tile."""
    kind = draw(st.sampled_from(["conv", "conv_transpose"]))
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    grouping = draw(st.sampled_from(["one", "one", "some", "each", "in vectors", "of vectors", "of halves"]))
    if kind == "conv_transpose" and grouping != "one":
        grouping = "some"
    in_blocks, out_blocks = draw(st.booleans()), draw(st.booleans())
    group, inputs, outputs = (
        1,
        *(
            LANES * draw(st.integers(1, 2)) if blocks else draw(st.integers(1, 40))
            for blocks in (in_blocks, out_blocks)
        ),
    )
    match grouping:
        case "some":
            group, in_blocks, out_blocks = 2, False, False
            inputs, outputs = 2 * draw(st.integers(1, 20)), 2 * draw(st.integers(1, 20))
        case "each":
            inputs = outputs = group = LANES * draw(st.integers(1, 2)) if in_blocks else draw(st.integers(2, 40))
            out_blocks = in_blocks
        case "in vectors":
            inputs = outputs = LANES * draw(st.integers(1, 2))
            group, in_blocks, out_blocks = inputs // draw(st.sampled_from([2, LANES // 2])), True, True
        case "of vectors":
            group, inputs, outputs = 2, 2 * LANES, 2 * LANES * draw(st.integers(1, 2))
        case "of halves":
            group, in_blocks, out_blocks = 2 * draw(st.integers(1, 2)), True, True
            inputs, outputs = (group * LANES // 2 * draw(st.sampled_from([1, 3, 4, 5, 7])) for _ in "xy")
        case _:
            pass

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    kernel, strides = each(1, 5 if rank < 3 else 2), each(1, 3)
    dilations = each(1, 2) if kind == "conv" else (1,) * rank
    pads = tuple(draw(st.integers(0, (k - 1) // 2)) for k in kernel)
    least = [max(1, d * (k - 1) + 1 - 2 * p) for d, k, p in zip(dilations, kernel, pads, strict=True)]
    spatial = [draw(st.integers(n + 1, n + (18 if i == rank - 1 else 4))) for i, n in enumerate(least)]
    return case(
        kind, (draw(st.integers(1, 2)), inputs, *spatial), outputs, kernel, strides, dilations, group, pads * 2,
        draw(st.integers(0, 999)), reads=in_blocks, writes=out_blocks,
    )  # fmt: skip


@settings(deadline=None, max_examples=100)
@given(cases())
def test_convolutions_agree_with_torch_in_every_layout(c: Case) -> None:
    expected = c.by_torch()
    np.testing.assert_allclose(c.run(), expected, rtol=0, atol=2e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "dilations", "pads", "depth"),
    [
        ((1, 2 * LANES, 9, 17), (3, 3), None, None, (1, 1), 1),
        ((3, LANES, 14, 7), (5, 5), (2, 2), None, (2, 2), 1),
        ((1, LANES, 20, 11), (7, 7), (1, 2), None, (3, 3), 1),
        (
            (2, LANES, 1, 2),
            (5, 5),
            None,
            None,
            (4, 4),
            1,
        ),  # all around is padding, of which some windows see nothing else
        ((1, LANES, 23, 12), (3, 3), (3, 1), (4, 5), (4, 5), 1),
        ((1, 2 * LANES, 10, 9), (3, 3), None, None, (1, 1), 2),
        ((2, LANES, 29), (7,), (2,), (2,), (6,), 1),
        ((1, LANES, 3, 5, 9), (3, 3, 3), None, None, (1, 1, 1), 1),
    ],
)
def test_windows_of_channels_leave_padding_out(
    shape: Any, kernel: Any, strides: Any, dilations: Any, pads: Any, depth: int
) -> None:
    channels = shape[1]
    c = case("conv", shape, channels, kernel, strides, dilations, channels // depth, pads * 2, reads=True, writes=True)
    assert "padded" not in str(c.lowered(HOST)[0])
    expected = c.by_torch()
    np.testing.assert_allclose(c.run(), expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("shape", "channels", "kernel", "strides", "dilations", "pads", "group"),
    [
        ((1, LANES, 9, 17), 2 * LANES, (3, 3), None, None, (1, 1), 1),
        ((3, 2 * LANES, 7, 7), 5 * LANES, (3, 3), None, None, (1, 1), 1),  # both edges in one tile
        ((2, LANES, 15, 33), LANES, (3, 3), (2, 2), None, (1, 1), 1),
        ((1, 2 * LANES, 6, 17), 3 * LANES, (1, 7), None, None, (0, 3), 1),
        ((1, LANES, 2, 3), LANES, (5, 5), None, None, (4, 4), 1),  # some windows see nothing but padding
        ((1, LANES, 23, 12), LANES, (3, 3), (3, 1), (4, 5), (4, 5), 1),
        ((1, 2 * LANES, 10, 31), 4 * LANES, (3, 3), None, None, (1, 1), 2),
        ((2, LANES, 29), 2 * LANES, (7,), (2,), (2,), (6,), 1),
        ((1, LANES, 3, 5, 9), LANES, (3, 3, 3), None, None, (1, 1, 1), 1),
        # whole tiles in a row: the loops over planes, rows and tiles are one
        ((1, 4 * LANES, 14, 14), 4 * LANES, (5, 5), None, None, (2, 2), 2),
        ((2, 2 * LANES, 7, 112), 2 * LANES, (3, 3), None, (2, 2), (2, 2), 1),
        ((1, LANES, 20, 35), 4 * LANES, (7, 7), None, (2, 2), (6, 6), 1),
        ((2, LANES, 4, 7, 28), 4 * LANES, (3, 3, 3), (1, 2, 2), None, (1, 1, 1), 1),
    ],
)
def test_padded_sums_over_blocks(
    shape: Any, channels: int, kernel: Any, strides: Any, dilations: Any, pads: Any, group: int
) -> None:
    c = case("conv", shape, channels, kernel, strides, dilations, group, pads * 2, reads=True, writes=True)
    assert "padded" not in str(c.lowered(HOST)[0])
    expected = c.by_torch()
    np.testing.assert_allclose(c.run(), expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("shape", [(1, 2, 7, 7), (2, 1, 5, 9), (3, 2, 1, 1), (1, 3, 13, 3), (2, 2, 2, 3, 5)])
@pytest.mark.parametrize("vectors", [1, 2, 7, 9])
def test_tiles_of_pixels_do_not_end_with_rows(shape: tuple[int, ...], vectors: int) -> None:
    """The last tile of a plane has fewer pixels, and the last group of vectors may have fewer."""
    batch, blocks, *plane = shape
    c = case("conv", (batch, blocks * LANES, *plane), vectors * LANES, (1,) * len(plane), reads=True, writes=True)
    expected = c.by_torch()
    np.testing.assert_allclose(c.run(), expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    joined = ".".join(f"i{d}" for d in range(2, 2 + len(plane)))
    assert f"({joined}, 0, " in str(c.lowered(HOST)[0]) or prod(plane) == 1


def test_versions_of_the_last_tile_hold_none_of_the_others() -> None:
    """Of 9 rows in tiles of 8 the last one has 1: code for 7 more stands there under conditions that never hold."""
    c = case("conv_transpose", (1, 2, 5, 3), 4, (1, 2), (2, 1), group=2)
    np.testing.assert_allclose(c.run(), c.by_torch(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "channels", "kernel", "strides", "is_shared"),
    [
        ((1, 64, 56, 56), 64, (1, 1), None, True),
        ((1, 32, 28, 28), 64, (3, 3), (2, 2), True),
        ((1, 512, 7, 7), 512, (1, 1), None, False),  # more weights than data
        ((1, 512, 56, 56), 512, (1, 1), None, False),  # a core does not keep all weights
    ],
)
def test_threads_share_pixels_where_weights_are_few(
    shape: Any, channels: int, kernel: Any, strides: Any, is_shared: bool
) -> None:
    """A core reads what it wrote itself: its part of the plane, for all channels."""
    target = find("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4")
    c = case("conv", shape, channels, kernel, strides, reads=True, writes=True)
    (loop,) = [s for s in walk(c.lowered(target)[0].body) if isinstance(s, For) and s.kind == "parallel"]
    groups = [s for s in walk(loop.body) if isinstance(s, For) and s.var.name == "i1.outer"]
    assert bool(groups) == is_shared


def test_no_condition_stands_in_sums_of_pixels() -> None:
    """66 tiles of 49 pixels in 5 groups: threads share tiles, of which the last of a plane is shorter."""
    target = find("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell")
    c = case("conv", (1, 64, 56, 56), 40, (1, 1), reads=True, writes=True)
    kernel = prepare(c.lowered(target)[0])
    sums = [s for s in walk(kernel.body) if isinstance(s, For) and s.kind == "serial"]
    assert sums
    assert not any(isinstance(x, If) for s in sums for x in walk(s.body))
    assert compile_kernel(c.lowered(target)[0], target).spills == 0


@pytest.mark.parametrize("channels", [(24, 24), (40, 40), (24, 56), (16, 40), (40, 16)])
def test_groups_that_end_within_blocks_fill_halves_of_vectors(channels: tuple[int, int]) -> None:
    inputs, outputs = (4 * n for n in channels)
    c = case("conv", (2, inputs, 8, 11), outputs, (3, 3), group=4, pads=(1, 1, 1, 1), reads=True, writes=True)
    expected = c.by_torch()
    np.testing.assert_allclose(c.run(), expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    if outputs // 4 % 16 == 8:
        loops = str(c.lowered(find("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4"))[0])
        assert "vectorized (oc.inner, 0, 8)" in loops


def test_whole_groups_are_shuffled_not_gathered() -> None:
    c = case("conv", (1, 32, 9, 9), 32, (3, 3), group=8, reads=True, writes=True)
    target = find("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4")
    text = compile_kernel(c.lowered(target)[0], target).llvm
    assert "shufflevector" in text
    assert not re.findall(r"insertelement <16 x float> %\w+, float %\w+, i32 [1-9]", text)


SHAPES: dict[str, tuple[Any, ...]] = {
    "1x1": ("conv", (1, 64, 14, 14), 64, (1, 1)),
    "3x3": ("conv", (1, 32, 14, 14), 64, (3, 3)),
    "a row that tiles do not divide": ("conv", (1, 32, 9, 17), 48, (3, 3)),
    "5x5, stride 2": ("conv", (1, 32, 19, 19), 64, (5, 5), (2, 2)),
    "1x7": ("conv", (1, 32, 17, 17), 32, (1, 7)),
    "7x1, dilated": ("conv", (1, 32, 33, 17), 32, (7, 1), None, (2, 1)),
    "few channels": ("conv", (1, 3, 30, 30), 32, (7, 7), (2, 2)),
    "four channels a group": ("conv", (1, 32, 14, 14), 32, (3, 3), None, None, 8),
    "24 channels a group": ("conv", (1, 48, 14, 14), 48, (3, 3), None, None, 2),
    "40 channels a group": ("conv", (1, 80, 7, 7), 80, (3, 3), (2, 2), None, 2),
    "depthwise 3x3": ("conv", (1, 32, 28, 28), 32, (3, 3), None, None, 32),
    "depthwise 5x5, stride 2": ("conv", (1, 32, 28, 28), 32, (5, 5), (2, 2), None, 32),
    "transposed 4x4": ("conv_transpose", (1, 32, 8, 8), 64, (4, 4), (2, 2), None, 1, (1, 1, 1, 1)),
    "transposed 3x3": ("conv_transpose", (1, 32, 9, 9), 32, (3, 3), (2, 2)),
    "transposed 2x2": ("conv_transpose", (1, 32, 8, 15), 32, (2, 2), (2, 2)),
    "transposed 4x4 to few channels": ("conv_transpose", (1, 32, 16, 16), 3, (4, 4), (2, 2), None, 1, (1, 1, 1, 1)),
}
CPUS = [
    "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4",
    "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell",
    "llvm -mtriple=aarch64-linux-gnu",
]


@pytest.mark.slow
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("name", "in_blocks"),
    [(n, b) for n, (_, x, outputs, *_) in SHAPES.items() for b in (False, True) if not b or min(x[1], outputs) >= 16],
)
def test_hot_loops_do_not_touch_the_stack(name: str, cpu: str, in_blocks: bool) -> None:
    c = case(*SHAPES[name])
    c.reads = c.writes = in_blocks
    target = find(cpu)
    spares = (0, *(s * target.vector_registers // 16 for s in SPARE))  # as compiling does where a kernel spills
    found = (compile_kernel(c.lowered(replace(target, spare=s))[0], target).spills for s in spares)
    assert 0 in found


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("typical", [13, 26, 52])
def test_tiles_of_phases_fit_narrow_open_planes(typical: int, registers: int) -> None:
    """One that just fills a typical row computes four times and more of a narrow one."""
    vectors, depth = 208 // typical, 4 * 208 // typical * 16
    tile = cpu_transposed.choose_tile((typical, typical), vectors, 2, depth, registers, is_open=True)
    assert tile.rows == 1
    for width in range(1, 2 * typical):
        done = sum(times * columns for times, columns in tiles.pieces(width, tile.columns))
        assert done <= (2.0 if width < 4 else 1.5) * width, (tile, width)
