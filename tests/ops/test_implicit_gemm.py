"""Convolutions as products on GPUs: schedules give NumPy's results, run as CUDA C on the CPU; where they are chosen."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.gpu.host_assembler import needs_compiler
from tests.gpu.host_device import run

import renorm
from renorm import ops, te
from renorm.core.target import parse
from renorm.graph.ir import Graph
from renorm.ops.conv import Conv
from renorm.ops.conv_transpose import ConvTranspose
from renorm.ops.implicit_gemm import ImplicitGemm
from renorm.ops.schedules import gpu_few, gpu_products, gpu_stages
from renorm.ops.schedules.gpu_tiles import Tile
from renorm.passes.algorithms import ChooseAlgorithms
from renorm.passes.context import Context
from renorm.passes.pipeline import optimize
from renorm.targets import find

TILES = {"wide": Tile(8, 8, 2, 2), "parts": Tile(4, 4, 2, 4, depth=16, parts=2), "chosen": None}

# shapes of x and w, and attributes
CONVOLUTIONS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "plain": ((2, 3, 5, 7), (4, 3, 3, 2), {}),
    "groups": ((1, 4, 6, 5), (6, 2, 3, 3), {"group": 2, "pads": (1, 0, 2, 1), "strides": (2, 1)}),
    "dilated": ((1, 2, 9, 8), (3, 2, 2, 3), {"dilations": (3, 2), "strides": (2, 3), "pads": (0, 2, 1, 1)}),
    "one axis": ((2, 3, 8), (5, 3, 3), {"auto_pad": "SAME_UPPER", "strides": (3,)}),
    "three axes": ((1, 2, 4, 5, 3), (3, 2, 2, 3, 1), {"pads": (1, 1, 0, 0, 1, 0)}),
    "pointwise": ((2, 8, 4, 4), (12, 8, 1, 1), {}),
    "pointwise, strided": ((2, 8, 5, 6), (12, 8, 1, 1), {"strides": (2, 2)}),
    "one pixel": ((3, 8, 1, 1), (12, 8, 1, 1), {}),
    "whole rounds": ((2, 16, 7, 7), (20, 16, 3, 3), {"pads": (1, 1, 1, 1)}),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size are products."""
    monkeypatch.setattr(gpu_stages, "LEAST_WORK", 0)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of any size are products."""
    monkeypatch.setattr(gpu_stages, "LEAST_ROWS", 1)
    monkeypatch.setattr(gpu_stages, "LEAST_TERMS", 1)


def program(kind: type[Conv], name: str, along_terms: bool) -> tuple[Conv, list[te.Tensor], te.Tensor]:
    """relu(conv(x, w, b) + r), and its operands."""
    xs, ws, attributes = CONVOLUTIONS[name]
    w_shape = (ws[0], *ws[2:], ws[1]) if along_terms else (*ws[2:], ws[1], ws[0]) if kind is ImplicitGemm else ws
    x, w, b = (te.placeholder(s, name=n) for s, n in ((xs, "x"), (w_shape, "w"), (ws[:1], "b")))
    op = kind(**attributes, **({"along_terms": True} if along_terms else {}))
    y = op.compute(x, w, b)
    r = te.placeholder(y.shape, name="r")
    out = te.compute(y.shape, lambda *i: te.max(y[i] + r[i], 0.0), name="out")
    return op, [x, w, b, r], out


@needs_compiler
@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize(
    ("kind", "along_terms"), [(Conv, False), (ImplicitGemm, False), (ImplicitGemm, True)], ids=["w", "turned", "terms"]
)
def test_convolutions(
    kind: type[Conv], along_terms: bool, name: str, tile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, args, out = program(kind, name, along_terms)
    chosen = TILES[tile]
    if chosen is not None:
        monkeypatch.setattr(gpu_products, "choose", lambda *_: chosen)
        monkeypatch.setattr(gpu_few, "takes", lambda _: False)
    s = te.create_schedule(out.op)
    gpu_products.schedule(s, [out], parse("cuda -arch=sm_90"))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=t.shape).astype(np.float32) for t in args]
    found = np.full(out.shape, 99, np.float32)
    run(te.lower(s, [*args, out]), [*arrays, found])
    x, w, b, r = (a.astype(np.float64) for a in arrays)
    np.testing.assert_allclose(found, np.maximum(op.reference(x, w, b) + r, 0), rtol=1e-5, atol=1e-5)


def test_a_round_of_terms_stays_at_one_tap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an element of a column is read at is the same but for its channel; sums stay in registers, in one launch."""
    x, w = te.placeholder((1, 64, 56, 56), name="x"), te.placeholder((3, 3, 64, 64), name="w")
    y = ImplicitGemm(pads=(1, 1, 1, 1)).compute(x, w, None)
    monkeypatch.setattr(gpu_products, "choose", lambda *_: Tile(4, 4, 16, 16))
    s = te.create_schedule(y.op)
    gpu_products.schedule(s, [y], parse("cuda -arch=sm_90"))
    source = renorm.build(s, [x, w, y], target="cuda -arch=sm_90").get_source()
    assert source.count("__global__") == 1
    assert re.search(r"float conv_sums\[16\]", source)
    assert re.search(r"\*\(const int4\*\)\(w \+", source)
    (column,) = [line for line in source.splitlines() if "x[" in line]
    assert "ko / 12" in column
    assert not re.search(r"outer[a-z_]*\W*[*\d]*\)* [/%]", column)


@needs_compiler
@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(
    ("shapes", "attributes"),
    [
        (((1, 16, 6, 5), (16, 12, 4, 4)), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        (((2, 8, 5, 5), (8, 9, 3, 3)), {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}),
        (((1, 8, 5, 4), (8, 3, 2, 2)), {"strides": (2, 2), "group": 2}),
        (((1, 8, 5, 4), (8, 3, 3, 3)), {"strides": (3, 2), "dilations": (2, 1)}),
    ],
)
def test_transposed_convolutions(shapes: Any, attributes: Any, tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Phases are products of their own, or the matrices of one."""
    x, w = (te.placeholder(shape, name=name) for shape, name in zip(shapes, "xw"))
    op = ConvTranspose(**attributes)
    y = op.compute(x, w, None)
    chosen = TILES[tile]
    if chosen is not None:
        monkeypatch.setattr(gpu_products, "choose", lambda *_: chosen)
        monkeypatch.setattr(gpu_few, "takes", lambda _: False)
    assert gpu_stages.find([y])
    s = te.create_schedule(y.op)
    gpu_products.schedule(s, [y], parse("cuda -arch=sm_90"))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=t.shape).astype(np.float32) for t in (x, w)]
    found = np.full(y.shape, 99, np.float32)
    run(te.lower(s, [x, w, y]), [*arrays, found])
    expected = op.reference(arrays[0].astype(np.float64), arrays[1].astype(np.float64), None)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_padding_is_read_without_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where terms of one round are of several taps: what is read is chosen from afterwards."""
    x, w = te.placeholder((1, 20, 9, 9), name="x"), te.placeholder((3, 3, 20, 16), name="w")
    y = ImplicitGemm(pads=(1, 1, 1, 1)).compute(x, w, None)
    monkeypatch.setattr(gpu_products, "choose", lambda *_: Tile(4, 4, 4, 8))
    s = te.create_schedule(y.op)
    gpu_products.schedule(s, [y], parse("cuda -arch=sm_90"))
    source = renorm.build(s, [x, w, y], target="cuda -arch=sm_90").get_source()
    (line,) = [line for line in source.splitlines() if "x[" in line]
    assert "?" not in line


def network() -> Graph:
    g = Graph("convolutions")
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return g.constant(rng.normal(size=shape).astype(np.float32) / np.float32(8))

    x = g.input("x", "float32", (1, 16, 9, 7))
    y = ops.relu(ops.conv(x, weight(24, 16, 3, 3), weight(24), pads=(1, 1, 1, 1)))
    y = ops.conv(y, weight(24, 1, 3, 3), weight(24), group=24)
    g.outputs = [ops.conv(y, weight(16, 12, 2, 1), None, group=2, strides=(2, 1))]
    return g


@pytest.mark.parametrize(("target", "level", "count"), [("cuda", 3, 2), ("cuda", 2, 0), ("llvm", 3, 0)])
def test_where_convolutions_are_products(target: str, level: int, count: int) -> None:
    g = network()
    g, _ = optimize(g, level=level, target=find(target))
    names = [n.op.name for n in g.nodes]
    assert names.count("implicit_gemm") == count
    assert names.count("conv") == 3 - count


@pytest.mark.parametrize(
    ("groups", "rows", "terms", "is_narrow"),
    [(1, 1, 1, False), (2, 8, 16, False), (2, 7, 16, True), (2, 8, 15, True)],
)
def test_the_pass_and_the_schedule_agree_on_what_is_too_narrow(
    groups: int, rows: int, terms: int, is_narrow: bool
) -> None:
    """Convolutions of one group always become products, others where groups have rows and terms enough."""
    g = Graph("conv")
    x = g.input("x", "float32", (1, groups * terms, 5, 6))
    g.outputs = [ops.conv(x, np.ones((groups * rows, terms, 1, 1), np.float32), group=groups)]
    ChooseAlgorithms().run(g, Context(parse("cuda -arch=sm_90")))
    assert [isinstance(n.op, ImplicitGemm) for n in g.nodes] == [not is_narrow]
    held, w = te.placeholder((1, groups * terms, 5, 6)), te.placeholder((groups * rows, terms, 1, 1))
    assert bool(gpu_stages.find([Conv(group=groups).compute(held, w, None)])) is not is_narrow
