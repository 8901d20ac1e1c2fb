"""Print how long the parts of a network take, and the kernels of each, for `renorm profile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from renorm.cli import network, output
from renorm.driver.worker import timed
from renorm.runtime.module import Module
from renorm.runtime.piecewise import PiecewiseModule, part_calls
from renorm.runtime.profile import Roofline, StepTime, profile

_SECONDS = 0.3  # for which the whole network is measured
Table = Callable[[str, Sequence[StepTime], float], None]


def show(
    title: str,
    opened: PiecewiseModule,
    calls: Sequence[Mapping[str, Any]],
    repeats: int,
    most: Roofline,
    table: Table,
) -> output.Outcome:
    """Measure a module on the inputs of each call; print tables, and return what JSON has. table: prints the kernels of
    one part, of which the sum of seconds is given."""
    told = list[tuple[Mapping[str, Any], dict[str, Any]]]()
    for inputs in calls:
        where = f" at {network.shapes_text(inputs)}" if len(calls) > 1 else ""
        arrays = [inputs[v.name] for v in opened.inputs]
        opened.run(*arrays)  # what is not compiled yet is compiled here
        runs = [part_calls(opened, inputs) for _ in range(repeats)]
        whole = median(timed(partial(opened.run, *arrays), _SECONDS)) / 1e3
        seconds = {name: median(sum(c.seconds for c in run if c.name == name) for run in runs) for name in opened.parts}
        counts = {name: sum(c.name == name for c in runs[-1]) for name in opened.parts}
        rows = [(n, counts[n], s * 1e6, f"{s / (whole or 1.0):.1%}") for n, s in seconds.items() if counts[n]]
        said = f"{sum(seconds.values()) * 1e6:.0f} us in parts, {whole * 1e6:.0f} us as a network"
        output.table(f"{title}{where}, {opened.threads} threads, {said}", ("part", "calls", "us in all", "share"), rows)
        parts = list[dict[str, Any]]()
        for name in (name for name, count in counts.items() if count):
            call = next(c for c in runs[-1] if c.name == name)
            times = list[StepTime]()
            if isinstance(call.module, Module):
                times = profile(call.module, *call.given, repeats=repeats)
                total = sum(t.seconds for t in times)
                table(f"{name}, its first call, us per launch, {total * 1e6:.0f} us in all", times, total)
            launches = [t.to_json(most) for t in times]
            parts.append({"name": name, "calls": counts[name], "seconds": seconds[name], "launches": launches})
        told.append((inputs, {"seconds": sum(seconds.values()), "network_seconds": whole, "parts": parts}))
    return output.Outcome({"threads": opened.threads} | network.of_calls(told))
