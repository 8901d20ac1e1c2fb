"""Kernels from the cache: what is found there is what would have been made, and nothing else is ever found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.driver.random_networks import network
from tests.random_numbers import RNG

import renorm
from renorm import te
from renorm.codegen import llvm, structural_hash
from renorm.core import target as targets
from renorm.driver import cache as caches
from renorm.driver import compile as compiling
from renorm.driver import groups, kernels
from renorm.driver.cache import Cache
from renorm.driver.lowering import lower_group
from renorm.graph import registry
from renorm.graph.attributes import Float
from renorm.graph.ir import Graph
from renorm.graph.op import ELEMENTWISE, OpDef
from renorm.ops import schedules

ROOT = Path(__file__).parents[2]
HOST = targets.parse("llvm")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache of the test's own, switched on."""
    monkeypatch.setenv(caches.SWITCH, "1")
    monkeypatch.setenv(caches.DIRECTORY, str(tmp_path / "cache"))
    monkeypatch.setattr(kernels, "_SOURCES", "sources")  # also while somebody edits them
    monkeypatch.setattr(structural_hash, "SOURCES", "sources")
    return caches.default()


def small(seed: int = 0, channels: int = 6, slope: float = 0.1) -> Graph:
    """Two equal convolutions, one that is not, and a norm."""
    rng = np.random.default_rng(seed)

    def array(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    g = Graph("small")
    y = g.input("x", "float32", (2, channels, 9, 8))
    for i in range(2):
        y = renorm.ops.conv(y, array(channels, channels, 3, 3), array(channels), pads=(1, 1, 1, 1), name=f"c{i}")
        y = renorm.ops.leaky_relu(y, alpha=slope)
    y = renorm.ops.instance_norm(y, array(channels), array(channels))
    g.outputs = [renorm.ops.conv(y, array(4, channels, 1, 1), strides=(2, 2))]
    return g


def run(m: Any, seed: int = 3) -> bytes:
    x = np.random.default_rng(seed).normal(size=m.inputs[0].shape).astype(np.float32)
    return m.run(x)[0].tobytes()


def fresh(g: Graph, **options: Any) -> Any:
    """Compiled without the cache."""
    with mock.patch.dict("os.environ", {caches.SWITCH: "0"}):
        return renorm.compile(g, **options)


def lowered(act: Callable[[], Any]) -> int:
    """How many groups are lowered meanwhile."""
    with mock.patch.object(kernels, "lower_group", side_effect=lower_group) as spy:
        act()
    return spy.call_count


def test_what_comes_from_the_cache_is_what_was_made(cache: Cache) -> None:
    reference = fresh(small())
    first, second = renorm.compile(small()), renorm.compile(small())
    assert first.report.code.compiled == first.report.code.unique > 2
    assert (second.report.code.compiled, second.report.code.processes) == (0, 0)
    assert second.report.code.cache == str(cache.root)
    assert run(first) == run(second) == run(reference)
    assert lowered(lambda: renorm.compile(small())) == 0
    for k in reference.report.kernels:
        texts = [m.kernel(k.name) for m in (reference, first, second)]
        assert len({(t.loops, t.llvm, t.asm) for t in texts}) == 1
    assert first.report.kernels == second.report.kernels


def test_equal_groups_are_lowered_once_without_a_cache_too() -> None:
    m = renorm.compile(small())
    assert len(m.report.kernels) > m.report.code.unique
    assert m.report.code.cache.startswith("off: ")
    assert lowered(lambda: renorm.compile(small())) == m.report.code.unique


@pytest.mark.usefixtures("cache")
def test_weights_are_no_part_of_it_and_numbers_in_the_code_are() -> None:
    renorm.compile(small())
    others = renorm.compile(small(seed=7))
    assert others.report.code.compiled == 0
    assert run(others) == run(fresh(small(seed=7)))
    steeper = renorm.compile(small(slope=0.3))
    assert steeper.report.code.compiled > 0
    assert run(steeper) == run(fresh(small(slope=0.3)))
    assert renorm.compile(small(channels=5)).report.code.compiled > 0


@pytest.mark.usefixtures("cache")
def test_scalar_constants_are_part_of_it() -> None:
    def scaled(by: float) -> Graph:
        g = Graph("scaled")
        g.outputs = [renorm.ops.mul(g.input("x", "float32", (3, 50)), np.float32(by))]
        return g

    results = {run(renorm.compile(scaled(by))) for by in (2.0, -2.0, 0.0, -0.0)}
    assert results == {run(fresh(scaled(by))) for by in (2.0, -2.0, 0.0, -0.0)}
    assert len(results) == 4


@pytest.mark.usefixtures("cache")
def test_other_targets_and_versions_find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(target: str = "llvm -mcpu=haswell") -> tuple[int, int]:
        counts = list[int]()
        calls = lowered(lambda: counts.append(renorm.compile(small(), target=target).report.code.compiled))
        return calls, counts[0]

    all_of_them = compiled()
    assert all_of_them[0] == all_of_them[1] > 0
    assert compiled() == (0, 0)
    assert compiled("llvm -mcpu=haswell -mattr=-bmi") == all_of_them
    with monkeypatch.context() as patch:
        patch.setattr(np, "__version__", "0")
        assert compiled() == (all_of_them[0], 0)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "_SOURCES", "an op or a schedule has changed")
        assert compiled() == (all_of_them[0], 0)  # the loops are made again: code for the same loops is there
    with monkeypatch.context() as patch:
        patch.setattr(structural_hash, "SOURCES", "the code generator has changed")
        patch.setattr(kernels, "_SOURCES", "and so has the sum of all")
        assert compiled() == all_of_them
    assert compiled() == (0, 0)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "_SOURCES", "")  # not known
        assert compiled()[1] == all_of_them[1]


@pytest.mark.usefixtures("cache")
def test_what_a_user_puts_in_place_of_an_op_is_never_missed() -> None:
    plain = fresh(small())
    renorm.compile(small())
    try:
        for factor in (2.0, 3.0):  # the same function, by its name and place

            def compute(op: Any, x: te.Tensor, factor: float = factor) -> te.Tensor:
                return te.compute(x.shape, lambda *i: x[i] * factor, name="y", tag="elemwise")

            registry.override("leaky_relu", target="llvm", compute=compute)
            first, second = renorm.compile(small()), renorm.compile(small())
            assert run(first) == run(second) == run(fresh(small())) != run(plain)
            assert any(f"*{factor:g}f" in first.kernel(k.name).loops for k in first.report.kernels)
    finally:
        registry.override("leaky_relu", target="llvm")
    again = renorm.compile(small())
    assert run(again) == run(plain)
    assert again.report.code.compiled == 0


class Twice(OpDef):
    """y = 2 * x, or whatever `factor` says"""

    signature = "x: T[*S] -> y: T[*S]"
    types = {"T": ("float32",)}
    fusion = ELEMENTWISE
    unused = Float(0.0)
    factor = 2.0

    def compute(self, x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: x[i] * Twice.factor, name="twice", tag="elemwise")

    def schedule(self, s: te.Schedule, outs: Any, target: Any) -> None:
        schedules.injective(s, outs, target)


@pytest.mark.usefixtures("cache")
def test_ops_of_a_user_are_lowered_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled() -> Graph:
        g = Graph("doubled")
        g.outputs = [Twice()(g.input("x", "float32", (5, 3)))]
        return g

    for factor in (2.0, 5.0, 2.0):
        monkeypatch.setattr(Twice, "factor", factor)
        (y,) = renorm.compile(doubled()).run(np.ones((5, 3), np.float32))
        assert np.array_equal(y, np.full((5, 3), factor, np.float32))
    assert renorm.compile(doubled()).report.code.compiled == 0  # loops that were compiled before


@pytest.mark.usefixtures("cache")
def test_texts_that_are_no_longer_those_of_the_code_are_refused() -> None:
    renorm.compile(small())
    cached = renorm.compile(small())
    name = next(k.name for k in cached.report.kernels if "leaky_relu" in k.name)
    try:
        registry.override(
            "leaky_relu",
            target="llvm",
            compute=lambda op, x: te.compute(x.shape, lambda *i: x[i] + 1.0, name="y", tag="elemwise"),
        )
        with pytest.raises(renorm.errors.InvalidInput, match="not that of its code any more"):
            _ = cached.kernel(name).loops
    finally:
        registry.override("leaky_relu", target="llvm")
    assert cached.kernel(name).loops.startswith("kernel ")


def test_damaged_and_missing_entries_are_made_again(cache: Cache) -> None:
    assert cache.root is not None
    good = run(renorm.compile(small()))
    files = [p for p in cache.root.rglob("*") if p.is_file()]
    for act in (
        lambda p: p.write_bytes(p.read_bytes()[: RNG.integers(200)]),
        lambda p: p.write_bytes(RNG.bytes(300)),
        Path.unlink,
        lambda p: p.unlink() if RNG.integers(2) else None,
    ):
        for p in files:
            act(p)
        assert run(renorm.compile(small())) == good
        assert renorm.compile(small()).report.code.compiled == 0


def test_a_cache_that_is_too_small_is_no_failure(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(caches.SIZE, "0")
    assert run(renorm.compile(small())) == run(renorm.compile(small())) == run(fresh(small()))
    assert cache.usage().entries == 0


SCRIPT = """
import sys, numpy as np, renorm
m = renorm.compile(sys.argv[1], shapes={"pixels": (2, 1, 8, 8)}, threads=1)
x = np.random.default_rng(0).normal(size=m.inputs[0].shape).astype(np.float32)
print(m.run(x)[0].tobytes().hex())
"""


def test_processes_that_compile_at_once(cache: Cache) -> None:
    command = [sys.executable, "-c", SCRIPT, str(ROOT / "examples" / "digits" / "model.onnx")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    results = {p.communicate(timeout=100)[0] for p in running}
    with mock.patch.dict("os.environ", {caches.SWITCH: "0"}):
        alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert results == {alone}


def lowerings(g: Graph) -> list[tuple[str | None, groups.Lowering, groups.KernelCall]]:
    """Key and Lowering of each group of an optimised graph, and what lowering gave."""
    graph, _ = compiling.optimized(g, {}, compiling.Options(HOST, 3, (), False))
    users, found = graph.user_map(), []
    for group in graph.groups:
        made = lower_group(graph, group, HOST, users)
        call = groups.KernelCall(group.name, made.reads, made.writes, made.work)
        what = groups.Lowering.of(graph, group, llvm.structure(made.kernel, HOST), made)
        assert groups.Lowering.decode(what.encode()).call(graph, group) == call
        found.append((groups.group_key(graph, group, HOST, users), what, call))
    return found


@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 60), marks=pytest.mark.exhaustive)])
def test_groups_of_equal_key_have_equal_kernels(seeds: range) -> None:
    known: dict[str, groups.Lowering] = {}
    repeated = 0
    for seed in seeds:
        n = network(seed)
        g = renorm.read(n.model, shapes={name: a.shape for name, a in n.feeds.items()})
        sizes = {s: size for v, a in zip(g.inputs, n.feeds.values()) for s, size in _sizes(v.shape, a.shape)}
        for key, what, _ in lowerings(g.copy(sizes)):
            assert key is not None
            repeated += key in known
            assert known.setdefault(key, what) == what
    assert repeated > len(seeds) // 6
    assert len(known) > 4 * len(seeds)


def _sizes(shape: Any, given: tuple[int, ...]) -> list[tuple[str, int]]:
    return [(s, size) for d, size in zip(shape, given) if not isinstance(d, int) for s in d.symbols()]
