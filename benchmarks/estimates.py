"""Estimated beside measured time of convolutions, by every algorithm that computes them: what core.machine is worth.

A network of equal convolutions, more weights than caches hold, is compiled once for each way; a convolution of it runs
as in any network, with weights from memory and data from a cache. Estimates are in products of vectors; what one takes
in nanoseconds is the median over all ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

import renorm
from renorm import ops
from renorm.graph.ir import Graph, Node
from renorm.ops.conv import Conv
from renorm.passes import algorithms
from renorm.passes.algorithms import TILED, ChooseAlgorithms, Way, convolution_of
from renorm.passes.context import Context
from renorm.runtime.module import Module
from renorm.runtime.profile import profile
from renorm.targets import find

LAYERS = ((64, 56, 6), (128, 28, 8), (256, 14, 10), (512, 7, 7))  # channels, rows and columns, how many of them
TILES = ((2, 2), (3, 3), (4, 4), (2, 1), (4, 1))
_REPEATS = 25


@dataclass(frozen=True)
class Measured:
    """tile: () directly. before: whether weights are transformed before. estimate: products of vectors, on one core."""

    channels: int
    pixels: int
    tile: tuple[int, ...]
    before: bool
    estimate: float
    microseconds: float


def measure(target: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return each way of each layer, and how well estimates agree, on one thread."""
    found = list[Measured]()
    for channels, extent, count in LAYERS:
        for way in _of(channels, extent, count, target):
            tell(f"{channels} channels, {extent}x{extent}, {way.tile or 'directly'}: {way.microseconds:.0f} us")
            found.append(way)
    estimates, times = (np.array([getattr(m, what) for m in found]) for what in ("estimate", "microseconds"))
    unit = median(times / estimates)
    taken = [_taken([m for m in found if m.channels == channels]) for channels, *_ in LAYERS]
    return {
        "target": target,
        "ways": [asdict(m) for m in found],
        "nanoseconds of a product": unit * 1e3,
        "rank correlation": float(np.corrcoef(_ranks(estimates), _ranks(times))[0, 1]),
        "median error": float(np.median(np.abs(estimates * unit / times - 1))),
        "chosen over fastest": taken,
    }


def _of(channels: int, extent: int, count: int, target: str) -> Iterator[Measured]:
    x = np.random.default_rng(0).standard_normal((1, channels, extent, extent)).astype(np.float32)
    graph, node = _network(channels, extent, count)
    context = Context(target=find(target))
    direct, _, costs = algorithms._costs(  # pyright: ignore[reportPrivateUsage] - what is measured here
        node.op, (extent, extent), (3, 3), convolution_of(node, context), context.target
    )
    ways: dict[Way | None, float] = {None: direct, **{w: cost for w, cost in costs.items() if w.op.tile in TILES}}
    for way, estimate in ways.items():

        def plan(self: ChooseAlgorithms, graph: Graph, context: Context, way: Way | None = way) -> dict[Node, Way]:
            return {n: way for n in graph.nodes if isinstance(n.op, tuple(TILED))} if way else {}

        with patch.object(ChooseAlgorithms, "plan", plan):
            module = renorm.compile(graph, target=target, threads=1)
        assert isinstance(module, Module)
        times = [t.fastest for t in profile(module, x, repeats=_REPEATS)][1:-1]  # the first and last turn their data
        tile, before = (way.op.tile, not way.transforms_weights) if way else ((), False)
        yield Measured(channels, extent, tuple(tile), before, estimate, median(times) * 1e6)


def _network(channels: int, extent: int, count: int) -> tuple[Graph, Node]:
    """Equal convolutions in a row, each with weights of its own, and one of them."""
    graph, rng = Graph("convolutions"), np.random.default_rng(0)
    y = graph.input("x", "float32", (1, channels, extent, extent))
    for i in range(count):
        weights = rng.standard_normal((channels, channels, 3, 3)).astype(np.float32) / channels
        y = ops.relu(ops.conv(y, graph.constant(weights, f"w{i}"), pads=(1, 1, 1, 1)))
    graph.outputs = [y]
    return graph, next(n for n in graph.nodes if isinstance(n.op, Conv))


def _taken(ways: list[Measured]) -> float:
    """Return the time of the way that estimates prefer over that of the fastest."""
    chosen = min(ways, key=lambda m: m.estimate)
    return chosen.microseconds / min(m.microseconds for m in ways)


def _ranks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.argsort(np.argsort(values))
