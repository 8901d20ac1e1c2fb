"""How long each kernel of a module takes.

Steps are run one at a time, in order, in one arena, so each sees the operands it sees in a whole run. What calling
from Python costs is measured on an empty step and subtracted; a barrier at a step's end is counted in.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from renorm.runtime.module import Module


@dataclass(frozen=True)
class StepTime:
    """One launch. seconds: the median over the repeats; fastest: the least."""

    kernel: str
    seconds: float
    fastest: float


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
    return [
        StepTime(s.kernel, max(0.0, median(t) - base) * 1e-9, max(0.0, min(t) - base) * 1e-9)
        for s, t in zip(module.program.steps, times)
    ]
