"""ONNX networks in training mode, compiled: statistics as outputs, and as state of the module."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.frontends import onnx_runtime
from tests.frontends.models import model
from tests.random_numbers import RNG

import renorm
from renorm.core import dtypes
from renorm.driver.module import OpenModule, SpecializingModule
from renorm.errors import InvalidArtifact, InvalidInput, StatisticsWarning, TimeLimit
from renorm.runtime import artifact
from renorm.runtime.memory import Memory

Array = np.ndarray[Any, Any]
HELD = {
    f"{n}_{k}": a.astype(np.float32)
    for n in "ab"
    for k, a in zip("sbmv", [RNG.normal(1, 0.3, 3), *RNG.normal(0, 1, (2, 3)), RNG.uniform(0.5, 2, 3)])
}
# conv -> [a] -> relu -> [b], statistics of a are outputs, those of b read by nobody
WEIGHT = np.random.default_rng(11).normal(0, 0.5, (3, 2, 1, 1)).astype(np.float32)
BODY = """training (float[N, 2, 4, 5] x) => (float[N, 3, 4, 5] y, float[3] after_mean, float[3] after_var) {
  p = Conv(x, w)
  [a] q, after_mean, after_var = BatchNormalization <training_mode = 1, momentum = 0.7> (p, a_s, a_b, a_m, a_v)
  r = Relu(q)
  [b] y, unread_mean, unread_var =
    BatchNormalization <training_mode = 1, momentum = 0.2, epsilon = 0.001> (r, b_s, b_b, b_m, b_v)
}"""


def network() -> onnx.ModelProto:
    return model(BODY, HELD, w=WEIGHT)


def images(*sizes: int, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.normal(i, 1 + i, (n, 2, 4, 5)).astype(np.float32) for i, n in enumerate(sizes)]


def step(state: dict[str, Array], x: Array) -> tuple[Array, dict[str, Array]]:
    """y and the state after a batch, in float64."""
    after = dict(state)
    wide = {n: a.astype(np.float64).reshape(-1, 1, 1) for n, a in HELD.items()}

    def norm(name: str, x: Array, momentum: float, epsilon: float) -> Array:
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
        for kind, new in (("m", mean), ("v", var)):
            after[f"{name}_{kind}"] = momentum * state[f"{name}_{kind}"] + (1 - momentum) * new
        standard = (x - mean.reshape(-1, 1, 1)) / np.sqrt(var.reshape(-1, 1, 1) + epsilon)
        return standard * wide[f"{name}_s"] + wide[f"{name}_b"]

    p = np.einsum("nchw,oc->nohw", x.astype(np.float64), WEIGHT[:, :, 0, 0].astype(np.float64))
    return norm("b", np.maximum(norm("a", p, 0.7, 1e-5), 0), 0.2, 1e-3), after


BEFORE = {f"{n}_{k}": HELD[f"{n}_{k}"].astype(np.float64) for n in "ab" for k in "mv"}


def agree(state: Any, expected: dict[str, Array]) -> None:
    assert [*state] == [*expected]
    for name, array in expected.items():
        np.testing.assert_allclose(state[name], array, rtol=1e-5, atol=1e-6)


# --- as outputs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_statistics_are_outputs_at_every_level(level: int) -> None:
    (x,) = images(3)
    m = renorm.compile(
        network(), opt_level=level, shapes={"x": x.shape}, keep=["batch_norm"], verify=level > 1, threads=2
    )
    y, after = step(BEFORE, x)
    expected = [y, after["a_m"], after["a_v"]]
    for ours, wanted, theirs in zip(m.run(x), expected, onnx_runtime.run(network(), x), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert not m.state
    assert {n.name: n.fate for n in m.report.norms} == {"a": "unit", "b": "unit"}  # whatever results they have
    assert all("keep holds every batch_norm" in n.reason for n in m.report.norms)


def test_a_norm_in_training_mode_is_never_folded_and_the_ledger_says_why() -> None:
    report = renorm.compile(network()).report
    assert {n.fate for n in report.norms} == {"kept"}
    assert all("its statistics come from" in n.reason for n in report.norms)


def test_a_file_is_written_back_with_its_statistics(tmp_path: Path) -> None:
    source = network()
    for opset in (17, 9):
        if opset == 9:  # where five results say that it trains
            del source.opset_import[:]
            source.opset_import.add(version=9)
            for n in source.graph.node:
                kept = [a for a in n.attribute if a.name != "training_mode"]
                del n.attribute[:]
                n.attribute.extend(kept)
                if n.op_type == "BatchNormalization":
                    n.output.extend([f"{n.name}.{i}" for i in range(len(n.output), 5)])
        report = renorm.optimize(source, tmp_path / "out.onnx")
        assert [n.fate for n in report.norms] == ["kept", "kept"]
        written = onnx.load(tmp_path / "out.onnx")
        norms = [n for n in written.graph.node if n.op_type == "BatchNormalization"]
        assert [len(n.output) for n in norms] == ([3, 3] if opset == 17 else [5, 5])
        assert written.opset_import[0].version == opset
        (x,) = images(3)
        y, after = step(BEFORE, x)
        for ours, expected in zip(renorm.compile(written, threads=1).run(x), [y, after["a_m"], after["a_v"]]):
            np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [None, ["N", 3, "H", "W"], ["N", "C", "H"]], ids=str)
def test_extents_and_ranks_that_only_the_caller_knows(shape: list[Any] | None) -> None:
    names = ["x", *(f"a_{k}" for k in "sbmv")]
    node = onnx.helper.make_node("BatchNormalization", names, ["y", "m", "v"], training_mode=1, momentum=0.7, name="a")
    y, m, v = (onnx.helper.make_tensor_value_info(n, 1, None) for n in "ymv")
    x = onnx.helper.make_tensor_value_info("x", 1, shape)
    held = [numpy_helper.from_array(HELD[n], n) for n in names[1:]]
    graph = onnx.helper.make_graph([node], "open", [x], [y, m, v], held)
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    data = np.random.default_rng(2).normal(2, 3, (4, 3, 5, 2)).astype(np.float32)
    data = data[..., 0] if shape and len(shape) == 3 else data
    wide, axes = data.astype(np.float64), (0, *range(2, data.ndim))
    modules = [renorm.compile(proto, shapes={"x": data.shape}, train_state=s) for s in (False, True)]
    for module in [*modules, *([] if shape is None else [renorm.compile(proto)])]:
        _, mean, var = module.run(data)
        np.testing.assert_allclose(mean, 0.7 * HELD["a_m"] + 0.3 * wide.mean(axes), rtol=1e-5)
        np.testing.assert_allclose(var, 0.7 * HELD["a_v"] + 0.3 * wide.var(axes), rtol=1e-5)


# --- as state ---------------------------------------------------------------------------------------------------------


def test_each_run_reads_and_replaces_the_state() -> None:
    m = renorm.compile(network(), train_state=True, threads=1)
    assert [v.name for v in m.inputs] == ["x"]
    assert [v.name for v in m.outputs] == ["y", "after_mean", "after_var"]
    agree(m.state, BEFORE)
    expected, batches = BEFORE, images(3, 1, 3)
    for x in batches:  # the state is the same whatever the batch
        results = m.run(x)
        y, expected = step(expected, x)
        agree(m.state, expected)
        np.testing.assert_allclose(results[0], y, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(results[1], m.state["a_m"])
        np.testing.assert_array_equal(results[2], m.state["a_v"])
    assert isinstance(m, (OpenModule, SpecializingModule))
    special = m.specialized(x=(3, 2, 4, 5))
    assert special.state is m.state
    into: list[Any] = [np.empty((3, 3, 4, 5), np.float32), np.empty(3, np.float32), None]
    y, expected = step(expected, batches[-1])
    assert special.run(batches[-1], out=into)[0] is into[0]
    agree(m.state, expected)
    np.testing.assert_allclose(into[0], y, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(into[1], m.state["a_m"])
    assert [v.name for v in special.inputs] == ["x"]
    assert [v.name for v in special.outputs] == ["y", "after_mean", "after_var"]


NARROW = {"float32": 1e-6, "float64": 1e-12, "float16": 1e-3, "bfloat16": 1e-2}
VERSIONS = [
    (1, "float32", {"is_test": 0, "consumed_inputs": [0, 0, 0, 1, 1]}, 1),
    (6, "float64", {"momentum": 0.3}, 5),
    (6, "float16", {"spatial": 0}, 5),
    (7, "float32", {"spatial": 0, "momentum": 0.5}, 5),
    (7, "float16", {}, 5),
    (9, "float64", {"epsilon": 0.1}, 5),
    (13, "float32", {"momentum": 0.0}, 3),
    (14, "float16", {"training_mode": 1, "momentum": 1.0}, 1),
    (14, "bfloat16", {"training_mode": 1, "momentum": 0.75}, 3),
    (15, "float32", {"training_mode": 1, "epsilon": 1e-12}, 1),
    (15, "bfloat16", {"training_mode": 1}, 3),
]


@pytest.mark.parametrize(("opset", "dtype", "attributes", "results"), VERSIONS, ids=str)
def test_state_over_batches_of_several_sizes_at_every_version(
    opset: int, dtype: str, attributes: dict[str, Any], results: int
) -> None:
    """What rounds is the state, to the dtype that the file has, once a step; results that are listed are the same."""
    channels = (3, 2) if attributes.get("spatial") == 0 else (3,)
    kind, rng = dtypes.numpy_dtype(dtype), np.random.default_rng(4)
    held = {n: rng.uniform(0.5, 2, channels).astype(np.float32).astype(kind) for n in ("s", "b", "m", "v")}
    names = ["y", "after_m", "after_v", "sm", "sv"][:results]
    node = onnx.helper.make_node("BatchNormalization", ["x", *held], names, "norm", **attributes)
    number = onnx.helper.np_dtype_to_tensor_dtype(kind)
    x = onnx.helper.make_tensor_value_info("x", number, ["N", 3, 2])
    outputs = [onnx.helper.make_tensor_value_info(n, number, None) for n in names]
    constants = [
        onnx.helper.make_tensor(n, number, channels, a.astype(np.float32).ravel().tolist()) for n, a in held.items()
    ]
    graph = onnx.helper.make_graph([node], "versions", [x], outputs, constants)
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=3)
    if opset < 9:
        graph = proto.graph.input
        graph.extend(onnx.helper.make_tensor_value_info(n, number, channels) for n in held)
    m = renorm.compile(proto, train_state=True, threads=1)
    assert [*m.state] == ["m", "v"]
    momentum, epsilon = attributes.get("momentum", 0.9), attributes.get("epsilon", 1e-5)
    wide = {n: a.astype(np.float64) for n, a in held.items()}
    mean, var = wide["m"], wide["v"]
    axes = (0,) if len(channels) == 2 else (0, 2)
    scale, bias = (wide[n] if len(channels) == 2 else wide[n][:, None] for n in "sb")
    for n in (4, 1, 7, 4):
        data = rng.normal(n, 1 + n, (n, 3, 2)).astype(kind)
        y, *others = m.run(data)
        batch = data.astype(np.float64)
        of_batch = [batch.mean(axes, keepdims=True), batch.var(axes, keepdims=True)]
        mean, var = (momentum * old + (1 - momentum) * new.reshape(channels) for old, new in zip((mean, var), of_batch))
        tolerance = NARROW[dtype]
        expected = (batch - of_batch[0]) / np.sqrt(of_batch[1] + epsilon) * scale + bias
        np.testing.assert_allclose(y.astype(np.float64), expected, rtol=4 * tolerance, atol=4 * tolerance)
        for name, wanted in (("m", mean), ("v", var)):
            assert m.state[name].dtype == kind
            np.testing.assert_allclose(m.state[name].astype(np.float64), wanted, rtol=4 * tolerance)
        for ours, wanted in zip(others, m.state.values()):
            np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("level", [0, 2, 3])
def test_state_at_every_level_and_verified(level: int) -> None:
    (x,) = images(3)
    m = renorm.compile(network(), train_state=True, opt_level=level, shapes={"x": x.shape}, verify=True, threads=2)
    agree(m.state, BEFORE)  # verifying changed none
    m.run(x)
    agree(m.state, step(BEFORE, x)[1])
    before = m.state.copy()
    assert isinstance(m, renorm.Module)
    m.exclusive(x)(0)
    m.recorded(x)
    assert all(m.state[n] is a for n, a in before.items())


def test_a_run_that_fails_changes_nothing() -> None:
    (x,) = images(3)
    m = renorm.compile(network(), train_state=True, shapes={"x": x.shape}, threads=1)
    for wrong in (lambda: m.run(x[:1]), lambda: m.run(x.astype(np.float64)), lambda: m.run(x, out=[x])):
        with pytest.raises(InvalidInput):
            wrong()
        agree(m.state, BEFORE)
    with pytest.raises(TimeLimit):
        m.run(x, timeout=0)
    agree(m.state, BEFORE)


def test_an_empty_batch_changes_nothing() -> None:
    m = renorm.compile(network(), train_state=True, threads=1)
    y, mean, _ = m.run(np.empty((0, 2, 4, 5), np.float32))
    assert y.shape == (0, 3, 4, 5)
    np.testing.assert_array_equal(mean, HELD["a_m"])
    agree(m.state, BEFORE)


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1e30), ("float16", 1e4), ("bfloat16", 1e30)])
def test_a_variance_beyond_its_dtype_is_reported(dtype: str, scale: float) -> None:
    """y is what float64 says; the variance of channel 1 is inf, which is told once."""
    kind = dtypes.numpy_dtype(dtype)
    number = onnx.helper.np_dtype_to_tensor_dtype(kind)
    node = onnx.helper.make_node("BatchNormalization", [*"xsbmv"], ["y"], "norm", training_mode=1)
    held = [onnx.helper.make_tensor(n, number, [2], [v, v]) for n, v in zip("sbmv", (1.0, 0.0, 0.0, 1.0))]
    x, y = (onnx.helper.make_tensor_value_info(n, number, ["N", 2]) for n in "xy")
    graph = onnx.helper.make_graph([node], "far", [x], [y], held)
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 15)], ir_version=8)
    m = renorm.compile(proto, train_state=True, threads=1)
    data = (np.random.default_rng(6).normal(0, 1, (8, 2)) * [1, scale]).astype(kind)
    with pytest.warns(StatisticsWarning, match=f"^far: v of channel 1 is beyond {dtype} and becomes inf") as told:
        (found,) = m.run(data)
    assert len(told) == 1
    assert np.isinf(m.state["v"][1])
    wide = data.astype(np.float64)
    expected = (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 1e-5)
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2e-2, atol=2e-2)
    m.run(data)  # warnings are errors here


def test_state_can_be_read_and_set() -> None:
    (x,) = images(3)
    m = renorm.compile(network(), train_state=True, shapes={"x": x.shape}, threads=1)
    seen = m.state["a_m"]
    kept = seen.copy()
    m.run(x)
    np.testing.assert_array_equal(seen, kept)  # what was read stays
    with pytest.raises(ValueError, match="read-only"):
        m.state["a_m"][0] = 1
    given = np.arange(3, dtype=np.float32)
    m.state["a_m"] = given
    given[:] = 7
    np.testing.assert_array_equal(m.state["a_m"], [0, 1, 2])
    m.state.update(BEFORE_32)
    m.run(x)
    agree(m.state, step(BEFORE, x)[1])
    agreed = m.state.copy()
    with pytest.raises(InvalidInput) as error:
        m.state.update(
            {"a_m": np.zeros(3, np.float32), "a_v": np.zeros(4, np.float32), "am": given, "b_m": np.zeros(3)}
        )
    assert error.value.facts == (
        "a_v: float32[4], expected float32[3]",
        "'am' is not part of the state; nearest: a_m",
        "b_m: float64[3], expected float32[3]",
    )
    assert all(m.state[n] is a for n, a in agreed.items())
    with pytest.raises(KeyError, match="nearest"):
        m.state["mean"]
    assert "a_m" in m.state
    assert repr(m.state) == "<State a_m f32[3], a_v f32[3], b_m f32[3], b_v f32[3]>"


BEFORE_32 = {n: HELD[n] for n in BEFORE}


def test_state_goes_with_the_artifact_and_back_into_a_file(tmp_path: Path) -> None:
    first, second = images(3, 3)
    source = tmp_path / "net.onnx"
    onnx.save(network(), source)
    m = renorm.compile(source, train_state=True, shapes={"x": first.shape}, threads=1)
    m.run(first)
    m.save(tmp_path / "net.renorm")
    again = renorm.load(tmp_path / "net.renorm", threads=1)
    assert [v.name for v in again.inputs] == ["x"]
    again.run(second)
    expected = step(step(BEFORE, first)[1], second)[1]
    agree(again.state, expected)
    agree(m.state, step(BEFORE, first)[1])
    renorm.write_state(source, again.state, tmp_path / "trained.onnx")
    old, new = (onnx.load(p) for p in (source, tmp_path / "trained.onnx"))
    for a, b in zip(old.graph.initializer, new.graph.initializer, strict=True):
        wanted = again.state[a.name] if a.name in again.state else numpy_helper.to_array(a)
        np.testing.assert_array_equal(numpy_helper.to_array(b), wanted)
    del old.graph.initializer[:], new.graph.initializer[:]
    assert old == new
    agree(renorm.compile(tmp_path / "trained.onnx", train_state=True).state, expected)
    with pytest.raises(InvalidInput, match="its constants are others") as error:
        renorm.write_state(source, {"am": first, "a_m": first}, tmp_path / "trained.onnx")
    assert len(error.value.facts) == 2


def test_a_state_that_does_not_fit_its_program_is_noticed(tmp_path: Path) -> None:
    (x,) = images(2)
    m = renorm.compile(network(), train_state=True, shapes={"x": x.shape}, threads=1)
    m.save(tmp_path / "good.renorm")
    held = artifact.read(tmp_path / "good.renorm")
    state = [held.state[0][:-4], *held.state[1:]]
    assert not isinstance(held.weights, Memory)
    parts = (held.program, held.walker, held.objects, [held.weights], held.externals)
    artifact.store(tmp_path / "bad.renorm", artifact.encoded(*parts, state))
    with pytest.raises(InvalidArtifact, match=r"state a_m f32\[3\] has 8 bytes, not 12"):
        renorm.load(tmp_path / "bad.renorm")


def test_runs_of_several_threads_follow_each_other() -> None:
    """Each batch is counted once: the means are a sum over all runs where momentum is 1 and the batch adds to it."""
    proto = model(
        """count (float[2, 1] x) => (float[2, 1] y)
        { [n] y = BatchNormalization <training_mode = 1, momentum = 0.5> (x, s, b, m, v) }""",
        s=np.ones(1, np.float32), b=np.zeros(1, np.float32), m=np.ones(1, np.float32), v=np.ones(1, np.float32),
    )  # fmt: skip
    m = renorm.compile(proto, train_state=True, threads=1)
    x = np.zeros((2, 1), np.float32)

    def work() -> None:
        for _ in range(30):
            m.run(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert m.state["m"][0] == 2.0**-120  # each run halves it, exactly
    assert m.state["v"][0] == 2.0**-120


def test_a_shared_statistic_is_updated_by_one_norm_after_the_other() -> None:
    """zeros are a mean and a bias too: the bias is no statistic, and stays."""
    proto = model(
        """shared (float[N, 3] x) => (float[N, 3] y, float[3] z) {
        [one] p = BatchNormalization <training_mode = 1, momentum = 0.5> (x, s, zeros, zeros, v)
        q = Mul(p, s)
        [two] y = BatchNormalization <training_mode = 1, momentum = 0.5> (q, s, zeros, zeros, v)
        z = Neg(zeros) }""",
        s=np.full(3, 2, np.float32), zeros=np.zeros(3, np.float32), v=np.ones(3, np.float32),
    )  # fmt: skip
    m = renorm.compile(proto, train_state=True, threads=1)
    x = np.random.default_rng(3).normal(4, 3, (6, 3)).astype(np.float32)
    for _ in range(2):
        _, z = m.run(x)
        np.testing.assert_array_equal(z, np.zeros(3))
    wide = x.astype(np.float64)
    second = (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 1e-5) * 4
    mean, var = np.zeros(3), np.ones(3)
    for batch in (wide, second) * 2:
        mean, var = (mean + batch.mean(0)) / 2, (var + batch.var(0)) / 2
    np.testing.assert_allclose(m.state["zeros"], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(m.state["v"], var, rtol=1e-5)


def test_statistics_that_nodes_make_of_constants_and_a_bias_beside_them(tmp_path: Path) -> None:
    proto = model(
        """alike (float[N, 3] x) => (float[N, 3] y) {
        none = Constant <value = double[3] {0, 0, 0}> ()  other = Cast <to = 1> (none)
        wide = Constant <value = double[3] {1, 1, 2}> ()  v = Cast <to = 1> (wide)
        [one] p, m1, v1 = BatchNormalization <training_mode = 1, momentum = 0.5> (x, ones, zeros, zeros, ones)
        [two] y, m2, v2 = BatchNormalization <training_mode = 1, momentum = 0.5> (p, twos, zeros, other, v) }""",
        zeros=np.zeros(3, np.float32), ones=np.ones(3, np.float32), twos=np.full(3, 2, np.float32),
    )  # fmt: skip
    m = renorm.compile(proto, train_state=True, threads=1)
    assert [*m.state] == ["zeros", "ones", "other", "v"]
    x = np.random.default_rng(3).normal(4, 3, (6, 3)).astype(np.float32)
    before = m.run(x)[0]
    np.testing.assert_allclose(m.state["zeros"], x.astype(np.float64).mean(0) / 2, rtol=1e-6)
    np.testing.assert_allclose(m.state["other"], np.zeros(3), atol=1e-6)
    np.testing.assert_allclose(m.state["v"], (np.array([1, 1, 2]) + 1) / 2, rtol=1e-4)
    renorm.write_state(proto, m.state, tmp_path / "trained.onnx")
    again = renorm.compile(tmp_path / "trained.onnx", train_state=True, threads=1)
    assert [*again.state] == ["p.mean", "p.var", "other", "v"]  # zeros and ones are a bias and a scale as well
    for ours, theirs in zip(again.state.values(), m.state.values()):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(again.run(x)[0], before)
    onnx.checker.check_model(onnx.load(tmp_path / "trained.onnx"), full_check=True)
    with pytest.raises(InvalidInput, match="its constants are others"):
        renorm.write_state(proto, {"p": np.zeros(3, np.float32)}, tmp_path / "trained.onnx")


def test_what_has_no_state_is_refused() -> None:
    inference = network()
    for n in inference.graph.node:
        del n.attribute[:]
        del n.output[1:]
    del inference.graph.output[1:]
    with pytest.raises(InvalidInput, match="no batch norm in training mode") as error:
        renorm.compile(inference, train_state=True)
    assert error.value.facts == tuple(f"{n}: it normalizes with stored statistics" for n in "ab")
    for alike, said in (("a_m, b_v)", "mean 'a_m', var 'b_v'"), ("a_m, a_v)", "mean 'a_m', var 'a_v'")):
        mixed = model(BODY.replace("b_m, b_v)", alike), HELD, w=WEIGHT)
        with pytest.raises(InvalidInput, match="cannot be one state") as error:
            renorm.compile(mixed, train_state=True)
        assert error.value.facts == (f"b: {said}",)
