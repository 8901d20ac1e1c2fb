"""The plan of precisions: which values memory holds in bfloat16 or tf32, and why others stay float32."""

from typing import Any

import numpy as np
import pytest

import renorm
from renorm import ops
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.passes import mixed_precision
from renorm.passes.pipeline import optimize
from renorm.runtime.report import PrecisionRecord
from renorm.targets import find

Array = np.ndarray[Any, Any]


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def conv(x: Value, channels: int, k: int = 3, **attributes: Any) -> Value:
    return ops.conv(x, normal(channels, int(str(x.shape[1])), k, k), pads=[k // 2] * 4, **attributes)


def planned(g: Graph, **options: Any) -> tuple[Graph, dict[str, PrecisionRecord]]:
    """The graph after passes, without Winograd's convolutions, and records by names of values."""
    graph, report = optimize(g, precision="bfloat16", without=("ChooseAlgorithms",), **options)
    return graph, {p.name: p for p in report.precisions}


def between(middle: Any) -> tuple[Graph, dict[str, PrecisionRecord]]:
    """x -> conv `before` -> middle -> conv -> conv -> y"""
    g = Graph("between")
    y = ops.conv(g.input("x", "float32", (1, 16, 40, 40)), normal(16, 16, 1, 1), name="before")
    y = middle(y)
    g.outputs = [conv(conv(y, 16), 16)]
    return planned(g)


def test_what_a_result_is_the_sum_of_is_rounded_and_what_comes_to_it_is_not() -> None:
    graph, found = between(lambda y: conv(y, 16))
    assert [p.dtype for p in found.values()] == ["bfloat16"] * 3
    weights = [n.inputs[1] for n in graph.nodes]
    held = [interpret.narrow(w.data, "bfloat16").astype(np.float32) for w in weights if w and w.data is not None]
    kept = [bool((w.data == h).all()) for w, h in zip(weights, held) if w is not None]
    assert kept == [False, True, True, True]  # the first reads the input
    g = Graph("after")
    x, y = (conv(g.input(name, "float32", (1, 16, 40, 40)), 16) for name in "xy")
    g.outputs = [ops.max_pool(ops.add(conv(ops.relu(ops.mul(x, y)), 16), y), kernel_shape=(2, 2))]
    _, found = planned(g)
    kept = {p.name: p.reason for p in found.values() if p.dtype == "float32"}
    assert x.name not in kept
    assert y.name in kept  # it is added after the product
    assert all("no product comes after" in reason for reason in kept.values())
    assert len(kept) == 2  # and what is pooled


@pytest.mark.parametrize(
    ("middle", "reason"),
    [
        (lambda y: ops.mul(y, ops.sigmoid(conv(ops.global_average_pool(y), 16, 1))), "it has 16 elements"),
        (lambda y: ops.softmax(ops.max_pool(conv(y, 16), kernel_shape=(2, 2)), axis=1), "exponentials"),
        (lambda y: ops.sin(ops.transpose(ops.max_pool(y, kernel_shape=(2, 2)))), "large operands"),
        (lambda y: ops.where(ops.greater(ops.max_pool(y, kernel_shape=(1, 1)), normal(1)), y, y), "truths"),
    ],
)
def test_what_stays_float32(middle: Any, reason: str) -> None:
    _, found = between(middle)
    assert any(reason in p.reason for p in found.values()), found
    assert any(p.dtype == "bfloat16" for p in found.values())


def test_a_sum_of_layers_that_a_norm_reads_stays_float32() -> None:
    def of(is_sum: bool) -> dict[str, PrecisionRecord]:
        g = Graph("rows")
        x = ops.relu(ops.matmul(g.input("x", "float32", (1, 64, 96)), normal(96, 96)))
        y = ops.matmul(ops.relu(ops.matmul(x, normal(96, 96))), normal(96, 96), name="sum")
        y = ops.layer_norm(ops.add(y, x if is_sum else normal(96)), normal(96), normal(96))
        g.outputs = [ops.matmul(ops.relu(y), normal(96, 96))]
        return planned(g)[1]

    assert [p.dtype for p in of(True).values()] == ["bfloat16", "bfloat16", "float32", "bfloat16"]
    assert any("layers add to it" in p.reason for p in of(True).values())
    assert {p.dtype for p in of(False).values()} == {"bfloat16"}


def test_a_small_value_before_a_large_weight_is_worth_it() -> None:
    g = Graph("rows")
    y = ops.relu(ops.gemm(g.input("x", "float32", (1, 64)), normal(64, 1024)))
    y = ops.relu(ops.gemm(y, normal(1024, 1024)))
    g.outputs = [ops.gemm(y, normal(1024, 8))]
    _, found = planned(g)
    assert [p.dtype for p in found.values()] == ["bfloat16", "float32"]  # 8 columns are no large weight


def test_an_image_is_copied_into_pairs_of_channels_where_products_pay_for_it() -> None:
    def of(channels: int, k: int, results: int = 32, **attributes: Any) -> list[str]:
        g = Graph("image")
        y = conv(g.input("x", "float32", (1, channels, 64, 64)), results, k, **attributes)
        g.outputs = [conv(ops.relu(y), 16)]
        graph, found = planned(g, target=find("llvm -mcpu=sapphirerapids"))
        names = [n.op.name for n in graph.nodes]
        assert (found["pad_out"].dtype == "bfloat16") if "pad" in names else "pad_out" not in found
        return names

    filled = ["pad", "conv", "relu", "conv"]
    assert of(3, 3) == of(3, 7, strides=(2, 2)) == of(1, 5) == filled
    assert of(3, 3, dilations=(2, 2)) == filled[1:]  # taps of a row do not lie side by side
    assert of(3, 1) == of(1, 3) == of(4, 3) == of(3, 3, results=1) == filled[1:]


def test_parts_of_a_concat_are_held_as_the_whole() -> None:
    g = Graph("beside")
    x = g.input("x", "float32", (1, 16, 40, 40))
    a, b = conv(x, 16), conv(x, 16, 1)
    whole = ops.concat([a, b, x], axis=1)
    g.outputs = [conv(conv(whole, 16), 16)]
    _, found = planned(g)
    because = "it lies in one memory with 'x': it is an input of the network"
    assert found[a.name].reason == found[b.name].reason == because
    graph, found = between(lambda y: ops.concat([conv(y, 16), y], axis=1))
    (group,) = [g for g in graph.groups if any(n.op.name == "concat" for n in g.nodes)]
    assert len({v.layout for n in group.nodes for v in (*n.inputs, *n.outputs) if v}) == 1


def test_what_is_kept_or_the_users_stays_float32() -> None:
    g = Graph("kept")
    y = conv(g.input("x", "float32", (1, 16, 40, 40)), 16)
    z = ops.conv(y, normal(16, 16, 1, 1), name="mine")
    g.outputs = [conv(conv(z, 16), 16)]
    _, found = planned(g.copy(), keep=["mine"])
    assert [p.reason for p in found.values() if p.name in (y.name, z.name)] == ["keep holds 'mine'"] * 2
    renorm.override("conv", target="llvm", schedule=lambda s, outs, target: None)
    try:
        _, found = planned(g.copy())
    finally:
        renorm.override("conv", target="llvm")
    assert all("code that is not renorm's" in p.reason for p in found.values())


def test_a_norm_that_was_folded_is_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight that a kernel reads is the exact product with the norm's scale, rounded to bfloat16."""
    monkeypatch.setattr(mixed_precision, "SMALL", 16)
    g = Graph("folded")
    y = conv(g.input("x", "float32", (1, 8, 9, 9)), 64)
    w, scale = normal(64, 64, 3, 3), np.linspace(0.3, 3, 64).astype(np.float32)
    y = ops.conv(y, w, name="folded")
    y = ops.batch_norm(y, scale, normal(64), normal(64), np.ones(64, np.float32), epsilon=0.0)
    g.outputs = [conv(ops.relu(y), 8)]
    graph, _ = planned(g)
    held = graph.node("folded").inputs[1]
    assert held is not None
    assert held.data is not None
    exact = w.astype(np.float64) * scale.astype(np.float64)[:, None, None, None]
    assert np.array_equal(held.data, interpret.narrow(exact, "bfloat16").astype(np.float32))


def test_tf32_is_what_tensor_cores_multiply_and_nothing_else() -> None:
    """Not what norms, additions and convolutions of single channels read alone, and nothing where no tensor core
    multiplies it; weights are rounded as their data is."""
    g = Graph("on tensor cores")
    x = conv(g.input("x", "float32", (1, 16, 40, 40)), 64, name="first")
    y = ops.relu(ops.conv(x, normal(64, 1, 3, 3), pads=[1] * 4, group=64, name="lanes"))
    z = ops.add(conv(y, 64, 1, name="second"), x)
    z = ops.max_pool(ops.relu(z), kernel_shape=(2, 2))
    g.outputs = [ops.softmax(conv(z, 40, name="last"), axis=1)]

    def of(target: str) -> tuple[Graph, dict[str, PrecisionRecord], str]:
        graph, report = optimize(g.copy(), precision="tf32", target=find(target))
        return graph, {p.name: p for p in report.precisions}, report.arithmetic

    graph, found, how = of("cuda -arch=sm_80")
    assert {name: p.dtype for name, p in found.items()} == dict.fromkeys(("identity_out", y.name, z.name), "tf32")
    assert how == "products of tf32 on tensor cores, summed in float32; others in float32"
    assert [v.held_dtype for v in (graph.node(name).output for name in ("first", "lanes"))] == ["float32"] * 2
    for name, is_held in (("first", True), ("lanes", False), ("second", True), ("last", True)):
        weight = next(n for n in graph.nodes if n.name == name).inputs[1]
        assert weight is not None
        assert weight.data is not None
        assert np.array_equal(weight.data, interpret.narrow(weight.data, "tf32")) == is_held, name
    for target in ("cuda -arch=sm_75", "llvm"):
        graph, found, how = of(target)
        assert not found
        assert "no instructions that multiply tf32" in how
        assert all(v.layout is None or v.layout.dtype is None for n in graph.nodes for v in n.outputs)


def test_tf32_of_attention() -> None:
    """Queries, keys, values, and powers, which are rounded where they are made."""
    g = Graph("attention")
    x = ops.layer_norm(g.input("x", "float32", (2, 64, 96)), normal(96), normal(96))
    q, k, v = (ops.matmul(x, normal(96, 96) / n) for n in (8, 9, 10))
    g.outputs = [ops.matmul(ops.attention(q, k, v), normal(96, 96))]
    graph, report = optimize(g, precision="tf32", target=find("cuda -arch=sm_90"))
    made = {p.name: p.dtype for p in report.precisions}
    assert {made[u.name] for u in (x, q, k, v)} == {"tf32"}
    (node,) = [n for n in graph.nodes if n.op.name == "attention"]
    assert node.op.values["multiplied_as"] == "tf32"
    assert not node.op.values["in_panels"]


@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
def test_inputs_are_copied_where_many_products_read_them(precision: str) -> None:
    def of(channels: int, k: int, target: str = "cuda -arch=sm_90") -> tuple[list[str], str]:
        g = Graph("first")
        x = g.input("x", "float32", (1, 16, 40, 40))
        g.outputs = [ops.relu(conv(x, channels, k)), ops.relu(conv(x, channels, k, name="again"))]
        graph, _ = optimize(g, precision=precision, target=find(target))
        read = {v.held_dtype for n in graph.nodes if n.op.is_product for v in n.inputs[:1] if v}
        (dtype,) = read
        return [n.op.name for n in graph.nodes if n.op.name == "identity"], dtype

    assert of(64, 3) == (["identity"], precision)
    assert of(4, 3) == of(32, 1) == ([], "float32")
    assert of(64, 3, "cuda -arch=sm_75")[1] == "float32"
    assert of(64, 3, "llvm -mcpu=haswell") == ([], "float32")


def test_both_factors_of_a_product_of_inputs_are_copied() -> None:
    g = Graph("product")
    a, b = g.input("a", "float32", (4, 32, 128)), g.input("b", "float32", (128, 128))
    g.outputs = [ops.matmul(ops.reshape(a, (128, 128)), b)]
    graph, report = optimize(g, precision="tf32", target=find("cuda -arch=sm_90"))
    assert [n.op.name for n in graph.nodes if n.op.name != "reshape"][:2] == ["identity"] * 2
    assert [p.dtype for p in report.precisions] == ["tf32"] * 2


def test_what_lies_in_one_memory_is_tf32_together() -> None:
    """A part of what a product reads is held as it is, though no product reads the part."""
    g = Graph("beside")
    x = conv(g.input("x", "float32", (1, 16, 40, 40)), 16)
    a, b = ops.relu(x), ops.sigmoid(x)
    whole = ops.concat([ops.max_pool(a, kernel_shape=(1, 1)), ops.max_pool(b, kernel_shape=(1, 1))], axis=1)
    g.outputs = [ops.softmax(conv(whole, 64), axis=1)]
    graph, _ = optimize(g, precision="tf32", target=find("cuda -arch=sm_90"))
    (node,) = [n for n in graph.nodes if n.op.name == "concat"]
    assert {v.held_dtype for v in (*node.inputs, *node.outputs) if v} == {"tf32"}


def test_what_no_product_can_multiply_is_not_rounded() -> None:
    """A factor beside it is an input that is not worth a copy, or it is the only one."""
    g = Graph("alone")
    x = ops.relu(g.input("x", "float32", (64, 64)))
    y = ops.matmul(x, g.input("w", "float32", (64, 40)))
    g.outputs = [y, ops.einsum(ops.relu(x), equation="ij->ji")]
    graph, report = optimize(g, precision="tf32", target=find("cuda -arch=sm_90"))
    assert not report.precisions
    assert {v.held_dtype for n in graph.nodes for v in n.outputs} == {"float32"}
    g = Graph("lanes")
    x = ops.relu(g.input("x", "float32", (1, 64, 40, 40)))
    g.outputs = [ops.conv(x, normal(64, 1, 3, 3), group=64, name="lanes"), conv(x, 64, name="whole")]
    graph, _ = optimize(g, precision="tf32", target=find("cuda -arch=sm_90"))
    for name, is_held in (("lanes", False), ("whole", True)):
        weight = next(n for n in graph.nodes if n.name == name).inputs[1]
        assert weight is not None
        assert weight.data is not None
        assert np.array_equal(weight.data, interpret.narrow(weight.data, "tf32")) == is_held
