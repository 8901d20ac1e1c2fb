"""Files beside the repository that tests read where they are: trained networks, the benchmark's networks, and the
articles that the project grew from."""

from __future__ import annotations

import importlib.util
import re
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

SHARED = Path(__file__).parents[2] / "shared"
ZOO = ("resnet50", "se_resnet101_ibn_a", "dcgan", "unet")


def shared(path: str) -> Path:
    """A file of ../shared; the test that asks is skipped where it is absent."""
    found = SHARED / path
    if not found.exists():
        pytest.skip(f"../shared/{path} is not there: it is not part of the repository")
    return found


@cache
def _zoo(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("zoo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def export_zoo(name: str, directory: Path, batch: int) -> Path:
    """One of the benchmark's networks as an ONNX file, made by PyTorch in `directory` unless it is there already."""
    zoo = _zoo(shared("bench/zoo.py"))
    path = directory / f"{name}.{batch}.onnx"
    if not path.exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's older exporter, which keeps norms as nodes
            zoo.export(name, str(path), batch)
    return path


def article(number: str) -> str:
    """The text of an article, by its three digits."""
    (found,) = shared("seeds").glob(f"{number}_*.txt")
    return found.read_text(encoding="utf-8")


def between(text: str, first: str, last: str) -> str:
    """From the line that begins with `first` to the next one that begins with `last`, both included."""
    start = re.search(rf"^{re.escape(first)}", text, re.MULTILINE)
    assert start, f"no line begins with {first!r}"
    end = re.compile(rf"^{re.escape(last)}.*\n", re.MULTILINE).search(text, start.start())
    assert end, f"no line begins with {last!r}"
    return text[start.start() : end.end()]
