"""Products of bytes: equal to sums of integers in 64 bits and to ONNX Runtime, whatever zero points and windows are;
what lies in memory; the code, where the machine has the instruction, and that there is code, everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from tests.frontends import onnx_runtime
from tests.passes.test_integer_products import STATED, blocks, branches, optimized, stated

import renorm
from renorm import ops
from renorm.core.conversion import limits
from renorm.core.dims import static
from renorm.core.dots import QUADS, Dot
from renorm.core.host import host_flags
from renorm.core.target import Target
from renorm.graph.ir import Graph
from renorm.passes import pipeline
from renorm.targets import find

BYTES = "llvm -mcpu=cascadelake"  # without pairs
BOTH = "llvm -mcpu=znver4"
WORDS = "llvm -mcpu=haswell"  # pairs of 16 bits
TILES = "llvm -mcpu=sapphirerapids"  # the matrix unit
TARGETS = "llvm", WORDS


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Graph, Any, Any]:
    """A ConvInteger, between nodes whose values lie in blocks, its data, and what it must give."""
    whole, kinds = st.integers, st.sampled_from(["uint8", "int8"])
    kind, held = draw(kinds), draw(kinds)
    window = draw(st.sampled_from([(1, 1), (3, 3), (2, 1), (1, 4)]))
    depth = draw(st.sampled_from([3, 4, 6, 10, 16, 24, 48, 64]))
    results = draw(whole(16 if depth % 16 == 0 else 64, 70))
    strides, dilations = ((draw(whole(1, 2)), draw(whole(1, 2))) for _ in range(2))
    pads = [draw(whole(0, n - 1)) for n in window * 2]
    plane = [draw(whole(1 + 2 * (n - 1), 1 + 2 * (n - 1) + 9)) for n in window]
    rng = np.random.default_rng(draw(whole(0, 2**32)))
    (low, high), (least, most) = limits(kind), limits(held)
    x = rng.integers(low, high + 1, (draw(whole(1, 2)), depth, *plane)).astype(kind)
    if draw(st.booleans()):
        x[...] = draw(st.sampled_from([low, high]))
    middle = 128 if held == "uint8" else 0  # so that weights less their zero points are of 8 bits
    w = rng.integers(least, most + 1, (results, depth, *window)).astype(held)
    zeros, zero = np.full(results, middle, held), np.asarray(draw(whole(int(low), int(high))), kind)
    g = Graph("one")
    data = g.input("x", kind, x.shape)
    attributes = {"pads": pads, "strides": strides, "dilations": dilations}
    g.outputs = [ops.conv_integer(data, w, zero, zeros, **attributes)]
    padded = np.pad(x.astype(np.int64) - int(zero), ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    reach = [d * (n - 1) + 1 for d, n in zip(dilations, window)]
    views: Any = np.lib.stride_tricks.sliding_window_view
    seen = views(padded, reach, (2, 3))[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    return g, x, np.einsum("nchwij,ocij->nohw", seen, w.astype(np.int64) - middle)


@given(convolutions())
@settings(max_examples=25, deadline=None)
def test_convolutions_are_sums_of_integers(case: tuple[Graph, Any, Any]) -> None:
    g, x, expected = case
    text, w, spread = str(g), g.nodes[0].inputs[1], g.nodes[0].op.values["dilations"][-1]
    assert w is not None
    depth, row = static((w.shape[1], w.shape[-1]))
    is_taken = depth > 8 or (row > 2 and spread == 1)  # blocks of channels, nearly full, or rows of quads
    for target in TARGETS:
        np.testing.assert_array_equal(renorm.compile(g.copy(), target=target).run(x)[0], expected)
    made = pipeline.optimize(g, target=find(BYTES))[0]
    assert ("byte_conv" in [n.op.name for n in made.nodes]) == is_taken, text


@st.composite
def lanewise(draw: st.DrawFn) -> tuple[Graph, Any, Any]:
    """A depthwise ConvInteger of any rank, between nodes whose values lie in blocks or not, its data, and what it must
    give."""
    whole, rank = st.integers, draw(st.integers(1, 3))
    channels, kind = draw(st.sampled_from([16, 48, 64])), draw(st.sampled_from(["uint8", "int8"]))
    window = [draw(whole(1, 3)) for _ in range(rank - 1)] + [draw(whole(3, 9))]
    strides, pads = [draw(whole(1, 3)) for _ in window], [draw(whole(0, n - 1)) for n in window * 2]
    dilations = [draw(whole(1, 2)) for _ in window[1:]] + [1]
    reach = [d * (n - 1) + 1 for d, n in zip(dilations, window)]
    plane = [n + draw(whole(0, 9)) for n in reach]
    rng = np.random.default_rng(draw(whole(0, 2**32)))
    low, high = (int(n) for n in limits(kind))
    x = rng.integers(low, high + 1, (draw(whole(1, 2)), channels, *plane)).astype(kind)
    w = rng.integers(-128, 128, (channels, 1, *window)).astype(np.int8)
    zero, g = np.asarray(draw(whole(low, high)), kind), Graph("one")
    data, attributes = g.input("x", kind, x.shape), {"pads": pads, "strides": strides, "dilations": dilations}
    if draw(st.booleans()):  # in blocks: the identity, by a product of bytes
        eye = np.eye(channels, dtype=np.int8).reshape(channels, channels, *[1] * rank)
        data = ops.cast(ops.conv_integer(data, eye), to=kind)
    made = ops.conv_integer(data, w, zero, group=channels, **attributes)
    ones = np.zeros((16, channels, *[1] * rank), np.int8)
    ones[:, 0] = 1
    counts = ops.cast(ops.clip(made, np.int32(0), np.int32(255)), to="uint8")
    g.outputs = [made] if draw(st.booleans()) else [ops.conv_integer(counts, ones)]
    around = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:])]
    axes = tuple(range(2, 2 + rank))
    views: Any = np.lib.stride_tricks.sliding_window_view
    seen = views(np.pad(x.astype(np.int64) - int(zero), around), reach, axes)
    steps = tuple(slice(None, None, n) for n in (*strides, *dilations))
    expected = (seen[(slice(None), slice(None), *steps)] * w[:, 0].reshape(channels, *[1] * rank, *window)).sum(
        tuple(range(2 + rank, 2 + 2 * rank))
    )
    if g.outputs != [made]:
        expected = np.repeat(expected[:, :1].clip(0, 255), 16, axis=1)
    return g, x, expected


@given(lanewise())
@settings(max_examples=25, deadline=None)
def test_channels_by_themselves_are_sums_of_integers(case: tuple[Graph, Any, Any]) -> None:
    g, x, expected = case
    for target in TARGETS:
        np.testing.assert_array_equal(renorm.compile(g.copy(), target=target).run(x)[0], expected)


@given(
    rows=st.integers(1, 40),
    quads=st.integers(1, 40),
    columns=st.integers(16, 70),
    kind=st.sampled_from(["uint8", "int8"]),
    is_known=st.booleans(),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_matrices_are_sums_of_integers(
    rows: int, quads: int, columns: int, kind: str, is_known: bool, data: st.DataObject
) -> None:
    low, high = limits(kind)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a = rng.integers(low, high + 1, (2, rows, 4 * quads)).astype(kind)
    b = rng.integers(-128, 128, (4 * quads, columns)).astype(np.int8)
    zero = np.asarray(data.draw(st.integers(int(low), int(high))), kind)
    g = Graph("one")
    x = g.input("a", kind, a.shape)
    z = zero if is_known else g.input("z", kind, ())
    g.outputs = [ops.matmul_integer(x, b, z)]
    for target in TARGETS:
        (got,) = renorm.compile(g.copy(), target=target).run(a, *([] if is_known else [zero]))
        np.testing.assert_array_equal(got, (a.astype(np.int64) - int(zero)) @ b)
    for target, name in ((BYTES, "byte_matmul"), (WORDS, "word_matmul")):
        assert name in [n.op.name for n in pipeline.optimize(g.copy(), target=find(target))[0].nodes]


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("made", [blocks, branches])
@pytest.mark.parametrize("target", TARGETS)
def test_quantized_convolutions_are_those_of_onnx_runtime(made: Any, kind: Any, target: str) -> None:
    net = made(kind)
    model, x = net.model(["d"]), net.data()
    for level in (2, 3):
        (got,) = renorm.compile(model, opt_level=level, target=target).run(x)
        (wanted,) = onnx_runtime.run(model, x)
        apart = np.abs(got.astype(int) - wanted.astype(int))
        assert apart.max() <= (1 if made is branches else 0)  # what is joined is rounded twice
        assert apart.mean() < 0.02


@pytest.mark.parametrize("kind", STATED)
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("target", TARGETS)
def test_networks_that_state_what_is_quantized(kind: str, precision: str, target: str) -> None:
    model, x = stated(*STATED[kind])
    (expected,) = onnx_runtime.run(onnx_runtime.session(model, rewrites=False), x)
    (got,) = renorm.compile(model, precision=precision, target=target).run(x)
    apart = np.abs(got - expected) / np.float32(0.04)
    assert apart.max() < 1.01
    assert (apart > 0.01).mean() < 0.01


def test_bytes_go_from_kernel_to_kernel() -> None:
    """In blocks of channels, where a byte_conv reads them; steps that others read are made of these."""
    made = optimized(blocks().model(["e"]), BYTES)
    convs = [n for n in made.nodes if n.op.name == "byte_conv"]
    read = [n.inputs[0] for n in convs]
    blocks_of = [v.layout and v.layout.lanes for v in read if v is not None]
    assert [v.dtype for v in read if v is not None] == ["uint8"] * 4
    assert blocks_of == [None, 16, 16, 16]  # of three channels rows are quads
    for g in made.groups:
        written = {v for n in g.nodes for v in n.outputs if any(u not in g.nodes for u in v.readers)}
        assert len(written) <= 1  # not both integers and steps


@pytest.mark.parametrize(
    ("channels", "window", "groups", "lanes"),
    [(64, 3, 1, 64), (128, 3, 1, 64), (96, 2, 1, 32), (48, 3, 1, 16), (64, 4, 64, 16)],
)
def test_blocks_are_as_wide_as_a_matrix_unit_takes_them(channels: int, window: int, groups: int, lanes: int) -> None:
    """Keep what a convolution of channels by themselves reads in blocks of a vector."""

    def counts(sums: Any) -> Any:
        steps = ops.clip(ops.mul(ops.cast(sums, to="float32"), np.float32(0.01)), np.float32(0), np.float32(255))
        return ops.cast(steps, to="uint8")

    g = Graph("three")
    first = ops.conv_integer(g.input("x", "uint8", (1, 64, 9, 9)), np.ones((channels, 64, 1, 1), np.int8))
    weight = np.ones((64, channels // groups, window, window), np.int8)
    second = ops.conv_integer(counts(first), weight, group=groups)
    g.outputs = [ops.conv_integer(counts(second), np.ones((64, 64, 1, 1), np.int8))]
    graph = pipeline.optimize(g, target=find(TILES))[0]
    operands: Any = [n.inputs for n in graph.nodes if n.op.name == "byte_conv"]
    (read,) = (x for x, w, *_ in operands if w.shape == weight.shape)
    assert read.layout.lanes == lanes


def test_what_a_convolution_by_itself_reads_is_held_in_bytes() -> None:
    model, _ = stated(*STATED["images"])
    model.graph.initializer.remove(next(t for t in model.graph.initializer if t.name == "z0"))
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(0, np.uint8), "z0"))
    made = optimized(model, BOTH)
    lanewise = [n for n in made.nodes if n.op.values.get("group", 1) > 1]
    assert [n.inputs[0].held_dtype for n in lanewise if n.inputs[0] is not None] == ["uint8"]


def test_reciprocals_are_not_exact() -> None:
    model, _ = stated(*STATED["images"])
    for precision, divisions in (("exact", 4), ("fast", 1)):  # that of the input
        made = pipeline.optimize(renorm.read(model), target=find(BOTH), precision=precision)[0]
        assert [n.op.name for n in made.nodes].count("div") == divisions


@pytest.mark.parametrize(
    ("weight", "taken"),
    [((32, 16, 3, 3), True), ((8, 16, 3, 3), False), ((32, 7, 3, 3), True), ((128, 24, 1, 1), True)]
    + [
        ((128, 20, 1, 1), True),
        ((16, 20, 1, 1), False),
        ((16, 4, 1, 1), False),
        ((32, 1, 3, 3), True),
        ((32, 3, 2, 2), False),
    ],
)
def test_channels_fill_blocks_and_vectors(weight: tuple[int, ...], taken: bool) -> None:
    g = Graph("one")
    x = g.input("x", "uint8", (1, weight[1], 9, 9))
    g.outputs = [ops.conv_integer(x, np.ones(weight, np.int8))]
    names = [n.op.name for n in pipeline.optimize(g, target=find(BYTES))[0].nodes]
    assert ("byte_conv" in names) == taken


@pytest.mark.parametrize(("auto_pad", "odd"), [("SAME_UPPER", 0), ("SAME_LOWER", 1), ("VALID", 0)])
def test_rows_are_filled_where_extents_decide_pads(auto_pad: str, odd: int) -> None:
    rng = np.random.default_rng(5)
    x, w = rng.integers(0, 256, (2, 16, 7, 10), np.uint8), rng.integers(-128, 128, (16, 1, 5, 5), np.int8)
    g, same = Graph("one"), np.eye(16, dtype=np.int8)[..., None, None]
    data = ops.cast(ops.conv_integer(g.input("x", "uint8", x.shape), same), to="uint8")
    made = ops.conv_integer(data, w, np.uint8(9), group=16, auto_pad=auto_pad, strides=(2, 3))
    g.outputs = [ops.conv_integer(ops.cast(ops.clip(made, np.int32(0), np.int32(255)), to="uint8"), same)]
    (got,) = renorm.compile(g).run(x)
    missing = [0, 0] if auto_pad == "VALID" else [(-(-n // s) - 1) * s + 5 - n for n, s in ((7, 2), (10, 3))]
    around = [((n + odd) // 2, n - (n + odd) // 2) for n in missing]
    views: Any = np.lib.stride_tricks.sliding_window_view
    seen = views(np.pad(x.astype(np.int64) - 9, [(0, 0), (0, 0), *around]), (5, 5), (2, 3))[:, :, ::2, ::3]
    expected = (seen * w[:, 0].reshape(16, 1, 1, 5, 5)).sum((-2, -1)).clip(0, 255)
    np.testing.assert_array_equal(got, expected)
    convs = [n for n in pipeline.optimize(g, target=find(BYTES))[0].nodes if "conv" in n.op.name]
    assert [(n.op.name, n.op.values["group"]) for n in convs] == [("byte_conv", n) for n in (1, 16, 1)]


def test_words_are_left_to_tiles_and_floats_where_these_are_faster() -> None:
    """Of convolutions that may be rounded those that Winograd's tiles are for, and channels by themselves."""
    model, _ = stated(*STATED["images"])
    names = [n.op.name for n in pipeline.optimize(renorm.read(model), target=find(WORDS))[0].nodes]
    assert "word_conv" in names
    for window, group, taken in (((3, 3), 1, True), ((3, 3), 16, False), ((1, 1), 1, True)):
        g = Graph("one")
        x = g.input("x", "uint8", (1, 16, 9, 9))
        g.outputs = [ops.conv_integer(x, np.ones((16, 16 // group, *window), np.int8), group=group)]
        names = [n.op.name for n in pipeline.optimize(g, target=find(WORDS))[0].nodes]
        assert ("word_conv" in names) == taken  # these may not be rounded


def test_weights_that_are_no_bytes_are_left_to_floats() -> None:
    g = Graph("one")
    w = np.zeros((32, 16, 1, 1), np.uint8)
    w[0, 0] = 255
    g.outputs = [ops.conv_integer(g.input("x", "uint8", (1, 16, 9, 9)), w)]
    assert "byte_conv" not in [n.op.name for n in pipeline.optimize(g, target=find(BYTES))[0].nodes]


@pytest.mark.parametrize("target", [BYTES, BOTH, WORDS, TILES, "llvm -mcpu=alderlake"])
def test_code_has_the_instruction(target: str) -> None:
    g = Graph("one")
    x = g.input("x", "uint8", (1, 64, 9, 9))
    g.outputs = [ops.conv_integer(x, np.ones((32, 64, 3, 3), np.int8), np.uint8(3), pads=(1, 1, 1, 1))]
    module = renorm.compile(g, target=target)
    wanted = {WORDS: "vpmaddwd", TILES: "tdpbusd"}.get(target, "vpdpbusd")
    assert any(wanted in module.kernel(group.name).asm for group in module.graph.groups)


@pytest.mark.skipif(not {"avx512vl", "avx512_vnni"} <= host_flags(), reason="this CPU does not have AVX512-VNNI")
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_vectors_of_32_bytes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX-VNNI's instructions are those of AVX512-VNNI on half as many bytes, in another encoding."""

    def has_quads(_: Target, dot: Dot) -> bool:
        return dot is QUADS

    monkeypatch.setattr(Target, "has_dot", has_quads)
    rng = np.random.default_rng(4)
    x = rng.integers(*limits(kind), (2, 24, 7, 9), kind, endpoint=True)
    w, b = rng.integers(-128, 128, (35, 24, 3, 3), np.int8), rng.integers(-128, 128, (36, 21), np.int8)
    g = Graph("two")
    data, a = g.input("x", kind, x.shape), g.input("a", kind, (5, 36))
    g.outputs = [ops.conv_integer(data, w, np.array(3, kind), pads=(1, 1, 1, 1)), ops.matmul_integer(a, b, None)]
    module = renorm.compile(g, target="llvm -mcpu=haswell -mattr=+avx512vl,+avx512vnni")
    code = "".join(module.kernel(group.name).asm for group in module.graph.groups)
    assert {"%ymm" in line for line in code.splitlines() if "vpdpbusd" in line} == {True}
    read = rng.integers(*limits(kind), (5, 36), kind, endpoint=True)
    got = module.run(x, read)
    padded = np.pad(x.astype(np.int64) - 3, ((0, 0), (0, 0), (1, 1), (1, 1)))
    views: Any = np.lib.stride_tricks.sliding_window_view
    expected = np.einsum("nchwij,ocij->nohw", views(padded, (3, 3), (2, 3)), w.astype(np.int64))
    np.testing.assert_array_equal(got[0], expected)
    np.testing.assert_array_equal(got[1], read.astype(np.int64) @ b)
