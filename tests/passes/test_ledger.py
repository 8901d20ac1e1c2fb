"""The ledger: where each norm went, why not, what its constants became, and where tensors are now."""

import json
import re
from typing import Any

import numpy as np
import pytest

from renorm import ops
from renorm.core import records
from renorm.core.difference import relative_error
from renorm.core.tolerance import tolerance
from renorm.frontends import read
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.passes.pipeline import optimize
from renorm.runtime.report import NormRecord, Report

Array = np.ndarray[Any, Any]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def parameters(c: int, seed: int = 9) -> list[Array]:
    """scale, bias, mean, var"""
    rng = np.random.default_rng(seed)
    return [*(rng.standard_normal(c).astype(np.float32) for _ in range(3)), rng.uniform(0.1, 2, c).astype(np.float32)]


def factor(p: list[Array]) -> Array:
    return p[0].astype(np.float64) / np.sqrt(p[3].astype(np.float64) + 1e-5)


def ledger(g: Graph, **options: Any) -> tuple[dict[str, NormRecord], Report, Graph]:
    done, report = optimize(g, **options)
    return {n.name: n for n in report.norms}, report, done


def linear(kind: str) -> tuple[Graph, Array, Array]:
    """A linear op and a norm; its weight with the result's channels first, and k."""
    g = Graph()
    if kind == "conv":
        w, p = normal(1, 6, 2, 3, 3), parameters(6)
        y, by_channel = ops.conv(g.input("x", "float32", (2, 4, 7, 6)), w, group=2, name="f"), w
    elif kind == "large conv":  # whose weight is deferred
        w, p = normal(1, 40, 64, 3, 3), parameters(40)
        y, by_channel = ops.conv(g.input("x", "float32", (1, 64, 5, 6)), w, name="f"), w
    elif kind.endswith("conv_transpose"):
        c = 96 if "large" in kind else 4
        w, p = normal(1, c, 3 * c // 4, 3, 2), parameters(3 * c // 2)
        y = ops.conv_transpose(g.input("x", "float32", (1, c, 5, 4)), w, group=2, name="f")
        by_channel = w.reshape(2, c // 2, 3 * c // 4, 6).transpose(0, 2, 1, 3).reshape(3 * c // 2, -1)
    elif kind == "gemm":
        w, p = normal(1, 5, 7), parameters(5)
        y, by_channel = ops.gemm(g.input("x", "float32", (3, 7)), w, transB=True, name="f"), w
    else:
        w, p = normal(1, 7, 5), parameters(5)
        y, by_channel = ops.matmul(g.input("x", "float32", (3, 7)), w, name="f"), w.T
    g.outputs = [ops.relu(ops.batch_norm(y, *p, name="norm"))]
    return g, by_channel.reshape(len(by_channel), -1).astype(np.float64), factor(p)


KINDS = ("conv", "large conv", "conv_transpose", "large conv_transpose", "gemm", "matmul")


@pytest.mark.parametrize("kind", KINDS)
def test_growth_of_weights(kind: str) -> None:
    g, w, k = linear(kind)
    (norm,) = optimize(g)[1].norms
    (weight,) = (c for c in norm.constants if c.is_weight)
    assert (norm.fate, norm.into, weight.node) == ("folded", ("f",), "f")
    before, after = np.abs(w).max(1), np.abs(w * k[:, None]).max(1)
    assert weight.growth == norm.growth == pytest.approx(after.max() / before.max(), rel=1e-6)
    for place, where in ((weight.grown, np.abs(k).argmax()), (weight.shrunk, np.abs(k).argmin())):
        assert place is not None
        assert (place.channel, place.value) == (where, pytest.approx(abs(k[where]), rel=1e-6))
    for place, where in ((weight.largest, after.argmax()), (weight.smallest, after.argmin())):
        assert place is not None
        assert (place.channel, place.value) == (where, pytest.approx(after[where], rel=1e-6))
    assert norm.headroom is not None
    assert norm.headroom <= 65504 / after.max() * (1 + 1e-6)  # the bias counts too


@pytest.mark.parametrize("kind", KINDS)
def test_the_channel_that_would_not_survive_float16_is_named(kind: str) -> None:
    for number, part in ((1e8, "beyond float16's 65504"), (1e-9, "smallest normal number 6.1e-05 in all of channel 3")):
        g, _, _ = linear(kind)
        node = g.node("norm")
        scale = node.inputs[1]
        assert scale is not None
        assert scale.data is not None
        scale.data = np.where(np.arange(len(scale.data)) == 3, np.float32(number), scale.data)
        (norm,) = optimize(g)[1].norms
        assert part in norm.float16
        assert "channel 3" in norm.float16
        assert norm.headroom is not None
        assert (norm.headroom < 1) == (number > 1)
    assert linear_norm(kind).float16 == ""


def linear_norm(kind: str) -> NormRecord:
    return optimize(linear(kind)[0])[1].norms[0]


def test_a_bias_beyond_float16() -> None:
    g, p = Graph(), parameters(4)
    p[2][1] = 1e6  # mean
    y = ops.conv(g.input("x", "float32", (1, 3, 5, 4)), normal(1, 4, 3, 1, 1), name="f")
    g.outputs = [ops.batch_norm(y, *p, name="norm")]
    (norm,) = optimize(g)[1].norms
    assert "beyond float16's 65504" in norm.float16
    assert "channel 1" in norm.float16
    # u * (|k mean| + |scale| + |bias|) / (|scale| + |bias|): what cancels
    ours = 2.0**-24 * abs(factor(p)[1] * 1e6) / (np.abs(p[0]) + np.abs(p[1])).max()
    assert norm.error == norm.estimate == pytest.approx(ours, rel=1e-3)


def test_an_estimate_is_of_the_size_that_is_measured() -> None:
    """Where a mean is 3000 standard deviations, folding loses that many roundings; data have that mean."""
    g, p = Graph(), parameters(4)
    w = normal(1, 4, 3, 1, 1)
    y = ops.conv(g.input("x", "float32", (1, 3, 16, 16)), w, np.array([300, 20, -700, 30], np.float32), name="f")
    p[0][:], p[1][:], p[2][:] = 1, 0, [300, 20, -700, 30]
    p[3][:] = np.square(w.reshape(4, 3)).sum(1)
    g.outputs = [ops.batch_norm(y, *p, name="norm")]
    (norm,) = optimize(g.copy(), verify=True)[1].norms
    assert norm.estimate is not None
    assert norm.max_error is not None
    assert norm.error == norm.max_error
    assert norm.max_error < norm.estimate < 1e-3
    (estimated,) = optimize(g)[1].norms
    assert estimated.error == norm.estimate


def test_the_reason_of_a_norm_in_front_that_was_refused() -> None:
    """Another reader stands in the way of folding forward, the input in that of folding back."""
    g, one = Graph(), np.ones(3, np.float32)
    y = ops.batch_norm(g.input("x", "float32", (2, 3, 5, 5)), one, one, one, one, name="norm")
    g.outputs = [ops.conv(y, normal(1, 2, 3, 3, 3), pads=[1] * 4, name="conv"), ops.exp(y, name="exp")]
    norm = ledger(g)[0]["norm"]
    assert norm.fate == "unpacked"
    assert norm.reason == (
        "it reads the input 'x' of the graph: no node before it could take its scale and shift; "
        "'norm_out' is also read by 'exp'"
    )


def test_the_reason_of_a_norm_in_front_of_what_does_not_commute() -> None:
    g, one = Graph(), np.ones(3, np.float32)
    y = ops.relu(ops.batch_norm(g.input("x", "float32", (2, 3, 5, 5)), one, one, one, one, name="norm"), name="act")
    g.outputs = [ops.conv(y, normal(1, 2, 3, 3, 3), name="conv")]
    norm = ledger(g)[0]["norm"]
    assert "no node before it" in norm.reason
    assert re.search(
        r"; relu does not commute with maps that change 0: it becomes \S+ in channel 0.* \(node 'act'\)$", norm.reason
    )
    assert norm.rules == ("FoldInFront(conv)", "UnpackBatchNorm")


def test_what_only_carried_a_norm_is_not_where_it_went() -> None:
    g, p = Graph(), parameters(8)
    y = ops.conv(g.input("x", "float32", (1, 3, 6, 6)), normal(1, 8, 3, 1, 1), name="conv")
    y = ops.transpose(ops.average_pool(y, kernel_shape=(2, 2), name="pool"), perm=(0, 1, 3, 2), name="turned")
    g.outputs = [ops.exp(ops.batch_norm(y, *p, name="norm"))]
    norms, report, _ = ledger(g)
    assert (norms["norm"].into, norms["norm"].through) == (("conv",), ("pool", "turned"))
    assert norms["norm"].rules == ("FoldBatchNorm",)
    assert report.names["norm_out"] is not None
    assert report.names["conv_out"] is None


def test_one_norm_in_several_nodes_and_several_in_one() -> None:
    g, p, q = Graph(), parameters(7), parameters(7, 3)
    x = g.input("x", "float32", (1, 3, 6, 6))
    parts = [ops.conv(x, normal(i, c, 3, 1, 1), name=f"conv_{i}") for i, c in enumerate((3, 4))]
    y = ops.batch_norm(ops.concat(parts, axis=1, name="joined"), *p, name="first")
    g.outputs = [ops.exp(ops.batch_norm(y, *q, name="second"))]
    norms, _, _ = ledger(g)
    for norm in norms.values():
        assert (norm.fate, norm.into, norm.through) == ("folded", ("conv_0", "conv_1"), ("joined",))
        assert [c.node for c in norm.constants if c.is_weight] == ["conv_0", "conv_1"]
    k = np.abs(factor(p) * factor(q))
    grown = [c.grown for c in norms["first"].constants if c.is_weight]
    assert [e.value for e in grown if e] == [pytest.approx(part.max(), rel=1e-6) for part in (k[:3], k[3:])]


def test_constants_of_a_norm_that_is_not_folded() -> None:
    g, p = Graph(), parameters(3)
    p[0][2] = 1e7
    x = g.input("x", "float32", (1, 3, 6, 6))
    g.outputs = [ops.exp(ops.batch_norm(x, *p, name="norm"))]
    norm = ledger(g)[0]["norm"]
    assert norm.fate == "fused"
    assert norm.growth is None
    assert "channel 2, beyond float16" in norm.float16


def test_tensors_are_followed_by_name() -> None:
    g, p = Graph(), parameters(4)
    x = g.input("x", "float32", (1, 3, 6, 6))
    y = ops.conv(x, normal(1, 4, 3, 1, 1), name="conv")
    y = ops.identity(ops.batch_norm(y, *p, name="norm"), name="same")
    g.outputs = [z := ops.relu(y, name="last")]
    g.rename(z, "scores")
    for verify in (False, True):
        _, report, done = ledger(g.copy(), verify=verify)
        assert report.names["x"] == "x"
        assert report.names["scores"] == "scores"
        assert report.names["conv_out"] is None
        assert report.names["norm_out"] == report.names["same_out"] == done.node("conv").output.name


@pytest.mark.parametrize("seed", range(12))
def test_a_tensor_is_what_the_report_says_it_is_now(seed: int) -> None:
    """In random networks, wherever it is still computed."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from tests.passes.folding.cases import numbered

    net = numbered(seed).build()[0]
    g = read(net.model())
    before = {v.name: a for v, a in interpret.evaluate(g, net.inputs).items()}
    ways: list[dict[str, Any]] = [{"level": 2, "for_export": True}, {"level": 3}, {"level": 3, "verify": True}]
    for options in ways:
        done, report = optimize(g.copy(), **options)
        after = {v.name: a for v, a in interpret.evaluate(done, net.inputs).items()}
        assert {n.name for n in report.norms if n.fate != "folded" and not n.reason} == set()
        assert all(report.names[v.name] == v.name for v in g.outputs)
        for name, now in report.names.items():
            if now is not None:
                assert relative_error(after[now], before[name]) < tolerance(net.dtype)


def test_a_report_comes_back_from_json() -> None:
    g, _, _ = linear("conv")
    report = optimize(g)[1]
    assert report.norms[0].constants
    assert records.record(Report, json.loads(json.dumps(records.plain(report)))) == report


def test_every_name_is_there_or_gone() -> None:
    g, _, _ = linear("conv")
    names = [v.name for v in g.inputs] + [v.name for n in g.nodes for v in n.outputs]
    _, report, done = ledger(g, level=3)
    assert list(report.names) == names
    assert {n for n in report.names.values() if n} <= {v.name for v in done.values()}


def test_what_was_kept_whole_says_both_why_it_was_not_folded_and_not_taken_apart() -> None:
    g = Graph()
    y = ops.conv(g.input("x", "float32", (2, 16, 32, 32)), normal(1, 16, 16, 1, 1), name="conv")
    g.outputs = [ops.relu(ops.instance_norm(y, normal(2, 16), normal(3, 16), name="norm"))]
    norm = ledger(g)[0]["norm"]
    assert norm.fate == "kept"
    assert norm.reason == (
        "its statistics come from what it reads, so that constants cannot hold it; "
        "'conv_out' does not lie in blocks of channels"
    )
    g = Graph()
    x = g.input("x", "float16", (2, 3, 4, 4))
    g.outputs = [ops.batch_norm(x, *parameters(3), name="norm")]
    norm = ledger(g)[0]["norm"]
    assert norm.reason.startswith("it reads the input 'x' of the graph: no node before it")
    assert norm.reason.endswith("; x is float16: unpacked, it would be rounded between scale and shift")
    assert norm.error == 2.0**-11


def test_a_norm_that_changes_nothing_is_no_dead_one() -> None:
    g, one, none = Graph(), np.ones(3, np.float32), np.zeros(3, np.float32)
    y = ops.conv(g.input("x", "float32", (2, 3, 5, 5)), normal(1, 3, 3, 1, 1))
    g.outputs = [ops.relu(ops.batch_norm(y, one, none, none, one, epsilon=0.0, name="same"))]
    ops.batch_norm(y, one, one, one, one, name="dead")
    found = ledger(g)[0]
    assert (found["same"].fate, found["same"].reason) == ("folded", "it changes nothing")
    assert found["dead"].reason == "no output of the network depends on it"
