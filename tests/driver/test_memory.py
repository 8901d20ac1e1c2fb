"""Memory of whole networks: arenas at their lower bound, and nothing read that the program does not say is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.driver.random_networks import network

import renorm
from renorm.driver import barriers
from renorm.driver.barriers import BoundKernel
from renorm.graph.strided_region import StridedRegion
from renorm.runtime.arrays import address
from renorm.runtime.table import Context


def run_poisoned(m: Any, launches: list[BoundKernel], feeds: dict[str, Any]) -> list[Any]:
    """Runs step by step; before each, what no later step reads before it is written is NaN in the arena."""
    inputs = [np.ascontiguousarray(feeds[v.name]) for v in m.inputs]
    results = [
        np.full(v.shape, np.nan, v.dtype) if v.dtype[0] == "f" else np.zeros(v.shape, v.dtype) for v in m.outputs
    ]
    context = Context(m._only.launches, m._weights.address, 1)
    context.bases[:] = [address(a) for a in (*inputs, *results)]
    alive = [np.zeros(m.program.arena_bytes, bool)]
    for launch in reversed(launches):
        before = alive[0].copy()
        for phase in reversed(launch.kernel.accesses):
            for arguments, needed in ((phase.writes, False), (phase.reads, True)):
                for k in arguments:
                    at, region = launch.operands[k].at, launch.operands[k].region
                    assert isinstance(region, StridedRegion)
                    for begin in region.begins if at.kind == "arena" else ():
                        before[at.at + begin : at.at + begin + region.run] = needed
        alive.insert(0, before)
    for step in range(len(launches)):
        context.arena.array[~alive[step]] = 0xFF  # a NaN in every floating dtype
        context.limit(*m._only.launches.steps[step : step + 2])
        m._team.run(context.address)
    return results


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, list[BoundKernel]]]:
    """(model, shapes, level) -> the module for one thread, and its launches."""
    seen = list[list[BoundKernel]]()
    waits = barriers.waits
    monkeypatch.setattr(barriers, "waits", lambda launches, lives: seen.append(launches) or waits(launches, lives))

    def compiled(model: Any, feeds: dict[str, Any], level: int) -> tuple[Any, list[BoundKernel]]:
        shapes = {name: a.shape for name, a in feeds.items()}
        return renorm.compile(model, opt_level=level, threads=1, shapes=shapes), seen[-1]

    return compiled


@pytest.mark.parametrize(
    "seed", [*range(200, 216), *(pytest.param(s, marks=pytest.mark.exhaustive) for s in range(216, 300))]
)
def test_dead_bytes_are_never_read(seed: int, compiled: Callable[..., tuple[Any, list[BoundKernel]]]) -> None:
    n = network(seed)
    m, launches = compiled(n.model, n.feeds, seed % 4)
    expected = m.run(**n.feeds)
    assert len(launches) == len(m.program.steps)
    for ours, theirs in zip(run_poisoned(m, launches, n.feeds), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
