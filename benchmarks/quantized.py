"""Quantized networks beside the integer kernels of ONNX Runtime: how many steps outputs are apart, and who departs.

A step is the scale of an output that is dequantized, and a 255th of the range of another one. The definition is what
the file says in float64, with the divisions of QuantizeLinear in float32, as graph/interpret.py computes it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

import renorm
from benchmarks.machine import commit, machine, now
from benchmarks.quantized_files import FORMS, export, quantize, scale_of
from benchmarks.quantized_networks import NETWORKS, Subject
from benchmarks.quantized_page import STEP, nearest
from benchmarks.run import FILES, write
from renorm.core.errors import RenormError
from renorm.graph import interpret

Array = np.ndarray[Any, Any]
AT, FLAT = FILES / "quantized", FILES / "quantized_flat"
ALWAYS = ("QDQ u8 s8", "QOperator u8 s8")
LARGE = ("mobilenet_v2", "mobilenet_v3", "efficientnet_b0", "shufflenet_v2", "resnet18", "resnet50", "se_resnet_ibn")


def forms(name: str) -> list[str]:
    """Return the forms in which a network is compared: two of them always, and two others in turn of small ones."""
    if name in LARGE:
        return [*ALWAYS]
    others, turn = [form for form in FORMS if form not in ALWAYS], list(NETWORKS).index(name)
    return [*ALWAYS, *(others[(2 * turn + i) % len(others)] for i in range(2))]


def run(
    names: Sequence[str], parts: Sequence[str], path: Path, tell: Callable[[str], None], every: bool = False
) -> list[str]:
    """Do some of three parts, but for what `path` has, and write what was found after each file: compare networks in
    some ONNX forms, or in every one; compare TensorFlow Lite files; measure. Return the files that were not read, or
    are more than a step from the runtime, and ONNX files from the definition as well."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    found |= {"when": now(), "commit": commit(), "machine": machine()}
    for name in (names or NETWORKS) if "onnx" in parts else ():
        own, subject = found.setdefault("networks", {}).setdefault(name, {}), NETWORKS[name]
        for form in FORMS if every else forms(name):
            if form not in own:
                file, opens = made(name, form), form == ALWAYS[0] and name not in LARGE
                own[form] = _tried(f"{name}, {form}", partial(compare, file, subject, opens), tell) | {"on": commit()}
                write(path, found)
    if "tflite" in parts:
        from benchmarks import quantized_flat  # needs LiteRT

        own = found.setdefault("flat", {})
        for name, content in quantized_flat.subjects(FLAT):
            if name not in own:
                own[name] = _tried(name, partial(quantized_flat.compare, content), tell)
                write(path, found)
    if "latency" in parts:
        from benchmarks.quantized_latency import measured

        found["latency"] = measured(lambda name: made(name, ALWAYS[0]), FLAT, tell)
        write(path, found)
    failed = [f"{n}, {form}" for n, own in found.get("networks", {}).items() for form in own if not is_right(own[form])]
    flat = found.get("flat", {})
    return [*failed, *(name for name, own in flat.items() if not nearest(own) <= STEP)]


def made(name: str, form: str) -> Path:
    """Return the file of a network in a form, once for all."""
    AT.mkdir(parents=True, exist_ok=True)
    plain, file = AT / f"{name}.onnx", AT / f"{name}.{form.replace(' ', '_')}.onnx"
    if not plain.exists():
        export(NETWORKS[name], plain)
    if not file.exists():
        quantize(NETWORKS[name], plain, FORMS[form], file)
    return file


def _departures(file: Path, given: Mapping[str, Array]) -> dict[str, list[str]]:
    """Return for renorm and ONNX Runtime the operators whose results are not what the definition makes of theirs."""
    from benchmarks.quantized_departures import departures  # which needs this module

    return {who: [f"{place}: {steps:g}" for place, steps in places] for who, places in departures(file, given).items()}


def _tried(name: str, compared: Callable[[], dict[str, Any]], tell: Callable[[str], None]) -> dict[str, Any]:
    """Return what a comparison finds, or what was said instead."""
    begin = time.perf_counter()
    try:
        found = compared()
    except RenormError as error:
        found = {"said": str(error)}
    tell(f"{name}: {found}, {time.perf_counter() - begin:.1f} s")
    return found


def is_right(found: Mapping[str, Any]) -> bool:
    """Return whether a network is at most a step from ONNX Runtime, or from the definition where that departs."""
    return "from definition" in found and min(found.get("steps", np.inf), found["from definition"]) <= STEP


def compare(file: Path, subject: Subject, opens: bool = False, threads: int = 1) -> dict[str, Any]:
    """Return the largest difference in steps over all outputs and calls, beside ONNX Runtime (steps), and of both from
    the definition; the share of elements that differ by half a step or more; and, where it is more than a step, the
    operators that depart, of the inputs with the most steps. A file that ONNX Runtime does not run is compared with the
    definition alone. Inputs are random numbers and walks, in two sizes. opens: whether the second size is of a module
    compiled once for all."""
    model = onnx.load(file)
    session = reference(file)
    names, scales = list(subject.outputs), [scale_of(model, name) for name in subject.outputs]
    graph, refusal, worst = renorm.read(file), "", dict[str, Array]()
    apart: dict[str, Any] = dict.fromkeys(("steps", "share", "from definition", "reference from definition"), 0.0)
    torch.manual_seed(7)
    for sizes in (subject.sizes, subject.others):
        shapes = {n: t.shape for n, t in subject.drawn(sizes).items()}
        is_open = opens and sizes is subject.others
        module = renorm.compile(file, shapes=None if is_open else shapes, threads=threads)
        for change in (lambda x: x, smooth):
            given = {n: change(t.numpy()) for n, t in subject.drawn(sizes).items()}
            try:
                expected = session.run(names, given)
            except Fail as error:
                expected, refusal = None, str(error).splitlines()[0]
            ours = module.run(*given.values())
            exact = interpret.run(graph, given)
            for scale, right, got, defined in zip(scales, expected or exact, ours, exact, strict=True):
                step = scale or float(np.ptp(np.asarray(right, np.float64))) / 255 or 1.0
                steps = differing(got, right, step)
                if (most := float(steps.max(initial=0))) > apart["steps"]:
                    apart["steps"], worst = most, given
                apart["share"] = max(apart["share"], float((steps > 0.5).mean()))
                for key, which in (("from definition", got), ("reference from definition", right)):
                    apart[key] = max(apart[key], float(differing(which, defined, step).max(initial=0)))
    found = {name: round(value, 5) for name, value in apart.items()}
    if refusal:
        return {"reference said": refusal, "from definition": found["from definition"]}
    return found if found["steps"] <= STEP else found | {"departures": _departures(file, worst)}


def differing(a: Any, b: Any, step: float) -> Array:
    """Return the distances of elements, in steps; inf where one of both is no number."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    with np.errstate(invalid="ignore"):
        return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf)) / step


def reference(file: Path | bytes) -> Any:
    """Return ONNX Runtime with its integer kernels, on one thread."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])


def smooth(x: Array) -> Array:
    """Return floats whose neighbours are alike, as those of images: walks along the last two axes."""
    if x.dtype.kind != "f":
        return x
    for axis in range(max(x.ndim - 2, 1), x.ndim):
        x = np.cumsum(x, axis=axis)
    return ((x - x.mean()) / (x.std() + 1e-6)).astype(np.float32)
