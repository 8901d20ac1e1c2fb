"""Predicted times: by hand for a product and a copy, and what is so of all loops."""

from __future__ import annotations

from math import inf, isfinite, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tir.programs import kernels

from renorm import te
from renorm.codegen.phases import cut
from renorm.core.machine import Core, Level, Machine
from renorm.tir.footprints import Touched
from renorm.tir.nodes import Buffer, Kernel
from renorm.tir.parse import parse
from renorm.tir.passes import prepare
from renorm.tir.predicted import Predicted, Prediction

CACHES = Level(32 << 10, inf), Level(1 << 20, 32.0), Level(32 << 20, 16.0)
MACHINE = Machine(Core(), 32, 16, 2.0, 2.0, 4.0, 4.0, CACHES, Level(inf, 8.0))
END = 15.0  # cycles of a loop of many rounds, besides these


def predicted(kernel: Kernel, far: tuple[float, float, float] = (1.0, 1.0, 0.0)) -> Predicted:
    return Prediction(MACHINE, kernel.body).at(lambda _: far)


def product(rows: int, vectors: int, depth: int) -> Kernel:
    """A tile of rows times vectors of 8 numbers, which are in registers."""
    places = [(r, v, (r * vectors + v) * 8) for r in range(rows) for v in range(vectors)]
    adds = [
        f"c[ramp({at}, 1, 8)] = c[ramp({at}, 1, 8)] + x8(A[k*{rows} + {r}])*B[ramp(k*{vectors * 8} + {v * 8}, 1, 8)]"
        for r, v, at in places
    ]
    ends = [f"C[ramp({at}, 1, 8)] = c[ramp({at}, 1, 8)]" for *_, at in places]
    size = rows * vectors * 8
    return parse(
        f"kernel k(A: float32[{rows * depth}], B: float32[{vectors * 8 * depth}], C: float32[{size}]) -> (C) {{\n"
        f'// attr [c] storage_scope = "register"\nallocate c[float32 * {size}]\n'
        f"for (k, 0, {depth}) {{\n" + "\n".join(adds) + "\n}\n" + "\n".join(ends) + "\n}"
    )


@pytest.mark.parametrize(
    ("rows", "vectors", "round", "bound"),
    [
        (4, 2, 4.0, "multiply-adds"),  # 8 products, 6 loads, 16 instructions
        (6, 2, 6.0, "multiply-adds"),  # 12, 8, 22
        (1, 4, 4.0, "sums that wait"),  # 4 products in 2 cycles, of sums that wait for 4
        (1, 2, 4.0, "sums that wait"),
    ],
)
def test_a_product_takes_what_is_busiest(rows: int, vectors: int, round: float, bound: str) -> None:
    stores = rows * vectors  # one per cycle
    found = predicted(product(rows, vectors, 1024), (0.0, 0.0, 0.0))
    assert found == Predicted(1024 * round + END + stores, bound)


def test_short_sums_do_not_wait() -> None:
    """A sum of few instructions goes on while the next one has begun: only half of the window is one sum's."""
    region = 4 + 3 + 2  # products, loads, what counts rounds
    rounds = 512 // region // 2
    found = predicted(product(1, 2, rounds), (0.0, 0.0, 0.0))
    assert found.cycles < 0.6 * 4.0 * rounds + 2 + 4


def copy(count: int) -> Kernel:
    return parse(
        f"kernel k(A: float32[{count * 8}], B: float32[{count * 8}]) -> (B) {{\n"
        f"for (i, 0, {count}) {{ B[ramp(i*8, 1, 8)] = A[ramp(i*8, 1, 8)] }}\n}}"
    )


def test_a_copy_takes_the_time_of_its_bytes() -> None:
    count = 1 << 17
    nbytes, stores = 32.0 * count, count + END
    second = 4 * nbytes / 32.0  # a line that is written takes the time of three
    third = 2 * nbytes / 16.0
    after = second + 0.3 * stores
    assert predicted(copy(count), (1.0, 0.0, 0.0)).cycles == pytest.approx(after)
    both = max(after, third) + 0.3 * min(after, third)
    found = predicted(copy(count))
    assert found.cycles == pytest.approx(both)
    assert found.bound == "second-level cache"
    memory = predicted(copy(count), (1.0, 1.0, 1.0))
    assert memory.cycles > 3 * nbytes / 8.0
    assert memory.bound == "memory"


def test_what_fits_in_a_cache_comes_once() -> None:
    """A table of 16 KB that each of 100 rounds reads, and one of 160 KB, which leaves the first cache in between."""

    def again(count: int) -> float:
        text = (
            f"kernel k(A: float32[{count * 8}], B: float32[8]) -> (B) {{\nfor (j, 0, 100) {{ for (i, 0, {count}) {{\n"
            "B[ramp(0, 1, 8)] = max(B[ramp(0, 1, 8)], A[ramp(i*8, 1, 8)]) } } }"
        )
        sums = 100 * (4.0 * count + END + 2 / 4) + END  # each waits for the last; 2 instructions count rounds
        return predicted(parse(text), (1.0, 0.0, 0.0)).cycles - sums

    late = 0.3 * 32 / 32.0  # cycles for 32 bytes, which come while others are computed with
    assert again(512) == pytest.approx(late * 512, rel=0.02)
    assert again(5120) == pytest.approx(late * 5120 * 100, rel=0.02)


def test_conditions_count_as_often_as_they_hold() -> None:
    def half(condition: str) -> float:
        return predicted(
            parse(
                "kernel k(A: float32[8000], B: float32[8000]) -> (B) { for (i, 0, 1000) { "
                f"if ({condition}) {{ B[ramp(i*8, 1, 8)] = sqrt(A[ramp(i*8, 1, 8)]) }} }} }}"
            ),
            (0.0, 0.0, 0.0),
        ).cycles

    assert half("i < 1000") == pytest.approx(5 * 1000 + END)
    assert half("i < 500") == pytest.approx(5 * 500 + END, rel=0.02)
    assert half("i % 4 == 0") == pytest.approx(5 * 250 + END, rel=0.12)  # of 256 rounds that are looked at


def matmul(n: int, m: int, k: int) -> Kernel:
    a, b = te.placeholder((n, k), "float32", name="a"), te.placeholder((k, m), "float32", name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")
    s = te.create_schedule([c.op])
    rows, columns = s[c].op.axis
    (inner,) = s[c].op.reduce_axis
    across, lanes = s[c].split(columns, 8)
    s[c].reorder(rows, across, inner, lanes)
    s[c].vectorize(lanes)
    s[c].parallel(rows)
    return prepare(te.lower(s, [a, b, c], name="k"))


def elementwise(n: int, m: int, k: int) -> Kernel:
    a, b = te.placeholder((n, m, k), "float32", name="a"), te.placeholder((m,), "float32", name="b")
    c = te.compute((n, m, k), lambda i, j, l: te.exp(a[i, j, l]) + b[j], name="c")
    s = te.create_schedule([c.op])
    x = s[c].fuse(*s[c].op.axis)
    _, lanes = s[c].split(x, 8)
    s[c].vectorize(lanes)
    return prepare(te.lower(s, [a, b, c], name="k"))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([matmul, elementwise]),
    st.tuples(*[st.integers(1, 40)] * 3),
    st.integers(0, 2),
    st.integers(1, 40),
)
def test_more_work_takes_longer(make: Any, extents: tuple[int, int, int], axis: int, more: int) -> None:
    larger = tuple(8 * (n + more * (i == axis)) for i, n in enumerate(extents))
    before, after = (predicted(make(*sizes)) for sizes in (tuple(8 * n for n in extents), larger))
    assert 0 < before.cycles <= after.cycles
    assert isfinite(after.cycles)


@settings(max_examples=60, deadline=None)
@given(kernels())
def test_any_loops_have_a_time(kernel: Kernel) -> None:
    for phase in cut(prepare(kernel))[0]:
        found = Prediction(MACHINE, phase.body, phase.lets).at(lambda _: (1.0, 1.0, 1.0))
        assert 0 <= found.cycles < inf
        assert found.bound


def test_open_extents_are_typical_ones() -> None:
    n = te.var("n")
    a = te.placeholder((n, 8), "float32", name="a")
    c = te.compute((n, 8), lambda i, j: a[i, j] * te.const(2.0, "float32"), name="c")
    s = te.create_schedule([c.op])
    s[c].vectorize(s[c].op.axis[1])
    kernel = prepare(te.lower(s, [a, c], name="k"))
    assert predicted(kernel, (0.0, 0.0, 0.0)).cycles == pytest.approx(64 * 5 / 4 + END)  # a round has 5 instructions


@pytest.mark.parametrize("number", [inf, -inf, nan])
def test_floats_that_are_no_integers_count_as_what_they_become(number: float) -> None:
    a = te.placeholder((2, 16), "int32", name="a")
    c = te.compute((2, 16), lambda i, j: a[i, j] + te.cast("int32", number / (i.astype("float32") + 2.0)), name="c")
    s = te.create_schedule(c.op)
    s[c].unroll(c.op.axis[0])
    assert isfinite(predicted(prepare(te.lower(s, [a, c]))).cycles)


def test_runs_of_lines_are_no_lists_of_lines() -> None:
    """A small shift over many rounds: a tensor of 2^40 bytes."""
    buffer = Buffer("x", "float32", 1 << 38)
    touched = Touched({(buffer, (), ((4, 1 << 38),)): {(0, 4)}})
    assert touched.bytes[buffer] == 1 << 40
