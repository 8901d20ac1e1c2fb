"""One runtime in a process of its own: it opens a network once, and runs it whenever it is told to.

    python -m renorm.driver.worker JOB        JOB: the fields of `Job` in JSON

It speaks JSON, a line at a time. First what opening cost; then for every line read, a number of seconds, the
milliseconds of each call made in that time and the most memory the process has held so far. `driver.measure` is the
other side. Nothing but NumPy is imported that the runtime itself does not, so that its memory is its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TextIO

import numpy as np

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]
Call = Callable[[], Iterable[Any]]


@dataclass(frozen=True)
class Job:
    """runtime: a name of RUNTIMES. model: a file that it reads. inputs: an .npz file, arrays in the order of the
    network's inputs. outputs: the .npz file to write the first call's results to. target: of what renorm compiles."""

    runtime: str
    model: str
    threads: int
    inputs: str
    outputs: str
    target: str = "llvm"


def _renorm(job: Job, inputs: Inputs) -> Call:
    from renorm.runtime.module import load

    module, arrays = load(job.model, threads=job.threads), list(inputs.values())
    return lambda: module.run(*arrays)


def _renorm_compiling(job: Job, inputs: Inputs) -> Call:
    os.environ["RENORM_CACHE"] = "0"  # all that compiling takes
    import renorm

    module, arrays = renorm.compile(job.model, target=job.target, threads=job.threads), list(inputs.values())
    return lambda: module.run(*arrays)


def onnxruntime_session(model: str | bytes, threads: int = 0, **settings: Any) -> Any:
    """Return an onnxruntime session for a file, or for what would be in it. threads: 0 means as many as there are
    cores. settings: more of SessionOptions."""
    runtime = import_module("onnxruntime")  # an extra, as all that is measured beside renorm
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    for name, value in settings.items():
        setattr(options, name, value)
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _onnxruntime(job: Job, inputs: Inputs) -> Call:
    session = onnxruntime_session(job.model, job.threads)
    return lambda: session.run(None, dict(inputs))


def openvino_network(model: str, inputs: Inputs, threads: int, **settings: Any) -> Any:
    """Return an openvino model for a file, compiled for the shapes of these inputs. settings: more of the CPU
    plugin's; None leaves one of them to the plugin."""
    core = import_module("openvino").Core()
    network = core.read_model(model)
    network.reshape({name: list(a.shape) for name, a in inputs.items()})
    best = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    chosen = {name: value for name, value in (best | settings).items() if value is not None}
    return core.compile_model(network, "CPU", chosen)


def _openvino(job: Job, inputs: Inputs) -> Call:
    request = openvino_network(job.model, inputs, job.threads).create_infer_request()
    return lambda: request.infer(inputs).values()


def _openvino_default(job: Job, inputs: Inputs) -> Call:
    """In the precision that the plugin takes by itself: bfloat16 where the CPU has instructions for it."""
    network = openvino_network(job.model, inputs, job.threads, INFERENCE_PRECISION_HINT=None)
    request = network.create_infer_request()
    return lambda: request.infer(inputs).values()


def _litert(job: Job, inputs: Inputs) -> Call:
    """With its delegate XNNPACK, as it comes."""
    made: Any = import_module("ai_edge_litert.interpreter").Interpreter(job.model, num_threads=job.threads)
    made.allocate_tensors()
    given, found = made.get_input_details(), made.get_output_details()

    def call() -> Iterable[Any]:
        for of, array in zip(given, inputs.values(), strict=True):
            made.set_tensor(of["index"], array)
        made.invoke()
        return [made.get_tensor(of["index"]) for of in found]

    return call


def _torch(job: Job, inputs: Inputs) -> Call:
    torch = import_module("torch")
    torch.set_num_threads(job.threads)
    module = torch.export.load(job.model).module()
    if job.runtime == "inductor":
        # for the whole process: as an option of torch.compile it comes after weights were made inputs, and does nothing
        settings: Any = import_module("torch._inductor.config")
        settings.freezing = True
        module = torch.compile(module)
    elif job.runtime == "torch_renorm":
        module = torch.compile(module, backend="renorm")
    arrays = [torch.from_numpy(a) for a in inputs.values()]

    def call() -> Iterable[Any]:
        with torch.no_grad():
            found = module(*arrays)
        return [t.numpy() for t in (found if isinstance(found, (tuple, list)) else (found,))]

    return call


def _mnn(job: Job, inputs: Inputs) -> Call:
    from renorm.driver.converted import mnn

    return mnn(job, inputs)


def _ncnn(job: Job, inputs: Inputs) -> Call:
    from renorm.driver.converted import ncnn

    return ncnn(job, inputs)


# name -> what opens a network in it
RUNTIMES: dict[str, Callable[[Job, Inputs], Call]] = {
    "renorm": _renorm,
    "renorm_compiling": _renorm_compiling,
    "renorm_bfloat16": _renorm,  # an artifact of that precision
    "ort": _onnxruntime,
    "openvino": _openvino,
    "openvino_default": _openvino_default,
    "litert": _litert,
    "mnn": _mnn,
    "ncnn": _ncnn,
    "torch": _torch,
    "inductor": _torch,
    "torch_renorm": _torch,  # torch.compile(backend="renorm")
}


def peak_bytes() -> int:
    """Return the most memory that this process has held (VmHWM: getrusage would count what its parent held too)."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def serve(job: Job, asked: Iterable[str], told: TextIO) -> None:
    """Open the network, then answer every line of `asked`."""

    def tell(**facts: Any) -> None:
        print(json.dumps(facts), file=told, flush=True)

    with np.load(job.inputs) as held:
        inputs = {name: held[name] for name in held.files}
    begin = time.perf_counter()
    call = RUNTIMES[job.runtime](job, inputs)
    opened = time.perf_counter()
    results = call()
    ran = time.perf_counter()
    np.savez(job.outputs, *results)
    tell(open_seconds=opened - begin, first_seconds=ran - opened)
    for line in asked:
        tell(ms=timed(call, float(line)), peak_bytes=peak_bytes())


def timed(call: Callable[[], object], seconds: float) -> list[float]:
    """Milliseconds of each call, as many as fit, at least one. One more goes first: it finds the caches full of what
    others did meanwhile, and its threads asleep."""
    call()
    times, until = list[float](), time.perf_counter() + seconds
    while not times or time.perf_counter() < until:
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def answers() -> TextIO:
    """Return standard output as a file for answers; what a library prints from here on goes to standard error."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return told


def main() -> None:
    serve(Job(**json.loads(sys.argv[1])), sys.stdin, answers())


if __name__ == "__main__":
    main()
