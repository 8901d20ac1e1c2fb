"""LLVM learns how often loops run, and keeps the sums of a product in registers, whatever work follows it."""

from __future__ import annotations

import numpy as np
import pytest

import renorm
from renorm import ops
from renorm.codegen.llvm.ssa import I64, Function, Value, constant
from renorm.graph.ir import Graph

TARGETS = ["llvm -mtriple=x86_64-linux-gnu -mcpu=znver4", "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [256, 98])
def test_constants_of_a_long_tail_do_not_push_out_the_sums(rows: int, target: str) -> None:
    rng = np.random.default_rng(rows)
    g = Graph()
    x = ops.matmul(g.input("x", "float32", (rows, 96)), rng.standard_normal((96, 384)).astype(np.float32))
    g.outputs = [ops.mul(x, ops.erf(x))]
    module = renorm.compile(g, target=target)
    (group,) = module.graph.groups
    assert module.kernel(group.name).spills == 0


@pytest.mark.parametrize(("start", "end", "goes_on"), [(0, 96, 95), (3, 4, 1), (-2, 5, 6), (0, 1 << 40, (1 << 30) - 1)])
def test_a_loop_of_known_length_has_weights(start: int, end: int, goes_on: int) -> None:
    f = Function("f", ["i64 %n"], "")
    with f.loop(constant(I64, start), constant(I64, end), at_least_once=True):
        pass
    assert "!prof" in f.text()
    assert list(f.rounds) == [goes_on + 1]


def test_a_loop_of_unknown_length_has_none() -> None:
    f = Function("f", ["i64 %n"], "")
    with f.loop(constant(I64, 0), Value("%n", I64), at_least_once=False):
        pass
    assert "!prof" not in f.text()
    assert not f.rounds
