"""A runtime in a process of its own, which runs a network whose extents are open at the sizes that it is told.

    python -m benchmarks.any_shape_process JOB        JOB: the fields of `Job` in JSON

It speaks JSON, a line at a time: first that it is ready; then it answers every line, the fields of `Asked`, with the
milliseconds of calls and the most memory that it has held so far. benchmarks.any_shape is the other side.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from renorm.driver.worker import answers, onnxruntime_session, peak_bytes
from renorm.runtime.module import load

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
Call = Callable[[Mapping[str, Array]], object]
_EXTENT = re.compile(r"(?:(\d+)\*)?(\w+)(?::.*)?")


@dataclass(frozen=True)
class Job:
    """runtime: "renorm" or "ort". model: a file that it reads. shapes: of inputs, extents as numbers or as they were
    stated when it was compiled: "16*h"."""

    runtime: str
    model: str
    threads: int
    shapes: Mapping[str, Sequence[int | str]]


@dataclass(frozen=True)
class Asked:
    """sizes: of the symbols, for each input to be run. repeats: how often each is. beside: an artifact that takes turns
    with the network on the first input, `seconds` in all for each, three times at least; the milliseconds are theirs
    then, the network's before."""

    sizes: Sequence[Sizes]
    repeats: int = 1
    beside: str = ""
    seconds: float = 0.0


def extent(stated: int | str, sizes: Sizes) -> int:
    """Return what is stated of an extent, "n", "16*h" or "L:1..384", at these sizes."""
    if isinstance(stated, int):
        return stated
    found = _EXTENT.fullmatch(stated)
    assert found is not None
    return int(found[1] or 1) * sizes[found[2]]


def _opened(job: Job) -> tuple[Call, dict[str, str]]:
    """Return what runs the network, and dtypes of its inputs."""
    if job.runtime == "ort":
        session = onnxruntime_session(job.model, job.threads)
        named = {i.name: "float32" if "float" in i.type else "int64" for i in session.get_inputs()}
        return lambda arrays: session.run(None, dict(arrays)), named
    module = load(job.model, threads=job.threads)
    return lambda arrays: module.run(*arrays.values()), {v.name: v.dtype for v in module.inputs}


def _drawn(job: Job, kinds: Mapping[str, str], sizes: Sizes) -> dict[str, Array]:
    """Return standard normal floats, in no more memory than they take, and integers that are 0 or 1."""
    rng, arrays = np.random.default_rng(0), dict[str, Array]()
    for name, kind in kinds.items():
        shape = tuple(extent(d, sizes) for d in job.shapes[name])
        is_float = kind == "float32"
        arrays[name] = rng.standard_normal(shape, np.float32) if is_float else rng.integers(0, 2, shape)
    return arrays


def _timed(call: Call, arrays: Mapping[str, Array]) -> float:
    begin = time.perf_counter()
    call(arrays)
    return (time.perf_counter() - begin) * 1e3


def _in_turns(calls: Sequence[Call], arrays: Mapping[str, Array], seconds: float) -> list[list[float]]:
    """Milliseconds of calls, in turns; the first two of each are not counted."""
    times, until = [list[float]() for _ in calls], 0.0
    for call in (*calls, *calls):
        call(arrays)
    until = time.perf_counter() + seconds * len(calls)
    while len(times[0]) < 3 or time.perf_counter() < until:
        for call, ms in zip(calls, times):
            ms.append(_timed(call, arrays))
    return times


def serve(job: Job, lines: Iterable[str], told: TextIO) -> None:
    """Open the network, then answer every line."""
    call, kinds = _opened(job)
    print("{}", file=told, flush=True)
    for line in lines:
        asked = Asked(**json.loads(line))
        if asked.beside:
            other, _ = _opened(Job("renorm", asked.beside, job.threads, {}))
            ms = _in_turns([call, other], _drawn(job, kinds, asked.sizes[0]), asked.seconds)
        else:
            ms = list[list[float]]()
            for sizes in asked.sizes:
                arrays = _drawn(job, kinds, sizes)
                ms.append([_timed(call, arrays) for _ in range(asked.repeats)])
        print(json.dumps({"ms": ms, "peak_bytes": peak_bytes()}), file=told, flush=True)


def main() -> None:
    serve(Job(**json.loads(sys.argv[1])), sys.stdin, answers())


if __name__ == "__main__":
    main()
