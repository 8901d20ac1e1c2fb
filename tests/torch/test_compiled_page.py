"""docs/torch-compile.md is what the files of results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from benchmarks import compiled_page as pages


def test_the_page_is_what_the_results_say() -> None:
    assert pages.page(pages.newest(*pages.INFERENCE), pages.newest(*pages.TRAINING)) == pages.PAGE.read_text()


def _result(when: str, commit: str, model: str, networks: dict[str, Any]) -> dict[str, Any]:
    machine = {"cpu": "C", "family, model, stepping": f"1, {model}, 3", "vectors": "avx2"}
    settings = {"threads": 2, "rounds": 3}
    return {"when": when, "commit": {"id": commit}, "machine": machine, "settings": settings, "networks": networks}


def _row(eager: float, inductor: float, ours: float) -> dict[str, Any]:
    times = zip(pages.RUNTIMES, (eager, inductor, ours))
    return {runtime: {"ms": ms, "first_seconds": ms / 2} for runtime, ms in times}


def test_newer_rows_of_a_machine_replace_older_ones(tmp_path: Path) -> None:
    first = _result("2026-01-01", "a" * 40, "2", {"x": _row(9, 8, 4), "y": _row(9, 8, 2)})
    second = _result("2026-01-02", "b" * 40, "2", {"x": _row(4, 8, 6)})
    other = _result("2026-01-03", "c" * 40, "7", {"y": {**_row(4, 4, 4), "inductor": {"failure": "no compiler"}}})
    for number, result in enumerate((second, first, other)):
        (tmp_path / f"torch-compile-{number}.json").write_text(json.dumps(result))
    found = pages.newest(*pages.INFERENCE, tmp_path)
    text = " ".join(pages.page(found, {}).split())
    assert "| x | 4.0 | 8.0 | 6.0 | 1.50 | 0.75 |" in text
    assert "| y | 9.0 | 8.0 | 2.0 | 0.25 | 0.25 |" in text
    assert "commits `bbbbbbbb`, `aaaaaaaa`" in text
    assert "Slower than the faster one: x (1.50)." in text
    assert "No row was measured by all runtimes." in text
    assert "| y | inductor no compiler | | | | |" in text
