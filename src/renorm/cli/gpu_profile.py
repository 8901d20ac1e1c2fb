"""Print the launches of a network on a GPU, and how near they come to a copy of memory, for `renorm profile`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from renorm.cli import network, output
from renorm.driver.worker import timed
from renorm.runtime.gpu import device as devices
from renorm.runtime.gpu.module import GpuModule
from renorm.runtime.gpu.profile import GpuStepTime, copying, measured
from renorm.runtime.profile import Roofline

_SECONDS = 0.3  # for which the whole network is measured
COLUMNS = ("kernel", "median", "fastest", "share", "grid", "block", "shared", "registers", "GFLOP/s", "GB/s", "of copy")


def show(title: str, opened: Any, calls: Sequence[Mapping[str, Any]], repeats: int) -> output.Outcome:
    """Measure a module on the inputs of each call; print tables, and return what JSON has."""
    first: GpuModule = network.at(opened, calls[0])
    device = devices.device(first.program.machine.cpu, first.device_index)
    rows, told = list[tuple[Any, ...]](), list[tuple[Mapping[str, Any], dict[str, Any]]]()
    most: Roofline | None = None
    for inputs in calls:
        module: GpuModule = network.at(opened, inputs)
        times, runs = measured(module, **inputs, repeats=repeats)
        most = most or copying(device)
        total, run = sum(t.seconds for t in times), median(runs)
        whole = median(timed(partial(module.run, **inputs), _SECONDS)) / 1e3
        sums = f"{total * 1e6:.0f} us in all, {run * 1e6:.0f} us as a network, {whole * 1e6:.0f} us from the host"
        where = f" at {network.shapes_text(inputs)}" if len(calls) > 1 else ""
        shown = [row for t in times for row in _rows(t, total, most)]
        output.table(f"{title}{where}, {device.name}, us per launch, {sums}", COLUMNS, shown)
        rows.append((network.shapes_text(inputs), total * 1e6, run * 1e6, whole * 1e6))
        launches = [t.to_json(most) for t in times]
        seconds = {"seconds": total, "gpu_seconds": run, "network_seconds": whole}
        told.append((inputs, {**seconds, "launches": launches}))
    if len(calls) > 1:
        output.table("us of all kernels, and of the network", ("call", "kernels", "network", "from the host"), rows)
    if most:
        output.line(f"this GPU: copies {most.bytes / 1e9:.1f} GB/s")
    about = {"device": device.name, "arch": device.arch, "limits": {"bytes": most.bytes if most else None}}
    return output.Outcome(about | network.of_calls(told))


def _rows(t: GpuStepTime, total: float, most: Roofline | None) -> Iterator[tuple[Any, ...]]:
    """Give a row for a kernel, and behind it one for each of its launches where they are several."""
    speeds = (t.flops_per_second / 1e9, t.bytes_per_second / 1e9, f"{t.of_limit(most):.0%}" if most else "")
    times = (t.seconds * 1e6, t.fastest * 1e6, f"{t.seconds / (total or 1.0):.1%}")
    if t.is_external:
        yield (t.kernel, *times, "on the host", "", "", "", *speeds)
    elif len(t.launches) != 1:
        yield (t.kernel, *times, f"{len(t.launches)} launches", "", "", "", *speeds)
    for i, x in enumerate(t.launches if not t.is_external else ()):
        shape = (
            "x".join(map(str, x.grid)),
            "x".join(map(str, x.block)),
            x.shared,
            "" if x.registers is None else x.registers,
        )
        if len(t.launches) == 1:
            yield (t.kernel, *times, *shape, *speeds)
        else:
            share = f"{x.median / (total or 1.0):.1%}"
            yield (f"  {i + 1} of {len(t.launches)}", x.median * 1e6, x.fastest * 1e6, share, *shape, "", "", "")
