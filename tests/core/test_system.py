"""Machines that cannot run renorm's code: each entry says what is there, what is needed, and what to do."""

from __future__ import annotations

import platform
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from tests.frontends.models import model

import renorm
from renorm.cli import main
from renorm.core import system, target
from renorm.errors import InvalidTarget
from renorm.training import kernels

NETWORK = model("m (float[4, 8] x) => (float[4, 8] y) { y = Relu (x) }")
OLD = frozenset(["cmov", "mmx", "sse", "sse2", "pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "avx"])

# what is faked: what an error says
MACHINES = {
    "macOS": (("darwin", "arm64", frozenset()), "this system is darwin, expected linux"),
    "FreeBSD": (("freebsd14", "amd64", frozenset()), "this system is freebsd14, expected linux"),
    "RISC-V": (("linux", "riscv64", frozenset({"x"})), "this machine is riscv64, expected x86_64 or aarch64"),
    "before Haswell": (("linux", "x86_64", OLD), "this CPU has no AVX2, FMA, F16C, expected AVX2, FMA, F16C"),
    "before SSE4": (("linux", "x86_64", frozenset({"sse", "sse2"})), "this CPU has no AVX2, FMA, F16C, expected"),
    "no F16C": (("linux", "x86_64", OLD | {"avx2", "fma"}), "this CPU has no F16C, expected AVX2, FMA, F16C"),
    "no /proc": (("linux", "x86_64", frozenset()), "/proc/cpuinfo does not tell what this CPU has, expected AVX2"),
}


@pytest.fixture(params=MACHINES)
def said(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What an error says on the machine that this process takes itself for."""
    (name, arch, flags), said = MACHINES[request.param]
    monkeypatch.setattr(sys, "platform", name)
    monkeypatch.setattr(platform, "machine", lambda: arch)
    for module in (system, target):
        monkeypatch.setattr(module, "host_flags", lambda: flags)
    return said


def refused(call: Any, said: str) -> None:
    with pytest.raises(InvalidTarget) as error:
        call()
    assert "cannot run on this machine" in error.value.headline
    assert any(fact.startswith(said) for fact in error.value.facts), error.value
    assert "-mcpu=x86-64-v3" in (error.value.do or "")


def test_compiling(said: str) -> None:
    refused(lambda: renorm.compile(NETWORK), said)


def test_kernels_by_hand_and_training(said: str) -> None:
    a = renorm.te.placeholder((5,), name="a")
    b = renorm.te.compute((5,), lambda i: a[i] + 1.0)
    refused(lambda: renorm.build(renorm.create_schedule(b.op), [a, b]), said)
    kernels._modules._made.clear()
    refused(lambda: renorm.training.moments(np.ones((3, 2))), said)


def test_the_doctor(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert ended.value.code == 3
    assert f"networks cannot run on this machine: {said}" in capsys.readouterr().out


def test_what_makes_no_code_works(said: str, tmp_path: Any) -> None:
    renorm.optimize(NETWORK, tmp_path / "m.onnx")
    assert renorm.read(tmp_path / "m.onnx").nodes


def test_this_machine_runs_code() -> None:
    assert system.obstacles() == []


def test_windows_cannot_import_it() -> None:
    script = "import os, sys; del os.register_at_fork; sys.platform = 'win32'; import renorm"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    said = "ImportError: renorm runs on Linux, this system is win32: on Windows use WSL 2\n"
    assert done.stderr.endswith(said), done.stderr
    assert done.returncode == 1
