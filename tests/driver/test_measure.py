"""Runtimes measured side by side: turns, failures, outputs, and what many calls come to."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from tests.random_numbers import RNG

import renorm
from renorm.driver import measure, worker
from renorm.driver.disturbance import Disturbance
from renorm.driver.measure import Contender, Measured, latency, obstacle, side_by_side
from renorm.errors import InvalidInput


def model(path: Path, body: str) -> Path:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[3, 5] x, float[5] b) => (float[3, 5] y) {{ {body} }}"""
    onnx.save(parser.parse_model(text), path)
    return path


def test_contenders_take_turns_on_the_same_inputs(tmp_path: Path) -> None:
    first = model(tmp_path / "first.onnx", "y = Add(x, b)")
    other = model(tmp_path / "other.onnx", "y = Sub(x, b)")
    renorm.compile(first, threads=1).save(tmp_path / "first.renorm")
    inputs = {n: RNG.standard_normal(s).astype(np.float32) for n, s in (("x", (3, 5)), ("b", (5,)))}
    contenders = [
        Contender("ours", "renorm", tmp_path / "first.renorm"),
        Contender("lost", "ort", tmp_path / "missing.onnx"),
        Contender("theirs", "ort", first),
        Contender("different", "ort", other),
    ]
    told = list[str]()
    compared = side_by_side(contenders, inputs, 1, rounds=3, seconds=0.01, gap=0.0, tell=told.append)
    ours, lost, theirs, different = compared.measured
    assert len(compared.disturbances) == 3
    assert told == [*(f"open {c.name}" for c in contenders), *(f"round {i} of 3" for i in (1, 2, 3))]
    for m in (ours, theirs, different):
        assert m.latency is not None
        assert len(m.latency.rounds) == 3
        assert m.latency.calls >= 3
        assert m.peak_bytes > 2**20
    np.testing.assert_array_equal(ours.outputs[0], inputs["x"] + inputs["b"])
    assert ours.error(theirs) == 0.0
    wrong = np.abs(2 * inputs["b"]).max() / np.abs(theirs.outputs[0]).max()
    assert different.error(theirs) == pytest.approx(wrong, rel=1e-5)
    assert lost.latency is None
    assert "missing.onnx" in lost.failure


def test_one_that_is_killed_does_not_keep_the_others_from_being_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, started = model(tmp_path / "m.onnx", "y = Add(x, b)"), list[subprocess.Popen[str]]()

    def start(*args: Any, **options: Any) -> subprocess.Popen[str]:
        started.append(popen(*args, **options))
        return started[-1]

    def tell(line: str) -> None:
        if line.startswith("round 2"):
            started[0].kill()
            started[0].wait()

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    contenders = [Contender(name, "ort", path) for name in ("killed", "alive")]
    inputs = {"x": np.ones((3, 5), np.float32), "b": np.ones(5, np.float32)}
    killed, alive = side_by_side(contenders, inputs, 1, rounds=3, seconds=0.01, gap=0.0, tell=tell).measured
    assert killed.latency is None
    assert "its process ended (-9)" in killed.failure
    assert alive.latency is not None
    assert len(alive.latency.rounds) == 3
    assert all(p.returncode is not None for p in started)


def test_disturbed_rounds_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, told = model(tmp_path / "m.onnx", "y = Add(x, b)"), list[str]()
    found = iter([0.0, 0.5, 0.4, 0.03, 0.3])  # three rounds; the second one is measured three times

    class Scripted:
        def __init__(self, processes: Any):
            assert len(processes) == 1

        def disturbance(self) -> Disturbance:
            return Disturbance(0.0, next(found))

    monkeypatch.setattr(measure, "Watch", Scripted)
    monkeypatch.setattr(measure, "_speed", lambda call: 1.0)
    inputs = {"x": np.ones((3, 5), np.float32), "b": np.ones(5, np.float32)}
    compared = side_by_side(
        [Contender("it", "ort", path)], inputs, 1, rounds=3, seconds=0.01, gap=0.0, again=2, tell=told.append
    )
    assert [d.others for d in compared.disturbances if d] == [0.0, 0.03, 0.3]
    assert (compared.repeated, compared.disturbed) == (2, [2])
    again = ("round 2 again: steal 0.0%, other processes 50.0%", "round 2 again: steal 0.0%, other processes 40.0%")
    assert told[1:] == ["round 1 of 3", "round 2 of 3", *again, "round 3 of 3"]
    assert compared.measured[0].latency is not None
    assert len(compared.measured[0].latency.rounds) == 3


def test_rounds_in_which_cores_were_slower_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One contender: cores are asked before its turn and after it."""
    speeds = iter([2.0, 1.9, 2.0, 1.0, 1.5, 1.4])  # the second round is measured twice

    class Calm:
        def __init__(self, processes: Any):
            pass

        def disturbance(self) -> Disturbance:
            return Disturbance(0.0, 0.0)

    monkeypatch.setattr(measure, "Watch", Calm)
    monkeypatch.setattr(measure, "_speed", lambda call: next(speeds))
    inputs = {"x": np.ones((3, 5), np.float32), "b": np.ones(5, np.float32)}
    contender = Contender("it", "ort", model(tmp_path / "m.onnx", "y = Add(x, b)"))
    compared = side_by_side([contender], inputs, 1, rounds=2, seconds=0.01, gap=0.0, again=1)
    assert [round(d.slowed, 3) for d in compared.disturbances if d] == [0.05, 0.067]
    assert (compared.repeated, compared.disturbed) == (1, [])


def test_what_calls_come_to() -> None:
    found = latency("a", [[1.0, 2.0, 9.0], [3.0], [4.0, 5.0]])
    assert (found.calls, found.least, found.rounds) == (6, 1.0, (2.0, 3.0, 4.5))
    assert found.median == 3.5
    assert (found.lower, found.upper) == (2.25, 4.75)
    assert (found.p10, found.p90) == (1.5, 7.0)
    assert found.spread == pytest.approx((4.75 - 2.25) / 2 / 3.5)


def test_errors_between_outputs_of_several_sizes() -> None:
    a, b = np.array([1.0, -4.0]), np.array([[2.0]])
    assert Measured("a", None, outputs=(a, b + 0.5)).error(Measured("b", None, outputs=(a, b))) == 0.25
    assert Measured("a", None, outputs=(a,)).error(Measured("b", None, outputs=(a, b))) == float("inf")


def test_a_turn_has_a_call_that_is_not_counted() -> None:
    calls = list[int]()
    assert len(worker.timed(lambda: calls.append(1) or [], 0.0)) == 1
    assert len(calls) == 2


def test_obstacles_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert obstacle("renorm") is None
    with pytest.raises(InvalidInput, match="not a runtime"):
        obstacle("abacus")
    monkeypatch.setattr("renorm.driver.measure.find_spec", lambda name: None)
    assert obstacle("ort") == "pip install onnxruntime"
    assert obstacle("ncnn") == "pip install ncnn pnnx"
    monkeypatch.setattr("renorm.driver.measure.find_spec", lambda name: object())
    monkeypatch.setattr("renorm.driver.measure.shutil.which", lambda name: None)
    assert "C++ compiler" in (obstacle("inductor") or "")
