"""A norm, or arithmetic per channel, becomes part of the constants before it: against torch in float64, and what is
refused."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm import ops
from renorm.core.dims import Sym
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.graph.rewrite import Driver, Log
from renorm.graph.verify import verify
from renorm.passes import fold
from renorm.passes.pipeline import optimize

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

Array = Any


def rng_for(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def fold_all(g: Graph, rules: Sequence[Any] = fold.RULES) -> Log:
    driver = Driver(rules)
    driver.run(g)
    g.discard_constants()
    verify(g)
    return driver.log


def statistics(rng: np.random.Generator, c: int, dtype: str) -> list[Array]:
    """scale (of either sign, one of them zero), bias, mean, var."""
    scale = rng.uniform(-2, 2, c)
    scale[rng.integers(c)] = 0.0
    return [a.astype(dtype) for a in (scale, rng.standard_normal(c), rng.standard_normal(c), rng.uniform(0.01, 2, c))]


def close(ours: Array, theirs: Array, tolerance: float) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * max(1e-30, np.abs(theirs).max()))


@st.composite
def convolutions(draw: st.DrawFn, transposed: bool) -> dict[str, Any]:
    """Any rank, groups 1, between, or one per channel, C_in != C_out where groups allow it, all attributes."""
    rank = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["one", "some", "each"]))
    if kind == "one":
        group, c_in, c_out = 1, draw(st.integers(1, 5)), draw(st.integers(1, 5))
    elif kind == "some":
        group, per_in, per_out = draw(st.integers(2, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
        c_in, c_out = group * per_in, group * per_out
    else:
        c_in = group = draw(st.integers(2, 5))
        c_out = group * draw(st.integers(1, 2))
    each = lambda low, high: [draw(st.integers(low, high)) for _ in range(rank)]  # noqa: E731
    kernel, strides, dilations = each(1, 3), each(1, 3), each(1, 2)
    padding = [draw(st.integers(0, min(1, k - 1))) for k in kernel]
    found = {
        "rank": rank,
        "group": group,
        "c_in": c_in,
        "c_out": c_out,
        "kernel": kernel,
        "strides": strides,
        "dilations": dilations,
        "padding": padding,
        "bias": draw(st.booleans()),
        "dtype": draw(st.sampled_from(["float32", "float64"])),
        "spatial": each(6, 8),
        "seed": draw(st.integers(0, 10**6)),
    }
    if transposed:  # torch wants the output padding below stride or dilation
        limits = [max(s, d) for s, d in zip(strides, dilations)]
        found["output_padding"] = [draw(st.integers(0, limit - 1)) for limit in limits]
    return found


def network(case: dict[str, Any], transposed: bool) -> tuple[Graph, list[Array], Array]:
    """batch_norm(conv(x)) as a graph, an input, and what torch says of it in float64."""
    rng, dtype, rank = rng_for(case["seed"]), case["dtype"], case["rank"]
    x = rng.standard_normal((2, case["c_in"], *case["spatial"])).astype(dtype)
    first, second = case["c_out"], case["c_in"] // case["group"]
    if transposed:
        first, second = case["c_in"], case["c_out"] // case["group"]
    w = rng.standard_normal((first, second, *case["kernel"])).astype(dtype)
    b = rng.standard_normal(case["c_out"]).astype(dtype) if case["bias"] else None
    stats = statistics(rng, case["c_out"], dtype)
    g = Graph()
    attributes = {
        "strides": case["strides"],
        "dilations": case["dilations"],
        "pads": [*case["padding"], *case["padding"]],
        "group": case["group"],
    }
    builder = ops.conv
    if transposed:
        builder, attributes["output_padding"] = ops.conv_transpose, case["output_padding"]
    y = builder(g.input("x", dtype, x.shape), w, b, name="producer", **attributes)
    g.outputs = [ops.relu(ops.batch_norm(y, *stats, epsilon=1e-3, name="norm"))]

    t = [None if a is None else torch.from_numpy(np.asarray(a, np.float64)) for a in (x, w, b, *stats)]
    named = {
        "stride": case["strides"],
        "padding": case["padding"],
        "dilation": case["dilations"],
        "groups": case["group"],
    }
    if transposed:
        f = getattr(torch.nn.functional, f"conv_transpose{rank}d")
        named["output_padding"] = case["output_padding"]
    else:
        f = getattr(torch.nn.functional, f"conv{rank}d")
    z = f(t[0], t[1], t[2], **named)
    z = torch.nn.functional.batch_norm(z, t[5], t[6], t[3], t[4], eps=1e-3).relu()
    return g, [x], z.numpy()


@settings(deadline=None, max_examples=60)
@given(convolutions(transposed=False))
def test_batch_norm_into_conv(case: dict[str, Any]) -> None:
    _check_folded(*network(case, transposed=False), case["dtype"])


@settings(deadline=None, max_examples=60)
@given(convolutions(transposed=True))
def test_batch_norm_into_conv_transpose(case: dict[str, Any]) -> None:
    _check_folded(*network(case, transposed=True), case["dtype"])


def _check_folded(g: Graph, inputs: list[Array], expected: Array, dtype: str) -> None:
    close(interpret.run(g, inputs)[0], expected, 1e-6)  # the graph is what torch computed
    log = fold_all(g)
    assert [n.op.name for n in g.nodes][1:] == ["relu"]
    assert g.nodes[0].name == "producer"
    assert set(g.nodes[0].origin) == {"producer", "norm"}
    assert [a.rule for a in log.applied] == ["FoldBatchNorm"]
    assert not log.refused
    close(interpret.run(g, inputs)[0], expected, 1e-12 if dtype == "float64" else 2e-6)


@settings(deadline=None, max_examples=60)
@given(
    st.booleans(),
    st.booleans(),
    st.sampled_from([1.0, 0.5, -2.0]),
    st.sampled_from([1.0, 0.0, 3.0]),
    st.sampled_from([None, (), (1,), (4,), (1, 4), (3, 1), (3, 4)]),
    st.integers(0, 10**6),
)
def test_batch_norm_into_gemm(
    trans_a: bool, trans_b: bool, alpha: float, beta: float, c_shape: tuple[int, ...] | None, seed: int
) -> None:
    rng = rng_for(seed)
    a, b = rng.standard_normal((3, 5)), rng.standard_normal((5, 4))
    c = None if c_shape is None else rng.standard_normal(c_shape)
    stats = statistics(rng, 4, "float64")
    g = Graph()
    x = g.input("x", "float64", (5, 3) if trans_a else (3, 5))
    y = ops.gemm(x, b.T if trans_b else b, c, alpha=alpha, beta=beta, transA=trans_a, transB=trans_b)
    g.outputs = [ops.relu(ops.batch_norm(y, *stats))]
    expected = alpha * torch.from_numpy(a @ b) + (0 if c is None else beta * torch.from_numpy(np.asarray(c)))
    s = [torch.from_numpy(v) for v in stats]
    expected = torch.nn.functional.batch_norm(expected, s[2], s[3], s[0], s[1]).relu().numpy()
    fold_all(g)
    assert [n.op.name for n in g.nodes] == ["gemm", "relu"]
    close(interpret.run(g, [a.T if trans_a else a])[0], expected, 1e-12)


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_batch_norm_into_matmul(rank: int) -> None:
    """Rank 2 becomes a gemm. At rank 3 and 4 the norm runs over the rows of the product, which come from the left
    operand."""
    rng = rng_for(rank)
    g = Graph()
    shape = (2, 4, 3, 5)[-rank:] if rank != 3 else (2, 4, 5)
    x, w = g.input("x", "float64", shape), rng.standard_normal((5, 4))
    stats = statistics(rng, 4, "float64")
    y = ops.batch_norm(ops.matmul(x, w), *stats) if rank == 2 else None
    if y is None:
        y = ops.matmul(x, w)
        y = ops.batch_norm(y, *statistics(rng, int(str(y.shape[1])), "float64"))
    g.outputs = [ops.relu(y)]
    data = rng.standard_normal(shape)
    expected = interpret.run(g, [data])[0]
    log = fold_all(g)
    names = [n.op.name for n in g.nodes]
    if rank == 2:
        assert names == ["gemm", "relu"]
    else:
        assert names == ["matmul", "batch_norm", "relu"]
        assert any("matmul" in r.reason for r in log.refused.values())
    close(interpret.run(g, [data])[0], expected, 1e-12)


def test_batch_norm_over_rows_folds_into_a_constant_left_operand() -> None:
    rng, g = rng_for(0), Graph()
    x = g.input("x", "float64", (2, 5, 3))
    y = ops.matmul(g.constant(rng.standard_normal((4, 5))), x)
    g.outputs = [ops.relu(ops.batch_norm(y, *statistics(rng, 4, "float64")))]
    data = rng.standard_normal((2, 5, 3))
    expected = interpret.run(g, [data])[0]
    fold_all(g)
    assert [n.op.name for n in g.nodes] == ["matmul", "add", "relu"]  # matmul has no bias; the shift stays behind it
    close(interpret.run(g, [data])[0], expected, 1e-12)


CONSTANTS = [(4,), (1, 4), (4, 1, 1), (1, 4, 1, 1), (1, 1, 1, 1), (), (1,)]


@pytest.mark.parametrize("op", ["mul", "div", "add", "sub"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("shape", CONSTANTS)
@pytest.mark.parametrize("bias", [False, True])
def test_arithmetic_per_channel_into_conv(op: str, side: str, shape: tuple[int, ...], bias: bool) -> None:
    rng, g = rng_for(len(shape)), Graph()
    x = g.input("x", "float64", (2, 3, 5, 4))  # the last extent of y is 4 too: [4] stands for columns, not for channels
    y = ops.conv(x, rng.standard_normal((4, 3, 2, 1)), rng.standard_normal(4) if bias else None)
    c = g.constant(rng.uniform(0.5, 2, shape))
    g.outputs = [ops.relu(getattr(ops, op)(*((c, y) if side == "left" else (y, c))))]
    data = rng.standard_normal((2, 3, 5, 4))
    expected = interpret.run(g, [data])[0]
    log = fold_all(g)
    close(interpret.run(g, [data])[0], expected, 1e-12)
    is_channels = shape in ((4, 1, 1), (1, 4, 1, 1)) or np.prod(shape) == 1
    folds = is_channels and not (op == "div" and side == "left")
    assert [n.op.name for n in g.nodes] == (["conv", "relu"] if folds else ["conv", op, "relu"])
    if not folds and op != "div":
        assert any("along axis" in r.reason or "not per channel" in r.reason for r in log.refused.values())


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((5, 1, 4, 1, 1), "broadcasts the result from [2, 4, 3, 3] to [5, 2, 4, 3, 3]"),
        ((3, 1, 1, 1, 1), "broadcasts the result from [2, 4, 3, 3] to [3, 2, 4, 3, 3]"),
        ((1, 4, 3, 3), "is [1, 4, 3, 3], which is not per channel"),
        ((3, 1), "along axis 2"),
    ],
)
def test_constants_that_are_not_per_channel_are_refused(shape: tuple[int, ...], reason: str) -> None:
    g = Graph()
    x = g.input("x", "float32", (2, 3, 3, 3))
    y = ops.conv(x, np.ones((4, 3, 1, 1), np.float32))
    g.outputs = [ops.relu(ops.mul(y, np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)))]
    log = fold_all(g)
    assert len(g.nodes) == 3
    (refused,) = log.refused.values()
    assert refused.rule == "FoldMul"
    assert reason in refused.reason


def conv_norm(
    middle: Callable[[Value], Value] = lambda y: y, extent: Any = 5, **norm: Any
) -> tuple[Graph, Value, Value, np.random.Generator]:
    """conv, something, batch_norm, relu; with the values of conv and norm."""
    rng, g = rng_for(1), Graph()
    x = g.input("x", "float32", (Sym("N"), 3, extent, extent))
    y = ops.conv(x, rng.standard_normal((4, 3, 3, 3)).astype(np.float32), name="conv")
    z = ops.batch_norm(middle(y), *statistics(rng, 4, "float32"), name="norm", **norm)
    g.outputs = [ops.relu(z)]
    return g, y, z, rng


def refusal(g: Graph) -> str:
    before = [n.op.name for n in g.nodes]
    log = fold_all(g)
    assert [n.op.name for n in g.nodes] == before
    (refused,) = log.refused.values()
    assert refused.rule == "FoldBatchNorm"
    assert refused.node == "norm"
    return refused.reason


def test_dynamic_batch_and_image_fold() -> None:
    g, *_ = conv_norm(extent=Sym("H"))
    fold_all(g)
    assert [n.op.name for n in g.nodes] == ["conv", "relu"]


def test_reasons_for_which_a_norm_stays() -> None:
    g, y, _, _ = conv_norm()
    g.outputs.append(ops.exp(y, name="second"))
    assert refusal(g) == "'conv_out' is also read by 'second'"
    g, y, _, _ = conv_norm()
    g.outputs.append(y)
    assert refusal(g) == "'conv_out' is an output of the graph"
    g, *_ = conv_norm(ops.relu)
    some = r"-\d\S* in channel \d(, and \d more)?"
    told = rf"relu does not commute with factors that are not above zero: {some} \(node 'relu'\)"
    assert re.fullmatch(told, refusal(g))
    g, *_ = conv_norm(training_mode=True)
    assert refusal(g) == "its statistics come from the batch (training_mode = 1)"


def test_parameters_and_weights_must_be_constants() -> None:
    g, _, z, _ = conv_norm()
    norm = z.producer
    assert norm is not None
    norm.replace_operand(norm.operands[1], g.input("gain", "float32", (4,)))
    assert refusal(g) == "its scale 'gain' is not a constant"
    g, y, _, _ = conv_norm()
    assert y.producer is not None
    y.producer.replace_operand(y.producer.operands[1], g.input("w", "float32", (4, 3, 3, 3)))
    assert "is not a constant (node 'conv')" in refusal(g)


def test_variances_near_zero_are_exact_and_what_overflows_is_refused() -> None:
    rng = rng_for(3)
    for var, epsilon, folds in ((0.0, 1e-12, True), (1e-44, 1e-12, True), (1e-30, 0.0, True), (0.0, 0.0, False)):
        g = Graph()
        x = g.input("x", "float32", (1, 2, 3))
        y = ops.conv(x, rng.standard_normal((2, 2, 1)).astype(np.float32))
        stats = [np.full(2, v, np.float32) for v in (1.5, 0.5, 0.25, var)]
        g.outputs = [ops.relu(ops.batch_norm(y, *stats, epsilon=epsilon))]
        data = rng.standard_normal((1, 2, 3)).astype(np.float32)
        expected = interpret.run(g, [data])[0]
        log = fold_all(g)
        assert (len(g.nodes) == 2) == folds
        if folds:
            close(interpret.run(g, [data])[0], expected, 2e-6)
        else:
            assert "not finite in channel 0" in next(iter(log.refused.values())).reason
    g = Graph()
    y = ops.conv(g.input("x", "float16", (1, 2, 3)), np.full((2, 2, 1), 60000, np.float16))
    stats = [np.full(2, v, np.float16) for v in (2, 0, 0, 1)]
    g.outputs = [ops.relu(ops.batch_norm(y, *stats))]
    assert "beyond float16" in next(iter(fold_all(g).refused.values())).reason


def test_a_shared_weight_is_copied() -> None:
    rng, g = rng_for(4), Graph()
    x = g.input("x", "float64", (1, 3, 4))
    w = g.constant(rng.standard_normal((3, 3, 1)), "shared")
    data = np.array(w.data)
    first = ops.batch_norm(ops.conv(x, w), *statistics(rng, 3, "float64"))
    g.outputs = [ops.relu(first), ops.relu(ops.conv(x, w))]
    inputs = [rng.standard_normal((1, 3, 4))]
    expected = interpret.run(g, inputs)
    fold_all(g)
    assert w.users
    np.testing.assert_array_equal(w.data, data)
    for ours, theirs in zip(interpret.run(g, inputs), expected):
        close(ours, theirs, 1e-12)


def test_norms_in_a_row_collapse_and_round_once() -> None:
    """Whatever the order of rules, and however many norms: the weight is the float64 product, rounded once."""
    weights: list[Array] = []
    for rules in (fold.RULES, fold.RULES[::-1]):
        rng, g = rng_for(5), Graph()
        x = g.input("x", "float32", (1, 3, 8))
        w = rng.standard_normal((4, 3, 3)).astype(np.float32)
        y, k = ops.conv(x, w), np.ones(4)
        for _ in range(3):
            stats = statistics(rng, 4, "float32")
            y = ops.mul(ops.batch_norm(y, *stats), c := rng.uniform(0.5, 2, (4, 1)).astype(np.float32))
            k = k * (stats[0] / np.sqrt(stats[3].astype(np.float64) + 1e-5)) * c[:, 0]
        y = ops.conv(ops.relu(y), rng.standard_normal((2, 4, 3)).astype(np.float32))
        g.outputs = [ops.relu(ops.batch_norm(y, *statistics(rng, 2, "float32")))]
        data = rng.standard_normal((1, 3, 8)).astype(np.float32)
        expected = interpret.run(g, [data])[0]
        fold_all(g, rules)
        assert [n.op.name for n in g.nodes] == ["conv", "relu", "conv", "relu"]
        close(interpret.run(g, [data])[0], expected, 2e-6)
        weight = g.nodes[0].operands[1].data
        np.testing.assert_array_equal(weight, (w * k[:, None, None]).astype(np.float32))
        weights.append(weight)
    np.testing.assert_array_equal(*weights)


@pytest.mark.parametrize("first", ["mul", "div"])
def test_a_scale_goes_through_a_pool_into_an_earlier_one(first: str) -> None:
    g, rng = Graph("g"), rng_for(6)
    x = g.input("x", "float32", (2, 4, 6, 6))
    c, k = (rng.uniform(0.5, 2, (4, 1, 1)).astype("float32") for _ in range(2))
    pooled = ops.average_pool(getattr(ops, first)(x, c), kernel_shape=(2, 2), strides=(2, 2))
    g.outputs = [ops.mul(pooled, k)]
    array = rng.standard_normal((2, 4, 6, 6)).astype("float32")
    (expected,) = interpret.run(g, [array])
    fold_all(g)
    assert [n.op.name for n in g.nodes] == ["mul", "average_pool"]
    close(interpret.run(g, [array])[0], expected, 1e-6)


def test_norms_with_their_own_scale_take_what_follows() -> None:
    rng, g = rng_for(6), Graph()
    x = g.input("x", "float64", (2, 4, 5))
    y = ops.instance_norm(x, rng.standard_normal(4), rng.standard_normal(4))
    y = ops.add(ops.mul(y, rng.standard_normal((4, 1))), rng.standard_normal((4, 1)))
    g.outputs = [ops.relu(ops.batch_norm(y, *statistics(rng, 4, "float64")))]
    data = rng.standard_normal((2, 4, 5))
    expected = interpret.run(g, [data])[0]
    fold_all(g)
    assert [n.op.name for n in g.nodes] == ["instance_norm", "relu"]
    close(interpret.run(g, [data])[0], expected, 1e-12)


def test_factors_that_would_vanish_in_float16_stay():
    """The scale of a norm of little variance may be tiny; times another tiny factor it is no number of float16."""
    graph = Graph("tiny")
    x = graph.input("x", "float16", (2, 2, 3))

    def half(numbers: Any) -> np.ndarray:
        return np.array(numbers, np.float16)

    parameters = [half([-2e-5, -5.6e-5]), half([0.2, -0.1]), half([0.5, 2.2]), half([0.5, 0.0])]
    y = ops.batch_norm(x, *(graph.constant(p, n) for p, n in zip(parameters, "sbmv")), epsilon=1e-12, name="norm")
    graph.outputs = [ops.mul(y, graph.constant(half([[1.6], [1e-4]]), "c"), name="factor")]
    data = np.random.default_rng(0).standard_normal((2, 2, 3)).astype(np.float16)
    before = interpret.evaluate(graph, [data])[graph.outputs[0]]
    folded, report = optimize(graph.copy(), level=2)
    after = interpret.evaluate(folded, [data])[folded.outputs[0]]
    np.testing.assert_allclose(after, before, rtol=2e-3)
    assert any("vanish in float16" in reason for _, _, reason in report.refusals)
