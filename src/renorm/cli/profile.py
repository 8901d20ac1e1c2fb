"""renorm profile: how long each kernel of a network takes, and must take at least."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click

from renorm.cli import gpu_profile, network, output, parts_profile
from renorm.cli.options import FILE, bound, calling, model, seed, train_state, trusting, verb
from renorm.core.files import replacing
from renorm.driver import roofline
from renorm.driver.worker import timed
from renorm.errors import InvalidInput
from renorm.runtime.launches import GPU
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
@calling
def command(
    model: Path,
    repeats: int,
    path: Path | None,
    bound: dict[str, Any] | None,
    seed: int,
    options: dict[str, Any],
    trust: dict[str, Any],
) -> output.Outcome:
    """Measures every kernel launch of MODEL (any file that renorm reads, or .renorm) on random inputs, in order, one at
    a time.

    GFLOP/s count what the operations of a kernel take at least, GB/s the bytes that it must read and write. The limit
    is the longer of both at the speed that this machine reaches with multiply-adds in registers and with a copy of
    memory, with vectors as wide as the network's. More than 100% of it is possible: operands may lie in a cache, and *
    marks kernels that need fewer operations than the textbook algorithm, which is counted. What one thread was
    predicted to take, and what bounds that, is an estimate from the loops, at typical extents where they are open. The
    trace shows one run of the whole network: what each thread did, and where it waited for others. With several shapes
    of an input, all of that for each, and sums.

    On a GPU: the grid, block and shared memory of each launch, and how near it comes to a copy of the GPU's memory.
    """
    opened, calls = network.with_inputs(model, options | {"inputs": bound}, seed, trust)
    if path and len(calls) > 1:
        raise InvalidInput("--trace shows one run", do="give one shape of each input")
    if hasattr(opened, "plan"):
        if path:
            raise InvalidInput("--trace shows one program", [f"{model.name} runs in parts"], "leave it out")
        most = roofline.measure(opened.threads, "llvm")
        columns = ("kernel", "median", "fastest", "predicted", "share", "GFLOP/s", "GB/s", "of limit", "bound by")

        def table(title: str, times: Sequence[StepTime], total: float) -> None:
            output.table(title, columns, [_row(t, total, most) for t in times])

        return parts_profile.show(model.name, opened, calls, repeats, most, table)
    first = network.at(opened, calls[0])
    if first.program.machine.arch == GPU:
        if path:
            raise InvalidInput("--trace shows threads of a CPU", [f"{model.name} runs on a GPU"], "leave it out")
        return gpu_profile.show(model.name, opened, calls, repeats)
    threads, machine = first.threads, first.program.machine
    is_narrow = machine.arch == "x86_64" and "avx512f" not in machine.features
    most = roofline.measure(threads, "llvm -mattr=-avx512f" if is_narrow else "llvm")
    rows, told = list[tuple[Any, ...]](), list[tuple[dict[str, Any], dict[str, Any]]]()
    for inputs in calls:
        module, arrays = network.at(opened, inputs), list(inputs.values())
        times = profile(module, *arrays, repeats=repeats)
        whole = median(timed(partial(module.run, *arrays), _SECONDS)) / 1e3
        total = sum(t.seconds for t in times)
        if path:
            runs = sorted(module.recorded(*arrays, repeats=repeats), key=lambda run: run.end - run.begin)
            with replacing(path) as file:
                file.write(json.dumps(trace(model.name, runs[len(runs) // 2], times, most)).encode())
        sums = f"{total * 1e6:.0f} us in all, {whole * 1e6:.0f} us when they run as a network"
        where = f" at {network.shapes_text(inputs)}" if len(calls) > 1 else ""
        title = f"{model.name}{where}, {threads} threads, us per launch, {sums}"
        columns = ("kernel", "median", "fastest", "predicted", "share", "GFLOP/s", "GB/s", "of limit", "bound by")
        output.table(title, columns, [_row(t, total, most) for t in times])
        rows.append(_sum(network.shapes_text(inputs), times, whole, most))
        launches = [t.to_json(most) for t in times]
        told.append((inputs, {"seconds": total, "network_seconds": whole, "launches": launches}))
    if len(calls) > 1:
        columns = ("call", "kernels", "network", "GFLOP/s", "GB/s", "of limit")
        output.table("us of all kernels, and when they run as a network", columns, rows)
    output.line(f"this machine: {most.flops / 1e9:.0f} GFLOP/s, copies {most.bytes / 1e9:.1f} GB/s")
    data = {"threads": threads, "limits": asdict(most)}
    return output.Outcome(data | network.of_calls(told))


def _sum(shapes: str, times: Sequence[StepTime], whole: float, most: Roofline) -> tuple[Any, ...]:
    """A row for a whole network, that takes so many seconds."""
    flops, moved = (sum(getattr(t.work, what) for t in times) / whole / 1e9 for what in ("flops", "bytes"))
    of_limit = f"{sum(most.seconds(t.work) for t in times) / whole:.0%}{'*' * any(t.work.is_nominal for t in times)}"
    return (shapes, sum(t.seconds for t in times) * 1e6, whole * 1e6, flops, moved, of_limit)


def _row(t: StepTime, total: float, most: Roofline) -> tuple[Any, ...]:
    speeds = (t.flops_per_second / 1e9, t.bytes_per_second / 1e9)
    share, of_limit = f"{t.seconds / (total or 1.0):.1%}", f"{t.of_limit(most):.0%}{'*' * t.work.is_nominal}"
    times = (t.seconds * 1e6, t.fastest * 1e6, t.predicted * 1e6)
    return (t.kernel, *times, share, *speeds, of_limit, t.bound)
