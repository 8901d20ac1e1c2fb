"""LLVM learns how often loops run, keeps the sums of a product in registers whatever follows, and ends functions."""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
import pytest
from tests.codegen.native import HOST, Native, program

import renorm
from renorm import ops, te
from renorm.codegen.llvm import assembly, compile_kernel
from renorm.codegen.llvm.ssa import I1, I64, Function, Value, constant
from renorm.expr.nodes import Binary, Call, Load, Ramp, Var, const
from renorm.graph.ir import Graph
from renorm.targets import find
from renorm.tir.nodes import Buffer, For, Seq, Stmt, Store
from renorm.tir.rounds import written_out

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
    assert f.metadata[f"!{goes_on + 1}"].endswith(f"i32 {goes_on}, i32 1}}")


def test_a_loop_of_unknown_length_has_none() -> None:
    f = Function("f", ["i64 %n"], "")
    with f.loop(constant(I64, 0), Value("%n", I64), at_least_once=False):
        pass
    assert "!prof" not in f.text()
    assert not any("branch_weights" in text for text in f.metadata.values())


def sums(rows: int, rounds: int, *others: Stmt, scope: str = "register") -> For:
    """total[i] += x[k], for k in rounds, rows i written out, in vectors of sixteen."""
    total, x, k = Buffer("total", "float32", rows * 16, scope), Buffer("x", "float32", rounds * 16), Var("k")
    value = Load(x, [Ramp(k * 16, const(1), 16)])
    stores = [
        Store(total, at, Binary("+", Load(total, [at]), value))
        for at in (Ramp(const(16 * i), const(1), 16) for i in range(rows))
    ]
    return For(k, const(0), const(rounds), "serial", Seq((*stores, *others)))


@pytest.mark.parametrize(
    ("rows", "rounds", "together"),
    [(16, 16, 8), (24, 16, 4), (28, 16, 4), (12, 8, 4), (12, 96, 8), (12, 7, 1), (12, 9, 3), (200, 16, 1), (4, 2, 1)],
)
def test_rounds_stand_together_as_far_as_they_are_few(rows: int, rounds: int, together: int) -> None:
    assert written_out(sums(rows, rounds), 64) == together
    assert written_out(sums(rows, rounds), 32) == 1


def test_what_is_no_sum_in_registers_stands_alone() -> None:
    memory = Buffer("y", "float32", 8)
    assert written_out(sums(12, 16, scope="local"), 64) == 1
    at = Ramp(const(0), const(1), 8)
    assert written_out(sums(12, 16, Store(memory, at, Load(memory, [at]))), 64) == 1


def test_sums_of_rows_beyond_the_last_tile_are_not_computed() -> None:
    """13 rows in tiles of 4, and a sum of two loops: the last tile has one row."""
    x, w = te.placeholder((13, 9), name="x"), te.placeholder((9, 16), name="w")
    k = te.reduce_axis((0, 9), name="k")
    y = te.compute((13, 16), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="y")
    s = te.create_schedule(y.op)
    sums = s.cache_write(y, "register")
    tile, row = s[y].split(y.op.axis[0], factor=4)
    s[y].reorder(tile, row, y.op.axis[1])
    s[y].unroll(row)
    s[y].vectorize(y.op.axis[1])
    s[sums].compute_at(s[y], tile)
    i, j = s[sums].op.axis
    outer, inner = s[sums].split(s[sums].op.reduce_axis[0], factor=3)
    s[sums].reorder(outer, inner, i, j)
    s[sums].unroll(i)
    s[sums].vectorize(j)
    target = find(TARGETS[0])
    assert assembly(compile_kernel(te.lower(s, [x, w, y]), target), target).count("vfmadd") == 4 + 1


@pytest.mark.parametrize("follows", [False, True])
def test_a_function_returns_after_a_loop_that_is_left(follows: bool) -> None:
    f = Function("f", ["ptr %p", "i1 %ended"], "")
    with f.forever():
        f.leave(Value("%ended", I1))
    if follows:
        f.effect("store i64 1, ptr %p")
    assert "unreachable\n" not in f.text()
    module = llvm.parse_assembly(f.text(), llvm.create_context())
    (left,) = (b for b in module.get_function("f").blocks if str(b).lstrip().startswith("end"))
    assert str(list(left.instructions)[-1]).strip() == "ret void"


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_a_kernel_can_be_one_statement_with_such_a_loop(dtype: str) -> None:
    """Nothing is around the loop of fmod, or of an integer's power: what follows it ends the kernel."""
    a, b, y = (Buffer(name, dtype, 4) for name in "aby")
    lanes = [Ramp(const(0), const(1), 4)]
    left, right = Load(a, lanes), Load(b, lanes)
    is_float = dtype.startswith("float")
    result = Call("fmod", [left, right]) if is_float else Binary("pow", left, right)
    compiled = compile_kernel(program("f", (a, b, y), Store(y, lanes[0], result)), HOST)
    x, n, got = (
        np.array([1e30, -7.25, 0, 11] if is_float else [2, -7, 3, 9], dtype),
        np.array([3, 2, 3, 5], dtype),
        np.zeros(4, dtype),
    )
    Native(compiled)(x, n, got)
    np.testing.assert_array_equal(got, np.fmod(x, n) if is_float else np.power(x, n))
