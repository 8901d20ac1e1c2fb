"""MNN and ncnn, which read formats of their own: their converters bring a model into these first, as a part of opening.

    python -m renorm.driver.converted MODEL INTO        an .onnx file for MNN, and beside it the names of its outputs

Converters run in processes of their own, so that their memory is not counted. float32 is kept: both would store less.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from renorm.driver.worker import Call, Job

Array = np.ndarray[Any, Any]
_LIMIT = 600.0  # seconds for a converter
_SAID = 300  # characters of its last line
_TYPES = {"float32": "f32", "float64": "f64", "int64": "i64", "int32": "i32", "bool": "u8"}  # as pnnx calls them
# of the program that pnnx writes: which axis of an input or output is the batch, where one is
_GIVEN = re.compile(r'ex\.input\("(\w+)", ncnn\.Mat\(.*?(?:batch_index=(\d+))?\)\.clone\(\)\)')
_TAKEN = re.compile(r'ex\.extract\("(\w+)"\)\s+out\.append\(torch\.from_numpy\(.*?(?:batch_index=(\d+))?\)\)+')


def mnn(job: Job, inputs: Mapping[str, Array]) -> Call:
    path = _folder(job) / "network.mnn"
    _run([sys.executable, "-m", __name__, str(Path(job.model).absolute()), str(path)], path.parent)
    networks, expressions = import_module("MNN.nn"), import_module("MNN.expr")
    settings = {"backend": "CPU", "numThread": job.threads, "precision": "high"}
    network = networks.load_module_from_file(
        str(path), list(inputs), json.loads(path.with_suffix(".json").read_text()),
        runtime_manager=networks.create_runtime_manager((settings,)),
    )  # fmt: skip
    kinds = {"i": expressions.int, "f": expressions.float}
    held = [
        expressions.const(a, list(a.shape), expressions.NCHW, kinds[a.dtype.kind])
        for a in map(_narrow, inputs.values())
    ]

    def call() -> Iterable[Any]:
        found = network.forward(held)
        return [np.asarray(v.read()) for v in found]

    return call


def _narrow(array: Array) -> Array:
    """MNN and ncnn have integers of 32 bits."""
    return np.ascontiguousarray(array.astype(np.int32) if array.dtype.kind in "iub" else array.astype(np.float32))


def ncnn(job: Job, inputs: Mapping[str, Array]) -> Call:
    folder = _folder(job)
    (folder / "network.onnx").symlink_to(Path(job.model).absolute())
    shapes = ",".join(f"[{','.join(map(str, a.shape))}]{_TYPES[a.dtype.name]}" for a in inputs.values())
    found = find_spec("pnnx")
    assert found is not None  # obstacle() has looked
    assert found.origin is not None
    _run([str(Path(found.origin).with_name("pnnx")), "network.onnx", f"inputshape={shapes}", "fp16=0"], folder)
    library = import_module("ncnn")
    network = library.Net()
    network.opt.num_threads = job.threads
    for half in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(network.opt, f"use_{half}", False)
    listed = folder / "network.ncnn.param"
    kinds = {line.split()[0] for line in listed.read_text().splitlines()[2:]}
    if unknown := sorted(k for k in kinds if library.layer_to_index(k) < 0):
        raise RuntimeError(f"ncnn has no layers {', '.join(unknown)}")
    if network.load_param(str(listed)) or network.load_model(str(listed.with_suffix(".bin"))):
        raise RuntimeError("ncnn does not load what pnnx has written")
    program = (folder / "network_ncnn.py").read_text()
    given, taken = ([(n, _axis(a)) for n, a in which.findall(program)] for which in (_GIVEN, _TAKEN))
    if len(given) != len(inputs):
        raise RuntimeError(f"pnnx has left {len(given)} of {len(inputs)} inputs")
    held = [
        (name, library.Mat(_narrow(a), **axis).clone()) for (name, axis), a in zip(given, inputs.values(), strict=True)
    ]

    def call() -> Iterable[Any]:
        with network.create_extractor() as run:
            for name, value in held:
                if run.input(name, value):
                    raise RuntimeError(f"ncnn takes no input {name}")
            results = list[Array]()
            for name, axis in taken:
                failed, value = run.extract(name)
                if failed:
                    raise RuntimeError(f"ncnn ended with {failed} at {name}")
                results.append(np.array(value.numpy(**axis)))
        return results

    return call


def _axis(index: str) -> dict[str, int]:
    return {"batch_index": int(index)} if index else {}


def _folder(job: Job) -> Path:
    folder = Path(job.outputs).with_suffix("")
    folder.mkdir()
    return folder


def _run(call: list[str], folder: Path) -> None:
    """Raises RuntimeError with the last line of a converter that fails."""
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_LIMIT)
    if done.returncode:
        said = [line for line in re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr).splitlines() if line.strip()]
        raise RuntimeError(f"its converter ended with {done.returncode}: {''.join(said[-1:])[:_SAID]}")


def main() -> None:
    model, into = sys.argv[1:]
    import_module("_tools").mnnconvert(
        ["", "-f", "ONNX", "--modelFile", model, "--MNNModel", into, "--bizCode", "none"]
    )
    if not Path(into).exists():
        sys.exit("mnnconvert has written nothing")
    graph = import_module("onnx").load(model, load_external_data=False).graph
    Path(into).with_suffix(".json").write_text(json.dumps([value.name for value in graph.output]))


if __name__ == "__main__":
    main()
