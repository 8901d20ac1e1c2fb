"""A replay sees what changed, and nothing where nothing did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.replay import compare, record, subjects
from benchmarks.replay.digests import KernelDigest, Program, network, single
from tests.ops.one_node import OneNode

import renorm
from renorm import ops, te
from renorm.driver.cache import Cache
from renorm.graph import registry
from renorm.graph.ir import Graph
from renorm.targets import find

TARGETS = {name: find(text) for name, text in record.TARGETS.items()}


def graph(channels: int = 16, scale: float = 0.5) -> Graph:
    g = Graph("net")
    x = g.input("x", "float32", (1, 5, 9, 7))
    w = g.constant(np.full((channels, 5, 3, 3), scale, np.float32), "w")
    g.outputs = [ops.softmax(ops.relu(ops.conv(x, w)))]
    return g


@pytest.mark.parametrize("target", TARGETS)
def test_equal_graphs_give_equal_digests_and_others_do_not(target: str) -> None:
    first, again, wider, scaled = (
        network(g, TARGETS[target], 3, Cache(None)) for g in (graph(), graph(), graph(channels=32), graph(scale=2.0))
    )
    assert not first.error
    assert first == again
    assert all(k.loops and k.code for k in first.kernels.values())
    assert [k.code for k in wider.kernels.values()] != [k.code for k in first.kernels.values()]
    if target != "cuda":  # of which there are texts alone
        assert first.arena > 0
        assert first.constants != scaled.constants
        assert first.kernels == scaled.kernels


def test_another_schedule_shows_in_loops_and_code() -> None:
    def plain(s: te.Schedule, outs: list[te.Tensor], target: renorm.Target) -> te.Schedule:
        return te.create_schedule([o.op for o in outs])

    op = next(op for op in registry.all_ops() if op.name == "softmax")
    source = OneNode(op, op.samples[0]).graph
    before = network(source, TARGETS["avx2"], 0, Cache(None))
    renorm.override("softmax", target="llvm", schedule=plain)
    try:
        after = network(source, TARGETS["avx2"], 0, Cache(None))
    finally:
        renorm.override("softmax", target="llvm")
    found, *rest = compare.differences({"p": before}, {"p": after})
    assert {d.what for d in rest} <= {"arena", "plan"}  # stages that are no longer inlined
    assert found.what == "kernel softmax"
    assert found.said.startswith("loops and code changed, nanoseconds ")


def test_every_kind_of_difference_is_told() -> None:
    kernel = KernelDigest("l", "c", 0, 1000, "a b")
    old = Program(
        {"f": kernel, "g": KernelDigest("m", "d", nodes="c")}, {"v": "blocked(1, 8)"}, {"n": "folded"}, arena=64
    )
    new = Program(
        {"f_1": replace(kernel, code="e", spills=2), "h": KernelDigest("m", "d", nodes="z")},
        {},
        {"n": "kept"},
        arena=1280,
    )
    old_programs, new_programs = {"p": old, "q": old, "same": old}, {"p": new, "r": new, "same": old}
    found = compare.differences(old_programs, new_programs)
    assert [(d.program, d.what, d.said) for d in found] == [
        ("p", "kernel f_1", "code changed, name f -> f_1, spills 0 -> 2"),
        ("p", "kernel g", "gone: c"),
        ("p", "kernel h", "new: z"),
        ("p", "layout of v", "blocked(1, 8) -> none"),
        ("p", "norm n", "folded -> kept"),
        ("p", "arena", "64 -> 1,280"),
        ("q", "program", "gone"),
        ("r", "program", "new"),
    ]
    lines = list(compare.lines(found, old_programs, new_programs))
    assert lines[0] == "p"
    assert lines[-1] == "3 of 4 programs differ; of 4 kernels 3 have the same loops, 2 have the same code"


def test_a_record_is_what_was_written(tmp_path: Path) -> None:
    made = {"avx2: net": network(graph(), TARGETS["avx2"], 3, None), "empty": Program(error="InvalidTarget: none")}
    record.write(tmp_path / "found.json", made)
    assert record.read(tmp_path / "found.json") == made
    assert not compare.differences(made, record.read(tmp_path / "found.json"))


def test_subjects_are_every_op_the_examples_and_all_files(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"")
    names = subjects.names(tmp_path)
    assert {f"op {op.name}" for op in registry.all_ops() if registry.is_own(op)} < set(names)
    assert {"file net", "kernels batch_norm_by_te"} < set(names)
    assert sum(1 for _ in subjects.graphs("op relu", tmp_path)) == len(
        next(op for op in registry.all_ops() if op.name == "relu").samples
    )
    found = [single(subjects.kernels("kernels batch_norm_by_te"), TARGETS["aarch64"], None) for _ in range(2)]
    assert len(found[0].kernels) == 2
    assert found[0] == found[1]
