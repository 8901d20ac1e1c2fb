"""Quantized networks beside ONNX Runtime, OpenVINO and LiteRT: the network in turns, and kernel by kernel.

A network has two files of one architecture: an .onnx file, which ONNX Runtime and OpenVINO run, and a .tflite file for
LiteRT with its delegate XNNPACK. renorm runs both, as networks of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import onnx

import renorm
from benchmarks.kernels import medians, profiled
from benchmarks.layers import layers
from renorm.core.random_inputs import random_inputs
from renorm.driver.measure import Contender, Measured, environment, obstacle, side_by_side

SUBJECTS = {  # network and file of TensorFlow: extents of its input
    ("ds_cnn", "ds_cnn"): (1, 1, 49, 10),
    ("mobilenet_v2", "mobilenet_v2_224"): (1, 3, 224, 224),
    ("resnet50", "resnet50_224"): (1, 3, 224, 224),
}
THREADS = (1, 2)
ROUNDS, SECONDS = 7, 4.0
OF_ONNX = ("renorm", "ort", "openvino", "openvino_default")
OF_TFLITE = ("renorm_tflite", "litert")


def measured(made: Callable[[str], Path], folder: Path, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return what `measure` finds of each network, on one thread and on two. made: gives the .onnx file of a network.
    folder: of TensorFlow's files."""
    found = list[dict[str, Any]]()
    for threads in THREADS:
        for (name, file), shape in SUBJECTS.items():
            flat = folder / f"{file}.int8.tflite"
            own = measure(made(name), shape, flat if flat.exists() else None, threads, tell)
            found.append({"network": name, "threads": threads, **own})
            tell(f"{name}, {threads} threads: { {n: of.get('ms') for n, of in own['runtimes'].items()} }")
    return found


def measure(
    model: Path, shape: Sequence[int], flat: Path | None, threads: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Return milliseconds of each runtime, in turns, or why it was not measured, and kernels of the .onnx file. shape:
    of that file's input."""
    contenders, failed = list[Contender](), dict[str, Any]()
    inputs: Mapping[str, Any] = {}
    for file, names in ((model, OF_ONNX), (flat, OF_TFLITE)):
        if file is None:
            continue
        artifact = file.with_suffix(f"{file.suffix}.renorm")
        tell(f"compile {file.name}")
        renorm.compile(file, threads=threads, shapes={"x": shape} if file is model else None).save(artifact)
        own = random_inputs(renorm.load(artifact, verify=False).inputs)
        inputs = inputs or own
        for name in names:
            runtime = name.removesuffix("_tflite")
            if missing := obstacle(runtime):
                failed[name] = {"failure": missing}
            else:
                contenders.append(Contender(name, runtime, artifact if runtime == "renorm" else file, inputs=own))
    found = side_by_side(contenders, inputs, threads, rounds=ROUNDS, seconds=SECONDS, again=ROUNDS, tell=tell)
    peers = [m.name for m in found.measured if m.latency and m.name in ("ort", "openvino")]
    return {
        "runtimes": {m.name: _plain(m) for m in found.measured} | failed,
        "layers": _layers(model, inputs, peers, threads, tell),
    }


def _plain(measured: Measured) -> dict[str, Any]:
    if measured.latency is None:
        return {"failure": measured.failure}
    found = measured.latency
    rounds = [round(x, 4) for x in found.rounds]
    return {"ms": round(found.median, 4), "spread": round(found.spread, 4), "rounds": rounds}


def _layers(
    model: Path, inputs: Mapping[str, Any], peers: Sequence[str], threads: int, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return sets of our kernels with the time that others take for the same nodes."""
    own, theirs = list[Any](), dict[str, list[Any]]()
    artifact = model.with_suffix(f"{model.suffix}.renorm")
    for turn in range(3):
        tell(f"kernels, turn {turn + 1} of 3")
        told = ("--json", "--repeats", "20", "--threads", str(threads))
        call = [sys.executable, "-m", "renorm", "profile", str(artifact), *told]
        done = subprocess.run(call, capture_output=True, text=True, env=environment(threads), check=True)
        own.append(json.loads(done.stdout)["launches"])
        for runtime in peers:
            theirs.setdefault(runtime, []).append(profiled(runtime, model, inputs, threads, 20))
    launches = list(zip(*own, strict=True))
    graph = onnx.load(model, load_external_data=False).graph
    found = layers(graph, [turns[0]["nodes"] for turns in launches], {r: medians(t) for r, t in theirs.items()})
    return [
        {
            "kernels": [launches[i][0]["kernel"] for i in layer.kernels],
            "nodes": sum(len(launches[i][0]["nodes"]) for i in layer.kernels),
            "node": next((n for i in layer.kernels for n in launches[i][0]["nodes"]), ""),
            "operations": sum(launches[i][0]["work"]["flops"] for i in layer.kernels),
            "renorm": round(1e6 * sum(median(t["seconds"] for t in launches[i]) for i in layer.kernels), 1),
            **{runtime: round(us, 1) for runtime, us in layer.us.items()},
        }
        for layer in found
    ]
