"""Trained networks from files, held against ONNX Runtime, or against renorm's interpreter in float64."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import renorm
from benchmarks.gpu.deviation import largest
from benchmarks.gpu.place import Place
from renorm.core.random_inputs import random_inputs
from renorm.frontends import read
from renorm.graph import interpret

Array = np.ndarray[Any, Any]


def checked(place: Place, file: str) -> dict[str, Any]:
    """Return how far the outputs of a network on random inputs are from its reference's, relative to the largest."""
    begin = time.perf_counter()
    module: Any = renorm.compile(file, **place.options)
    seconds = time.perf_counter() - begin
    inputs = random_inputs(module.inputs)
    found = module.run(**inputs)
    reference, wanted = _reference(Path(file), inputs)
    error = largest([np.asarray(y, np.float64) for y in found], wanted)
    launches = len(module.report.kernels)
    return {
        "compile_seconds": round(seconds, 2),
        "launches": launches,
        "error": error,
        "tolerance": place.tolerance,
        "reference": reference,
    }


def _reference(file: Path, inputs: Mapping[str, Array]) -> tuple[str, list[Array]]:
    if file.suffix == ".onnx":
        try:
            import onnxruntime
        except ModuleNotFoundError:
            pass
        else:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            session = onnxruntime.InferenceSession(file.read_bytes(), options, providers=["CPUExecutionProvider"])
            return "onnxruntime", [np.asarray(y) for y in session.run(None, dict(inputs))]
    graph = read(file)
    held = interpret.evaluate(graph, list(inputs.values()))
    return "interpreter", [held[v] for v in graph.outputs]
