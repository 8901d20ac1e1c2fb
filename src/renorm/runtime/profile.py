"""How long each kernel of a module takes, beside what the machine could do at most.

Steps are run one at a time, in order, in one arena, so each sees the operands it sees in a whole run. What calling
from Python costs is measured on an empty step and subtracted; a barrier at a step's end is counted in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from itertools import pairwise
from statistics import median
from typing import Any

from renorm.core.dims import Sym, integer
from renorm.core.extents import Evaluation
from renorm.runtime.launches import GPU
from renorm.runtime.module import Module
from renorm.runtime.report import KernelRecord, WorkRecord
from renorm.runtime.table import Recording


@dataclass(frozen=True)
class Roofline:
    """The most that a machine can do per second: floating-point operations, and bytes copied (read and written)."""

    flops: float
    bytes: float

    def seconds(self, work: WorkRecord) -> float:
        """The least that work takes: operations and bytes can go on at the same time."""
        return max(integer(work.flops) / self.flops, integer(work.bytes) / self.bytes)


@dataclass(frozen=True)
class StepTime:
    """One launch. seconds: the median over the repeats; fastest: the least. work: what it must do at least, as the
    report says; nodes: of the graph. predicted, bound: seconds that one thread was expected to take, and what for, as
    the report says."""

    kernel: str
    seconds: float
    fastest: float
    nodes: tuple[str, ...] = ()
    work: WorkRecord = field(default_factory=WorkRecord)
    predicted: float = 0.0
    bound: str = ""

    @property
    def flops_per_second(self) -> float:
        return integer(self.work.flops) / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return integer(self.work.bytes) / self.seconds if self.seconds else 0.0

    def of_limit(self, roofline: Roofline) -> float:
        """Return the part of the time that is unavoidable. It may be above 1: where operands lie in a cache, which is
        faster than memory, or where the kernel needs fewer operations than are counted (`work.is_nominal`)."""
        return roofline.seconds(self.work) / self.seconds if self.seconds else 0.0

    def to_json(self, roofline: Roofline | None = None) -> dict[str, Any]:
        figures = {"flops_per_second": self.flops_per_second, "bytes_per_second": self.bytes_per_second}
        return asdict(self) | figures | ({"of_limit": self.of_limit(roofline)} if roofline else {})


def profile(module: Module, *args: Any, repeats: int = 20, **named: Any) -> list[StepTime]:
    """Times of all launches in order, on the inputs given as for `Module.run`; on a GPU of all kernels
    (runtime.gpu.profile).

    The first run, which warms up, is not counted.
    """
    if module.program.machine.arch == GPU:
        return import_module("renorm.runtime.gpu.profile").measured(module, *args, repeats=repeats, **named)[0]
    runner = module.exclusive(*args, **named)
    steps = range(len(module.program.steps))
    times = [list[int]() for _ in steps]
    empty = list[int]()
    for repeat in range(repeats + 1):
        for step in (None, *steps):
            begin = time.perf_counter_ns()
            runner(step)
            spent = time.perf_counter_ns() - begin
            if repeat:
                (empty if step is None else times[step]).append(spent)
    base = median(empty)

    def seconds(spent: list[int]) -> tuple[float, float]:
        return max(0.0, median(spent) - base) * 1e-9, max(0.0, min(spent) - base) * 1e-9

    known = module.report.kernels
    records = known if len(known) == len(times) else [KernelRecord(s.kernel) for s in module.program.steps]
    values = {**module.program.dims, **module.extents(*args, **named)}
    return [
        StepTime(s.kernel, *seconds(t), r.nodes, work, r.predicted, r.bound)
        for s, t, r, work in zip(module.program.steps, times, records, work_at(values, [r.work for r in records]))
    ]


def work_at(values: Mapping[str, int], works: Sequence[WorkRecord]) -> Iterator[WorkRecord]:
    """Give what kernels must do where open extents have these values. Raises InvalidInput where that is no number."""
    held = Evaluation(values, (d for w in works for d in (w.flops, w.bytes)))
    numbers = held.at(values)
    for work in works:
        flops, moved = (numbers[held.index[d]] if isinstance(d, Sym) else d for d in (work.flops, work.bytes))
        yield WorkRecord(flops, moved, work.is_nominal)


def trace(name: str, run: Recording, times: Sequence[StepTime], roofline: Roofline | None = None) -> dict[str, Any]:
    """A run as chrome://tracing and Perfetto read it (the Trace Event Format; microseconds): a track for each thread,
    on which launches, or the phases they consist of, and waiting for other threads follow each other.

    times: of the launches, one at a time, for comparison.
    """
    launches = [
        (t.kernel, t.to_json(roofline) | {"phase": f"{k + 1} of {end - first}"})
        for t, (first, end) in zip(times, pairwise(run.steps), strict=True)
        for k in range(end - first)
    ]

    def event(thread: int, kind: str, label: str, begin: int, end: int, about: dict[str, Any]) -> dict[str, Any]:
        place = {"pid": 0, "tid": thread, "ts": (begin - run.begin) / 1e3, "dur": (end - begin) / 1e3}
        return {"name": label, "cat": kind, "ph": "X", **place, "args": about}

    events = [_title("process_name", 0, name)]
    for thread, parts in enumerate(run.parts.tolist()):
        events.append(_title("thread_name", thread, f"thread {thread}"))
        since = run.begin
        for (kernel, about), (begin, end) in zip(launches, parts, strict=True):
            if end:  # else it had no part in this phase
                events.append(event(thread, "wait", "wait", since, begin, {}))
                events.append(event(thread, "kernel", kernel, begin, end, about))
                since = end
        events.append(event(thread, "wait", "wait", since, run.end, {}))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _title(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": thread, "args": {"name": name}}
