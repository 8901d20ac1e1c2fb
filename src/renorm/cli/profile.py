"""renorm profile: how long each kernel of a network takes, and must take at least."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click

from renorm.cli import network, output
from renorm.cli.options import FILE, bound, compiling, model, seed, train_state, trusting, verb
from renorm.core.files import replacing
from renorm.driver import roofline
from renorm.driver.worker import timed
from renorm.runtime.profile import Roofline, StepTime, profile, trace

_SECONDS = 0.3  # for which the whole network is measured


@verb("profile")
@model
@click.option("--repeats", type=click.IntRange(1), default=20, show_default=True, help="How often each kernel runs.")
@click.option("--trace", "path", type=FILE, help="A JSON file for chrome://tracing or ui.perfetto.dev.")
@bound
@seed
@train_state
@trusting
@compiling
def command(
    model: Path,
    repeats: int,
    path: Path | None,
    bound: dict[str, Any] | None,
    seed: int,
    options: dict[str, Any],
    trust: dict[str, Any],
) -> output.Outcome:
    """Measures every kernel launch of MODEL (.onnx or .renorm) on random inputs, in order, one at a time.

    GFLOP/s count what the operations of a kernel take at least, GB/s the bytes that it must read and write. The limit
    is the longer of both at the speed that this machine reaches with multiply-adds in registers and with a copy of
    memory. More than 100% of it is possible: operands may lie in a cache, and * marks kernels that need fewer
    operations than the textbook algorithm, which is counted. The trace shows one run of the whole network: what each
    thread did, and where it waited for others.
    """
    opened, inputs = network.with_inputs(model, options | {"inputs": bound}, seed, trust)
    arrays = list(inputs.values())
    times = profile(opened, *arrays, repeats=repeats)
    whole = median(timed(lambda: opened.run(*arrays), _SECONDS)) / 1e3
    most = roofline.measure(opened.threads)
    total = sum(t.seconds for t in times)
    if path:
        runs = sorted(opened.recorded(*arrays, repeats=repeats), key=lambda run: run.end - run.begin)
        with replacing(path) as file:
            file.write(json.dumps(trace(model.name, runs[len(runs) // 2], times, most)).encode())
    sums = f"{total * 1e6:.0f} us in all, {whole * 1e6:.0f} us when they run as a network"
    title = f"{model.name}, {opened.threads} threads, us per launch, {sums}"
    columns = ("kernel", "median", "fastest", "share", "GFLOP/s", "GB/s", "of limit")
    output.table(title, columns, [_row(t, total, most) for t in times])
    output.line(f"this machine: {most.flops / 1e9:.0f} GFLOP/s, copies {most.bytes / 1e9:.1f} GB/s")
    data = {"threads": opened.threads, "seconds": total, "network_seconds": whole, "limits": asdict(most)}
    return output.Outcome(data | {"launches": [t.to_json(most) for t in times]})


def _row(t: StepTime, total: float, most: Roofline) -> tuple[Any, ...]:
    speeds = (t.flops_per_second / 1e9, t.bytes_per_second / 1e9)
    share, of_limit = f"{t.seconds / (total or 1.0):.1%}", f"{t.of_limit(most):.0%}{'*' * t.work.is_nominal}"
    return (t.kernel, t.seconds * 1e6, t.fastest * 1e6, share, *speeds, of_limit)
