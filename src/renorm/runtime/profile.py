"""How long each kernel of a module takes, beside what the machine could do at most.

Steps are run one at a time, in order, in one arena, so each sees the operands it sees in a whole run. What calling
from Python costs is measured on an empty step and subtracted; a barrier at a step's end is counted in.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from renorm.runtime.module import Module
from renorm.runtime.report import KernelRecord, WorkRecord


@dataclass(frozen=True)
class Limits:
    """What a machine can do at most, per second: floating-point operations, and bytes copied (read and written)."""

    flops: float
    bytes: float

    def seconds(self, work: WorkRecord) -> float:
        """The least that work takes: operations and bytes can go on at the same time."""
        return max(work.flops / self.flops, work.bytes / self.bytes)


@dataclass(frozen=True)
class StepTime:
    """One launch. seconds: the median over the repeats; fastest: the least. work: what it must do at least, as the
    report says; nodes: of the graph."""

    kernel: str
    seconds: float
    fastest: float
    nodes: tuple[str, ...] = ()
    work: WorkRecord = field(default_factory=WorkRecord)

    @property
    def flops_per_second(self) -> float:
        return self.work.flops / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.work.bytes / self.seconds if self.seconds else 0.0

    def of_limit(self, limits: Limits) -> float:
        """What part of the time is unavoidable. It may be above 1: where operands lie in a cache, which is faster than
        memory, or where the kernel needs fewer operations than are counted (`work.is_nominal`)."""
        return limits.seconds(self.work) / self.seconds if self.seconds else 0.0

    def to_json(self, limits: Limits | None = None) -> dict[str, Any]:
        figures = {"flops_per_second": self.flops_per_second, "bytes_per_second": self.bytes_per_second}
        return asdict(self) | figures | ({"of_limit": self.of_limit(limits)} if limits else {})


def profile(module: Module, *args: Any, repeats: int = 20, **named: Any) -> list[StepTime]:
    """Times of all launches in order, on the inputs given as for `Module.run`.

    The first run, which warms up, is not counted.
    """
    with module.exclusive(*args, **named) as runner:
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
    known = module.report.kernels
    records = known if len(known) == len(times) else [KernelRecord(s.kernel) for s in module.program.steps]
    return [
        StepTime(s.kernel, max(0.0, median(t) - base) * 1e-9, max(0.0, min(t) - base) * 1e-9, r.nodes, r.work)
        for s, t, r in zip(module.program.steps, times, records)
    ]


def trace(name: str, times: Sequence[StepTime], limits: Limits | None = None) -> dict[str, Any]:
    """Launches one after the other, as chrome://tracing and Perfetto read them (the Trace Event Format; microseconds).

    All threads of a team run a launch together, so there is one track.
    """
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": name}},
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "kernels, median times"}},
    ]
    begin = 0.0
    for t in times:
        duration = t.seconds * 1e6
        about = {k: v for k, v in t.to_json(limits).items() if k not in ("kernel", "seconds", "fastest")}
        events.append(
            {
                "name": t.kernel,
                "ph": "X",
                "pid": 0,
                "tid": 0,
                "ts": begin,
                "dur": duration,
                "cat": "kernel",
                "args": about,
            }
        )
        begin += duration
    return {"traceEvents": events, "displayTimeUnit": "ms"}
