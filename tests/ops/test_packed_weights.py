"""Weights that are no constants, against float64: kernels pack them where vectors would pick channels one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import renorm
from renorm import te
from renorm.core.dims import Sym, static
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.graph.op import OpDef
from renorm.ops.conv import Conv
from renorm.ops.conv_transpose import ConvTranspose
from renorm.ops.gemm import Gemm
from renorm.ops.schedules import cpu_packing
from renorm.tir import interpret as loops
from renorm.topi.layout import Blocking, packed

TARGETS = ("llvm", "llvm -mcpu=haswell")
Shape = tuple[int, ...]


def graph_of(op: OpDef, *shapes: Shape, dtype: str = "float32", is_open: bool = False) -> Graph:
    """A graph of one node on inputs; is_open: how many rows, or images, the first one has."""
    graph = Graph("products")
    extents: list[Any] = [(Sym("n"), *s[1:]) if is_open and not i else s for i, s in enumerate(shapes)]
    graph.outputs = [graph.apply(op, [*(graph.input(f"x{i}", dtype, s) for i, s in enumerate(extents)), None])]
    return graph


def loops_of(m: Any) -> str:
    return "\n".join(m.kernel(k.name).loops for k in m.report.kernels)


def check(m: Any, graph: Graph, *shapes: Shape) -> None:
    rng = np.random.default_rng()
    arrays = [rng.standard_normal(s).astype(graph.inputs[0].dtype) for s in shapes]
    fixed = graph.copy({"n": shapes[0][0]})
    env = interpret.evaluate(fixed, arrays)
    tolerance = 1e-10 if graph.inputs[0].dtype == "float64" else 1e-4
    for found, y in zip(m.run(*arrays), fixed.outputs, strict=True):
        np.testing.assert_allclose(found, env[y], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("op", "x", "w"),
    [
        (Conv(pads=(1, 1, 1, 1)), (2, 5, 7, 9), (33, 5, 3, 3)),
        (Conv(strides=(2, 1)), (1, 40, 9, 8), (24, 40, 1, 1)),
        (Conv(pads=(0, 1, 1, 0), group=2), (1, 64, 6, 5), (64, 32, 3, 3)),
        (Conv(), (1, 3, 31), (17, 3, 4)),
        (Conv(), (1, 3, 4, 5, 6), (16, 3, 2, 1, 3)),
        (Conv(), (2, 512, 4, 5), (48, 512, 1, 1)),  # rows of w lie 2048 bytes apart
        (ConvTranspose(strides=(2, 1)), (2, 17, 5, 4), (17, 19, 4, 3)),
        (ConvTranspose(strides=(2, 2), group=2), (1, 6, 3, 4), (6, 32, 3, 3)),
        (Gemm(transB=True), (9, 70), (37, 70)),
        (Gemm(transB=True, alpha=0.5), (12, 3), (40, 3)),
        (Gemm(transB=True), (11, 1024), (48, 1024)),
        (Gemm(transA=True, transB=True), (70, 13), (37, 70)),
        (Gemm(transA=True, transB=True), (70, 3), (37, 70)),  # no rows, but columns
    ],
)
def test_kernels_pack_weights(target: str, op: OpDef, x: Shape, w: Shape) -> None:
    for dtype in ("float32", "float64"):
        graph = graph_of(op, x, w, dtype=dtype)
        m = renorm.compile(graph.copy(), target=target, threads=2)
        assert "x1_packed" in loops_of(m), "channels are picked one by one"
        check(m, graph, x, w)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("op", "x", "w"),
    [
        (Gemm(transB=True), (1, 70), (37, 70)),
        (Gemm(transB=True), (cpu_packing.FEW_ROWS, 70), (37, 70)),  # sums over rows
        (Gemm(transB=True), (2, 3), (37, 3)),
        (Gemm(transB=True), (20, 70), (2, 70)),  # no vectors of channels
        (Gemm(), (20, 70), (70, 37)),  # they lie side by side
        (Conv(group=24), (1, 24, 6, 5), (24, 1, 3, 3)),
        (Conv(), (1, 5, 6, 5), (2, 5, 3, 3)),
        (Conv(), (1, 0, 6, 5), (32, 0, 3, 3)),
        (Gemm(transB=True), (9, 0), (37, 0)),
    ],
)
def test_nothing_is_packed_where_vectors_lie_in_memory(target: str, op: OpDef, x: Shape, w: Shape) -> None:
    graph = graph_of(op, x, w)
    m = renorm.compile(graph.copy(), target=target, threads=2)
    assert "packed" not in loops_of(m)
    check(m, graph, x, w)


@pytest.mark.parametrize("target", TARGETS)
def test_each_core_packs_the_panels_that_it_multiplies_with(target: str) -> None:
    """Hold no second copy of a weight where threads share its panels."""
    x, w = (12, 24), (64 * 128 + 3, 24)
    graph = graph_of(Gemm(transB=True), x, w)
    m = renorm.compile(graph.copy(), target=target, threads=2)
    text = loops_of(m)
    assert text.index("parallel") < text.index("allocate x1_packed")
    check(m, graph, x, w)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [9, 31])
def test_tiles_of_parts_of_panels(target: str, rows: int) -> None:
    """A vector of float64 is half of a panel, and tiles may have an odd number of them."""
    for n in (4099, 8200):
        x, w = (rows, 33), (n, 33)
        graph = graph_of(Gemm(transB=True), x, w, dtype="float64")
        check(renorm.compile(graph.copy(), target=target, threads=2), graph, x, w)


@pytest.mark.parametrize("op", [Conv(pads=(1, 1, 1, 1)), Gemm(transB=True)])
def test_any_number_of_rows(op: OpDef) -> None:
    """Pack a weight of known extents for any number of rows."""
    more = ((5, 6, 7), (40, 5, 3, 3)) if isinstance(op, Conv) else ((70,), (37, 70))
    graph = graph_of(op, (1, *more[0]), more[1], is_open=True)
    m = renorm.compile(graph.copy(), threads=2)
    assert "x1_packed" in loops_of(m)
    for n in (0, 1, 2, 9, 30):
        check(m, graph, (n, *more[0]), more[1])


def test_data_in_blocks_of_channels_meet_packed_weights() -> None:
    """Memory holds what is between the convolutions in blocks: so are the weights along what is summed."""
    rng, graph = np.random.default_rng(), Graph("two")
    x, w = graph.input("x", "float32", (1, 16, 9, 8)), graph.input("w", "float32", (48, 32, 3, 3))
    first = graph.constant(rng.standard_normal((32, 16, 3, 3)).astype("float32"), "first")
    graph.outputs = [graph.apply(Conv(), [graph.apply(Conv(), [x, first, None]), w, None])]
    m = renorm.compile(graph.copy(), precision="exact", threads=2)
    assert "w_packed" in loops_of(m)
    arrays = [rng.standard_normal(static(v.shape)).astype("float32") for v in (x, w)]
    want = interpret.evaluate(graph, arrays)[graph.outputs[0]]
    np.testing.assert_allclose(m.run(*arrays)[0], want, rtol=1e-4, atol=2e-3)


def test_products_of_rows_with_themselves() -> None:
    """Pack an operand that is read as data as well."""
    rng, graph = np.random.default_rng(), Graph("gram")
    x = graph.input("x", "float32", (40, 21))
    graph.outputs = [graph.apply(Gemm(transB=True), [x, x, None])]
    m = renorm.compile(graph, threads=2)
    assert "x_packed" in loops_of(m)
    array = rng.standard_normal((40, 21)).astype("float32")
    np.testing.assert_allclose(m.run(array)[0], array.astype("float64") @ array.T, rtol=1e-4, atol=1e-4)


def test_panels_are_what_constants_are_packed_to() -> None:
    """Also what fills a panel up: zeros, since what memory happens to hold may take a CPU long to multiply with."""
    w = te.placeholder((21, 10, 3), "float32", name="w")
    form = Blocking(((1, 4), (0, 8)), 0)
    t = packed(w, form)
    array = np.random.default_rng().standard_normal(w.shape).astype("float32")
    found, want = (np.full(t.shape, np.nan, "float32") for _ in range(2))
    loops.run(te.lower(te.create_schedule([t.op]), [w, t], name="pack"), [array, found])
    form.pack(array, want)
    np.testing.assert_array_equal(found, want)
