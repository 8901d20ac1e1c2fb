"""python -m benchmarks.gpu, without a GPU: each phase measures, and what fails in one stops no other."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from benchmarks.gpu import contenders, deviation, ops, phases, sanitized, subjects, tables
from benchmarks.gpu.place import Place
from benchmarks.gpu.workers import FAILED, Answer, shared_out, workers

from renorm.graph import registry

ROOT = Path(__file__).parents[2]
HOST = Place("llvm")


@pytest.mark.slow
def test_the_script_runs_from_beginning_to_end_without_a_gpu(tmp_path: Path) -> None:
    into = tmp_path / "found.json"
    call = [
        *(sys.executable, "-m", "benchmarks.gpu", "--target", "llvm", "--samples", "5", "--networks", "dcgan"),
        *("--batches", "1", "--json", str(into)),
    ]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(into.read_text())["phases"]
    assert list(found) == list(phases.PHASES)
    assert not [name for name, told in found.items() if FAILED in told]
    assert found["ops"]["counts"] == {ops.RIGHT: 5}
    assert found["networks"]["networks"]["dcgan"]["error"] < deviation.TOLERANCE
    assert found["speed"]["networks"]["dcgan, batch 1"]["ms"].keys() == {"renorm", "eager"}
    assert all(told["error"] < deviation.TOLERANCE for told in found["norms"]["norms"].values())
    assert all(told["error"] < deviation.TOLERANCE for told in found["layers"]["layers"].values())
    assert all(told["error"] < deviation.TOLERANCE for told in found["products"]["products"].values())
    assert all(told["error"] < deviation.TOLERANCE for told in found["ahead"]["products"].values())
    assert "not right: none" in found["sanitize"]["no tool"]["program"]


def test_a_task_that_raises_ends_or_hangs_stops_no_other(tmp_path: Path) -> None:
    log = tmp_path / "log"
    found = dict[str, Answer]()
    tasks = [(task, f"tests.gpu.tasks:{task}", ()) for task in ("raising", "ending", "hanging", "answering")]
    with workers(HOST, 1, str(log)) as crew:
        left = shared_out(crew, tasks, time.monotonic() + 120, 20.0, lambda name, answer: found.update({name: answer}))
    assert left == []
    assert found["raising"][FAILED] == "ValueError: no; really"
    assert "raise ValueError" in log.read_text()
    assert found["ending"][FAILED] == "the process ended with 3"
    assert found["hanging"][FAILED].startswith("no answer within")
    assert found["answering"] == {"target": "llvm"}


def test_what_there_is_no_time_for_is_said() -> None:
    with workers(HOST, 1) as crew:
        left = shared_out(crew, [("a", "", ()), ("b", "", ())], time.monotonic() - 1, 1.0, lambda _, answer: None)
    assert left == ["a", "b"]


def test_first_samples_of_all_ops_come_first() -> None:
    names = ops.names()
    every = {op.name for op in registry.all_ops() if op.__module__.startswith("renorm.ops")}
    assert {name for name, _ in names[: len(every)]} == every
    assert len(names) == len(set(names)) > len(every)
    assert {name for name, _ in ops.names("conv_t")} == {"conv_transpose", "winograd_conv_transpose"}


def test_an_op_that_computes_something_else_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    op = next(op for op in registry.all_ops() if op.name == "relu")
    assert ops.judged(HOST, "relu", 0)["outcome"] == ops.RIGHT
    monkeypatch.setattr(op, "reference", lambda self, x: x + 1)
    told = ops.judged(HOST, "relu", 0)
    assert told["outcome"] == ops.WRONG
    assert "Not equal to tolerance" in told["said"]


def test_a_network_that_computes_something_else_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    found = contenders.checked(HOST, "products", "matmul 65")
    assert found["error"] < 1e-5
    made = subjects.compiled(HOST, "products", "matmul 65", 0)
    run = made.renorm.run

    def spoiled(*given: Any, out: list[Any]) -> None:
        run(*given, out=out)
        out[0][3, 5] = float("nan")

    monkeypatch.setattr(made.renorm, "run", spoiled)
    assert contenders.checked(HOST, "products", "matmul 65")["error"] == float("inf")


@pytest.mark.parametrize("array", [np.array, torch.tensor])
def test_a_nan_in_the_second_output_is_seen(array: Any) -> None:
    whole, spoiled = array([1.0, 2.0]), array([1.0, float("nan")])
    assert deviation.largest([whole, array([4.0, 3.0])], [whole, array([4.0, 2.0])]) == 0.25
    assert deviation.largest([whole, spoiled], [whole, whole]) == float("inf")
    assert deviation.largest([spoiled, whole], [whole, whole]) == float("inf")


@pytest.mark.parametrize(("error", "off"), [(1e-6, "none"), (1e-3, "network"), (float("nan"), "network")])
def test_a_wrong_network_under_the_sanitizers_is_said(
    error: float, off: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanitized, "network", lambda place: error)
    sanitized.main("llvm", 0.0)
    assert capsys.readouterr().out.endswith(f"; 0 ops, not right: {off}\n")


def test_convolutions_of_resnet50() -> None:
    from benchmarks.networks import residual
    from torch import nn

    found = subjects.resnet50_convolutions()
    own = [m for m in residual.resnet50().modules() if isinstance(m, nn.Conv2d)]
    assert sum(found.values()) == len(own)
    told = sorted(kind[:4] for kind, count in found.items() for _ in range(count))
    assert told == sorted((m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0]) for m in own)


def test_columns_stand_below_each_other() -> None:
    said = tables.table(("name", "ms"), [("a", 1.5), ("longer", 120.0), ("none", None)])
    assert said.splitlines() == ["name       ms", "a       1.500", "longer  120.0", "none        -"]
