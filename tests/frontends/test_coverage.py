"""Networks of public definitions as ONNX files: those that need no package beside PyTorch, and docs/networks.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from benchmarks.coverage import check, of_papers, page, run
from benchmarks.coverage.network import FRESH, Given, Row

ROWS = {(row.name, *row.options.values()): row for row in of_papers.ROWS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form", "norms"),
    [
        ("KeywordSpotter", "float", {"batch_norm folded": 7}),
        ("KeywordSpotter", "static QDQ", {}),
        ("Crnn", "float", {"batch_norm folded": 4}),
        ("Crnn", "dynamic int8", {"batch_norm fused": 4}),
        ("LstmLanguage", "float", {}),
        ("StyleGan", "float", {"rms_norm kept": 3}),
        ("Unet", "float", {"batch_norm folded": 14}),
    ],
)
def test_networks_of_papers_agree_with_onnx_runtime(name: str, form: str, norms: Any, tmp_path: Path) -> None:
    case = check.measured("papers", ROWS[name,], form, of_papers.build, tmp_path)
    assert not case.said
    assert case.is_right, case.error
    assert case.norms == norms
    assert case.kernels
    assert case.nodes >= len(case.ops) > 3


def test_what_cannot_be_built_is_told(tmp_path: Path) -> None:
    case = check.measured("papers", Row("Nothing", "none"), "float", of_papers.build, tmp_path)
    assert (case.stage, case.said, case.is_right) == ("build", "KeyError: 'Nothing'", False)


def test_what_takes_too_long_is_told() -> None:
    case = run.one("papers", ROWS["Tcn",], "float", 0.001)
    assert (case["stage"], case["said"]) == ("process", "not done within 0.001 s")
    assert not page.is_right(case)


def test_inputs_of_runs_have_extents_of_their_own() -> None:
    row = ROWS["LstmLanguage",]
    draws = of_papers.build(row).fresh(row.opens)
    assert [d["words"].shape for d in draws] == [(e["batch"], e["sequence"]) for e in FRESH]
    mask = Given("mask", ("batch", "reach"), "mask").draw({"batch": 2, "past": 7}, np.random.default_rng(0))
    assert mask.tolist() == [[1] * 8, [1] * 6 + [0] * 2]


def test_outputs_are_compared_by_shape_and_value() -> None:
    ones = np.ones((2, 3), np.float32)
    assert check.largest([ones * 2], [ones * 4]) == 0.5
    assert check.largest([ones[:1]], [ones]) == float("inf")
    assert check.largest([ones * np.nan], [ones]) == float("inf")
    assert check.largest([ones * np.nan], [ones * np.nan]) == 0


def _file(network: str, **options: Any) -> dict[str, Any]:
    nan = float("nan")
    return {
        "package": "papers", "network": network, "task": "points", "exporter": "script", "form": "float",
        "opens": ["batch"], "said": "", "stage": "done", "error": 1e-6, "own": nan, "ort": nan, "steps": nan,
        "nodes": 9, "kernels": 4, "commit": "abc",
        "norms": {"batch_norm folded": 3}, "reasons": {}, "seconds": {"compile": 0.25}, **options,
    }  # fmt: skip


def test_newer_results_of_a_file_replace_older_ones(tmp_path: Path) -> None:
    for day, files in ((2, [_file("A")]), (1, [_file("A", error=0.5), _file("B", form="static QDQ", steps=2.0)])):
        commit = {"id": f"{day}" * 40, "changed": day == 1}
        said = {"when": f"2026-01-0{day}", "commit": commit, "packages": {"torch": f"2.{day}"}, "networks": files}
        (tmp_path / f"coverage-{3 - day}.json").write_text(json.dumps(said))
    versions, files = page.results(tmp_path)
    assert versions == {"torch": "2.2"}
    assert [(n["network"], page.is_right(n)) for n in files] == [("A", True), ("B", False)]
    assert [n["commit"] for n in files] == ["22222222", "11111111 with changes"]


def test_the_page_says_what_is_wrong_and_why() -> None:
    files = [
        _file("A"), _file("B", form="static QDQ", steps=2.0), _file("C", error=1e-3, own=2e-4, ort=3e-4),
        _file("D", error=1e-3, own=9e-4, ort=1e-6), _file("E", said="no operator X", stage="compile"),
        _file("F", said="cannot be exported", stage="export"),
        _file("G", norms={"layer_norm kept": 2}, reasons={"layer_norm: of what it reads": 2}),
    ]  # fmt: skip
    text = page.page({"torch": "2.13"}, files)
    assert "\n6 networks " in text
    assert "One is refused; 3 agree" in " ".join(text.split())
    assert "- 2 layer_norm: of what it reads\n" in text
    assert "measured on: 6 on abc" in text
    assert "| A | papers | TorchScript | batch | float | 9 | 4 | 1.0e-06 | batch: 3 folded | 0.2 |" in text
    assert "| 4 | **2 steps** |" in text
    assert "| 4 | 1.0e-03 (from float64 2.0e-04, ONNX Runtime 3.0e-04) |" in text
    assert "| 4 | **1.0e-03 (from float64 9.0e-04, ONNX Runtime 1.0e-06)** |" in text
    assert "| | not read | no operator X | |" in text
    assert "| F |" not in text


def test_the_page_is_what_the_results_say() -> None:
    assert page.page(*page.results()) == page.PAGE.read_text()
