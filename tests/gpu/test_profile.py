"""What `renorm profile` says of launches on a GPU, on the CPU in its place, with times that are made up."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_verbs import FIXED, MODEL, SIZES, run, run_json
from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler
from tests.gpu.host_device import HostDevice

import renorm
from renorm import ops
from renorm.core.errors import OutOfMemory
from renorm.driver.module import CompiledGpuModule
from renorm.graph.ir import Graph
from renorm.runtime.gpu import profile as gpu_profile
from renorm.runtime.gpu.profile import GpuStepTime, copying
from renorm.runtime.profile import profile

TARGET = "cuda -arch=host"
pytestmark = [needs_compiler, pytest.mark.usefixtures("kept_code")]


@pytest.fixture(autouse=True)
def host() -> HostDevice:
    host_device.register()
    return host_device.host()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make the device tell times: 4, 1 and 2 us for what is called first, twice that for what is next, and so on."""
    calls = list[int]()

    def tell(call: Callable[[], None], repeats: int) -> list[float]:
        calls.append(repeats)
        call()
        return [len(calls) * us * 1e-6 for us in (4, 1, 2)]

    monkeypatch.setattr(HostDevice, "time", staticmethod(tell), raising=False)
    monkeypatch.setattr(gpu_profile, "_COPIED", 1 << 12)
    return calls


def two_kernels() -> CompiledGpuModule:
    """A softmax, and a sum in several launches."""
    g = Graph("two")
    x = g.input("x", "float32", (1, 70000))
    g.outputs = [ops.exp(x), ops.reduce_sum(x, axes=[1])]
    m = renorm.compile(g, target=TARGET)
    assert isinstance(m, CompiledGpuModule)
    return m


def test_times_of_a_kernels_launches_are_added(clock: list[int]) -> None:
    m = two_kernels()
    found = profile(m, np.zeros((1, 70000), np.float32), repeats=5)
    assert [t.kernel for t in found] == [k.name for k in m.report.kernels]
    assert [t.work for t in found] == [k.work for k in m.report.kernels]
    at = 0
    for t, step in zip(found, m.program.steps, strict=True):
        assert isinstance(t, GpuStepTime)
        assert [x.function for x in t.launches] == [x.function for x in m.program.codes[step.code].launches]
        parts = [at + i + 1 for i in range(len(t.launches))]
        at += len(parts)
        assert t.seconds == pytest.approx(2e-6 * sum(parts))
        assert t.fastest == pytest.approx(1e-6 * sum(parts))
        assert t.to_json()["launches"][-1]["seconds"] == pytest.approx(2e-6 * parts[-1])
    assert max(len(t.launches) for t in found if isinstance(t, GpuStepTime)) > 1
    assert clock == [5] * (at + 1)  # and whole runs


def test_the_table_has_a_row_for_each_launch(clock: list[int], tmp_path: Path) -> None:
    m = two_kernels()
    m.save(tmp_path / "m.renorm")
    shown = run("profile", tmp_path / "m.renorm", "--repeats", 2).stdout
    assert re.search(r"m\.renorm, CPU \(CUDA C by g\+\+\), us per launch, \d+ us in all, \d+ us as a network", shown)
    assert "this GPU: copies " in shown
    rows = [line.split() for line in shown.splitlines()]
    for kernel, step in zip(m.report.kernels, m.program.steps, strict=True):
        launches = m.program.codes[step.code].launches
        (at,) = (i for i, row in enumerate(rows) if row[:1] == [kernel.name])
        if len(launches) > 1:
            assert f"{len(launches)} launches" in " ".join(rows[at])
            assert [" ".join(row[:3]) for row in rows[at + 1 :][: len(launches)]] == [
                f"{i + 1} of {len(launches)}" for i in range(len(launches))
            ]
        for launch, row in zip(launches, rows[at + (len(launches) > 1) :]):
            assert "x".join(map(str, launch.grid)) in row
            assert "x".join(map(str, launch.block)) in row


def test_json(clock: list[int], tmp_path: Path) -> None:
    path = tmp_path / "m.renorm"
    report = run_json("compile", MODEL, "-o", path, *FIXED, "--target", f"tandem, {TARGET}")["report"]
    found = run_json("profile", path, "--repeats", 2)
    assert (found["device"], found["arch"]) == ("CPU (CUDA C by g++)", "host")
    assert found["limits"]["bytes"] > 0
    assert [t["kernel"] for t in found["launches"]] == [k["name"] for k in report["kernels"]]
    assert found["seconds"] == pytest.approx(sum(t["seconds"] for t in found["launches"]))
    assert min(found["gpu_seconds"], found["network_seconds"]) > 0
    for told, kernel in zip(found["launches"], report["kernels"], strict=True):
        assert told["work"] == kernel["work"]
        assert told["seconds"] == pytest.approx(sum(x["seconds"] for x in told["launches"]))
        moved = told["work"]["bytes"] / told["seconds"]
        assert told["of_limit"] == pytest.approx(moved / found["limits"]["bytes"])
        if kernel["target"] == "tandem":
            assert [(x["function"], x["grid"]) for x in told["launches"]] == [("", [])]
        else:
            assert all(len(x["grid"]) == len(x["block"]) == 3 and x["shared"] >= 0 for x in told["launches"])
    assert "on the host" in run("profile", path, "--repeats", 2).stdout


def test_each_shape_has_a_table(clock: list[int]) -> None:
    asked = ("profile", MODEL, *SIZES, "--target", TARGET, "--repeats", 1)
    shown = run(*asked).stdout
    assert shown.count("us per launch") == 2
    assert len([line for line in shown.splitlines() if line.startswith("pixels=")]) == 2
    one, five = (sum(t["work"]["flops"] for t in call["launches"]) for call in run_json(*asked)["calls"])
    assert five == pytest.approx(5 * one, rel=0.01)


def test_without_times_there_is_one_error(tmp_path: Path) -> None:
    asked = ("profile", MODEL, *FIXED, "--target", TARGET)
    said = run(*asked, code=2).stderr
    assert said.startswith("InvalidTarget: CPU (CUDA C by g++) tells no times of launches")
    assert run_json(*asked, code=2)["error"]["kind"] == "InvalidTarget"
    assert "--trace shows threads of a CPU" in run(*asked, "--trace", tmp_path / "t", code=2).stderr
    assert not (tmp_path / "t").exists()


def test_the_speed_of_copies(clock: list[int], host: HostDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    before = host.live
    found = copying(host)
    assert found is not None
    assert found.bytes == pytest.approx(2 * (1 << 12) / 1e-6)
    assert host.live == before
    given, first = host.allocate, list[int]()

    def full(nbytes: int) -> int:
        if first:
            raise OutOfMemory("memory")
        first.append(given(nbytes))
        return first[0]

    monkeypatch.setattr(host, "allocate", full)
    assert copying(host) is None
    assert host.live == before


def test_without_a_limit_there_are_times(clock: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("renorm.cli.gpu_profile.copying", lambda _: None)
    found = run_json("profile", MODEL, *FIXED, "--target", TARGET, "--repeats", 1)
    assert found["limits"] == {"bytes": None}
    assert all("of_limit" not in t and t["seconds"] > 0 for t in found["launches"])
    assert "this GPU" not in run("profile", MODEL, *FIXED, "--target", TARGET, "--repeats", 1).stdout
