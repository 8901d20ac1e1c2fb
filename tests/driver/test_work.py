"""What kernels must do at least: counted by hand beside what is read off tensor expressions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from tests.driver.test_open_networks import NETWORKS
from tests.random_numbers import RNG

import renorm
from renorm import ops, te, topi
from renorm.core import target
from renorm.core.dims import integer
from renorm.driver.compile import analyze
from renorm.driver.lowering import lower_group
from renorm.driver.work import work
from renorm.graph.ir import Graph
from renorm.graph.types import TensorType
from renorm.ops.winograd_conv import WinogradConv
from renorm.runtime.profile import profile
from renorm.runtime.report import WorkRecord


def of_model(text: str) -> WorkRecord:
    """Of the only kernel of a model."""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    onnx.checker.check_model(proto)
    graph, _ = analyze(proto)
    (group,) = graph.groups
    return lower_group(graph, group, target.parse("llvm"), graph.user_map()).work


def weight(name: str, *shape: int) -> str:
    values = ", ".join(f"{v:.3f}" for v in RNG.uniform(1, 2, np.prod(shape, dtype=int)))
    return f"float[{','.join(map(str, shape))}] {name} = {{{values}}}"


@pytest.mark.parametrize(("groups", "stride"), [(1, 1), (2, 2)])
def test_convolution(groups: int, stride: int) -> None:
    n, c, k, h, w, oh, ow = 2, 4, 6, 9, 7, -(-9 // stride), -(-7 // stride)
    found = of_model(
        f"g (float[{n},{c},{h},{w}] x) => (float[{n},{k},{oh},{ow}] y) <{weight('w', k, c // groups, 3, 3)}>"
        f"{{ y = Conv<pads=[1,1,1,1], group={groups}, strides=[{stride},{stride}]>(x, w) }}"
    )
    assert found.flops == 2 * n * k * oh * ow * (c // groups) * 9
    assert integer(found.bytes) >= 4 * (n * c * h * w + k * (c // groups) * 9 + n * k * oh * ow)
    # weights are stored in whole blocks of result channels
    assert integer(found.bytes) <= 4 * (n * c * h * w + 64 * (c // groups) * 9 + n * k * oh * ow)


def test_matmul_with_an_epilogue() -> None:
    found = of_model(
        "g (float[5,7] x, float[7,11] w, float[5,11] r) => (float[5,11] y)"
        "{ t = MatMul(x, w) u = Add(t, r) y = Relu(u) }"
    )
    assert found == WorkRecord(2 * 5 * 7 * 11 + 2 * 5 * 11, 4 * (5 * 7 + 7 * 11 + 2 * 5 * 11))


def test_a_part_of_an_operand_is_what_is_read() -> None:
    x = te.placeholder((8, 100), name="x")
    rows = te.compute((3, 50), lambda i, j: x[i + 2, j * 2] * 2.0 + 1.0)
    assert work([rows]) == WorkRecord(2 * 150, 4 * (150 + 150))


def test_what_spreads_is_read_once() -> None:
    x, scale = te.placeholder((6, 20), name="x"), te.placeholder((20,), name="scale")
    y = topi.multiply(x, scale)
    assert work([y]) == WorkRecord(120, 4 * (120 + 20 + 120))


def test_a_stage_that_many_read_is_counted_once() -> None:
    x = te.placeholder((6, 20), name="x")
    k = te.reduce_axis((0, 20), name="k")
    total = te.compute((6,), lambda i: te.sum(te.exp(x[i, k]), axis=k))
    y = te.compute((6, 20), lambda i, j: x[i, j] / total[i])
    assert work([y]) == WorkRecord(2 * 120 + 120, 4 * (120 + 120))


def test_a_nominal_figure_stands_for_all_before_it() -> None:
    x = te.placeholder((10,), name="x")
    transformed = te.compute((10,), lambda i: x[i] * 3.0)
    fewer = te.compute((10,), lambda i: transformed[i] + 1.0)
    y = te.compute((10,), lambda i: fewer[i] * 2.0)
    assert work([y], {fewer: 1000}) == WorkRecord(1000 + 10, 4 * 20, is_nominal=True)


def test_the_report_of_a_compiled_network_has_it(tmp_path: Path) -> None:
    text = "g (float[5,7] x) => (float[5,7] y) { t = Exp(x) y = Softmax(t) }"
    module = renorm.compile(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), threads=1)
    module.save(tmp_path / "net.renorm")
    works = [k.work for k in renorm.load(tmp_path / "net.renorm").report.kernels]
    assert works == [k.work for k in module.report.kernels]
    assert sum(integer(w.flops) for w in works) >= 35 * 3
    assert works[-1].bytes == 4 * 2 * 35


def test_winograd_counts_the_direct_convolution() -> None:
    x, u, y = (TensorType("float32", shape) for shape in ((2, 5, 9, 11), (36, 5, 7), (2, 7, 9, 11)))
    op = WinogradConv(pads=(1, 0, 1, 2), kernel_shape=(3, 3))
    assert op.nominal_flops([x, u, None], [y]) == 2 * (2 * 7 * 9 * 11) * 5 * 9


@pytest.mark.parametrize("network", ["image", "perceptron", "rows"])
def test_work_of_open_extents_is_that_of_numbers(network: str, tmp_path: Path) -> None:
    """A kernel of open extents, of a file too, has the work that the kernels compiled for a shape have."""
    build, calls = NETWORKS[network]
    m = renorm.compile(build(), threads=1, opt_level=2)
    m.save(tmp_path / "open.renorm")
    held: Any = renorm.load(tmp_path / "open.renorm", threads=1)
    for shapes in calls:
        if 0 in shapes[0]:
            continue
        feeds = [np.zeros(shape, np.float32) for shape in shapes]
        fixed = renorm.compile(build(), threads=1, opt_level=2, shapes=dict(zip((v.name for v in m.inputs), shapes)))
        found = [t.work for t in profile(held, *feeds, repeats=1)]
        for one, other in zip(found, (k.work for k in fixed.report.kernels), strict=True):
            assert one.flops == other.flops
            # what is copied beside a tile, and weights in whole blocks, is as memory has them
            assert integer(one.bytes) == pytest.approx(integer(other.bytes), rel=0.3)


def test_work_of_winograd_is_nominal_where_extents_are_open() -> None:
    g = Graph("image")
    x = g.input("x", "float32", ("n", 32, "h", "w"))
    g.outputs = [ops.conv(x, RNG.normal(size=(32, 32, 3, 3)).astype(np.float32), pads=(1,) * 4)]
    m = renorm.compile(g, threads=1)
    (record,) = [k.work for k in m.report.kernels if k.work.is_nominal]
    assert record.substituted({"n": 2, "h": 20, "w": 30}).flops == 2 * 2 * 32 * 32 * 9 * 20 * 30
    assert "for any n, h, w" in str(m.report)
    assert "18432*h*n*w" in {k["work"]["flops"] for k in m.report.to_json()["kernels"]}


@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_steps_of_recurrent_cells(kind: str, gates: int) -> None:
    """Products with the state; gates are of 5 units, which lie in tiles with a few beyond the last one."""
    steps, batch, channels, hidden = 7, 3, 2, 5
    rows = gates * hidden
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[{steps},{batch},{channels}] x) => (float[7,2,3,5] y)'
        f" <{weight('w', 2, rows, channels)}, {weight('r', 2, rows, hidden)}>"
        f'{{ y = {kind}<hidden_size=5, direction="bidirectional">(x, w, r) }}'
    )
    graph, _ = analyze(proto)
    every = [lower_group(graph, g, target.parse("llvm"), graph.user_map()).work for g in graph.groups]
    (found,) = [w for w, g in zip(every, graph.groups) if any(n.op.name == "recurrence" for n in g.nodes)]
    least = 2 * steps * batch * 2 * rows * hidden
    assert least <= integer(found.flops) <= 4 * least
