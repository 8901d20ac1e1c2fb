"""Programs of all subjects on all targets, as one JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.replay import subjects
from benchmarks.replay.digests import Program, network, single
from renorm.driver.cache import Cache
from renorm.targets import find

TARGETS = {
    "avx512": "llvm -mcpu=znver4",
    "avx2": "llvm -mcpu=znver3",
    "aarch64": "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1",
    "cuda": "cuda -arch=sm_90",
}
LEVELS = (0, 3)  # opt_level of single ops: as they are, and as networks have them
CACHE_BYTES = 4 << 30

Programs = dict[str, Program]  # by "target: subject"


def record(
    models: Path, cache: Path | None, chosen: Sequence[str], targets: Sequence[str], done: Callable[[int, int], None]
) -> Programs:
    """Compiles everything anew but kernels that the cache knows by their loops and the sources of their compiler.

    chosen: subjects. targets: of TARGETS. done: told how many of how many jobs are. cache: a directory; None stops
    before machine code.
    """
    if cache:
        cache.mkdir(parents=True, exist_ok=True)
    jobs = [(subject, target) for subject in chosen for target in targets]
    found: Programs = {}
    os.environ["RENORM_NUM_THREADS"] = "1"  # of each child: they are as many as there are cores
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(_programs, *job, models, cache) for job in jobs]
        for i, each in enumerate(as_completed(waiting), 1):
            found |= each.result()
            done(i, len(jobs))
    return dict(sorted(found.items()))


def _programs(subject: str, target: str, models: Path, cache: Path | None) -> Programs:
    """Return the programs of one subject on one target."""
    chosen = find(TARGETS[target])
    kept = Cache(cache, CACHE_BYTES) if cache else None
    if kernels := subjects.kernels(subject):
        return {f"{target}: {subject}": single(kernels, chosen, kept)}
    levels = LEVELS if subject.startswith("op ") else (3,)
    return {
        f"{target}: {name}" + (f", level {level}" if len(levels) > 1 else ""): network(graph, chosen, level, kept)
        for name, graph in subjects.graphs(subject, models)
        for level in levels
    }


def write(path: Path, programs: Programs) -> None:
    """A program is a line, so that files can be compared by other tools too."""
    lines = [f"{json.dumps(name)}: {json.dumps(each.plain())}" for name, each in programs.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    part.replace(path)


def read(path: Path) -> Programs:
    """Return what `write` wrote."""
    data: dict[str, Any] = json.loads(path.read_text())
    return {name: Program.of(each) for name, each in data.items()}
