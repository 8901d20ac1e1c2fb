"""Seconds of calls that take turns: by events of the GPU, or by the clock where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.place import Place

TURNS, LEAST, MOST = 5, 5, 60  # calls in a turn: as fit into its share of the seconds, but 25 in all at least


def settle(place: Place) -> None:
    """Have PyTorch take float32 as it is, unless TF32 is measured, and let cuDNN choose by measuring."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = place.precision == "tf32"
    torch.backends.cudnn.benchmark = True


def side_by_side(place: Place, calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Return the seconds of each call, by contender. seconds: about how long each contender runs in all; every turn
    begins with one more call, which is not counted."""
    counts, turns, least = dict[str, int](), TURNS if place.is_gpu else 1, LEAST if place.is_gpu else 1
    for name, call in calls.items():
        once = median(_timed(place, call, least))
        counts[name] = max(least, min(MOST, int(seconds / turns / max(once, 1e-7))))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            found[name] += _timed(place, call, counts[name])
    return found


def _timed(place: Place, call: Callable[[], Any], count: int) -> list[float]:
    """Return the seconds of `count` calls. On a GPU the host runs ahead: what is measured is the GPU's time, or how
    fast the host gives it work, whichever is longer."""
    call()
    if not place.is_gpu:
        found = list[float]()
        for _ in range(count):
            begin = time.perf_counter()
            call()
            found.append(time.perf_counter() - begin)
        return found
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)]


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return what replays a call of PyTorch as a CUDA graph on the current stream."""
    graph = torch.cuda.CUDAGraph()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(aside)
    with torch.cuda.graph(graph):
        call()
    return graph.replay
