"""Batch norm in training and instance norm on a tensor larger than any cache, beside PyTorch, held against a copy.

PyTorch runs in two processes: as called, where most of the time of a large fresh result goes into page faults, and with
an allocator that keeps memory. renorm writes into arrays that are given (`out=`), and, beside that, into fresh ones.
What must move at least is counted as tensors: forward reads twice and writes once, backward reads two tensors twice and
writes one, an instance norm reads and writes once; caches may save some of it.

    python -m benchmarks.training RUNTIME THREADS SHAPE

is such a process: it answers lines of JSON, a case and a number of seconds, with the milliseconds of each call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from math import prod
from statistics import median, quantiles
from typing import Any

import numpy as np

from benchmarks.figures import STEPS
from benchmarks.machine import ROOT, commit, machine, now
from renorm.driver.worker import timed
from renorm.runtime.threads import VARIABLE as THREADS

Shape = tuple[int, ...]

EPSILON = 1e-5
# what is measured, with the tensors that must move at least if no cache helps
TENSORS = {"forward": 3, "backward": 5, "instance norm": 2}
KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}  # of glibc's malloc
RUNTIMES = ("renorm", "renorm, fresh results", "torch", "torch, memory kept")
GAP = 0.05  # seconds in which the threads of the runtime before come to rest
TURN = 2.0  # seconds of steps: what a process lost of its memory while others ran it gets back in the first

Calls = dict[str, Callable[[], Any]]
Measures = dict[str, Callable[[float], list[float]]]


def read(text: str) -> Shape:
    """(2, 3) of "2x3"."""
    return tuple(int(extent) for extent in text.split("x") if extent)


def written(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _arrays(shape: Shape) -> dict[str, np.ndarray[Any, Any]]:
    rng, channels = np.random.default_rng(0), shape[1]
    return {
        "x": rng.standard_normal(shape, dtype=np.float32),
        "dy": rng.standard_normal(shape, dtype=np.float32),
        **{n: rng.uniform(0.5, 1.5, channels).astype(np.float32) for n in ("scale", "bias", "mean", "var")},
    }


def _renorm(threads: int, fresh: bool, shape: Shape) -> Calls:
    from renorm import training
    from renorm.driver import roofline
    from renorm.ops.instance_norm import InstanceNorm
    from renorm.training import kernels

    a = _arrays(shape)
    x, dy = a["x"], a["dy"]
    given = x, a["scale"], a["bias"], a["mean"], a["var"]
    saved = training.batch_norm(*given)
    statistics = saved.saved_mean, saved.saved_invstd
    out = None if fresh else saved.y  # on a page: what np.empty gives lies across cache lines, which costs a fifth
    return {
        "copy": roofline.copy(threads)[0],
        "forward": lambda: training.batch_norm(*given, out=out),
        "backward": lambda: training.batch_norm_backward(dy, x, a["scale"], *statistics, out=out),
        "instance norm": lambda: kernels.run(InstanceNorm, (), (x, *given[1:3]), None if fresh else [out]),
    }


def _torch(threads: int, shape: Shape) -> Calls:
    import torch
    from torch.nn import functional

    torch.set_num_threads(threads)
    a = {n: torch.from_numpy(v) for n, v in _arrays(shape).items()}
    x, dy, affine = a["x"], a["dy"], (a["scale"], a["bias"])
    running = a["mean"], a["var"]
    backward: Any = torch.ops.aten.native_batch_norm_backward
    axes = (0, *range(2, x.dim()))
    saved = x.mean(axes), (x.var(axes, unbiased=False) + EPSILON).rsqrt()
    calls = {
        "forward": lambda: functional.batch_norm(x, *running, *affine, training=True),
        "backward": lambda: backward(dy, x, a["scale"], *running, *saved, True, EPSILON, [True] * 3),
        "instance norm": lambda: functional.instance_norm(x, None, None, *affine),
    }

    def without_autograd(call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return call()

        return run

    return {name: without_autograd(call) for name, call in calls.items()}


def _measures(runtime: str, threads: int, shape: Shape) -> Measures:
    """Return what a process measures: numbers for a case, in about so many seconds."""
    if runtime in STEPS:
        from benchmarks.steps import peak, share, step

        run = step(threads, replaced=runtime != STEPS[0])

        def memory(_: float) -> list[float]:
            peak()
            run()
            return [peak()]

        return {"step": lambda seconds: timed(run, seconds), "memory": memory, "share": lambda _: [share(run)]}
    calls = _torch(threads, shape) if runtime.startswith("torch") else _renorm(threads, "fresh" in runtime, shape)
    return {name: lambda seconds, call=call: timed(call, seconds) for name, call in calls.items()}


class Process:
    """A runtime in a process of its own, which runs a module."""

    def __init__(self, runtime: str, threads: int, shape: Shape, module: str):
        environment = os.environ | (KEEPS_MEMORY if "kept" in runtime else {}) | {THREADS: str(threads)}
        call = [sys.executable, "-m", module, runtime, str(threads), written(shape)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(call, env=environment, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
        self._answer()

    def measured(self, case: str, seconds: float) -> list[float]:
        assert self._process.stdin is not None
        print(json.dumps([case, seconds]), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        with self._process:  # which closes its pipes
            self._process.kill()


@contextmanager
def processes(
    runtimes: tuple[str, ...], threads: int, shape: Shape, module: str = "benchmarks.training"
) -> Generator[dict[str, Process]]:
    with ExitStack() as stack:
        found = dict[str, Process]()
        for runtime in runtimes:
            found[runtime] = Process(runtime, threads, shape, module)
            stack.callback(found[runtime].close)
        yield found


def measure(threads: int, rounds: int, seconds: float, shape: Shape, tell: Callable[[str], None]) -> dict[str, Any]:
    """Medians and quartiles of milliseconds over rounds in which all take turns, and what they say."""
    times: dict[tuple[str, str], list[float]] = {}
    with processes(RUNTIMES, threads, shape) as running:
        for number in range(rounds):
            tell(f"round {number + 1} of {rounds}")
            for case in TENSORS:
                for runtime, process in running.items():
                    time.sleep(GAP)
                    times.setdefault((case, runtime), []).append(median(process.measured(case, seconds)))
                times.setdefault(("copy", case), []).append(median(running["renorm"].measured("copy", seconds)))
    return {
        "when": now(),
        "commit": commit(),
        "machine": machine(),
        "settings": {"threads": threads, "rounds": rounds, "seconds": seconds, "shape": list(shape)},
        "norms": {case: _case(case, shape, times) for case in TENSORS},
    }


def measure_step(threads: int, rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return what a step of training takes with torch's norms and with ours, in turns. share: the part that torch's
    norms had; expected: that, less what ours take themselves; faster: by which part of it a step is shorter with ours;
    megabytes: at most, of a process that runs a step."""
    times: dict[str, list[float]] = {}
    with processes(STEPS, threads, ()) as running:
        for number in range(rounds):
            tell(f"step, round {number + 1} of {rounds}")
            for runtime, process in running.items():
                time.sleep(GAP)
                times.setdefault(runtime, []).append(median(process.measured("step", TURN)))
        megabytes = {runtime: round(process.measured("memory", 0.0)[0]) for runtime, process in running.items()}
        # last: the profiler takes memory
        norms, own = (process.measured("share", 0.0)[0] for process in running.values())
    faster = [1 - ours / theirs for theirs, ours in zip(*times.values(), strict=True)]
    return {
        "ms": {s: spread(each) for s, each in times.items()},
        "megabytes": megabytes,
        "share": round(norms, 3),
        "expected": round(norms - own * (1 - median(faster)), 3),
        "faster": spread(faster),
    }


def _case(case: str, shape: Shape, times: Mapping[tuple[str, str], list[float]]) -> dict[str, Any]:
    """Figures of one case. ratios: how many times as long the others take, in the median of rounds."""
    from renorm.driver.roofline import COPIED_BYTES

    ours, copies = times[case, "renorm"], times["copy", case]
    moved = 4 * prod(shape) * TENSORS[case]
    of_copy = [moved / ms / (COPIED_BYTES / copy) for ms, copy in zip(ours, copies, strict=True)]
    others = [r for r in RUNTIMES if r != "renorm"]
    return {
        "tensors": TENSORS[case],
        "ms": {r: spread(times[case, r]) for r in RUNTIMES},
        "copy_ms": spread(copies),
        "of_copy": spread(of_copy),
        "ratios": {r: spread([a / b for a, b in zip(times[case, r], ours, strict=True)]) for r in others},
    }


def spread(values: list[float]) -> dict[str, float]:
    lower, middle, upper = quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return {"median": round(middle, 3), "lower": round(lower, 3), "upper": round(upper, 3)}


def serve(measures: Callable[[], Measures]) -> None:
    """Answer lines of standard input, a case and seconds each, once what is measured is there."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints does not get between the answers
    found = measures()
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        case, seconds = json.loads(line)
        print(json.dumps(found[case](seconds)), file=answers, flush=True)


if __name__ == "__main__":
    serve(lambda: _measures(sys.argv[1], int(sys.argv[2]), read(sys.argv[3])))
