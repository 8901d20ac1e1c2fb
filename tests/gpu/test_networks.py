"""Networks with target="cuda": CUDA C of all kernels, run on the CPU, against the reference interpreter in float64."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.driver.random_networks import network
from tests.driver.test_compile import expected, inputs, small
from tests.driver.test_random_networks import Oracle
from tests.gpu import host_device

import renorm
from renorm.core.dims import Sym, Symbol
from renorm.core.errors import InvalidArtifact, InvalidInput, InvalidTarget
from renorm.driver.module import CompiledGpuModule, SpecializingModule

TARGET = "cuda -arch=host"
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


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
    with pytest.raises(InvalidInput, match="no time limit"):
        m.run(inputs(), timeout=1)
    with pytest.raises((InvalidTarget, InvalidArtifact)):  # no such GPU, or none at all
        renorm.compile(small(), target="cuda -arch=sm_10").run(inputs())


@pytest.mark.parametrize("seed", range(20))
def test_random_networks(seed: int) -> None:
    n = network(seed)
    assert not (wrong := Oracle.of(n).differs(renorm.compile(n.model, target=TARGET).run(**n.feeds))), wrong
