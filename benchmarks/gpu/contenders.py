"""A subject compiled by renorm, beside eager PyTorch and its CUDA graph: right, how fast, and in how much memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.deviation import largest
from benchmarks.gpu.place import Place
from benchmarks.gpu.subjects import Compiled, compiled
from benchmarks.gpu.timing import captured, settle, side_by_side
from benchmarks.gpu.workers import said


def prepared(place: Place, kind: str, name: str, batches: Sequence[int] = (0,)) -> dict[str, Any]:
    """Compile a subject, so that this process has it when its turn comes to be measured. Leaves the GPU alone."""
    return {"seconds": round(sum(compiled(place, kind, name, batch).seconds for batch in batches), 2)}


def checked(place: Place, kind: str, name: str, batch: int = 0) -> dict[str, Any]:
    """Return how far a subject's outputs are from PyTorch's in float64, relative to the largest output."""
    settle(place)
    c = compiled(place, kind, name, batch)
    inputs = [x.to(place.device) for x in c.inputs]
    with torch.no_grad():
        net = copy.deepcopy(c.module).to(place.device)
        wanted = _tensors(copy.deepcopy(net).double()(*(x.double() for x in inputs)))
        eager = _tensors(_eager(place, net)(*inputs))
        outs = [torch.full_like(y, torch.nan) for y in eager]
        _call(place, c, inputs, outs)()
        _wait(place)
    return {
        **_about(c),
        "error": largest(outs, wanted),
        "eager_error": largest(eager, wanted),
        "tolerance": place.tolerance,
    }


def measured(place: Place, kind: str, name: str, batch: int, seconds: float, kernels: int = 0) -> dict[str, Any]:
    """Return `checked`, and seconds and bytes of each contender. seconds: that each runs. kernels: how many of renorm's
    to list, the longest first. What one contender raises is said in "failures", and the others are measured."""
    found = checked(place, kind, name, batch)
    c = compiled(place, kind, name, batch)
    inputs, failures = [x.to(place.device) for x in c.inputs], dict[str, str]()
    with torch.no_grad():
        before = _allocated(place)
        net = copy.deepcopy(c.module).to(place.device)
        outs = [torch.empty_like(y) for y in _tensors(net(*inputs))]
        eager = partial(_eager(place, net), *inputs)
        found["bytes"] = {"renorm": getattr(c.renorm, "device_bytes", None), "eager": _peak(place, eager, before)}
        calls: dict[str, Callable[[], Any]] = {"renorm": _call(place, c, inputs, outs), "eager": eager}
        if place.is_gpu:
            try:
                calls["graph"] = captured(eager)
            except Exception as error:
                failures["graph"] = said(error)
                _wait(place)
        times = side_by_side(place, calls, seconds)
    found["ms"] = {k: spread(v) for k, v in times.items()}
    if kernels and hasattr(c.renorm, "kernel_times"):
        try:
            found["kernels"] = _kernels(c, kernels)
        except Exception as error:
            failures["kernels"] = said(error)
    return {**found, **({"failures": failures} if failures else {})}


def _eager(place: Place, net: nn.Module) -> Callable[..., Any]:
    """Return PyTorch's way to run a module in this precision. Autocast's cache of weights belongs to no CUDA graph."""
    if place.precision != "bfloat16":
        return net

    def run(*inputs: Tensor) -> Any:
        with torch.autocast(place.device, torch.bfloat16, cache_enabled=False):
            return net(*inputs)

    return run


def _about(c: Compiled) -> dict[str, Any]:
    return {"compile_seconds": round(c.seconds, 2), "read_from": c.read_from, "launches": len(c.renorm.report.kernels)}


def _call(place: Place, c: Compiled, inputs: Sequence[Tensor], outs: Sequence[Tensor]) -> Callable[[], Any]:
    """Return a run of renorm into given tensors, on PyTorch's current stream."""
    if place.is_gpu:
        stream = torch.cuda.current_stream().cuda_stream
        return lambda: c.renorm.run(*inputs, out=list(outs), stream=stream)
    given, into = [x.numpy() for x in inputs], [y.numpy() for y in outs]
    return lambda: c.renorm.run(*given, out=into)


def _tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def _wait(place: Place) -> None:
    if place.is_gpu:
        torch.cuda.synchronize()


def _allocated(place: Place) -> int:
    if not place.is_gpu:
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def _peak(place: Place, call: Callable[[], Any], before: int) -> int | None:
    """Return the bytes that a call of PyTorch needs at most, with what was allocated since `before`: its weights."""
    if not place.is_gpu:
        return None
    for _ in range(3):  # cuDNN tries algorithms, whose workspaces do not count
        call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return milliseconds: the median, and between which lie eight of ten."""
    ordered = sorted(s * 1e3 for s in seconds)
    tenth = len(ordered) // 10
    low, high = ordered[tenth], ordered[-1 - tenth]
    return {"median": round(median(ordered), 5), "p10": round(low, 5), "p90": round(high, 5)}


def _kernels(c: Compiled, most: int) -> dict[str, Any]:
    """Return the kernels that take longest: their microseconds, all launches of each together, and what they must do at
    least."""
    times: list[tuple[str, float]] = c.renorm.kernel_times(*(x.numpy() for x in c.inputs))
    records = groupby(c.renorm.report.kernels, lambda k: k.name)
    launches = groupby(times, lambda launch: launch[0])
    found = list[dict[str, Any]]()
    for (name, alike), (launched, seconds) in zip(records, launches, strict=True):
        own, took = list(alike), [s * 1e6 for _, s in seconds]
        if name != launched or len(took) % len(own):
            raise ValueError(f"{len(own)} kernels {name}, but {len(took)} launches of {launched}")
        each = len(took) // len(own)
        for i, record in enumerate(own):
            us = round(sum(took[i * each : (i + 1) * each]), 2)
            found.append({"kernel": name, "us": us, "launches": each, **asdict(record.work)})
    longest = sorted(found, key=lambda k: -k["us"])[:most]
    us = round(sum(s for _, s in times) * 1e6, 1)
    return {"kernels": len(found), "launches": len(times), "us": us, "longest": longest}
