"""Networks measured side by side: each in a process of its own (driver.worker), taking turns.

Rounds go A B C A B C ..., so that a machine that slows down slows all alike. Before each turn there is a gap, in which
the threads of the runtime before it, which spin for some time after a run, come to rest.
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
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import renorm
from renorm.core.difference import relative_error
from renorm.core.errors import InvalidInput, RenormError
from renorm.driver.worker import RUNTIMES, Job

Array = np.ndarray[Any, Any]
GAP = 0.1  # seconds; ONNX Runtime's threads spin for about 16 ms after a run
LIMIT = 600.0  # seconds until a worker that does not answer is taken for dead
PEERS = tuple(name for name in RUNTIMES if not name.startswith("renorm"))
_PACKAGES = {"ort": "onnxruntime", "openvino": "openvino", "torch": "torch", "inductor": "torch"}


@dataclass(frozen=True)
class Contender:
    """One that is measured. runtime: a name of driver.worker.RUNTIMES. model: an artifact for renorm, a program of
    torch.export for torch and inductor, else an .onnx file (for renorm_compiling too)."""

    name: str
    runtime: str
    model: Path


@dataclass(frozen=True)
class Latency:
    """Milliseconds per call. lower, upper: quartiles; spread: half their distance, relative to the median. rounds:
    the median of each turn, to be compared with the turns of others."""

    name: str
    median: float
    lower: float
    upper: float
    p90: float
    least: float
    spread: float
    calls: int
    rounds: tuple[float, ...]


@dataclass(frozen=True)
class Measured:
    """latency: None where it failed, and why in `failure`. open_seconds: until the network could be called, with the
    import of its library; first_seconds: of the first call. peak_bytes: most memory its process held (VmHWM). outputs:
    of the first call."""

    name: str
    latency: Latency | None
    open_seconds: float = 0.0
    first_seconds: float = 0.0
    peak_bytes: int = 0
    outputs: tuple[Array, ...] = ()
    failure: str = ""

    def error(self, reference: Measured) -> float:
        """Return the largest difference from the outputs of another, relative to the largest value of each; inf where
        there are more or fewer."""
        if len(self.outputs) != len(reference.outputs):
            return float("inf")
        return max((relative_error(a, b) for a, b in zip(self.outputs, reference.outputs, strict=True)), default=0.0)


class _Lost(RenormError):
    """A worker that ended, or did not answer."""


def obstacle(runtime: str) -> str | None:
    """Return what must be installed before `runtime` can be measured; None where nothing is missing. Raises
    InvalidInput for one that is not known."""
    if runtime not in RUNTIMES:
        raise InvalidInput(f"{runtime!r} is not a runtime to compare with", [f"known: {', '.join(PEERS)}"])
    package = _PACKAGES.get(runtime)
    if package and find_spec(package) is None:
        return f"pip install {package}"
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
    tell: Callable[[str], None] = lambda line: None,
) -> list[Measured]:
    """Measure all contenders on the same inputs, given in the order of the network's. seconds: how long each runs in
    all, over `rounds` turns with at least one timed call in each. One that fails does not keep the others from being
    measured.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        arrays: dict[str, Any] = dict(inputs)
        np.savez(folder / "inputs.npz", **arrays)
        workers = list[_Worker | Measured]()
        for i, contender in enumerate(contenders):
            tell(f"open {contender.name}")
            job = Job(
                contender.runtime,
                str(contender.model.absolute()),
                threads,
                str(folder / "inputs.npz"),
                str(folder / f"outputs{i}.npz"),
            )
            try:
                workers.append(stack.enter_context(_started(contender.name, job)))
            except _Lost as error:
                workers.append(Measured(contender.name, None, failure=error.headline))
        for done in range(rounds):
            tell(f"round {done + 1} of {rounds}")
            for i, worker in enumerate(workers):
                if isinstance(worker, Measured):
                    continue
                time.sleep(gap)
                try:
                    worker.turn(seconds / rounds)
                except _Lost as error:
                    workers[i] = Measured(worker.name, None, failure=error.headline)
        return [w if isinstance(w, Measured) else w.measured() for w in workers]


class _Worker:
    """The side of `driver.worker` that asks."""

    def __init__(self, name: str, job: Job, process: subprocess.Popen[str], errors: Path):
        self.name, self._job, self._process, self._errors = name, job, process, errors
        self._opened = self._answer()
        self._turns = list[list[float]]()
        self._peak = 0

    def turn(self, seconds: float) -> None:
        told = self._answer(seconds)
        self._turns.append(told["ms"])
        self._peak = told["peak_bytes"]

    def measured(self) -> Measured:
        with np.load(self._job.outputs) as held:
            outputs = tuple(held[name] for name in held.files)
        return Measured(
            self.name, latency(self.name, self._turns), **self._opened, peak_bytes=self._peak, outputs=outputs
        )

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
            raise _Lost(f"its process ended ({self._process.wait()})" + (f": {said[-1]}" if said else ""))
        return json.loads(line)


def environment(threads: int) -> dict[str, str]:
    """Of a process that imports this renorm and computes on so many threads."""
    paths = [str(Path(renorm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": str(threads)}


@contextmanager
def _started(name: str, job: Job) -> Generator[_Worker]:
    errors = Path(job.outputs).with_suffix(".txt")
    call = [sys.executable, "-m", "renorm.driver.worker", json.dumps(asdict(job))]
    with errors.open("w") as log:
        process = subprocess.Popen(
            call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(job.threads)
        )
    try:
        yield _Worker(name, job, process, errors)
    finally:
        process.kill()
        with suppress(BrokenPipeError), process:  # closes the pipes and waits; what was not sent can be sent no more
            pass


def latency(name: str, turns: Sequence[Sequence[float]]) -> Latency:
    """Return the figures of the calls of all turns, in milliseconds."""
    ms = np.concatenate([np.asarray(t, np.float64) for t in turns])
    lower, middle, upper, p90 = (float(v) for v in np.percentile(ms, (25, 50, 75, 90)))
    spread = (upper - lower) / 2 / middle
    rounds = tuple(median(t) for t in turns)
    return Latency(name, middle, lower, upper, p90, float(ms.min()), spread, len(ms), rounds)
