"""Latency of one network under several runtimes, measured side by side.

Rounds go round robin (A B C A B C ...), so that a machine that slows down slows all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from renorm.core.errors import InvalidInput
from renorm.driver.compare import session

PEERS = ("ort", "openvino")


@dataclass(frozen=True)
class Latency:
    """Milliseconds per call. spread: half the distance between the quartiles, relative to the median."""

    name: str
    median: float
    p90: float
    least: float
    spread: float
    calls: int


def measure(runs: Mapping[str, Callable[[], Any]], *, rounds: int = 7, seconds: float = 1.0) -> list[Latency]:
    """The latency of each of `runs`. seconds: how long each runs in all, over `rounds` rounds; at least one call a
    round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():  # the first call pays for pages, caches and threads
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            until = time.perf_counter() + seconds / rounds
            while True:
                since = time.perf_counter()
                run()
                now = time.perf_counter()
                times[name].append((now - since) * 1e3)
                if now >= until:
                    break
    return [_latency(name, np.asarray(t)) for name, t in times.items()]


def peer(name: str, model: Any, inputs: Mapping[str, Any], threads: int) -> Callable[[], Any]:
    """A call of another runtime on the same model and inputs. Raises InvalidInput where it is unknown or not
    installed."""
    if name not in PEERS:
        raise InvalidInput(f"{name!r} is not a runtime to compare with", [f"known: {', '.join(PEERS)}"])
    try:
        return (_onnxruntime if name == "ort" else _openvino)(model, dict(inputs), threads)
    except ImportError:
        package = {"ort": "onnxruntime"}.get(name, name)
        raise InvalidInput(f"{package} is not installed", do=f"pip install {package}") from None


def _onnxruntime(model: Any, inputs: dict[str, Any], threads: int) -> Callable[[], Any]:
    opened = session(model, threads)
    return lambda: opened.run(None, inputs)


def _openvino(model: Any, inputs: dict[str, Any], threads: int) -> Callable[[], Any]:
    core = import_module("openvino").Core()  # an extra: only who compares with it has it
    network = core.read_model(model)
    network.reshape({name: list(a.shape) for name, a in inputs.items()})
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(network, "CPU", settings).create_infer_request()
    return lambda: request.infer(inputs)


def _latency(name: str, ms: np.ndarray[Any, Any]) -> Latency:
    lower, median, upper, p90 = np.percentile(ms, (25, 50, 75, 90))
    return Latency(name, float(median), float(p90), float(ms.min()), float((upper - lower) / 2 / median), len(ms))
