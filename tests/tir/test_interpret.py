"""The interpreter follows the loops to the letter: rounding, wrapping, checks of memory, blocks and threads."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.gpu import lanes

from renorm.core.errors import InvalidInput, InvalidLoops
from renorm.tir import arithmetic
from renorm.tir.interpret import run
from renorm.tir.parse import parse

Array = np.ndarray[Any, Any]


def value_of(expression: str, dtype: str, *operands: Array, extent: int | None = None) -> Array:
    """Elements i = 0, 1, ... of an expression over buffers A, B, C."""
    n = extent or operands[0].size
    params = [f"{name}: {a.dtype}[{a.size}]" for name, a in zip("ABC", operands, strict=False)]
    kernel = parse(
        f"kernel k({', '.join([*params, f'Y: {dtype}[{n}]'])}) -> (Y) {{ for (i, 0, {n}) {{ Y[i] = {expression} }} }}"
    )
    out = np.zeros(n, {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype))
    run(kernel, [*operands, out])
    return out


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
any_float = st.floats(width=32)
quick = settings(max_examples=100, deadline=None)


@quick
@given(any_float, any_float)
def test_float32_rounds_at_every_operation(x: float, y: float) -> None:
    a, b = np.array([x], np.float32), np.array([y], np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(value_of("(A[i]*B[i] + A[i])/B[i]", "float32", a, b), (a * b + a) / b)
        np.testing.assert_array_equal(
            value_of("max(A[i], B[i]) - min(A[i], B[i])", "float32", a, b), np.maximum(a, b) - np.minimum(a, b)
        )


@quick
@given(any_float)
def test_transcendental_functions_round_once(x: float) -> None:
    a = np.array([x], np.float32)
    with np.errstate(all="ignore"):
        for name, exact in (("exp", np.exp), ("tanh", np.tanh), ("log", np.log), ("sin", np.sin)):
            expected = exact(a.astype(np.float64)).astype(np.float32)
            np.testing.assert_array_equal(value_of(f"{name}(A[i])", "float32", a), expected)


@quick
@given(finite, finite, finite)
@example(0.0, 0.0, float(np.finfo(np.float32).max))
def test_fma_rounds_once(x: float, y: float, z: float) -> None:
    from fractions import Fraction

    exact = Fraction(x) * Fraction(y) + Fraction(z)
    (r,) = value_of("fma(A[i], B[i], C[i])", "float32", *(np.array([v], np.float32) for v in (x, y, z)))
    if not np.isfinite(r):
        assert abs(exact) >= Fraction(float(np.finfo(np.float32).max))
        return
    got = Fraction(float(r))
    with np.errstate(over="ignore"):  # the neighbour of the largest float32 is infinity
        neighbours = [np.nextafter(np.float32(r), np.float32(d)) for d in (-np.inf, np.inf)]
    for n in neighbours:
        if np.isfinite(n):
            assert abs(exact - got) <= abs(exact - Fraction(float(n)))


def test_sixteen_bit_floats_are_storage() -> None:
    a = np.array([2048, 0.1], np.float16)
    # 2048 + 1 + 1 is 2050 in float32, but 2048 if every sum were rounded to float16
    np.testing.assert_array_equal(value_of("A[0] + 1h + 1h", "float16", a, extent=1), np.array([2050], np.float16))
    np.testing.assert_array_equal(value_of("float32(A[1])", "float32", a, extent=1), [np.float32(np.float16(0.1))])
    b: Array = np.array([1 / 3], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(value_of("A[i]*A[i]", "bfloat16", b), b * b)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_integers_wrap_as_numpys(dtype: str, data: st.DataObject) -> None:
    limits = np.iinfo(dtype)
    x, y = (np.array([data.draw(st.integers(int(limits.min), int(limits.max)))], dtype) for _ in range(2))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(value_of("A[i]*B[i] + A[i] - B[i]", dtype, x, y), x * y + x - y)
        np.testing.assert_array_equal(value_of("A[i]//B[i]", dtype, x, y), x // y)
        np.testing.assert_array_equal(value_of("A[i] % B[i]", dtype, x, y), x % y)
        np.testing.assert_array_equal(value_of("int16(A[i])", "int16", x), x.astype(np.int16))


def test_index_arithmetic_is_wider_than_its_type() -> None:
    np.testing.assert_array_equal(
        value_of("A[((i + 2147483647)*3) % 4]", "float32", np.arange(4, dtype=np.float32)), [1, 0, 3, 2]
    )


def test_casts_and_division_truncate_toward_zero() -> None:
    a = np.array([-2.7, 2.7, -0.5], np.float32)
    np.testing.assert_array_equal(value_of("int32(A[i])", "int32", a), [-2, 2, 0])
    i = np.array([-7, 7, -8], np.int32)
    np.testing.assert_array_equal(value_of("A[i]/2", "int32", i), [-3, 3, -4])
    np.testing.assert_array_equal(value_of("A[i]//2", "int32", i), [-4, 3, -4])
    np.testing.assert_array_equal(value_of("A[i] % 3", "int32", i), [2, 1, 1])


def test_round_goes_to_even_and_nan_passes() -> None:
    a = np.array([0.5, 1.5, -2.5, np.nan], np.float32)
    np.testing.assert_array_equal(value_of("round(A[i])", "float32", a), [0, 2, -2, np.nan])
    np.testing.assert_array_equal(value_of("max(A[i], 0f)", "float32", a), [0.5, 1.5, 0, np.nan])
    np.testing.assert_array_equal(value_of("isnan(A[i]) && !(A[i] == A[i])", "bool", a), [False, False, False, True])


def program(body: str, *arrays: Array, kernel: str = "X: float32[8], Y: float32[8]") -> None:
    run(parse(f"kernel k({kernel}) -> (Y) {{\n{body}\n}}"), list(arrays))


def x_and_y() -> tuple[Array, Array]:
    return np.arange(8, dtype=np.float32), np.zeros(8, np.float32)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for (i, 0, 8) { Y[i] = X[i + 1] }", r"X\[8\] is outside X, which has 8 elements\n  at i = 7"),
        ("for (i, 0, 3) { for (j, 0, 4) { Y[i*4 + j - 1] = 0f } }", r"Y\[-1\] is outside Y.*\n  at i = 0, j = 0"),
        ("Y[ramp(4, 1, 8)] = x8(0f)", r"Y\[8\] is outside Y"),
        ("Y[ramp(0, 1, 2)] = X[ramp(7, 1, 2)]", r"X\[8\] is outside X"),
        ("allocate T[float32 * 4] T[0] = 1f Y[0] = T[1]", r"T\[1\] is read before anything is written there"),
    ],
)
def test_accesses_are_checked(body: str, message: str) -> None:
    with pytest.raises(InvalidLoops, match=message):
        program(body, *x_and_y())


def test_predicates_and_lazy_branches_guard_accesses() -> None:
    x, y = x_and_y()
    program("Y[ramp(4, 1, 8) if (ramp(4, 1, 8) < x8(8))] = X[ramp(4, 1, 8) if (ramp(4, 1, 8) < x8(8))] + x8(1f)", x, y)
    np.testing.assert_array_equal(y, [0, 0, 0, 0, 5, 6, 7, 8])
    program("for (i, 0, 8) { Y[i] = if_then_else(i < 7, X[i + 1], -1f) }", x, y)
    np.testing.assert_array_equal(y, [1, 2, 3, 4, 5, 6, 7, -1])
    with pytest.raises(InvalidLoops, match="outside"):
        program("for (i, 0, 8) { Y[i] = select(i < 7, X[i + 1], -1f) }", x, y)


def test_a_lane_that_nobody_wrote_is_nan() -> None:
    x, y = x_and_y()
    program("allocate T[float32 * 2] T[0] = 1f Y[ramp(0, 1, 2)] = T[ramp(0, 1, 2)]", x, y)
    np.testing.assert_array_equal(y[:2], [1, np.nan])


def test_parallel_iterations_that_depend_on_each_other_show() -> None:
    x, y = x_and_y()
    y[0] = 1
    program("parallel (i, 0, 7) { Y[i + 1] = Y[i] + 1f }", x, y)
    assert y[-1] != 8


def test_arrays_must_fit() -> None:
    x, y = x_and_y()
    with pytest.raises(InvalidInput, match=r"takes 2 arrays, not 1"):
        program("Y[0] = X[0]", x)
    with pytest.raises(InvalidInput, match=r"parameter Y takes float32\[8\]\n  got float64\[8\]"):
        program("Y[0] = X[0]", x, y.astype(np.float64))
    with pytest.raises(InvalidInput, match=r"got float32\[7\]"):
        program("Y[0] = X[0]", x, y[:7])


def test_any_shape_and_stride_is_written() -> None:
    x = np.arange(8, dtype=np.float32)
    y = np.zeros((4, 4), np.float32)[:, ::2]
    program("for (i, 0, 8) { Y[i] = X[i]*2f }", x, y)
    np.testing.assert_array_equal(y, (2 * x).reshape(4, 2))


REVERSE = """
// attr [iter_var(b, , blockIdx.x)] thread_extent = 2
// attr [S] storage_scope = "shared"
allocate S[float32 * 4]
// attr [L] storage_scope = "local"
allocate L[float32 * 1]
for (k, 0, 3) {
  {
    // attr [iter_var(t, , threadIdx.x)] thread_extent = 4
    L[0] = X[b*4 + t]
    S[t] = L[0] + float32(k)
  }
  barrier(shared)
  {
    // attr [iter_var(t, , threadIdx.x)] thread_extent = 4
    Y[b*4 + t] = S[3 - t] + L[0]*100f
  }
  barrier(shared)
}"""


def test_threads_share_memory_between_barriers() -> None:
    x, y = x_and_y()
    program(REVERSE, x, y)
    np.testing.assert_array_equal(y, [5, 104, 203, 302, 409, 508, 607, 706])


def test_a_missing_barrier_shows() -> None:
    with pytest.raises(InvalidLoops, match="read before anything is written"):
        program(REVERSE.replace("barrier(shared)", "", 1), *x_and_y())


def test_a_divergent_barrier_is_an_error() -> None:
    divergent = """
    // attr [iter_var(t, , threadIdx.x)] thread_extent = 4
    if (t < 3) { barrier(shared) }
    Y[t] = 1f"""
    with pytest.raises(InvalidLoops, match="not all threads of block"):
        program(divergent, *x_and_y())


def test_threads_beyond_the_extent_of_a_loop_leave_it_out() -> None:
    x, y = x_and_y()
    program(
        """
        // attr [iter_var(b, , blockIdx.x)] thread_extent = 1
        {
          // attr [iter_var(t, , threadIdx.x)] thread_extent = 8
          Y[t] = 1f
        }
        // attr [iter_var(u, , threadIdx.x)] thread_extent = 3
        Y[u] = X[u]
        """,
        x,
        y,
    )
    np.testing.assert_array_equal(y, [0, 1, 2, 1, 1, 1, 1, 1])


def test_every_intrinsic_has_a_meaning() -> None:
    from renorm.expr.nodes import INTRINSICS, OF_BITS

    for name, arity in INTRINSICS.items():
        template = arithmetic.call(name, "int32" if name in OF_BITS else "float32")
        function = template.split("(")[0]
        assert function in arithmetic.FUNCTIONS, name
        assert template.count("{}") == arity


def test_barriers_order_accesses_in_every_order_of_threads() -> None:
    for order in range(6):
        x, y = x_and_y()
        run(parse(f"kernel k(X: float32[8], Y: float32[8]) -> (Y) {{\n{REVERSE}\n}}"), [x, y], order=order)
        np.testing.assert_array_equal(y, [5, 104, 203, 302, 409, 508, 607, 706])


def test_a_seed_is_an_order_of_blocks_and_threads() -> None:
    """Which shows where nobody looks for races: the last one to write has it."""
    body = """
    // attr [iter_var(b, , blockIdx.x)] thread_extent = 4
    // attr [iter_var(t, , threadIdx.x)] thread_extent = 8
    { Y[b] = float32(t) Y[7] = float32(b) }"""
    kernel, found = parse(f"kernel k(X: float32[8], Y: float32[8]) -> (Y) {{ {body} }}"), list[list[float]]()
    for order in (0, 0, *range(1, 30), 1):
        x, y = x_and_y()
        run(kernel, [x, y], order=order, races=False)
        found.append(y.tolist())
    assert found[0] == found[1] == [7, 0, 7, 0, 0, 0, 0, 3]
    assert found[2] == found[-1]
    assert {y[0] for y in found} == set(range(8))
    assert {y[7] for y in found} == set(range(4))


every_runner = pytest.mark.parametrize(
    "runner", [*(partial(run, order=i) for i in range(4)), lanes.run], ids=["0", "1", "2", "3", "lanes"]
)
STEPS = """
// attr [iter_var(b, , blockIdx.x)] thread_extent = 2
// attr [iter_var(t, , threadIdx.x)] thread_extent = 4
// attr [S] storage_scope = "shared"
allocate S[float32 * 8]
{
  %s
}"""


@every_runner
@pytest.mark.parametrize(
    ("body", "which", "at"),
    [
        # two threads of a block, in one phase
        (
            "S[t] = 0f barrier(shared) S[t] = X[t] Y[b*4 + t] = S[3 - t]",
            r"(reads|writes) S\[\d\], which .* that block (wrote|read)",
            "b = .*, t = ",
        ),
        ("S[0] = X[t]", r"writes S\[0\], which thread \(\d, 0, 0\) of that block wrote", "t = "),
        ("S[t//2] = 1f", r"writes S\[[01]\], which thread .* wrote", "t = "),
        ("S[t] = 1f barrier(shared) Y[b] = S[t]", r"writes Y\[[01]\], which .* that block wrote", "t = "),
        # what all read before one writes
        ("S[t] = 1f barrier(shared) Y[b*4 + t] = S[0] if (t == 2) { S[0] = 2f }", r"(reads|writes) S\[0\]", "t = "),
        (
            "S[t] = 1f barrier(shared) for (i, 0, 3) { if (t == i) { S[3] = S[i] } }",
            r"writes S\[3\], which .* wrote",
            r"b = \d, t = \d, i = \d",
        ),
        # lanes of vectors
        ("S[ramp(t, 1, 2)] = x2(1f)", r"writes S\[[1-3]\], which .* wrote", "t = "),
        ("S[t] = 1f Y[ramp(0, 1, 2)] = S[ramp(t, 0, 2)]", r"writes Y\[[01]\], which", "t = "),
        ("S[t + 4] = 1f barrier(shared) S[t] = 1f if (t < 3) { S[6] = 0f } S[7] = S[7]", r"writes S\[6\]", "t = "),
        # two blocks, whatever barriers there are
        ("Y[t] = 1f barrier(shared)", r"writes Y\[\d\], which thread .* of block \([01], 0, 0\) wrote", "b = "),
        (
            "barrier(shared) Y[t + b] = 1f barrier(shared)",
            r"writes Y\[\d\], which .* of block \([01], 0, 0\) wrote",
            "b",
        ),
        (
            "if (b == 0) { Y[t] = 1f } else { if (t == 3) { Y[7] = Y[2] } }",
            r"(reads|writes) Y\[2\], which thread .* of block \([01], 0, 0\) (wrote|read)",
            "b = ",
        ),
    ],
)
def test_a_race_is_found_in_every_order(body: str, which: str, at: str, runner: Any) -> None:
    kernel = parse(f"kernel k(X: float32[8], Y: float32[8]) -> (Y) {{\n{STEPS % body}\n}}")
    with pytest.raises(InvalidLoops, match=rf"(?s)kernel k: a race: thread .* of block .* {which}.*\n  at .*{at}"):
        runner(kernel, list(x_and_y()))
    run(kernel, list(x_and_y()), races=False)


@every_runner
@pytest.mark.parametrize(
    "body",
    [
        "Y[b*4 + t] = X[0] + X[t]",  # who only reads never races
        "S[t] = X[t] S[t] = S[t] + 1f Y[b*4 + t] = S[t]",
        "S[t] = X[t] barrier(shared) Y[b*4 + t] = S[3 - t] + S[0]",
        "S[t] = X[t] barrier(shared) Y[b*4 + t] = S[3 - t] barrier(shared) S[3 - t] = Y[b*4 + t]",
        "for (k, 0, 3) { S[t] = X[t + k] barrier(shared) Y[b*4 + t] = S[3 - t] + S[k] barrier(shared) }",
        "if (t == 0) { S[0] = X[b] } barrier(shared) Y[b*4 + t] = S[0]",
    ],
)
def test_what_is_ordered_does_not_race(body: str, runner: Any) -> None:
    runner(parse(f"kernel k(X: float32[8], Y: float32[8]) -> (Y) {{\n{STEPS % body}\n}}"), list(x_and_y()))


def test_launches_are_ordered() -> None:
    x, y = x_and_y()
    program(
        """
        allocate T[float32 * 8]
        {
          // attr [iter_var(b, , blockIdx.x)] thread_extent = 8
          T[b] = X[b]
        }
        // attr [iter_var(t, , threadIdx.x)] thread_extent = 8
        Y[t] = T[7 - t]
        """,
        x,
        y,
    )
    np.testing.assert_array_equal(y, x[::-1])


def test_rounds_around_blocks_are_one_launch() -> None:
    """CUDA C has the loop in the kernel: nothing orders the blocks of one round with those of the next."""
    with pytest.raises(InvalidLoops, match=r"thread \(0, 0, 0\) of block \(1, 0, 0\) .* of block \(0, 0, 0\)"):
        program(
            """
            for (k, 0, 3) {
              // attr [iter_var(b, , blockIdx.x)] thread_extent = 2
              Y[(b + k) % 2] = X[k]
            }
            """,
            *x_and_y(),
        )


def test_the_same_memory_is_the_same_buffer() -> None:
    x, _ = x_and_y()
    in_place = "// attr [iter_var(t, , threadIdx.x)] thread_extent = 8\nY[%s] = X[t]*2f"
    program(in_place % "t", x, x)
    np.testing.assert_array_equal(x, 2 * np.arange(8))
    with pytest.raises(InvalidLoops, match=r"a race: thread .* (reads|writes) X\[\d\], which thread"):
        program(in_place % "7 - t", x, x)
