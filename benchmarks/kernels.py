"""How long each kernel of another runtime takes, by that runtime's own profiler, in a process of its own.

    python -m benchmarks.kernels JOB        JOB: the fields of `Job` in JSON

It prints one JSON list: kernels in the order in which they run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

from benchmarks.machine import ROOT
from renorm.driver.measure import environment
from renorm.driver.worker import onnxruntime_session, openvino_network

Array = np.ndarray[Any, Any]
_WARM = 2  # runs that are not counted


@dataclass(frozen=True)
class Job:
    """runtime: a name of PROFILERS. inputs: an .npz file, arrays by the names of the network's inputs."""

    runtime: str
    model: str
    threads: int
    inputs: str
    repeats: int


@dataclass(frozen=True)
class PeerKernel:
    """us: the median, in microseconds. labels: names that the runtime gives it, made of those of the model's nodes and
    values."""

    us: float
    labels: tuple[str, ...]


def _onnxruntime(job: Job, inputs: Mapping[str, Array]) -> list[PeerKernel]:
    with tempfile.TemporaryDirectory() as folder:
        rewritten = Path(folder) / "rewritten.onnx"
        session = onnxruntime_session(
            job.model, job.threads, enable_profiling=True, profile_file_prefix=f"{folder}/profile",
            optimized_model_filepath=str(rewritten),
        )  # fmt: skip
        for _ in range(_WARM + job.repeats):
            session.run(None, dict(inputs))
        events = json.loads(Path(session.end_profiling()).read_text())
        writes = {n.name: tuple(n.output) for n in onnx.load(rewritten, load_external_data=False).graph.node}
    times = dict[str, list[float]]()
    for event in events:
        name = event["name"].removesuffix("_kernel_time")
        if event["cat"] == "Node" and name != event["name"]:
            times.setdefault(name, []).append(event["dur"])
    return [PeerKernel(median(us[_WARM:]), (name, *writes.get(name, ()))) for name, us in times.items()]


def _openvino(job: Job, inputs: Mapping[str, Array]) -> list[PeerKernel]:
    network = openvino_network(job.model, inputs, job.threads, PERF_COUNT=True)
    request = network.create_infer_request()
    times = dict[str, list[float]]()
    for repeat in range(_WARM + job.repeats):
        request.infer(inputs)
        for node in request.get_profiling_info():
            if repeat >= _WARM and node.status == node.EXECUTED:
                times.setdefault(node.node_name, []).append(node.real_time.total_seconds() * 1e6)
    origins = {
        op.get_friendly_name(): op.get_rt_info()["originalLayersNames"].astype(str).split(",")
        for op in network.get_runtime_model().get_ordered_ops()
    }
    return [PeerKernel(median(us), (name, *filter(None, origins.get(name, ())))) for name, us in times.items()]


PROFILERS: dict[str, Callable[[Job, Mapping[str, Array]], list[PeerKernel]]] = {
    "ort": _onnxruntime,
    "openvino": _openvino,
}


def profiled(
    runtime: str,
    model: Path,
    inputs: Mapping[str, Array],
    threads: int,
    repeats: int,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> list[PeerKernel]:
    """The kernels of a name of PROFILERS, from a process of its own. variables: of its environment. Raises RuntimeError
    where that fails."""
    with tempfile.TemporaryDirectory() as folder:
        held = f"{folder}/inputs.npz"
        np.savez(held, **dict[str, Any](inputs))
        job = Job(runtime, str(model.absolute()), threads, held, repeats)
        call = [sys.executable, "-m", "benchmarks.kernels", json.dumps(asdict(job))]
        done = subprocess.run(
            call, cwd=ROOT, capture_output=True, text=True, env=environment(threads) | dict(variables)
        )
    if done.returncode:
        raise RuntimeError(f"kernels of {runtime}: its process ended with {done.returncode}: {done.stderr[-2000:]}")
    return [PeerKernel(k["us"], tuple(k["labels"])) for k in json.loads(done.stdout)]


def medians(turns: Sequence[Sequence[PeerKernel]]) -> list[PeerKernel]:
    """Of several times that one network was profiled, each kernel of the turns that tell of it: OpenVINO leaves out
    what it did not run in the last call, such as a copy that it could do without."""
    times = dict[tuple[str, ...], list[float]]()
    for turn in sorted(turns, key=len, reverse=True):
        for kernel in turn:
            times.setdefault(kernel.labels, []).append(kernel.us)
    return [PeerKernel(median(us), labels) for labels, us in times.items()]


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    with np.load(job.inputs) as held:
        inputs = {name: held[name] for name in held.files}
    json.dump([asdict(k) for k in PROFILERS[job.runtime](job, inputs)], sys.stdout)


if __name__ == "__main__":
    main()
