"""Quantized TensorFlow Lite files beside LiteRT: its reference kernels, its own fast ones, and those of XNNPACK.

Files are TensorFlow's (benchmarks/quantized_tensorflow.py writes them), and the random ones of the tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import interpreter
from tests.frontends import quantized_files

import renorm
from benchmarks.quantized import differing, smooth

Array = np.ndarray[Any, Any]
KERNELS = {
    "reference": interpreter.OpResolverType.BUILTIN_REF,
    "built in": interpreter.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    "xnnpack": interpreter.OpResolverType.AUTO,
}


def subjects(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Give names and contents of files."""
    for seed in range(12):
        dtype = ("int8", "uint8", "int16")[seed % 3]
        rng = np.random.default_rng(seed)
        yield f"random {seed} {dtype}", quantized_files.spotter(rng, dtype, 4 + seed // 3)[0]
    for file in sorted(folder.glob("*.tflite")):
        yield file.stem, file.read_bytes()


def compare(content: bytes) -> dict[str, float]:
    """Return the largest difference over all outputs from each of LiteRT's kernels, in steps, on random inputs and on
    such as are smooth; and of the reference kernels from the others. An output of floats has steps of a 255th of its
    range."""
    module, rng = renorm.compile(content, threads=1), np.random.default_rng(3)
    runners = {name: _opened(content, kind) for name, kind in KERNELS.items()}
    details = runners["reference"].get_input_details()
    found = dict.fromkeys([*KERNELS, "xnnpack from reference"], 0.0)
    for is_smooth in (False, True):
        given = [_drawn(rng, detail, is_smooth) for detail in details]
        ours = module.run(*given)
        theirs = {name: _run(runner, given) for name, runner in runners.items()}
        for i, right in enumerate(theirs["reference"]):
            is_float = right.dtype.kind == "f"
            step = (float(np.ptp(right)) / 255 or 1.0) if is_float else 1.0
            for name in KERNELS:
                found[name] = max(found[name], float(differing(ours[i], theirs[name][i], step).max(initial=0)))
            apart = differing(theirs["xnnpack"][i], right, step)
            found["xnnpack from reference"] = max(found["xnnpack from reference"], float(apart.max(initial=0)))
    return {name: round(value, 4) for name, value in found.items()}


def _opened(content: bytes, kind: Any) -> Any:
    made = interpreter.Interpreter(model_content=content, num_threads=1, experimental_op_resolver_type=kind)
    made.allocate_tensors()
    return made


def _run(runner: Any, given: list[Array]) -> list[Array]:
    for detail, x in zip(runner.get_input_details(), given, strict=True):
        runner.set_tensor(detail["index"], x)
    runner.invoke()
    return [runner.get_tensor(detail["index"]) for detail in runner.get_output_details()]


def _drawn(rng: np.random.Generator, detail: Mapping[str, Any], is_smooth: bool) -> Array:
    """Return an input: numbers of deviation 1, as integers where the file has these."""
    x = rng.standard_normal(detail["shape"]).astype(np.float32)
    x, dtype = smooth(x) if is_smooth else x, np.dtype(detail["dtype"])
    if dtype.kind == "f":
        return x
    scale, zero = detail["quantization"]
    info = np.iinfo(dtype)
    return np.clip(np.rint(x / (scale or 1)) + zero, info.min, info.max).astype(dtype)
