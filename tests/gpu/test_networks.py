"""Networks with target="cuda": CUDA C of all kernels, run on the CPU, against the reference interpreter in float64."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.driver.random_networks import network
from tests.driver.test_compile import expected, inputs, small
from tests.driver.test_random_networks import Oracle
from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler

import renorm
from renorm.core.dims import Sym, Symbol
from renorm.core.errors import InvalidArtifact, InvalidInput, InvalidTarget
from renorm.driver.module import CompiledGpuModule, SpecializingModule
from renorm.runtime.profile import profile

TARGET = "cuda -arch=host"
pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def host() -> Any:
    host_device.register()
    return host_device.host()


def compiled() -> CompiledGpuModule:
    m = renorm.compile(small(), target=TARGET)
    assert isinstance(m, CompiledGpuModule)
    return m


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_levels_agree(level: int) -> None:
    g, x = small(), inputs()
    m = renorm.compile(g, target=TARGET, opt_level=level)
    np.testing.assert_allclose(m.run(x)[0], expected(g, x), rtol=1e-4, atol=1e-5)
    assert "__global__" in m.kernel(m.report.kernels[0]).source


def test_kept_norms_have_kernels() -> None:
    g, x = small(), inputs()
    m = renorm.compile(g, target=TARGET, keep=["batch_norm"])
    assert any("batch_norm" in k.name for k in m.report.kernels)
    np.testing.assert_allclose(m.run(x)[0], expected(g, x), rtol=1e-4, atol=1e-5)


def test_a_file_runs_where_there_is_a_device(tmp_path: Path) -> None:
    g, x = small(), inputs()
    m = renorm.compile(g, target=TARGET)
    m.save(tmp_path / "m")
    loaded = renorm.load(tmp_path / "m")
    assert loaded.run(x)[0].tobytes() == m.run(x)[0].tobytes()
    y = np.empty((2, 4), np.float32)
    assert loaded.run(x, out=y)[0] is y
    np.testing.assert_array_equal(y, m.run(x)[0])


def test_each_batch_has_kernels_of_its_own() -> None:
    g = small(batch=Sym(Symbol("n")))
    m = renorm.compile(g, target=TARGET)
    assert isinstance(m, SpecializingModule)
    for n in (1, 3):
        x = inputs(batch=n)
        np.testing.assert_allclose(m.run(x)[0], expected(g, x), rtol=1e-4, atol=1e-5)


def test_memory_is_given_back(host: Any) -> None:
    gc.collect()  # what earlier tests have left
    before = host.live
    m = compiled()
    m.run(inputs())
    assert m.device_bytes >= m.program.weight_bytes + m.program.arena_bytes > 0
    assert host.live != before
    del m
    gc.collect()
    assert host.live == before


def test_what_does_not_fit_is_refused() -> None:
    m = compiled()
    with pytest.raises(InvalidInput, match="float64"):
        m.run(inputs().astype(np.float64))
    with pytest.raises(InvalidTarget, match="tells no times of launches"):
        profile(m, inputs())
    with pytest.raises(InvalidTarget, match="kernel_times"):
        m.exclusive(inputs())
    assert m.serving(inputs()) is m
    with pytest.raises(InvalidInput, match="no time limit"):
        m.run(inputs(), timeout=1)
    with pytest.raises((InvalidTarget, InvalidArtifact)):  # no such GPU, or none at all
        renorm.compile(small(), target="cuda -arch=sm_10").run(inputs())


@pytest.mark.parametrize("seed", [*range(20), 431])  # 431: statistics in rounds of which some are written out
def test_random_networks(seed: int) -> None:
    n = network(seed)
    assert not (wrong := Oracle.of(n).differs(renorm.compile(n.model, target=TARGET).run(**n.feeds))), wrong


def test_options_mean_what_they_mean_on_a_cpu() -> None:
    g, x = small(), inputs()
    every: list[dict[str, Any]] = [
        {"verify": True},
        {"checked": True},
        {"precision": "bfloat16"},
        {"precision": "tf32"},
        {"device": 1},
    ]
    for options in every:
        found = renorm.compile(g, target=TARGET, **options).run(x)[0]
        np.testing.assert_allclose(found, expected(g, x), rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidInput, match="device -1"):
        renorm.compile(g, target=TARGET, device=-1)


def test_running_statistics_are_state() -> None:
    rng = np.random.default_rng(0)
    model, x = in_training(rng), rng.normal(size=(4, 3, 5, 6)).astype(np.float32)
    ours, theirs = (renorm.compile(model, target=t, train_state=True) for t in (TARGET, "llvm"))
    for i in range(3):
        for a, b in zip(ours.run(x + i), theirs.run(x + i), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        for name in theirs.state:
            np.testing.assert_allclose(ours.state[name], theirs.state[name], rtol=1e-6)


def in_training(rng: np.random.Generator) -> onnx.ModelProto:
    """A batch norm in training mode."""
    names = ("scale", "bias", "mean", "variance")
    constants = [onnx.numpy_helper.from_array(rng.uniform(0.5, 1, 3).astype(np.float32), n) for n in names]
    node = onnx.helper.make_node("BatchNormalization", ["x", *names], ["y", "mean2", "variance2"], training_mode=1)
    x, *ends = (
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape)
        for n, shape in (("x", (4, 3, 5, 6)), ("y", (4, 3, 5, 6)), ("mean2", (3,)), ("variance2", (3,)))
    )
    graph = onnx.helper.make_graph([node], "in_training", [x], ends, constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 15)])


def test_a_transposed_convolution_of_volumes() -> None:
    """Its window is as wide as a row: what bounds its reads is proved by trying all values of eight variables."""
    x, w = (helper.make_tensor_value_info(n, 1, s) for n, s in (("x", (3, 8, 8, 4, 4)), ("w", (8, 2, 4, 4, 4))))
    y = helper.make_tensor_value_info("y", 1, None)
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 1, 1], pads=[1, 0, 1, 0, 0, 0])
    model = helper.make_model(helper.make_graph([node], "g", [x, w], [y]), opset_imports=[helper.make_opsetid("", 17)])
    rng = np.random.default_rng(0)
    given = [rng.normal(size=s).astype(np.float32) for s in ((3, 8, 8, 4, 4), (8, 2, 4, 4, 4))]
    found, expected = (renorm.compile(model, target=t).run(*given)[0] for t in (TARGET, "llvm"))
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)
