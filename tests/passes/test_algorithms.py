"""Which convolutions become Winograd's, and why others do not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

import renorm
from renorm import ops
from renorm.core.dims import Sym, static
from renorm.core.target import Target
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.ops.shared.filtering import convolution
from renorm.ops.shared.tiled import Tiled
from renorm.ops.winograd_conv import WinogradConv, WinogradConvTranspose
from renorm.passes.algorithms import WORTH, ChooseAlgorithms, tiles
from renorm.passes.context import Context
from renorm.passes.convolution_cost import Convolution
from renorm.passes.pipeline import optimize
from renorm.runtime.report import Report
from renorm.targets import find


def conv(x: Value, k: int, name: str = "conv", kernel: int = 3, **attributes: Any) -> Value:
    c = x.shape[1] // attributes.get("group", 1)
    w = (RNG.standard_normal((k, c, kernel, kernel)) / kernel).astype(np.float32)
    attributes.setdefault("pads", (kernel // 2,) * 4)
    return ops.conv(x, w, RNG.standard_normal(k).astype(np.float32), name=name, **attributes)


def single(channels: int = 64, results: int = 64, extent: int = 56, batch: int = 1, **attributes: Any) -> Graph:
    g = Graph()
    g.outputs = [conv(g.input("x", "float32", (batch, channels, extent, extent)), results, **attributes)]
    return g


def chosen(g: Graph, **options: Any) -> tuple[dict[str, tuple[int, ...]], Report]:
    """Tiles by node, and the report."""
    done, report = optimize(g, **options)
    return {n.name: n.op.tile for n in done.nodes if isinstance(n.op, Tiled)}, report


def refusals(report: Report) -> dict[str, str]:
    return {node: reason for rule, node, reason in report.refusals if rule.endswith("ToWinograd")}


def test_a_large_convolution_is_computed_by_tiles_and_keeps_its_name() -> None:
    tiles, report = chosen(single())
    assert tiles == {"conv": (4, 4)}
    assert refusals(report) == {}
    assert [k for k in optimize(single())[0].groups if "winograd4_conv2d" in k.name]


def test_convolutions_of_one_weight_share_what_it_becomes() -> None:
    g = Graph()
    w = RNG.standard_normal((64, 64, 3, 3)).astype(np.float32)
    y = ops.conv(g.input("x", "float32", (1, 64, 56, 56)), w, None, pads=(1,) * 4)
    g.outputs = [ops.conv(ops.relu(y), w, None, pads=(1,) * 4)]
    done, _ = optimize(g)
    transformed = [n.inputs[1] for n in done.nodes if isinstance(n.op, Tiled)]
    assert len(transformed) == 2
    assert transformed[0] is transformed[1]


@pytest.mark.parametrize("options", [{"precision": "exact"}, {"level": 2}, {"keep": ["conv"]}, {"for_export": True}])
def test_not_where_it_is_not_wanted(options: dict[str, Any]) -> None:
    assert chosen(single(), **options)[0] == {}


@pytest.mark.parametrize(
    "attributes",
    [{"strides": (3, 3)}, {"dilations": (2, 2), "pads": (2,) * 4}, {"group": 2}, {"kernel": 1}],
)
def test_other_convolutions_stay(attributes: dict[str, Any]) -> None:
    tiles, report = chosen(single(**attributes))
    assert tiles == refusals(report) == {}


def test_narrow_floats_computed_weights_and_padding_that_is_not_known_stay() -> None:
    g = Graph()
    x, w = g.input("x", "float32", (1, 64, 56, 56)), g.input("w", "float32", (64, 64, 3, 3))
    narrow = g.input("h", "float16", (1, 64, 56, 56))
    half = ops.conv(narrow, RNG.standard_normal((64, 64, 3, 3)).astype(np.float16))
    weight = RNG.standard_normal((64, 64, 3, 3)).astype(np.float32)
    open_ = ops.conv(g.input("z", "float32", (1, 64, Sym("H"), 56)), weight, auto_pad="SAME_UPPER")
    g.outputs = [ops.conv(x, w), half, open_]
    assert chosen(g)[0] == {}


def test_open_extents_are_weighed_as_typical_ones() -> None:
    g = Graph()
    large = conv(g.input("x", "float32", ("N", 64, Sym("H"), 56)), 64, "large")
    small = conv(g.input("y", "float32", ("N", 64, Sym("h", 1, 3), Sym("w", 1, 3))), 64, "small")
    g.outputs = [large, small]
    assert list(chosen(g)[0]) == ["large"]


def test_few_channels_stay_direct_with_a_reason() -> None:
    tiles, report = chosen(single(channels=3, results=8))
    assert tiles == {}
    assert "times as fast at most" in refusals(report)["conv"]


def test_weights_that_would_not_stay_finite() -> None:
    g = single()
    weight = next(v for v in g.constants.values() if v.shape == (64, 64, 3, 3))
    assert weight.data is not None
    weight.data[3, 4, 1, 1] = np.inf
    tiles, report = chosen(g)
    assert tiles == {}
    assert "are not finite" in refusals(report)["conv"]


def constants(g: Graph) -> int:
    return sum(v.data.nbytes for v in g.constants.values() if v.data is not None)


def of_four_sizes() -> Graph:
    """Images become smaller, weights larger."""
    g = Graph()
    y = g.input("x", "float32", (1, 32, 64, 64))
    for i, (k, extent) in enumerate([(32, 64), (64, 32), (128, 16), (256, 8)]):
        y = ops.relu(conv(y, k, f"conv{i}"))
        if extent > 8:
            y = ops.max_pool(y, kernel_shape=(2, 2), strides=(2, 2))
    g.outputs = [y]
    return g


WIDE = find("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids")


def grown(g: Graph, worth: float) -> set[str]:
    """Return the convolutions whose weights are transformed before, at that price of memory."""
    ChooseAlgorithms(worth).run(g, Context(WIDE))
    return {n.name for n in g.nodes if isinstance(n.op, Tiled) and n.inputs[1] is not None and n.inputs[1].rank == 3}


def test_the_dearer_memory_is_the_less_weights_grow() -> None:
    """Grow first the weights that save most for a byte: small ones, of large images."""
    added, before = [], constants(of_four_sizes())
    for worth in (0.0, 1.0, 16.0, 64.0, math.inf):
        larger = grown(g := of_four_sizes(), worth)
        added.append(constants(g) - before)
        assert larger == {f"conv{i}" for i in range(len(larger))}
    assert added == sorted(added, reverse=True)
    assert added[0] > added[-2] > added[-1] == 0


def test_a_byte_weighs_less_where_the_process_takes_more() -> None:
    """The same convolution, alone and beside much that is held: constants, or data around a node."""

    def beside(constants: int = 0, data: int = 0) -> Graph:
        g = single(16, 16, 28)
        if constants:
            held = g.constant(np.zeros(constants >> 2, np.float32))
            g.outputs.append(ops.add(g.input("more", "float32", held.shape), held))
        if data:
            g.outputs.append(ops.relu(g.input("much", "float32", (data >> 2,))))
        return g

    worth = next(2**-k for k in range(-20, 40) if grown(beside(), 2**-k))
    assert grown(beside(), 2 * worth) == set()
    assert grown(beside(constants=256 << 20), 2 * worth) == {"conv"}
    assert grown(beside(data=256 << 20), 2 * worth) == {"conv"}


def test_weights_that_would_be_too_large_are_a_reason() -> None:
    g = single(16, 16, 28)
    (why,) = ChooseAlgorithms(math.inf).plan(g, Context(WIDE)).values()
    assert isinstance(why, str)
    assert "too large for what they save" in why
    (way,) = ChooseAlgorithms(0.0).plan(g, Context(WIDE)).values()
    assert not isinstance(way, str)


@pytest.mark.parametrize(("extent", "is_joined"), [(28, True), (112, False), (Sym("n", 1, 28), False)])
def test_tiles_of_a_plane_are_one_row_where_rows_are_short(extent: Any, is_joined: bool) -> None:
    """7 rows of 7 tiles fill no registers of AVX2, 28 rows of 28 do."""
    g, context = single(128, 128, extent), Context(find("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell"))
    ChooseAlgorithms().run(g, context)
    (op,) = (n.op for n in g.nodes)
    assert isinstance(op, WinogradConv)
    assert op.joined is is_joined


@pytest.mark.parametrize("where", ["before", "behind", "elsewhere"])
def test_planes_stay_planes_beside_statistics_of_them(where: str) -> None:
    g, context = Graph(), Context(find("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell"))
    x = y = g.input("x", "float32", (1, 128, 28, 28))
    scale, bias = np.ones((2, 128), np.float32)
    if where == "before":
        y = ops.relu(ops.instance_norm(y, scale, bias))
    y = ops.relu(conv(y, 128, "conv"))
    if where == "behind":
        y = ops.instance_norm(y, scale, bias)
    g.outputs = [y] if where != "elsewhere" else [y, ops.instance_norm(x, scale, bias)]
    ChooseAlgorithms().run(g, context)
    (op,) = (n.op for n in g.nodes if isinstance(n.op, WinogradConv))
    assert op.joined is (where == "elsewhere")


def test_few_tiles_have_their_weights_transformed_in_the_kernel() -> None:
    """512 channels at 16 by 16: transformed before, weights would be 37 MB, and come from memory. AVX2 has half the
    registers, the transform takes twice as long: there they are."""
    g = single(512, 512, 16)
    before = constants(g)
    done, _ = optimize(g, target=WIDE)
    (node,) = (n for n in done.nodes if isinstance(n.op, Tiled))
    assert node.op.values["tile"] == (4, 4)
    assert constants(done) == before


@pytest.mark.parametrize(
    ("kernel", "strides", "transposed", "expected"),
    [
        ((3, 3), (1, 1), False, {(2, 2), (3, 3), (4, 4)}),
        ((1, 7), (1, 1), False, {(1, 2)}),
        ((3, 1), (1, 1), False, {(4, 1)}),
        ((5, 5), (1, 1), False, {(2, 2)}),
        ((3, 3), (2, 2), False, {(2, 2), (4, 4)}),
        ((4, 4), (2, 2), True, {(2, 2), (4, 4)}),
    ],
)
def test_tiles_that_are_considered(
    kernel: tuple[int, int], strides: tuple[int, int], transposed: bool, expected: set[tuple[int, int]]
) -> None:
    found = tiles(kernel, strides)
    assert expected <= set(found)
    kind = WinogradConvTranspose if transposed else WinogradConv
    for tile in found:
        down, across = kind(tile=tile, strides=strides, kernel_shape=kernel).filters((24, 24), kernel)
        own = down.results * across.results * kernel[0] * kernel[1] / (strides[0] * strides[1] if transposed else 1)
        assert down.products * across.products < own


def test_transposed_convolutions() -> None:
    g = Graph()
    x = g.input("x", "float32", (8, 128, 16, 16))
    w = RNG.standard_normal((128, 64, 4, 4)).astype(np.float32)
    g.outputs = [ops.conv_transpose(x, w, None, strides=(2, 2), pads=(1,) * 4, name="up")]
    arrays = [RNG.standard_normal(static(x.shape)).astype(np.float32)]
    expected = interpret.run(g, arrays)[0]
    done, _ = optimize(g.copy())
    assert [type(n.op) for n in done.nodes] == [WinogradConvTranspose]
    (y,) = renorm.compile(g).run(*arrays)
    assert np.abs(y - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("attributes", [{"auto_pad": "SAME_UPPER", "pads": None}, {"pads": (2, 0, 1, 3)}])
def test_result_is_the_same(attributes: dict[str, Any]) -> None:
    g = single(48, 80, 40, batch=2, **attributes)
    arrays = [RNG.standard_normal(static(v.shape)).astype(np.float32) for v in g.inputs]
    expected = interpret.run(g, arrays)[0]
    done, _ = optimize(g.copy())
    assert any(isinstance(n.op, Tiled) for n in done.nodes)
    for got in (interpret.run(done, arrays)[0], renorm.compile(g).run(*arrays)[0]):
        assert np.abs(got - expected).max() < 4e-6 * np.abs(expected).max()


def test_verify_measures_the_rewrite() -> None:
    done, report = optimize(single(16, 16, 24), verify=True)
    assert not [r for r in report.refusals if "reverted" in r[2]]
    assert any(isinstance(n.op, Tiled) for n in done.nodes) or refusals(report)


@pytest.mark.parametrize("target", ["llvm -mcpu=znver4", "llvm -mcpu=haswell", "llvm -mtriple=aarch64-linux-gnu"])
def test_cost_knows_what_both_ways_pay(target: str) -> None:
    machine: Target = find(target)

    def times(tile: int, batch: int, channels: int, results: int, height: int, width: int) -> float:
        one = Convolution((batch, channels, height, width), (batch, results, height, width), (3, 3))
        f = convolution(tile, 3, 1, 1)
        return one.direct(machine) / min(one.tiled((f, f), kernel, machine) for kernel in (False, True))

    assert times(4, 1, 64, 64, 56, 56) > times(2, 1, 64, 64, 56, 56) > 1.3
    assert times(4, 1, 4, 4, 56, 56) < times(4, 1, 64, 64, 56, 56)  # transforms beside few products
    assert times(4, 1, 512, 512, 4, 4) < times(4, 1, 512, 512, 16, 16)  # weights read for few tiles
    assert times(4, 1, 64, 64, 17, 16) < times(4, 1, 64, 64, 16, 16)  # tiles that hang over
    assert times(4, 1, 64, 64, 1, 1) < 1
    # a batch shares the weights, which come in time for short vectors as it is
    assert times(4, 8, 512, 512, 7, 7) > times(4, 1, 512, 512, 7, 7) * (0.95 if "aarch64" in target else 1.0)


def test_long_columns_of_tiles_turn_rows_again_for_each() -> None:
    """Channels that do not fill vectors change their place: of columns of 8 elements each does so for four tiles."""

    machine: Target = find("llvm -mcpu=znver4")

    def times(results: int, channels: int) -> float:
        one = Convolution((1, channels, 101, 67), (1, results, 101, 67), (7, 1))
        filters = (convolution(2, 7, 1, 1), convolution(1, 1, 1, 1))
        return one.direct(machine) / min(one.tiled(filters, kernel, machine) for kernel in (False, True))

    assert times(37, 100) < WORTH < times(48, 96)
