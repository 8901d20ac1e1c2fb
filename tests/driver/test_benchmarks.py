"""The benchmarks run, and their page says what the results say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from benchmarks import figures, norms, page, training
from benchmarks import run as measuring
from benchmarks.run import _json
from onnx import parser
from tests.random_numbers import RNG

import renorm
from renorm.driver import measure

ROOT = Path(__file__).parents[2]
MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[2,3,9,7] x) => (float[2,3,9,7] y)
<float[3,3,1,1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> { c = Conv(x, w) p = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(c)
y = Softmax(p) }"""


def test_a_small_network_is_measured_beside_onnx_runtime(tmp_path: Path) -> None:
    into, model = tmp_path / "found.json", tmp_path / "model.onnx"
    onnx.save(parser.parse_model(MODEL), model)
    call = [
        sys.executable, "-m", "benchmarks", "run", "--networks", str(model),
        "--runtimes", "renorm,renorm_compiling,ort",
        "--rounds", "1", "--seconds", "0.02", "--threads", "1", "--no-norms", "--into", str(into),
    ]  # fmt: skip
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    result = json.loads(into.read_text())
    found = result["networks"]["model"]
    assert found["runtimes"]["renorm"]["error"] < 1e-4
    assert figures.to_best(found, figures.milliseconds) == pytest.approx(
        found["runtimes"]["renorm"]["ms"]["median"] / found["runtimes"]["ort"]["ms"]["median"]
    )
    assert len(found["layers"]["kernels"]) > 1
    assert found["runtimes"]["renorm_compiling"]["peak_bytes"] > found["runtimes"]["renorm"]["peak_bytes"]
    said = page.text({into: result})
    assert re.search(r"\| model \| \d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\) \|", said)
    load = found["load"]
    assert len(load["rounds"]) == 1
    assert load["repeated"] <= 1


def test_the_page_says_what_was_disturbed() -> None:
    calm, busy = {"steal": 0.001, "others": 0.01}, {"steal": 0.04, "others": 0.02}
    runtimes = {
        "renorm": {"ms": {"median": 2.0, "p10": 1.5, "p90": 3.0}},
        "ort": {"ms": {"median": 4.0, "p10": 3.0, "p90": 5.0}},
    }
    networks: dict[str, Any] = {
        "a": {"runtimes": runtimes, "load": {"rounds": [calm, None, calm], "disturbed": []}},
        "b": {"runtimes": runtimes, "load": {"rounds": [busy, busy, calm], "disturbed": [0, 1]}},
    }
    a, b = page._latency(networks, True, True)
    assert list(a) == ["a", "2.00 (1.50 to 3.00)", "4.00 (3.00 to 5.00)", "**0.50**", "0.1%, 1.0%"]
    assert list(b)[-1] == "**4.0%, 2.0%**"
    slowed = {"steal": 0.001, "others": 0.01, "slowed": 0.07}
    networks["a"]["load"]["rounds"] = [slowed] * 3
    assert next(iter(page._latency({"a": networks["a"]}, True, True)))[-1] == "0.1%, 1.0%, 7.0%"
    assert page._disturbed(networks) == "Disturbed all the same: b (2 of 3 rounds)."
    assert page._disturbed({"a": networks["a"]}) == "No round that counts was disturbed."


def test_outputs_that_are_wrong_are_a_failure() -> None:
    timed = measure.latency("it", [[1.0]])
    right, wrong = (measure.Measured("it", timed, outputs=(np.array([1.0, y]),)) for y in (2.0, 2.5))
    assert measuring._plain(right, right)["error"] == 0.0
    assert "differ from those of ort by 0.25" in measuring._plain(wrong, right)["failure"]


def test_figures_of_two_commits_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, into, measured = (
        measuring.Settings(1, 1, 0.01, ("renorm",), False, True),
        tmp_path / "r.json",
        list[str](),
    )
    monkeypatch.setattr(norms, "measure", lambda *_: {"one": {"ms": 1.0}})
    monkeypatch.setattr(measuring, "network", lambda name, *_: measured.append(name) or {"runtimes": {}})
    for commit, names in (("a", []), ("a", ["x", "y"]), ("a", ["y", "z"])):
        monkeypatch.setattr(measuring, "commit", lambda commit=commit: {"id": commit, "changed": False})
        assert measuring.run(names, settings, into, lambda line: None) == []
    assert json.loads(into.read_text())["norms"] == {"one": {"ms": 1.0}}
    assert measured == ["x", "y", "z"]
    before = into.read_text()
    monkeypatch.setattr(measuring, "commit", lambda: {"id": "b", "changed": False})
    with pytest.raises(renorm.errors.InvalidInput, match="of another commit"):
        measuring.run(["w"], settings, into, lambda line: None)
    assert into.read_text() == before


def kernel(name: str, us: float, flops: int, bytes: int, is_nominal: bool = False) -> dict[str, Any]:
    return {"kernel": name, "us": us, "flops": flops, "bytes": bytes, "is_nominal": is_nominal, "of_limit": 1.0}


def test_kernels_of_one_kind_are_taken_together() -> None:
    kernels = [kernel("conv2d", 10.0, 5, 1), kernel("relu_1", 1.0, 1, 8), kernel("conv2d_12", 20.0, 7, 2, True)]
    assert figures.kinds(kernels) == [("conv2d", 2, 30.0, 12, 3, True), ("relu", 1, 1.0, 1, 8, False)]


def test_the_fastest_other_is_what_counts() -> None:
    runtimes: dict[str, Any] = {
        name: {"ms": {"median": ms}} for name, ms in (("renorm", 3.0), ("ort", 6.0), ("openvino", 4.0))
    }
    network: dict[str, dict[str, Any]] = {"runtimes": runtimes | {"inductor": {"failure": "no compiler"}}}
    assert figures.to_best(network, figures.milliseconds) == 0.75
    assert figures.geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)
    network["runtimes"]["renorm_compiling"] = {"ms": {"median": 3.0}, "peak_bytes": 5 << 20}
    network["runtimes"]["openvino_default"] = {"ms": {"median": 1.0}, "peak_bytes": 1 << 20}  # nor is less precision
    network["runtimes"]["ort"]["peak_bytes"] = 4 << 20
    assert figures.to_best(network, figures.milliseconds) == 0.75  # it is not one of the others
    assert figures.to_best(network, figures.mebibytes, "renorm_compiling") == 1.25
    assert figures.to_its_own_precision(network) is None
    network["runtimes"]["renorm_bfloat16"] = {"ms": {"median": 0.8}}
    assert figures.to_best(network, figures.milliseconds) == 0.75
    assert figures.to_its_own_precision(network) == 0.8


def test_results_are_written_one_line_each() -> None:
    result = {"networks": {"a": {"kernels": [kernel("x", 1.0, 2, 3), kernel("y", 1.0, 2, 3)]}}, "sizes": [[1, 2], []]}
    assert json.loads(_json(result)) == result
    assert len(re.findall(r'^ *\{ "kernel".*\},?$', _json(result), re.MULTILINE)) == 2


@pytest.mark.parametrize("name", norms.NORMS)
def test_each_norm_is_one_node_that_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, shape, operands, attributes = norms.NORMS[name]
    small = (3, 32 if attributes else 5, *(7 for _ in shape[2:]))
    monkeypatch.setitem(norms.NORMS, name, (op, small, operands, attributes))
    model = norms.model(name)
    onnx.checker.check_model(model, full_check=True)
    x = RNG.standard_normal(small).astype(np.float32)
    results: Any = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})  # a list
    np.testing.assert_allclose(renorm.compile(model, threads=1).run(x)[0], results[0], rtol=1e-4, atol=1e-5)


def test_the_page_is_what_the_results_say() -> None:
    results = page.newest()
    assert page.PAGE.read_text() == page.text(results)
    assert page.README.read_text() == page.readme(list(results.values()))


def test_the_page_has_the_newest_results_of_each_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    old, new, narrow = ("25, 17, 1", "avx512f"), ("26, 2, 1", "avx512f"), ("25, 17, 1", "avx2")
    for month, (model, vectors, *held) in enumerate((narrow, old, narrow, narrow, (*old, "avx2"), new), 1):
        machine = {"cpu": "A", "family, model, stepping": model, "vectors": vectors}
        result = {"when": f"2026-0{month}", "machine": {**machine, **({"held to": held[0]} if held else {})}}
        (tmp_path / f"2026-0{month}.json").write_text(json.dumps(result))
    assert {path.stem: page.label(r) for path, r in page.newest().items()} == {
        "2026-06": "A (26, 2) with avx512f",
        "2026-05": "A (25, 17) with avx512f, held to avx2",
        "2026-04": "A (25, 17) with avx2",
        "2026-02": "A (25, 17) with avx512f",
    }


def test_networks_of_any_shape_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from benchmarks import any_shape

    monkeypatch.setattr(any_shape, "FILES", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    text = MODEL.replace("2,3,9,7", "N,3,H,W").replace("AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>", "Relu")
    onnx.save(parser.parse_model(text), tmp_path / "small.onnx")
    ranges = {"n": range(1, 3), "h": range(1, 9), "w": range(2, 12)}
    subject = any_shape.Subject("small", {"x": ("n:1..2", 3, "2*h", "w")}, ranges, is_served=True)
    monkeypatch.setitem(any_shape.SUBJECTS, "small", subject)
    assert subject.shapes({"n": 2, "h": 3, "w": 5}) == {"x": (2, 3, 6, 5)}
    assert len({tuple(s.items()) for s in subject.spread(8)}) == 8
    found = any_shape.measure(
        ["small"], any_shape.Settings(1, shapes=2, seen=4, calls=12, compilations=1), lambda _: None
    )
    assert not found["failed"]
    assert set(found["ratios"]) == set(any_shape.MEASURES)
    assert all(0 < ratio < 100 for ratios in found["ratios"].values() for ratio in ratios.values())
    assert len(found["networks"]["small"]["first"]["shapes"]) == 5
    said = "\n".join(page._any_shape(found))
    assert re.search(r"\| small \| \d+\.\d\d \|", said)
    assert "12 calls of random shapes" in said.replace("\n", " ")


def test_norms_in_training_are_measured_beside_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    found = training.measure(1, 2, 0.001, (2, 3, 8, 8), lambda line: None)
    assert set(found["norms"]) == {"forward", "backward", "instance norm"}
    for case in found["norms"].values():
        assert set(case["ms"]) == set(training.RUNTIMES)
        assert all(v["median"] > 0 for v in (*case["ms"].values(), *case["ratios"].values(), case["of_copy"]))
    found["step"] = {
        "ms": {s: {"median": 2.0, "lower": 1.0, "upper": 3.0} for s in figures.STEPS},
        "share": 0.25,
        "expected": 0.15,
        "faster": {"median": 0.2, "lower": 0.1, "upper": 0.3},
        "megabytes": dict.fromkeys(figures.STEPS, 700),
    }
    (tmp_path / "training-1.json").write_text(json.dumps(found))
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    said = "\n".join(page._training(*page.newest(page.TRAINING).values()))
    assert "| forward |" in said
    assert "norms took 25% of a step" in said
    assert "15% were to be gained" in said
    assert "| memory at most, MB | 700 | 700 |" in said
    assert "a step is\n20% (quartiles 10% and 30%) shorter" in said
    assert "memory changes by +0%" in said
    assert re.search(r"\| copy \| \d+\.\d\d ± ", said)


def test_what_is_timed_is_what_torch_computes() -> None:
    pytest.importorskip("torch")
    ours, theirs = training._renorm(1, True, (3, 4, 5, 6)), training._torch(1, (3, 4, 5, 6))
    np.testing.assert_allclose(ours["forward"]().y, theirs["forward"]().numpy(), atol=1e-5)
    for a, b in zip(ours["backward"](), theirs["backward"](), strict=True):
        np.testing.assert_allclose(a, b.numpy(), atol=1e-4)
    np.testing.assert_allclose(ours["instance norm"]()[0], theirs["instance norm"]().numpy(), atol=1e-5)
