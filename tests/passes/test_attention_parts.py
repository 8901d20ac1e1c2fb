"""On GPUs attention of many scores is cut into parts, whose scores share memory: the same numbers, in less of it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler

import renorm
from renorm.core.target import Target, parse
from renorm.driver.module import CompiledGpuModule
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.ops.attention import Attention
from renorm.passes import attention_parts, split_variadic
from renorm.passes.attention_parts import MOST, TILE, part
from renorm.passes.pipeline import optimize

GPU = parse("cuda -arch=sm_90")

# queries, keys, mask, and into which parts 64 KiB of scores cut them
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None, list[tuple[int, ...]]]] = {
    "heads": ((1, 4, 90, 8), (1, 4, 70, 8), None, [(1, 2, 90, 8)] * 2),
    "heads of two": ((2, 5, 64, 8), (2, 5, 100, 8), (5, 64, 100), [(2, 1, 64, 8)] * 5),
    "an odd number": ((5, 64, 8), (5, 100, 8), (5, 1, 100), [(2, 64, 8), (2, 64, 8), (1, 64, 8)]),
    "queries": ((300, 8), (100, 8), (300, 100), [(128, 8), (128, 8), (44, 8)]),
    "keys for several heads": ((1, 4, 130, 8), (1, 2, 70, 8), (1, 1, 130, 70), [(1, 4, 64, 8)] * 2 + [(1, 4, 2, 8)]),
    "one key for all": ((4, 90, 8), (1, 70, 8), (90, 1), [(2, 90, 8)] * 2),
    "few scores": ((2, 3, 30, 8), (2, 3, 30, 8), None, [(2, 3, 30, 8)]),
}


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_parts, "MOST", 64 << 10)


def network(q: tuple[int, ...], k: tuple[int, ...], mask: tuple[int, ...] | None, **attributes: Any) -> Graph:
    g = Graph("one")
    shapes = {"q": q, "k": k, "v": (*k[:-1], 5)} | ({} if mask is None else {"mask": mask})
    y = Attention(scale=0.3, **attributes)(*(g.input(name, "float32", shape) for name, shape in shapes.items()))
    g.outputs = [y]
    return g


def inputs(g: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {v.name: rng.standard_normal([int(str(e)) for e in v.shape]).astype(np.float32) for v in g.inputs}


def parts_of(g: Graph) -> list[tuple[Any, ...]]:
    return [n.inputs[0].shape for n in g.nodes if isinstance(n.op, Attention) and n.inputs[0] is not None]


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("case", CASES)
def test_parts_make_the_same(case: str, level: int) -> None:
    q, k, mask, parts = CASES[case]
    given = inputs(network(q, k, mask))
    expected = interpret.run(network(q, k, mask), given)
    g, _ = optimize(network(q, k, mask), level=level, target=GPU)
    assert parts_of(g) == parts
    for a, b in zip(interpret.run(g, given), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    cpu, _ = optimize(network(q, k, mask), level=level, target=Target())
    assert parts_of(cpu) == [q]


@pytest.mark.usefixtures("little")
def test_what_attends_to_itself() -> None:
    """One value is queries, keys and values; its parts are many."""
    x = np.random.default_rng(0).standard_normal((2, 40 * TILE, 4)).astype(np.float32)

    def network() -> Graph:
        g = Graph("itself")
        y = g.input("x", "float32", x.shape)
        g.outputs = [Attention()(y, y, y)]
        return g

    g, _ = optimize(network(), target=GPU)
    assert parts_of(g) == [(2, TILE, 4)] * 40
    assert max(len(n.inputs) for n in g.nodes) <= split_variadic.MOST
    np.testing.assert_allclose(interpret.run(g, {"x": x})[0], interpret.run(network(), {"x": x})[0], rtol=1e-12)


@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_parts_share_memory(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as CUDA C on the CPU."""
    host_device.register()
    q, k, mask, parts = CASES[case]
    g = network(q, k, mask, empty_is_zero=True)
    given, target = inputs(g), "cuda -arch=host"
    whole = renorm.compile(g, target=target)
    assert isinstance(whole, CompiledGpuModule)
    monkeypatch.setattr(attention_parts, "MOST", 64 << 10)
    cut = renorm.compile(network(q, k, mask, empty_is_zero=True), target=target)
    assert isinstance(cut, CompiledGpuModule)
    (expected,) = interpret.run(g, given)
    for m in (whole, cut):
        np.testing.assert_allclose(m.run(**given)[0], expected, rtol=1e-4, atol=1e-5)
    scores, of_part = (4 * k[-2] * n for n in (prod(q[:-1]), max(prod(p[:-1]) for p in parts)))
    besides = 4 * expected.size + 4096  # results of parts, which lie apart; what is rounded to lines
    assert whole.program.arena_bytes >= scores
    assert cut.program.arena_bytes <= whole.program.arena_bytes - scores + of_part + besides


extents = st.integers(1, 1 << 15)


@given(st.lists(st.integers(1, 40), max_size=2), extents, extents, st.data())
def test_parts_fit(lead: list[int], rows: int, keys: int, data: st.DataObject) -> None:
    held = [data.draw(st.sampled_from([1, n] + [d for d in range(2, n) if n % d == 0])) for n in lead]
    queries = (*lead, rows, 8)
    axis, step = part(queries, (*held, keys, 8), 4)
    assert 1 <= step <= queries[axis]
    assert axis == len(lead) or held[axis] in (1, lead[axis])
    of_one = 4 * keys * prod(queries[:-1]) // queries[axis]
    if of_one * queries[axis] <= MOST:
        assert step == queries[axis]
    else:
        assert of_one * step <= MOST or (axis == len(lead) and step <= TILE)
