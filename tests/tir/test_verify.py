"""The verifier accepts what stays inside, and names every problem of what does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expr.expressions import BOUNDS, VARIABLES, conditions, indices

from renorm.core.errors import InvalidLoops
from renorm.core.target import parse as target
from renorm.expr.nodes import Const, Expr, Load, Ramp, Var, const
from renorm.tir.interpret import run
from renorm.tir.nodes import Allocate, Buffer, For, If, Kernel, Let, Prefetch, Store, seq
from renorm.tir.parse import parse
from renorm.tir.verify import verify

SIZES = "X: float32[784], W: float32[28], I: int64[28], Y: float32[784]"


def kernel(body: str) -> Kernel:
    return parse(f"kernel k({SIZES}) -> (Y) {{\n{body}\n}}")


@settings(max_examples=200, deadline=None)
@given(indices, conditions, st.integers(1, 60))
def test_what_passes_stays_inside(index: Expr, condition: Expr, size: int) -> None:
    """Either the verifier finds a problem, or the interpreter, which checks each access, does not."""
    Y = Buffer("Y", "float32", size)
    body = If(condition, Store(Y, index, Const(1, "float32")))
    for v in VARIABLES:
        low, high = BOUNDS[v]
        body = For(v, const(low), const(min(high - low + 1, 6)), "serial", body)
    program = Kernel("k", (Y,), body, frozenset({"Y"}))
    try:
        verify(program)
    except InvalidLoops:
        return
    run(program, [np.zeros(size, np.float32)])


@pytest.mark.parametrize(
    "body",
    [
        "for (o, 0, 4) { for (i, 0, 8) { if (o*8 + i < 28) { W_ = 0 } } }",
        "for (n, 0, 28) { for (o, 0, 4) { for (i, 0, 8) { if (o*8 + i < 28) { Y[n*28 + o*8 + i] = W[o*8 + i] } } } }",
        "for (o, 0, 4) { Y[ramp(o*8, 1, 8)] = W[ramp(o*8, 1, 8) if (ramp(o*8, 1, 8) < x8(28))] }",
        "for (o, 0, 99) { Y[ramp(o*8, 1, 8) if (ramp(o*8, 1, 8) < x8(784))] = x8(0f) }",
        "for (i, 0, 30) { Y[i] = if_then_else((i >= 1) && (i < 29), W[i - 1], 0f) }",
        "for (i, 0, 28) { Y[max(min(int32(I[i]), 783), 0)] = 1f }",
        "for (i, 0, 28) { Y[i] = if_then_else((I[i] >= (int64)0) && (I[i] < (int64)784), X[I[i]], 0f) }",
        "for (f, 0, 784) { Y[(f % 28)*28 + f//28] = X[f] }",
        "for (o, 0, 49) { for (i, 0, 17) { if (o*17 + i < 784) { Y[((o*17 + i) % 28)*28 + (o*17 + i)//28] = 0f } } }",
        "for (i, 0, 28) { let j = 27 - i { Y[j*28 + i] = 1f } }",
        "for (i, 0, 28) { Y[i] = W[if_then_else(min(max(I[i], (int64)-28), (int64)27) < (int64)0, "
        "min(max(I[i], (int64)-28), (int64)27) + (int64)28, min(max(I[i], (int64)-28), (int64)27))] }",
        "for (i, 0, 28) { Y[i] = X[select(I[i] < (int64)9, select(I[i] < (int64)0, (int64)0, I[i]), (int64)783)] }",
        "for (i, 0, 60) { Y[i] = W[fmod(i, 28)] + W[fmod(i - 59, 28) + 27] }",
        # not provable by intervals: i and j are at most 5 apart
        "for (i, 0, 30) { for (j, 0, 30) { if (i*j < 784) { Y[i*j] = 1f } } }",
        "if (1 < 0) { Y[9999] = 0f }",
    ],
)
def test_guarded_accesses_pass(body: str) -> None:
    verify(kernel(body.replace("W_ = 0", "Y[o*8 + i] = W[o*8 + i]")))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            "for (i, 0, 785) { Y[i] = 0f }",
            r"store to Y\[i\] is outside its 784 elements: \[0, 784\], with i in \[0, 784\]",
        ),
        ("for (i, 0, 28) { Y[i] = X[i - 1] }", r"read of X\[\(i - 1\)\] is outside its 784 elements: \[-1, 26\]"),
        (
            "for (o, 0, 4) { for (i, 0, 8) { if (o*8 + i < 29) { Y[0] = W[o*8 + i] } } }",
            r"read of W\[\(\(o\*8\) \+ i\)\] is outside its 28 elements: \[0, 28\], with .*\(\(\(o\*8\) \+ i\) < 29\)",
        ),
        ("for (i, 0, 28) { Y[i] = select(i < 27, W[i + 1], 0f) }", r"read of W\[\(i \+ 1\)\] is outside"),
        ("for (i, 0, 28) { Y[i] = X[I[i]] }", r"read of X\[I\[i\]\] may be outside.*must be clamped"),
        (  # what wraps below -2**31 is large
            "for (i, 0, 28) { Y[i] = W[if_then_else(I[i] <= (int64)10, max(I[i] - (int64)5, (int64)0), (int64)0)] }",
            r"read of W.* may be outside its 28 elements",
        ),
        (
            "for (i, 0, 28) { Y[i] = W[if_then_else(I[0] < I[1], max(min(I[i], (int64)10) - (int64)5, (int64)0), "
            "(int64)0)] }",
            r"read of W.* may be outside its 28 elements",
        ),
        (
            "for (i, 0, 28) { Y[i] = W[min(abs(I[i]), (int64)27)] }",
            r"outside its 28 elements: \[-9223372036854775808, 27\]",
        ),
        (
            "for (i, 0, 28) { Y[i] = W[max(int32(min(I[i], (int64)27)), 0)] }",
            r"read of W.* outside its 28 elements: \[0, 2147483647\]",
        ),
        ("Y[ramp(780, 1, 8)] = x8(0f)", r"store to Y\[\(lane \+ 780\)\] is outside its 784 elements: \[780, 787\]"),
        ("X[0] = 0f", "X is stored to, but it is not an output"),
    ],
)
def test_problems_are_named(body: str, problem: str) -> None:
    with pytest.raises(InvalidLoops, match=problem):
        verify(kernel(body))


def test_a_fact_about_memory_ends_where_memory_changes() -> None:
    changes = "for (i, 0, 28) { if ((T[0] >= 0) && (T[0] < 784)) { T[0] = 9999 Y[T[0]] = 1f } }"
    with pytest.raises(InvalidLoops, match=r"store to Y\[T\[0\]\] may be outside"):
        verify(kernel(f"allocate T[int32 * 1] T[0] = 3 {changes}"))


i, j = Var("i"), Var("j")
A, B = Buffer("A", "float32", 8), Buffer("B", "float32", 8)


def loop(body, var=i):
    return For(var, const(0), const(8), "serial", body)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (Store(A, i, const(0.0)), "i is used where nothing binds it"),
        (loop(Store(B, i, const(0.0))), "B is stored to where nothing allocates it"),
        (loop(Store(A, i, Load(B, (i,)))), "B is read where nothing allocates it"),
        (Prefetch(B, const(0)), "B is prefetched where nothing allocates it"),
        (Prefetch(A, i), "i is used where nothing binds it"),
        (Prefetch(A, Load(A, (const(8),))), r"read of A\[8\] is outside its 8 elements"),
        (Prefetch(A, const(0.0)), "the index of A is float32, not an integer"),
        (Prefetch(A, Ramp(const(0), const(1), 4)), "prefetch of A: the index has 4 lanes"),
        (loop(loop(Store(A, i, const(0.0)))), "i is bound inside a place where it is bound already"),
        (Allocate(B, Allocate(B, Store(B, const(0), const(0.0)))), "B is bound inside"),
        (Store(A, const(0), const(0)), "A holds float32, but int32 is stored to it"),
        (Store(A, const(0.0), const(0.0)), "the index of A is float32, not an integer"),
        (If(const(1), Store(A, const(0), const(0.0))), "the condition 1 is int32, not bool"),
        (Let(i, const(1, "int64"), Store(A, i, const(0.0))), "i is int32, but its value"),
        (Store(A, const(0), const(0.0), const(1)), "the predicate of A is int32"),
    ],
)
def test_ill_formed_programs_are_refused(body, problem: str) -> None:
    with pytest.raises(InvalidLoops, match=problem):
        verify(Kernel("k", (A,), body, frozenset({"A"})))


def test_hints_may_be_for_what_lies_outside() -> None:
    verify(Kernel("k", (A,), seq([Prefetch(A, const(10**6)), Store(A, const(0), const(0.0))]), frozenset({"A"})))


def test_all_problems_come_at_once() -> None:
    with pytest.raises(InvalidLoops) as raised:
        verify(kernel("X[0] = 0f Y[784] = W[28]"))
    assert len(raised.value.facts) == 3


CUDA = target("cuda -arch=sm_90")
THREADS = "// attr [iter_var(t, , threadIdx.x)] thread_extent = 28\n"


def test_a_stage_bound_to_no_thread_is_refused_on_a_gpu() -> None:
    body = f"produce T {{ for (i, 0, 28) {{ Y[i] = W[i] }} }} produce compute {{\n {THREADS} Y[t] = Y[t]*2f }}"
    verify(kernel(body))
    with pytest.raises(
        InvalidLoops, match=r"stage T is bound to no thread: .*loop over i .*bind an axis of T"
    ) as raised:
        verify(kernel(body), CUDA)
    assert len(raised.value.facts) == 1


def test_bound_stages_pass() -> None:
    verify(kernel(f"produce T {{\n {THREADS} Y[t] = W[t] }} produce U {{\n {THREADS} Y[t] = Y[t]*2f }}"), CUDA)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (THREADS.replace("28", "2048") + "if (t < 28) { Y[t] = 0f }", "a block of 2048 = 2048 threads"),
        (
            "// attr [iter_var(a, , threadIdx.x)] thread_extent = 64\n"
            "// attr [iter_var(b, , threadIdx.y)] thread_extent = 32\nif (a + b < 784) { Y[a + b] = 0f }",
            r"a block of 64 \* 32 = 2048 threads",
        ),
        (
            f'{THREADS}// attr [S] storage_scope = "shared"\nallocate S[float32 * 58113] S[t] = 0f Y[t] = S[t]',
            r"232464 bytes of shared memory \(S 232452\); a block has 232448",
        ),
        (f"{THREADS}if (t < 3) {{ barrier(shared) }}", r"barrier\(shared\) .*condition \(t < 3\)"),
        (f"{THREADS}for (i, 0, t) {{ barrier(shared) }}", "whose rounds differ between threads"),
        (
            "// attr [iter_var(b, , blockIdx.x)] thread_extent = 2\n"
            f"{{ {THREADS} Y[t] = 0f }} {{\n// attr [iter_var(u, , threadIdx.x)] thread_extent = 3\nbarrier(shared) }}",
            "in a loop of 3 of 28 threads along threadIdx.x",
        ),
        (
            f"{THREADS}// attr [iter_var(u, , threadIdx.x)] thread_extent = 3\nY[u] = 0f",
            "extent 28 outside and 3 inside",
        ),
        (f"{THREADS}allocate G[float32 * 28] G[t] = 0f Y[t] = G[t]", "G has scope global, but it is allocated inside"),
    ],
)
def test_what_a_gpu_cannot_run(body: str, problem: str) -> None:
    with pytest.raises(InvalidLoops, match=problem):
        verify(kernel(body.replace("{ //", "{\n//")), CUDA)


def test_a_uniform_barrier_passes() -> None:
    verify(kernel(f"{THREADS}for (i, 0, 3) {{ if (i < 2) {{ barrier(shared) }} }} Y[t] = 0f"), CUDA)
