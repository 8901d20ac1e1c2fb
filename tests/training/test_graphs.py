"""Graphs that another process compiles: the same modules, whatever becomes of that process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import renorm
from renorm import ops
from renorm.graph import registry
from renorm.graph.ir import Graph
from renorm.training import background, graphs

pytestmark = pytest.mark.usefixtures("kept_code")


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[background.Several]:
    """Processes of this test, which it may end."""
    made = background.Several()
    monkeypatch.setattr(graphs, "SEVERAL", made)
    yield made
    for one in made.all:
        one._lose()


def running(own: background.Several) -> list[Any]:
    return [b._process for b in own.all if b._process is not None]


def block(n: int = 2, channels: int = 5) -> Graph:
    """Convolution, batch norm, and a sum with constants that are too many to be written out."""
    graph, draw = Graph("block"), np.random.default_rng(n)
    held = [
        graph.constant(draw.uniform(0.5, 1.5, size).astype(np.float32), f"c{i}")
        for i, size in enumerate([(channels, 3, 1, 1), *[(channels,)] * 4, (1, channels, 1, 1)])
    ]
    y = ops.conv(graph.input("x", "float32", (n, 3, 7, 6)), held[0])
    graph.outputs = [ops.add(ops.batch_norm(y, *held[1:5]), held[5])]
    return graph


def test_another_process_makes_the_same_module(own: background.Several) -> None:
    request = graphs.asked(block(), {"opt_level": 2})
    assert request is not None
    assert len(running(own)) == 1
    made = graphs.module(request, 1)
    assert made is not None
    x = np.random.default_rng(0).normal(size=(2, 3, 7, 6)).astype(np.float32)
    np.testing.assert_array_equal(made.run(x)[0], renorm.compile(block(), opt_level=2).run(x)[0])
    assert made.threads == 1
    assert not running(own)  # nobody waits for more
    again = graphs.asked(block(3), {})
    assert again is not None
    assert graphs.module(again, 1) is not None


def test_nobody_waits_for_a_pipe_that_is_full(own: background.Several) -> None:
    """Requests, and answers that nobody takes, of which there are more than a pipe holds."""
    requests = [graphs.asked(block(n, channels=900), {}) for n in range(1, 13)]
    assert sum(len(r[1][0]) for r in requests if r) > 4 * background._AHEAD
    for n, request in enumerate(requests, 1):
        assert request is not None
        made = graphs.module(request, 1)
        assert made is not None
        assert made.inputs[0].shape == (n, 3, 7, 6)


def test_requests_are_shared(own: background.Several, monkeypatch: pytest.MonkeyPatch) -> None:
    """By as many processes as there are cores, each of which ends when nobody waits for more of it."""
    monkeypatch.setattr(background.threads, "working", lambda threads: min(threads, 3))
    requests = [graphs.asked(block(n), {}) for n in range(1, 10)]
    assert len(running(own)) == 3
    found = [graphs.module(r, 1) for r in reversed(requests) if r is not None]
    assert [m.inputs[0].shape[0] for m in found if m is not None] == [*range(9, 0, -1)]
    assert not running(own)
    assert background.finish(own.all, 0.0)


def test_one_of_them_dies(own: background.Several, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background.threads, "working", lambda threads: min(threads, 2))
    requests = [graphs.asked(block(n), {}) for n in range(1, 9)]
    first, second = running(own)
    first.kill()
    made = [graphs.module(r, 1) is not None for r in requests if r is not None]
    assert len(made) == 8
    assert any(made)
    assert second.poll() is not None


def test_the_environment_is_that_of_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    fates = list[tuple[str, str]]()
    for keep in ("", "batch_norm"):
        monkeypatch.setenv("RENORM_KEEP", keep)
        request = graphs.asked(block(), {})
        assert request is not None
        made = graphs.module(request, 1)
        assert made is not None
        fates += [(n.fate, m.fate) for n, m in zip(made.report.norms, renorm.compile(block()).report.norms)]
    assert fates == [("folded", "folded"), ("unit", "unit")]


def test_what_only_this_process_can(monkeypatch: pytest.MonkeyPatch) -> None:
    assert graphs.asked(block(), {"progress": print}) is None
    registry.override("conv", target="llvm", fusion=registry.Fusion.OPAQUE)
    try:
        assert graphs.asked(block(), {}) is None
    finally:
        registry.override("conv", target="llvm")


@pytest.mark.parametrize("why", ["none to start", "died", "an error there"])
def test_no_module_is_lost(why: str, own: background.Several, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"opt_level": 7} if why == "an error there" else {}
    if why == "none to start":
        monkeypatch.setattr("sys.executable", "")
    request = graphs.asked(block(), options)
    assert request is not None
    if why == "died":
        running(own)[0].kill()
    made = graphs.module(request, 1)  # None: it is compiled here; where one process died, another one may do so
    assert made is None or (why == "died" and made.inputs[0].shape == (2, 3, 7, 6))
