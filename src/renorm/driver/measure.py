"""Networks measured side by side: each in a process of its own (driver.worker), taking turns.

Rounds go A B C A B C ..., so that a machine that slows down slows all alike. Before each turn there is a gap, in which
the threads of the runtime before it, which spin for some time after a run, come to rest, and then a few milliseconds of
multiply-adds, which tell how fast cores are now. A round in which others took much of the cores, or these were slower
at one turn than at another, can be measured again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import renorm
from renorm.core.difference import relative_error
from renorm.core.errors import InvalidInput, RenormError
from renorm.driver import roofline
from renorm.driver.disturbance import Disturbance, Watch
from renorm.driver.worker import RUNTIMES, Job
from renorm.targets import find

Array = np.ndarray[Any, Any]
GAP = 0.1  # seconds; ONNX Runtime's threads spin for about 16 ms after a run
_PROBES = 8  # calls of half a millisecond, of which the fastest tells
LIMIT = 600.0  # seconds until a worker that does not answer is taken for dead
PEERS = tuple(name for name in RUNTIMES if not name.startswith("renorm"))
_PACKAGES = {  # modules, and what installs them
    "ort": {"onnxruntime": "onnxruntime"},
    "openvino": {"openvino": "openvino"},
    "openvino_default": {"openvino": "openvino"},
    "litert": {"ai_edge_litert": "ai-edge-litert"},
    "mnn": {"MNN": "mnn", "onnx": "onnx"},
    "ncnn": {"ncnn": "ncnn", "pnnx": "pnnx"},
    "torch": {"torch": "torch"},
    "inductor": {"torch": "torch"},
}


@dataclass(frozen=True)
class Contender:
    """One that is measured. runtime: a name of driver.worker.RUNTIMES. model: an artifact for renorm, a program of
    torch.export for torch and inductor, a .tflite file for litert, else an .onnx file (for renorm_compiling too, which
    compiles it for `target`). variables: of the environment of its process. inputs: its own, where its file has other
    layouts than those of the others."""

    name: str
    runtime: str
    model: Path
    target: str = "llvm"
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    inputs: Mapping[str, Array] | None = None


@dataclass(frozen=True)
class Latency:
    """Milliseconds per call. lower, upper: quartiles; p10, p90: the first and the last tenth end there; spread: half
    the distance of the quartiles, relative to the median. rounds: the median of each turn, to be compared with the
    turns of others."""

    name: str
    median: float
    lower: float
    upper: float
    p10: float
    p90: float
    least: float
    spread: float
    calls: int
    rounds: tuple[float, ...]


@dataclass(frozen=True)
class Measured:
    """latency: None where it failed, and why in `failure`. open_seconds: until the network could be called, with the
    import of its library; first_seconds: of the first call. peak_bytes: most memory its process held (VmHWM). outputs:
    of the first call. avx512: whether its threads had registers of AVX-512 in use in its turns, which the C library's
    functions do as well; None where the system does not tell."""

    name: str
    latency: Latency | None
    open_seconds: float = 0.0
    first_seconds: float = 0.0
    peak_bytes: int = 0
    outputs: tuple[Array, ...] = ()
    failure: str = ""
    avx512: bool | None = None

    def error(self, reference: Measured) -> float:
        """Return the largest difference from the outputs of another, relative to the largest value of each; inf where
        there are more or fewer."""
        if len(self.outputs) != len(reference.outputs):
            return float("inf")
        return max((relative_error(a, b) for a, b in zip(self.outputs, reference.outputs, strict=True)), default=0.0)


@dataclass(frozen=True)
class Comparison:
    """measured: each contender, in their order. disturbances: of each round that counts; None of one that was too short
    to tell. repeated: rounds that were measured again."""

    measured: list[Measured]
    disturbances: tuple[Disturbance | None, ...]
    repeated: int = 0

    @property
    def disturbed(self) -> list[int]:
        """Return the indices of rounds that count and are disturbed."""
        return [i for i, d in enumerate(self.disturbances) if d and d.is_large]


class _Lost(RenormError):
    """A worker that ended, or did not answer."""


def obstacle(runtime: str) -> str | None:
    """Return what must be installed before `runtime` can be measured; None where nothing is missing. Raises
    InvalidInput for one that is not known."""
    if runtime not in RUNTIMES:
        raise InvalidInput(f"{runtime!r} is not a runtime to compare with", [f"known: {', '.join(PEERS)}"])
    missing = [package for module, package in _PACKAGES.get(runtime, {}).items() if find_spec(module) is None]
    if missing:
        return f"pip install {' '.join(missing)}"
    if runtime == "inductor" and not any(map(shutil.which, (os.environ.get("CXX", ""), "g++", "clang++"))):
        return "install a C++ compiler (g++ or clang++)"
    return None


def side_by_side(
    contenders: Sequence[Contender],
    inputs: Mapping[str, Array],
    threads: int,
    *,
    rounds: int = 7,
    seconds: float = 1.0,
    gap: float = GAP,
    again: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Measure all contenders on the same inputs, given in the order of the network's. seconds: how long each runs in
    all, over `rounds` turns with at least one timed call in each. again: how many disturbed rounds are measured again
    at most; of each, the least disturbed one counts. One contender that fails does not keep the others from being
    measured.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        arrays: dict[str, Any] = dict(inputs)
        np.savez(folder / "inputs.npz", **arrays)
        workers = list[_Worker | Measured]()
        for i, contender in enumerate(contenders):
            tell(f"open {contender.name}")
            try:
                workers.append(stack.enter_context(_started(contender, folder, i, threads)))
            except _Lost as error:
                workers.append(Measured(contender.name, None, failure=str(error)))
        kept, repeated, call = list[_Round](), 0, roofline.multiply_adds(threads, find("llvm"))[0]
        for done in range(rounds):
            tell(f"round {done + 1} of {rounds}")
            found = _round(workers, seconds / rounds, gap, call)
            while (disturbance := found.disturbance) and disturbance.is_large and repeated < again:
                repeated += 1
                tell(f"round {done + 1} again: {disturbance}")
                other = _round(workers, seconds / rounds, gap, call)
                found = min(found, other, key=lambda r: r.disturbance.size if r.disturbance else 0.0)
            kept.append(found)
        measured = [
            w if isinstance(w, Measured) else w.measured([r.turns[i] for r in kept]) for i, w in enumerate(workers)
        ]
        return Comparison(measured, tuple(r.disturbance for r in kept), repeated)


@dataclass(frozen=True)
class _Round:
    """turns: milliseconds of calls, by contender."""

    turns: dict[int, list[float]]
    disturbance: Disturbance | None


def _round(workers: list[_Worker | Measured], seconds: float, gap: float, call: Callable[[], None]) -> _Round:
    """A turn of each; puts what is known of one that fails in its place. call: of multiply-adds."""
    watch = Watch([w.process for w in workers if isinstance(w, _Worker)])
    turns, speeds = dict[int, list[float]](), list[float]()
    for i, worker in enumerate(workers):
        if isinstance(worker, Measured):
            continue
        time.sleep(gap)
        speeds.append(_speed(call))
        try:
            turns[i] = worker.turn(seconds)
        except _Lost as error:
            workers[i] = Measured(worker.name, None, failure=str(error))
    time.sleep(gap)
    speeds.append(_speed(call))
    disturbance = watch.disturbance()
    return _Round(turns, disturbance and replace(disturbance, slowed=1 - min(speeds) / max(speeds)))


def _speed(call: Callable[[], None]) -> float:
    """Calls in a second, where the fastest of some tells."""
    return 1 / min(timeit.repeat(call, number=1, repeat=_PROBES))


class _Worker:
    """The side of `driver.worker` that asks."""

    def __init__(self, name: str, job: Job, process: subprocess.Popen[str], errors: Path):
        self.name, self.process, self._job, self._process, self._errors = name, process.pid, job, process, errors
        self._opened = self._answer()
        self._ready, self._peak = time.monotonic(), 0

    def turn(self, seconds: float) -> list[float]:
        told = self._answer(seconds)
        self._peak = told["peak_bytes"]
        return told["ms"]

    def measured(self, turns: Sequence[Sequence[float]]) -> Measured:
        with np.load(self._job.outputs) as held:
            outputs = tuple(held[name] for name in held.files)
        since = (time.monotonic() - self._ready) * 1e3
        return Measured(
            self.name, latency(self.name, turns), **self._opened, peak_bytes=self._peak, outputs=outputs,
            avx512=_uses_avx512(self.process, since),
        )  # fmt: skip

    def _answer(self, asked: float | None = None) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        alarm = threading.Timer(LIMIT, self._process.kill)
        alarm.start()
        try:
            if asked is not None:
                print(asked, file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            alarm.cancel()
        if not line.endswith("\n"):  # also when it ended while it was answering
            said = self._errors.read_text(errors="replace").strip().splitlines()
            # the last error: its facts are indented
            at = max((i for i, text in enumerate(said) if text[:1].strip()), default=len(said))
            why = ": ".join([f"its process ended ({self._process.wait()})", *said[at : at + 1]])
            raise _Lost(why, [text.strip() for text in said[at + 1 :] if text.strip()])
        return json.loads(line)


def environment(threads: int) -> dict[str, str]:
    """Of a process that imports this renorm and computes on so many threads."""
    paths = [str(Path(renorm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": str(threads)}


@contextmanager
def _started(contender: Contender, folder: Path, index: int, threads: int) -> Generator[_Worker]:
    outputs = folder / f"outputs{index}.npz"
    errors = outputs.with_suffix(".txt")
    inputs = folder / "inputs.npz"
    if contender.inputs is not None:
        inputs = outputs.with_name(f"inputs{index}.npz")
        np.savez(inputs, **dict[str, Any](contender.inputs))
    job = Job(contender.runtime, str(contender.model.absolute()), threads, str(inputs), str(outputs), contender.target)
    call = [sys.executable, "-m", "renorm.driver.worker", json.dumps(asdict(job))]
    with errors.open("w") as log:
        process = subprocess.Popen(
            call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            env=environment(threads) | dict(contender.variables),
        )  # fmt: skip
    try:
        yield _Worker(contender.name, job, process, errors)
    finally:
        process.kill()
        with suppress(BrokenPipeError), process:  # closes the pipes and waits; what was not sent can be sent no more
            pass


def _uses_avx512(process: int, milliseconds: float) -> bool | None:
    """Return whether a thread of a process had state of AVX-512 when it was last switched away from, at most so long
    ago. Linux notes that for each thread; such state stays until somebody clears it."""
    ago = list[int]()
    with suppress(OSError):
        for told in Path(f"/proc/{process}/task").glob("*/arch_status"):
            ago += [int(line.split()[1]) for line in told.read_text().splitlines() if line.startswith("AVX512")]
    return any(0 <= ms < milliseconds for ms in ago) if ago else None


def latency(name: str, turns: Sequence[Sequence[float]]) -> Latency:
    """Return the figures of the calls of all turns, in milliseconds."""
    ms = np.concatenate([np.asarray(t, np.float64) for t in turns])
    p10, lower, middle, upper, p90 = (float(v) for v in np.percentile(ms, (10, 25, 50, 75, 90)))
    spread = (upper - lower) / 2 / middle
    rounds = tuple(median(t) for t in turns)
    return Latency(name, middle, lower, upper, p10, p90, float(ms.min()), spread, len(ms), rounds)
