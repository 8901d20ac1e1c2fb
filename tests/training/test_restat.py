"""Statistics estimated anew: against a walk in NumPy float64, torch's update_bn, and what a file must look like."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from numpy.lib.stride_tricks import sliding_window_view
from onnx import numpy_helper
from tests.frontends.models import model
from tests.random_numbers import RNG

import renorm
from renorm import ops
from renorm.cli.group import main
from renorm.errors import InvalidInput, OperandError, SynchronizationError
from renorm.graph.ir import Graph
from renorm.training import layers
from renorm.training.batches import Files
from renorm.training.layers import Layer
from renorm.training.reestimation import restat
from renorm.training.thread_ranks import Threads

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

Array = np.ndarray[Any, Any]
Norm = Callable[[str, Array], Array]
FAST: dict[str, Any] = {"opt_level": 1, "threads": 1}


def parameters(*names: str, channels: int, seed: int) -> dict[str, Array]:
    """scale, bias, mean and var of norms, named `bn.s`, `bn.b`, `bn.m`, `bn.v`."""
    rng = np.random.default_rng(seed)
    found = dict[str, Array]()
    for name in names:
        drawn = [rng.normal(1, 0.3, channels), *rng.normal(0, 1, (2, channels)), rng.uniform(0.5, 2, channels)]
        found |= {f"{name}_{kind}": a.astype(np.float32) for kind, a in zip("sbmv", drawn)}
    return found


class Walk:
    """What a network computes in float64: `of` is it as a function of its input and of how it normalizes; epsilon 1e-5.

    Norms called by the same name have the same statistics."""

    def __init__(self, of: Callable[[Array, Norm], Any], held: dict[str, Array]):
        self.of, self.held = of, {n: a.astype(np.float64) for n, a in held.items()}

    def normalized(self, name: str, x: Array, mean: Array, var: Array) -> Array:
        scale, bias = (self.held[f"{name}_{k}"] for k in "sb")
        wide = [p.reshape(-1, *[1] * (x.ndim - 2)) for p in (mean, var, scale, bias)]
        return (x - wide[0]) / np.sqrt(wide[1] + 1e-5) * wide[2] + wide[3]

    def exact(self, batches: list[Any]) -> dict[str, tuple[Array, Array]]:
        """Statistics of norms of names of their own: each norm measured over all data, which then goes on with them."""
        found: dict[str, tuple[Array, Array]] = {}

        def norm(name: str, x: Array) -> Array:
            found[name] = moments(x)
            return self.normalized(name, x, *found[name])

        self.of(np.concatenate([b.astype(np.float64) for b in batches]), norm)
        return found

    def one_pass(self, batches: list[Any]) -> dict[str, tuple[Array, Array]]:
        """All inputs of each norm, where norms use the statistics of their batch."""
        seen: dict[str, list[Array]] = {}

        def norm(name: str, x: Array) -> Array:
            seen.setdefault(name, []).append(np.moveaxis(x, 1, 0).reshape(x.shape[1], -1))
            return self.normalized(name, x, *moments(x))

        for batch in batches:
            self.of(batch.astype(np.float64), norm)
        return {n: (a.mean(1), a.var(1)) for n, parts in seen.items() for a in [np.concatenate(parts, 1)]}


def moments(x: Array) -> tuple[Array, Array]:
    axes = tuple(a for a in range(x.ndim) if a != 1)
    return x.mean(axes), x.var(axes)


def conv(x: Array, w: Array) -> Array:
    windows = sliding_window_view(x, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwkl,ockl->nohw", windows, w.astype(np.float64))


# x -> conv -> [a] -> relu -> conv -> [b] --+-> [d]      three passes, of which the second has two norms
#                        \-> conv -> [c] ---/
WEIGHTS = {
    f"w{i}": RNG.normal(0, 0.5, s).astype(np.float32) for i, s in enumerate([(4, 3, 2, 3), (4, 4, 3, 1), (4, 4, 3, 1)])
}
BRANCHED = """branched (float[N, 3, 6, 5] x) => (float[N, 4, 3, 3] y) {
  [A] p = Conv(x, w0)
  [a] q = BatchNormalization(p, a_s, a_b, a_m, a_v)
  r = Relu(q)
  s = Conv(r, w1)
  [b] t = BatchNormalization(s, b_s, b_b, b_m, b_v)
  u = Conv(r, w2)
  [c] v = BatchNormalization(u, c_s, c_b, c_m, c_v)
  z = Add(t, v)
  [d] y = BatchNormalization(z, d_s, d_b, d_m, d_v)
}"""
BRANCHED_HELD = parameters("a", "b", "c", "d", channels=4, seed=1)


def branched() -> onnx.ModelProto:
    return model(BRANCHED, WEIGHTS | BRANCHED_HELD)


def walk_branched(x: Array, norm: Norm) -> None:
    r = np.maximum(norm("a", conv(x, WEIGHTS["w0"])), 0)
    norm("d", norm("b", conv(r, WEIGHTS["w1"])) + norm("c", conv(r, WEIGHTS["w2"])))


# x -> [a] -> relu -> [b]      two passes, and kernels that compile at once
CHAIN = """chain (float[N, 3, 6, 5] x) => (float[N, 3, 6, 5] y) {
  [a] p = BatchNormalization(x, a_s, a_b, a_m, a_v)
  q = Relu(p)
  [b] y = BatchNormalization(q, b_s, b_b, b_m, b_v)
}"""
CHAIN_HELD = parameters("a", "b", channels=3, seed=7)


def chain() -> onnx.ModelProto:
    return model(CHAIN, CHAIN_HELD)


def images(*sizes: int, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((n, 3, 6, 5)) * (1 + i) + i).astype(np.float32) for i, n in enumerate(sizes)]


def agree(layers: Any, expected: dict[str, tuple[Array, Array]], tolerance: float = 2e-6) -> None:
    assert [d.name for d in layers] == list(expected)
    for d, (mean, var) in zip(layers, expected.values()):
        np.testing.assert_allclose(d.mean, mean, rtol=tolerance, atol=tolerance * np.sqrt(var).max())
        np.testing.assert_allclose(d.var, var, rtol=5 * tolerance, atol=tolerance * var.max())


@pytest.mark.parametrize(("method", "passes"), [("exact", 3), ("one_pass", 1)])
def test_uneven_batches_give_what_the_whole_data_set_gives(method: str, passes: int) -> None:
    batches = images(4, 1, 3)
    r = restat(branched(), batches, method=method, threads=1)
    agree(r.layers, getattr(Walk(walk_branched, BRANCHED_HELD), method)(batches))
    assert (r.passes, r.batches) == (passes, 3)
    assert [d.count for d in r.layers] == [8 * 5 * 3, 8 * 9, 8 * 9, 8 * 9]
    assert [d.after for d in r.layers] == ([1, 2, 2, 3] if method == "exact" else [1] * 4)


def test_the_network_that_comes_out_has_at_each_norm_what_it_stores() -> None:
    batches = images(4, 4)
    made = restat(chain(), batches, **FAST).model
    again = restat(made, batches, **FAST)
    assert all(d.shift.value < 1e-5 for d in again.layers)
    assert all(abs(e.value - 1) < 1e-5 for d in again.layers for e in d.ratios)


def test_nothing_else_of_the_file_changes(tmp_path: Path) -> None:
    source, path = chain(), tmp_path / "net.onnx"
    source.doc_string = "of the author"
    source.metadata_props.add(key="k", value="v")
    source.graph.initializer[-1].doc_string = "of a tensor"
    onnx.save(source, path)
    r = restat(path, images(2, 2), method="one_pass", **FAST)
    r.write(tmp_path / "out.onnx")
    after = onnx.load(tmp_path / "out.onnx")
    statistics = {f"{n}_{k}" for n in "ab" for k in "mv"}
    assert {n for d in r.layers for n in (d.mean_name, d.var_name)} == statistics
    for old, new in zip(source.graph.initializer, after.graph.initializer, strict=True):
        assert (old.name, old.dims, old.data_type, old.doc_string) == (
            new.name,
            new.dims,
            new.data_type,
            new.doc_string,
        )
        assert (old.name not in statistics) == (
            numpy_helper.to_array(old).tobytes() == numpy_helper.to_array(new).tobytes()
        )
    for proto in (source, after):
        del proto.graph.initializer[:]
    assert source == after
    with pytest.raises(InvalidInput, match="comes back in the format"):
        r.write(tmp_path / "out.tflite")


def test_a_file_beside_the_model_stays_a_file_beside_the_model(tmp_path: Path) -> None:
    """Also doc strings, and initializers that hold their elements in a typed field."""
    source = chain()
    source.doc_string, source.graph.doc_string = "of the author", "of the graph"
    copy = onnx.ModelProto.FromString(source.SerializeToString())
    onnx.save(copy, tmp_path / "net.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    held = onnx.load(tmp_path / "net.onnx", load_external_data=False)
    typed = next(t for t in held.graph.initializer if t.name == "a_s")
    typed.CopyFrom(onnx.helper.make_tensor("a_s", 1, [3], CHAIN_HELD["a_s"].tolist()))
    (tmp_path / "net.onnx").write_bytes(held.SerializeToString())
    r = restat(tmp_path / "net.onnx", images(2), method="one_pass", **FAST)
    (tmp_path / "out").mkdir()
    r.write(tmp_path / "out" / "net.onnx")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["net.onnx", "net.onnx.data"]
    slim = onnx.load(tmp_path / "out" / "net.onnx", load_external_data=False)
    assert {t.name for t in slim.graph.initializer if t.data_location == 0} == {"a_s"}
    after = onnx.load(tmp_path / "out" / "net.onnx")
    for old, new in zip(source.graph.initializer, after.graph.initializer, strict=True):
        if old.name not in {n for d in r.layers for n in (d.mean_name, d.var_name)}:
            np.testing.assert_array_equal(numpy_helper.to_array(old), numpy_helper.to_array(new))
    for proto in (source, after):
        del proto.graph.initializer[:]
    assert source == after
    assert all(d.shift.value < 1e-5 for d in restat(tmp_path / "out" / "net.onnx", images(2), **FAST).layers[:1])


def test_the_report_says_how_far_it_drifted() -> None:
    source, batches = chain(), images(3, 3)
    r = restat(source, batches, method="one_pass", **FAST)
    d = r.layers[1]
    old_mean, old_var = CHAIN_HELD["b_m"].astype(np.float64), CHAIN_HELD["b_v"].astype(np.float64)
    np.testing.assert_array_equal(d.old_mean, old_mean)
    moved = np.abs(d.mean - old_mean) / np.sqrt(old_var + 1e-5)
    ratios = (d.var + 1e-5) / (old_var + 1e-5)
    assert d.shift.value == pytest.approx(moved.max())
    assert d.shift.channel == moved.argmax()
    assert [(e.channel, e.value) for e in d.ratios] == [
        (ratios.argmin(), ratios.min()),
        (ratios.argmax(), ratios.max()),
    ]
    assert r.worst.shift.value == max(d.shift.value for d in r.layers)
    assert not d.dead
    assert all(d.name in str(r) for d in r.layers)


def test_dead_channels_are_told() -> None:
    """One that is constant in the data, and all of those behind a ReLU that lets nothing pass."""
    batches = images(2, 3)
    for b in batches:
        b[:, 1] = 0.3
    found = [
        restat(model(CHAIN, CHAIN_HELD, a_b=np.full(3, bias, np.float32)), batches, method="one_pass", **FAST)
        for bias in (0, -100)
    ]
    assert [[d.dead for d in r.layers] for r in found] == [[(1,), (1,)], [(1,), (0, 1, 2)]]
    assert [[d.name for d in r.layers if d.is_dead] for r in found] == [[], ["b"]]


def test_a_correction_multiplies_by_n_over_n_minus_1() -> None:
    batches = images(2)
    plain, corrected = (restat(chain(), batches, method="one_pass", correction=c, **FAST) for c in (0, 1))
    for a, b in zip(plain.layers, corrected.layers):
        np.testing.assert_array_equal(a.mean, b.mean)
        np.testing.assert_allclose(b.var, a.var * a.count / (a.count - 1), rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_random_networks_level_by_level(seed: int) -> None:
    """Sums, products and norms over values from anywhere before: they are alive over any number of stages."""
    rng = np.random.default_rng(seed)
    steps, held = list[tuple[str, int, int]](), dict[str, Array]()
    for k in range(10):
        kind = str(rng.choice(["norm", "norm", "add", "mul"]))
        steps.append((kind, int(rng.integers(max(0, k - 3), k + 1)), int(rng.integers(0, k + 1))))
    steps.append(("norm", len(steps), 0))
    norms = [f"n{k}" for k, (kind, *_) in enumerate(steps) if kind == "norm"]
    held = {n: a for i, name in enumerate(norms) for n, a in parameters(name, channels=4, seed=10 * seed + i).items()}
    text = {
        "norm": "[n{k}] v{to} = BatchNormalization(v{a}, n{k}_s, n{k}_b, n{k}_m, n{k}_v)",
        "add": "v{to} = Add(v{a}, v{b})",
        "mul": "v{to} = MatMul(v{a}, w)",
    }
    body = [text[kind].format(k=k, a=a, b=b, to=k + 1) for k, (kind, a, b) in enumerate(steps)]
    last = len(steps)
    proto = model(f"random (float[N, 4] v0) => (float[N, 4] v{last}) {{\n" + "\n".join(body) + "}", held, w=PRODUCT)

    def walk(x: Array, norm: Norm) -> None:
        values = [x]
        for k, (kind, a, b) in enumerate(steps):
            first, other = values[a], values[b]
            values.append(
                norm(f"n{k}", first) if kind == "norm" else first + other if kind == "add" else first @ PRODUCT
            )

    batches = rows(6, 1, 4, seed=seed)
    expected = Walk(walk, held).exact(batches)
    for memory in (0, 1 << 20):
        found = restat(proto, batches, memory=memory, opt_level=0, threads=1)
        agree(found.layers, expected, 2e-5)


# --- who else reads statistics ----------------------------------------------------------------------------------------

ROW = "(float[N, 4] x) => (float[N, 4] y)"
PRODUCT = np.random.default_rng(5).normal(0, 1, (4, 4)).astype(np.float32)


def rows(*sizes: int, seed: int = 3) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((n, 4)) * (1 + i) + i).astype(np.float32) for i, n in enumerate(sizes)]


def test_norms_that_share_all_of_theirs_are_measured_together() -> None:
    """Not behind each other: their data are one sample."""
    held = parameters("a", channels=4, seed=2)
    proto = model(
        f"""shared {ROW} {{ u = Neg(x) p = MatMul(u, w)
        [one] q = BatchNormalization(x, a_s, a_b, a_m, a_v)
        [two] r = BatchNormalization(p, a_s, a_b, a_m, a_v) y = Add(q, r) }}""",
        held, w=PRODUCT,
    )  # fmt: skip
    batches = rows(5, 2)
    (d,) = restat(proto, batches, **FAST).layers
    x = np.concatenate(batches).astype(np.float64)
    both = np.concatenate([x, -x @ PRODUCT])
    np.testing.assert_allclose(d.mean, both.mean(0), rtol=1e-5)
    np.testing.assert_allclose(d.var, both.var(0), rtol=1e-5)
    assert (d.nodes, d.count) == (("one", "two"), 14)


def test_norms_that_take_turns_share_a_pass() -> None:
    """one (a) -> two (b) -> three (a): a stands before b and behind it. Those not measured yet have their batch's."""
    held = parameters("a", "b", channels=4, seed=2)
    proto = model(
        f"""turns {ROW} {{ [one] p = BatchNormalization(x, a_s, a_b, a_m, a_v) q = MatMul(p, w)
        [two] r = BatchNormalization(q, b_s, b_b, b_m, b_v) s = MatMul(r, w)
        [three] t = BatchNormalization(s, a_s, a_b, a_m, a_v) u = MatMul(t, w)
        [four] y = BatchNormalization(u, c_s, c_b, c_m, c_v) }}""",
        held | parameters("c", channels=4, seed=4), w=PRODUCT,
    )  # fmt: skip
    batches = rows(5, 3)

    def walk(x: Array, norm: Norm) -> None:
        norm("a", norm("b", norm("a", x) @ PRODUCT) @ PRODUCT)

    r = restat(proto, batches, **FAST)
    assert [d.after for d in r.layers] == [1, 1, 2]
    assert r.layers[0].nodes == ("one", "three")
    expected = Walk(walk, held).one_pass(batches)
    agree(r.layers[:2], {"one": expected["a"], "two": expected["b"]})


def test_a_statistic_that_others_read_too_gets_a_name_of_its_own() -> None:
    """Exporters share equal initializers: here zeros are two means and a bias, ones two variances and a scale."""
    zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
    proto = model(
        f"""alike {ROW} {{ [one] p = BatchNormalization(x, ones, zeros, zeros, ones) q = MatMul(p, w)
        [two] y = BatchNormalization(q, twos, zeros, zeros, ones) }}""",
        w=PRODUCT, zeros=zeros, ones=ones, twos=2 * ones,
    )  # fmt: skip
    batches = rows(5, 3)
    r = restat(proto, batches, **FAST)
    held = {n: numpy_helper.to_array(t) for t in r.model.graph.initializer for n in [t.name]}
    np.testing.assert_array_equal(held["zeros"], zeros)
    np.testing.assert_array_equal(held["ones"], ones)
    x = np.concatenate(batches).astype(np.float64)
    agree(r.layers, Walk(lambda x, norm: norm("two", norm("one", x) @ PRODUCT), {
        "one_s": ones, "one_b": zeros, "two_s": 2 * ones, "two_b": zeros}).exact([x]), 1e-5)  # fmt: skip
    for d, node in zip(r.layers, [r.model.graph.node[0], r.model.graph.node[2]]):
        assert list(node.input[3:]) == [d.mean_name, d.var_name]
        np.testing.assert_array_equal(held[d.mean_name], d.mean)
    again = restat(r.model, batches, **FAST)
    assert [d.mean_name for d in again.layers] == [d.mean_name for d in r.layers]
    assert all(d.shift.value < 1e-5 for d in again.layers)


@pytest.mark.parametrize("ir", [3, 8])
def test_statistics_behind_nodes_become_initializers_of_their_names(ir: int) -> None:
    source = model(
        """behind (float[N, 4] x) => (float[N, 4] y) {
        m = Identity(zeros)  k = Constant <value = float[4] {1, 2, 3, 4}> ()
        [one] p = BatchNormalization(x, zeros, zeros, m, k)
        wide = Constant <value = double[4] {1, 1, 2, 2}> ()  v = Cast <to = 1> (wide)
        [two] y = BatchNormalization(p, zeros, zeros, n, v) }""",
        ir=ir, zeros=np.zeros(4, np.float32), n=np.ones(4, np.float32),
    )  # fmt: skip
    if ir < 4:
        source.graph.input.extend(onnx.helper.make_tensor_value_info(n, 1, [4]) for n in ("zeros", "n"))
    r = restat(source, rows(6), **FAST)
    assert [(d.mean_name, d.var_name) for d in r.layers] == [("m", "k"), ("n", "v")]
    assert [n.op_type for n in r.model.graph.node] == [
        "Constant",
        *["BatchNormalization"] * 1,
        "Constant",
        "BatchNormalization",
    ]
    np.testing.assert_allclose(r.layers[0].mean, rows(6)[0].astype(np.float64).mean(0), rtol=1e-6)
    assert {t.name: t.data_type for t in r.model.graph.initializer} == dict.fromkeys(("zeros", "n", "m", "v"), 1)
    onnx.checker.check_model(r.model, full_check=True)
    assert len(renorm.read(r.model).inputs) == 1
    assert all(d.shift.value < 1e-5 for d in restat(r.model, rows(6), **FAST).layers)


def test_norms_behind_constants_and_in_functions_and_in_training_mode() -> None:
    held = parameters("a", "b", "c", channels=4, seed=2)
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[N, 4] x) => (float[N, 4] y) {
      [fixed] p = BatchNormalization(rows, a_s, a_b, a_m, a_v)
      q = own.Norm(x, b_s, b_b, b_m, b_v)
      [live] r = BatchNormalization <training_mode = 1> (q, c_s, c_b, c_m, c_v)
      m = ReduceMean <axes = [0], keepdims = 0> (p)
      y = Add(r, m) }
    <domain: "own", opset_import: ["" : 17]> Norm (x, s, b, m, v) => (y) { y = BatchNormalization(x, s, b, m, v) }""")
    fixed = rows(3, seed=8)[0]
    for name, array in {**held, "rows": fixed}.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    batches = rows(2, 7)
    r = restat(proto, batches, **FAST)
    x = np.concatenate(batches).astype(np.float64)
    agree(r.layers, {r.layers[0].name: moments(fixed.astype(np.float64)), r.layers[1].name: moments(x)})
    assert [d.mean_name for d in r.layers] == ["a_m", "b_m"]
    assert r.layers[0].count == 6  # of each batch
    ((name, why),) = r.skipped
    assert name == "live"
    assert "training mode" in why
    assert not r.model.functions


# --- what goes in -----------------------------------------------------------------------------------------------------


def test_several_inputs_and_integers() -> None:
    table = RNG.normal(0, 1, (10, 4)).astype(np.float32)
    proto = model(
        """two (int64[N] i, float[N, 4] x) => (float[N, 4] y) {
        e = Gather(table, i) p = Add(e, x) [bn] y = BatchNormalization(p, a_s, a_b, a_m, a_v) }""",
        parameters("a", channels=4, seed=2), table=table,
    )  # fmt: skip
    x, i = rows(3, 4), [np.array([1, 9, 1]), np.array([0, 0, 5, 2])]
    data = np.concatenate([table[at] + a for at, a in zip(i, x)]).astype(np.float64)
    forms = [
        list(zip(i, x)),
        [{"x": b, "i": a} for a, b in zip(i, x)],
        [(torch.from_numpy(a), b) for a, b in zip(i, x)],
    ]
    for batches in forms:
        agree(restat(proto, batches, **FAST).layers, {"bn": moments(data)})


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_statistics_are_stored_in_the_dtype_that_they_had(dtype: str) -> None:
    kind = {"float16": "float16", "float64": "double"}[dtype]
    held = {n: a.astype(dtype) for n, a in parameters("a", channels=4, seed=2).items()}
    proto = model(
        f"g ({kind}[N, 4] x) => ({kind}[N, 4] y) {{ [bn] y = BatchNormalization(x, a_s, a_b, a_m, a_v) }}", held
    )
    batches = [b.astype(dtype) for b in rows(5, 2)]
    (d,) = restat(proto, batches, **FAST).layers
    mean, var = moments(np.concatenate(batches).astype(np.float64))
    np.testing.assert_allclose(d.mean, mean, rtol={"float16": 1e-3, "float64": 1e-14}[dtype])
    np.testing.assert_allclose(d.var, var, rtol={"float16": 1e-3, "float64": 1e-14}[dtype])
    if dtype == "float16":
        with pytest.raises(InvalidInput, match="'bn' stores float16, which cannot hold the variance"):
            restat(proto, [b * np.float16(1000) for b in batches], **FAST)


def test_every_activation_by_itself() -> None:
    """spatial = 0, until opset 8: statistics have the shape of a sample."""
    held = {n: a.reshape(2, 3) for n, a in parameters("a", channels=6, seed=2).items()}
    proto = model(
        """g (float[N, 2, 3] x) => (float[N, 2, 3] y) {
        [bn] y = BatchNormalization <spatial = 0> (x, a_s, a_b, a_m, a_v) }""",
        held, opset=7,
    )  # fmt: skip
    x = np.random.default_rng(1).standard_normal((5, 2, 3)).astype(np.float32)
    r = restat(proto, [x[:2], x[2:]], **FAST)
    np.testing.assert_allclose(r.layers[0].mean, x.astype(np.float64).mean(0).ravel(), rtol=1e-5, atol=1e-7)
    mean = next(t for t in r.model.graph.initializer if t.name == "a_m")
    np.testing.assert_array_equal(numpy_helper.to_array(mean).ravel(), r.layers[0].mean)
    assert list(mean.dims) == [2, 3]


def test_means_of_many_deviations_keep_their_digits() -> None:
    proto = model(
        f"g {ROW} {{ [bn] y = BatchNormalization(x, a_s, a_b, a_m, a_v) }}", parameters("a", channels=4, seed=2)
    )
    batches = [(b + np.float32(10000)).astype(np.float32) for b in rows(50, 1, 3)]
    (d,) = restat(proto, batches, **FAST).layers
    mean, var = moments(np.concatenate(batches).astype(np.float64))
    np.testing.assert_allclose(d.var, var, rtol=1e-6)
    np.testing.assert_allclose(d.mean, mean, rtol=1e-7)


# --- peers and ranks --------------------------------------------------------------------------------------------------


def in_torch() -> tuple[torch.nn.Sequential, list[torch.nn.BatchNorm2d]]:
    """Return the chain, and its norms."""
    a, b = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    with torch.no_grad():
        for name, norm in (("a", a), ("b", b)):
            norm.weight.copy_(torch.from_numpy(CHAIN_HELD[f"{name}_s"]))
            norm.bias.copy_(torch.from_numpy(CHAIN_HELD[f"{name}_b"]))
    return torch.nn.Sequential(a, torch.nn.ReLU(), b).double(), [a, b]


def test_one_pass_beside_update_bn_of_torch() -> None:
    """update_bn averages over batches: equal ones give the same means. Its variances are means of those of batches,
    corrected; ours have the spread of their means in addition. With one batch nothing is left to average."""
    batches = images(3, 3)
    theirs, norms = in_torch()
    torch.optim.swa_utils.update_bn([torch.from_numpy(b).double() for b in batches], theirs)
    for d, norm in zip(restat(chain(), batches, method="one_pass", **FAST).layers, norms, strict=True):
        np.testing.assert_allclose(d.mean, norm.get_buffer("running_mean").numpy(), rtol=1e-5, atol=1e-6)
        n = d.count // 2
        assert (d.var > norm.get_buffer("running_var").numpy() * (n - 1) / n * (1 - 1e-6)).all()
    torch.optim.swa_utils.update_bn([torch.from_numpy(batches[0]).double()], theirs)
    found = restat(chain(), batches[:1], method="one_pass", correction=1, **FAST)
    for d, norm in zip(found.layers, norms, strict=True):
        np.testing.assert_allclose(d.var, norm.get_buffer("running_var").numpy(), rtol=1e-5)


@pytest.mark.parametrize("method", ["exact", "one_pass"])
def test_ranks_have_what_one_has_alone(method: str) -> None:
    batches = images(3, 3, 1, 3)
    alone = restat(chain(), batches, method=method, **FAST)
    shares = [batches[:1], [], batches[1:]]
    found = Threads(3, timeout=60).run(lambda comm: restat(chain(), shares[comm.rank], comm, method, **FAST))
    for r in found:
        assert r.model == found[0].model
        for d, expected in zip(r.layers, alone.layers):
            assert d.count == expected.count
            np.testing.assert_allclose(d.mean, expected.mean, rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(d.var, expected.var, rtol=1e-6)


def test_a_rank_that_fails_ends_all() -> None:
    shares = [images(1), [np.zeros((1, 2), np.float32)]]
    seen = list[BaseException]()

    def work(comm: Any) -> None:
        try:
            restat(chain(), shares[comm.rank], comm, "one_pass", **FAST)
        except (InvalidInput, SynchronizationError) as error:
            seen.append(error)

    Threads(2, timeout=60).run(work)
    assert {type(e) for e in seen} == {InvalidInput, SynchronizationError}


# --- what is kept between passes -------------------------------------------------------------------------------------


def test_what_is_kept_changes_no_bit() -> None:
    """The values of a batch between stages: p of [a], then r, and b and c of it, then z: float32 of 4 channels."""
    batches = images(4, 1, 3)
    per_image = 4 * 4 * np.array([5 * 3, 2 * 9, 9])  # bytes behind the passes: p; s and u; z
    every = [restat(branched(), batches, memory=m, threads=1) for m in (1 << 20, 8 * int(per_image[0]) + 100, 0)]
    assert [(r.reads, r.work) for r in every] == [(1, 1.0), (1, 11 / 9), (3, 2.0)]
    for r in every[1:]:
        for d, expected in zip(r.layers, every[0].layers):
            assert d.mean.tobytes() == expected.mean.tobytes()
            assert d.var.tobytes() == expected.var.tobytes()


def test_batches_that_are_given_once_or_in_one_array() -> None:
    """A loader may write each batch over the one before; the second input is read in the last stage only."""
    proto = model(
        """deep (float[N, 4] x, float[N, 4] late) => (float[N, 4] y) {
        [one] p = BatchNormalization(x, a_s, a_b, a_m, a_v) q = MatMul(p, w) r = Add(q, late)
        [two] y = BatchNormalization(r, b_s, b_b, b_m, b_v) }""",
        parameters("a", "b", channels=4, seed=2), w=PRODUCT,
    )  # fmt: skip
    data = list(zip(rows(3, 3, 3), rows(3, 3, 3, seed=9)))

    def loader() -> Any:
        held = [np.empty_like(a) for a in data[0]]
        for pair in data:
            for into, a in zip(held, pair):
                into[:] = a
            yield held

    expected, found = restat(proto, data, **FAST), restat(proto, loader(), **FAST)
    for d, e in zip(found.layers, expected.layers):
        np.testing.assert_array_equal(d.mean, e.mean)
        np.testing.assert_array_equal(d.var, e.var)
    with pytest.raises(InvalidInput, match="read again for each of 2 passes, generator gives them once") as error:
        restat(proto, loader(), memory=200, **FAST)
    assert error.value.facts == ("what would be kept of them instead is more than memory=200 bytes at batch 2",)
    assert restat(proto, loader(), method="one_pass", memory=0, **FAST).batches == 3

    class Once:
        calls = 0

        def __iter__(self) -> Any:
            self.calls += 1
            return iter(data if self.calls == 1 else [])

    with pytest.raises(InvalidInput, match="pass 2 over the batches gave 0 of them, the first 3"):
        restat(proto, Once(), memory=0, **FAST)


class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
    """Tells no length, so that a loader that has `__len__` refuses it."""

    def __iter__(self) -> Any:
        return iter(torch.from_numpy(np.concatenate(images(3, 4))))


def test_a_loader_of_torch_without_a_length() -> None:
    told = list[tuple[str, int, int]]()
    loader = torch.utils.data.DataLoader(Stream(), batch_size=3)
    r = restat(chain(), loader, progress=lambda *said: told.append(said), **FAST)
    expected = restat(chain(), [np.concatenate(images(3, 4))], **FAST)
    for d, e in zip(r.layers, expected.layers):
        np.testing.assert_allclose(d.mean, e.mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(d.var, e.var, rtol=1e-5)
    assert told == [(f"pass {n} of 2", i, (0, 3)[n - 1]) for n in (1, 2) for i in (1, 2, 3)]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no batch norms with stored statistics") as error:
        restat(model(f"g {ROW} {{ y = Relu(x) }}"), rows(1))
    assert "folded into weights" in error.value.facts[0]
    with pytest.raises(InvalidInput, match=r"batches is an array \[2, 3, 6, 5\]"):
        restat(chain(), images(2)[0])
    with pytest.raises(InvalidInput, match="the inputs do not fit chain") as error:
        restat(chain(), [{"z": images(1)[0]}], **FAST)
    assert error.value.facts == ("input x is missing, f32[N, 3, 6, 5]", "'z' is not an input")
    inner = "BatchNormalization(x, a_s, a_b, a_m, a_v)"
    for condition in ("bool c", ""):
        branch = f"If (c) <then_branch = t () => (float[N, 4] p) {{ [inner] p = {inner} }},"
        proto = model(
            f"""g (float[N, 4] x{condition and f", {condition}"}) => (float[N, 4] y)
            {{ y = {branch} else_branch = e () => (float[N, 4] q) {{ q = Neg(x) }}> }}""",
            parameters("a", channels=4, seed=2) | ({} if condition else {"c": np.array(True)}),
        )  # fmt: skip
        if condition:
            with pytest.raises(OperandError, match="the condition 'c' of If is computed when the network runs"):
                restat(proto, rows(1))
        else:
            assert [d.name for d in restat(proto, rows(5), **FAST).layers] == ["inner"]
    with pytest.raises(InvalidInput, match="there are no values per channel for 'a' in all batches"):
        restat(chain(), [], **FAST)
    with pytest.raises(InvalidInput, match=r"batch 1: .*do not fit"):
        restat(chain(), [images(1)[0], rows(1)[0]], method="one_pass", **FAST)
    with pytest.raises(InvalidInput, match="method is 'precise'"):
        restat(chain(), images(1), method="precise")
    with pytest.raises(InvalidInput, match="correction is 2"):
        restat(chain(), images(1), correction=2)
    flat = tmp_path / "net.tflite"
    flat.write_bytes(b"")
    with pytest.raises(InvalidInput, match="only ONNX files hold statistics"):
        restat(flat, [])
    single = model(
        f"g {ROW} {{ [bn] y = BatchNormalization(x, a_s, a_b, a_m, a_v) }}", parameters("a", channels=4, seed=2)
    )
    with pytest.raises(InvalidInput, match="there is one value per channel"):
        restat(single, rows(1), correction=1, **FAST)


def test_statistics_that_are_no_numbers_are_named_by_layer() -> None:
    batches = images(2, 2, 2)
    batches[1][0, 2, 1, 3] = np.nan
    with pytest.raises(InvalidInput, match="statistics are not finite") as error:
        restat(chain(), batches, **FAST)
    said = "batch 1: input x has values that are not finite"
    assert error.value.facts == ("a: channels 2, from batch 1 on", said)


# --- files and the verb -----------------------------------------------------------------------------------------------


def test_files_are_cut_into_batches(tmp_path: Path) -> None:
    a, b = np.arange(10.0).reshape(5, 2), np.arange(5)
    np.save(tmp_path / "a.npy", a)
    np.savez(tmp_path / "ab.npz", a=a, b=b)
    assert [len(x) for x in Files([tmp_path / "a.npy"])] == [5]
    for _ in range(2):
        found = list(Files([tmp_path / "a.npy", tmp_path / "ab.npz"], size=2))
        assert [len(x) if isinstance(x, np.ndarray) else (len(x["a"]), len(x["b"])) for x in found] == [
            2, 2, 1, (2, 2), (2, 2), (1, 1),
        ]  # fmt: skip
    (tmp_path / "note.txt").write_text("no data")
    assert Files([tmp_path]).paths == [str(tmp_path / "a.npy"), str(tmp_path / "ab.npz")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match=r"empty: no .npy or .npz file is in this folder"):
        Files([tmp_path / "empty"])
    np.savez(tmp_path / "odd.npz", a=a, b=b[:3])
    with pytest.raises(InvalidInput, match="cannot be cut"):
        list(Files([tmp_path / "odd.npz"], size=2))
    with pytest.raises(InvalidInput, match="missing"):
        list(Files([tmp_path / "missing.npy"]))


def test_the_verb(tmp_path: Path) -> None:
    onnx.save(chain(), tmp_path / "net.onnx")
    batches = images(4, 3)
    (tmp_path / "data").mkdir()
    for i, b in enumerate(batches):
        np.save(tmp_path / "data" / f"{i}.npy", b)
    call = ["restat", "net.onnx", "data", "-o", "out.onnx", "--opt-level", "1", "--memory", "0"]
    runner = CliRunner()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        said = runner.invoke(main, call, catch_exceptions=False)
        told = runner.invoke(
            main, [*call, "--method", "one_pass", "--batch-size", "2", "--json"], catch_exceptions=False
        )
        wrong = runner.invoke(main, ["restat", "net.onnx", "none.npy", "-o", "out.onnx"])
    assert said.exit_code == 0, said.output
    assert all(f"\n{n} " in said.output for n in "ab")
    assert "2 batches in 2 passes, read 2 times, computed 1.5 times" in said.output
    found = json.loads(told.stdout)
    assert found["batches"] == 4
    held = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    for layer in found["layers"]:
        np.testing.assert_array_equal(held[layer["mean"]["name"]], np.array(layer["mean"]["new"], np.float32))
    assert wrong.exit_code == 2


def test_norms_in_a_row_are_put_in_order_one_by_one() -> None:
    """Each pass of as many as there are norms was looked for among all pairs of those that are left."""
    g = Graph()
    x, rng = g.input("x", "float32", (1, 2, 2)), np.random.default_rng(0)
    found = list[Layer]()
    for i in range(500):
        mean, var = rng.uniform(0.5, 1, (2, 2)).astype(np.float32)
        x = ops.batch_norm(x, np.ones(2, np.float32), mean, mean, var, epsilon=1e-5, name=f"n{i}")
        found.append(Layer((f"n{i}",), mean, var, 1e-5, (None,)))
    order = rng.permutation(500).tolist()
    since = time.process_time()
    made = layers.passes(g, [found[i] for i in order])
    assert time.process_time() - since < 20  # 0.3 s; hours for each with each of each
    assert [[x.name for x in one] for one in made] == [[f"n{i}"] for i in range(500)]
