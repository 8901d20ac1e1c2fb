"""Each loop pass keeps what a program computes, and leaves the form that code generators read."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from tests.tir.programs import check_same, execute, kernels

from renorm.core.errors import InvalidSchedule
from renorm.expr.nodes import Cast, Load, Var, const
from renorm.expr.rewrite import walk as walk_expr
from renorm.tir import interpret
from renorm.tir.nodes import Buffer, For, If, Kernel, Store, expressions, seq, walk
from renorm.tir.parse import parse
from renorm.tir.passes import PIPELINE, prepare
from renorm.tir.passes.partition import partition
from renorm.tir.passes.simplify import simplify
from renorm.tir.passes.unroll import unroll
from renorm.tir.passes.unswitch import unswitch
from renorm.tir.passes.vectorize import vectorize
from renorm.tir.text import simple
from renorm.tir.verify import verify

some = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("loop_pass", PIPELINE, ids=lambda p: p.__name__)
def test_a_pass_keeps_results(loop_pass) -> None:
    @some
    @given(kernels())
    def check(kernel: Kernel) -> None:
        check_same(kernel, loop_pass(kernel))

    check()


@settings(max_examples=120, deadline=None)
@given(kernels())
def test_prepare_keeps_results(kernel: Kernel) -> None:
    prepared = prepare(kernel)
    check_same(kernel, prepared)
    assert {s.kind for s in walk(prepared.body) if isinstance(s, For)} <= {"serial", "parallel"}


@some
@given(kernels())
def test_prepare_is_done_after_once(kernel: Kernel) -> None:
    prepared = prepare(kernel)
    check_same(kernel, prepare(prepared))


def body_of(text: str, sizes: str = "X: float32[784], W: float32[32], Y: float32[784]") -> Kernel:
    return parse(f"kernel k({sizes}) -> (Y) {{\n{text}\n}}")


def check_prepared(text: str, expected: str, sizes: str = "X: float32[784], W: float32[32], Y: float32[784]") -> None:
    kernel = body_of(text, sizes)
    prepared = prepare(kernel)
    assert simple(prepared).split() == expected.split(), f"\n{simple(prepared)}"
    check_same(kernel, prepared)


def test_a_ragged_end_is_cut_off() -> None:
    check_prepared(
        "for (i, 0, 28) { for (o, 0, 4) { vectorized (v, 0, 8) { if (o*8 + v < 28) {"
        " Y[i*28 + o*8 + v] = X[i*28 + o*8 + v]*2f } } } }",
        """
        for (i, 0, 28) {
          for (o, 0, 3) {
            Y[ramp(((i*28) + (o*8)), 1, 8)] = (X[ramp(((i*28) + (o*8)), 1, 8)]*x8(2f))
          }
          Y[ramp(((i*28) + 24), 1, 8) if (ramp(0, 1, 8) < x8(4))]
            = (X[ramp(((i*28) + 24), 1, 8) if (ramp(0, 1, 8) < x8(4))]*x8(2f))
        }
        """,
    )


def test_a_parallel_loop_chooses_instead_of_being_cut() -> None:
    check_prepared(
        "parallel (o, 0, 4) { for (i, 0, 8) { if (o*8 + i < 28) { Y[o*8 + i] = W[o*8 + i] } } }",
        """
        parallel (o, 0, 4) {
          if ((o < 3)) {
            for (i, 0, 8) { Y[((o*8) + i)] = W[((o*8) + i)] }
          } else {
            for (i, 0, 4) { Y[(i + 24)] = W[(i + 24)] }
          }
        }
        """,
    )


def test_dear_computations_leave_loops_that_do_not_change_them() -> None:
    check_prepared(
        "for (c, 0, 28) { for (i, 0, 28) { Y[c*28 + i] = (X[c*28 + i] - W[c])/sqrt(W[c]*W[c] + 1f) } }",
        """
        for (c, 0, 28) {
          let hoisted = sqrt(((W[c]*W[c]) + 1f)) {
            for (i, 0, 28) { Y[((c*28) + i)] = ((X[((c*28) + i)] - W[c])/hoisted) }
          }
        }
        """,
    )


def test_dear_vectors_leave_loops_as_numbers_do() -> None:
    check_prepared(
        "for (i, 0, 4) { vectorized (v, 0, 4) { Y[i*4 + v] = X[i*4 + v]/sqrt(W[v]) } }",
        """
        let hoisted = sqrt(W[ramp(0, 1, 4)]) {
          for (i, 0, 4) { Y[ramp((i*4), 1, 4)] = (X[ramp((i*4), 1, 4)]/hoisted) }
        }
        """,
    )
    own = "for (i, 0, 4) { vectorized (v, 0, 4) { if (v < 3) { Y[i*4 + v] = X[i*4 + v]/sqrt(W[v]) } } }"
    loop = "for (i, 0, 4) { Y[ramp((i*4), 1, 4) if (ramp(0, 1, 4) < x4(3))] = "
    row = "(X[ramp((i*4), 1, 4)]/sqrt(W[ramp(0, 1, 4)])) }"
    check_prepared(own, loop + row)  # a value that is not stored need not have one


def test_what_a_loop_stores_or_guards_stays_in_it() -> None:
    stored = "for (i, 0, 28) { Y[i] = X[i]/Y[0] }"
    check_prepared(stored, "for (i, 0, 28) { Y[i] = (X[i]/Y[0]) }")
    guarded = "for (i, 0, 28) { if (X[i] > 0f) { Y[i] = 1f/W[0] } }"
    check_prepared(guarded, "for (i, 0, 28) { if ((X[i] > 0f)) { Y[i] = (1f/W[0]) } }")


def test_padding_leaves_a_middle_without_conditions() -> None:
    check_prepared(
        "for (i, 0, 30) { Y[i] = if_then_else(((i >= 1) && (i < 29)), W[i - 1], 0f) }",
        """
        Y[0] = 0f
        for (i, 1, 28) { Y[i] = W[(i - 1)] }
        Y[29] = 0f
        """,
    )


def test_concatenation_becomes_copies() -> None:
    check_prepared(
        "for (i, 0, 64) { Y[i] = if_then_else(i < 16, X[i], if_then_else(i < 32, W[i - 16], X[i])) }",
        """
        for (i, 0, 16) { Y[i] = X[i] }
        for (i, 16, 16) { Y[i] = W[(i - 16)] }
        for (i, 32, 32) { Y[i] = X[i] }
        """,
    )


def test_lanes_under_a_condition_read_only_where_it_holds() -> None:
    check_prepared(
        "vectorized (v, 0, 8) { Y[v] = if_then_else(v < 5, W[v + 27], 1f) }",
        """
        Y[ramp(0, 1, 8)] = select((ramp(0, 1, 8) < x8(5)), W[ramp(27, 1, 8) if (ramp(0, 1, 8) < x8(5))], x8(1f))
        """,
    )


def test_buffers_inside_get_one_element_per_lane() -> None:
    check_prepared(
        """
        vectorized (v, 0, 4) {
          allocate T[float32 * 2]
          for (k, 0, 2) { T[k] = X[k*4 + v] }
          Y[v] = T[0] - T[1]
        }
        """,
        """
        // attr [T] storage_scope = "global"
        allocate T[float32 * 8]
        for (k, 0, 2) { T[ramp((k*4), 1, 4)] = X[ramp((k*4), 1, 4)] }
        Y[ramp(0, 1, 4)] = (T[ramp(0, 1, 4)] - T[ramp(4, 1, 4)])
        """,
    )


def test_the_inner_of_two_vectorized_loops_wins() -> None:
    check_prepared(
        "vectorized (i, 0, 4) { vectorized (j, 0, 8) { Y[i*8 + j] = X[j*4 + i] } }",
        "for (i, 0, 4) { Y[ramp((i*8), 1, 8)] = X[ramp(i, 4, 8)] }",
    )


def test_a_variable_of_two_loops_has_the_range_of_each() -> None:
    x, j, Y = Var("x"), Var("j"), Buffer("Y", "float32", 24)
    store = Store(Y, j * 8 + x, const(2.0) + Cast("float32", j))
    loops = [For(j, const(0), const(n), "serial", store) for n in (1, 3)]
    before = Kernel("k", (Y,), For(x, const(0), const(8), "vectorized", seq(loops)), frozenset({"Y"}))
    check_same(before, vectorize(before))


def test_a_long_vectorized_loop_is_cut() -> None:
    check_prepared(
        "vectorized (i, 0, 784) { Y[i] = X[i] }",
        "for (i.outer, 0, 49) { Y[ramp((i.outer*16), 1, 16)] = X[ramp((i.outer*16), 1, 16)] }",
    )


def test_lanes_that_meet_stay_serial() -> None:
    kernel = body_of("vectorized (v, 0, 8) { Y[v + 1] = Y[v] + 1f }")
    assert all(s.index.lanes == 1 for s in walk(prepare(kernel).body) if isinstance(s, Store))
    check_same(kernel, prepare(kernel))


def test_a_reduction_that_each_round_does_anew_stays_serial() -> None:
    kernel = body_of(
        "vectorized (v, 0, 8) { for (i, 0, 8) { Y[i] = 0f for (k, 0, 4) { Y[i] = Y[i] + X[k*8 + i] } } "
        "Y[v + 8] = Y[v] + Y[7 - v] }"
    )
    check_same(kernel, prepare(kernel))


def test_a_vectorized_reduction_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="rfactor"):
        prepare(body_of("for (i, 0, 8) { vectorized (k, 0, 16) { Y[i] = Y[i] + X[i*16 + k] } }"))


def test_unrolled_copies_share_the_base_of_their_indices() -> None:
    kernel = body_of("for (i, 0, 98) { unrolled (u, 0, 8) { Y[i*8 + u] = X[i*8 + u] } }")
    stores = [s for s in walk(prepare(kernel).body) if isinstance(s, Store)]
    assert [str(s.index) for s in stores[:3]] == ["(i*8)", "((i*8) + 1)", "((i*8) + 2)"]
    loads = [x for s in stores for e in expressions(s) for x in walk_expr(e) if isinstance(x, Load)]
    assert len(stores) == len(loads) == 8
    check_same(kernel, prepare(kernel))


def rows_of_tiles(condition: str) -> Kernel:
    """Tiles of three rows, each under a condition, in the rounds of a sum."""
    row = f"if ({condition}) {{ Y[p*4 + i] = Y[p*4 + i] + X[p*4 + i]*W[k] }}"
    return body_of(f"parallel (p, 0, 196) {{ for (k, 0, 4) {{ unrolled (i, 0, 3) {{ {row} }} }} }}")


@pytest.mark.parametrize(
    "condition",
    [
        "((p % 7)*2 + i >= 1) && ((p % 7)*2 + i < 12)",  # both ends decide
        "((p % 7)*2 - i*3 > -4) && (11 - i <= (p % 7)*2)",  # the other ends
        "(p % 5 > 1) && (p % 7 + i <= 5)",  # one is the same for all rows
    ],
)
def test_tiles_that_are_whole_have_no_branch_for_each_row(condition: str) -> None:
    kernel = rows_of_tiles(condition)
    prepared = prepare(kernel)
    check_same(kernel, prepared)
    rounds = [s for s in walk(prepared.body) if isinstance(s, For) and s.kind == "serial"]
    branches = [sum(isinstance(x, If) for x in walk(s.body)) for s in rounds]
    assert sorted(branches) == [0, 3]


@pytest.mark.parametrize(
    "condition", ["p % 7 + k + i < 9", "p % 2 + i < 2", "(p % 7 + i < 5) || (p % 3 == 0)", "Y[p*4 + i] < 9f"]
)
def test_what_rounds_or_elements_decide_stays_with_each_row(condition: str) -> None:
    kernel = rows_of_tiles(condition)
    prepared = prepare(kernel)
    check_same(kernel, prepared)
    assert all(sum(isinstance(x, If) for x in walk(s.body)) for s in walk(prepared.body) if isinstance(s, For))


@pytest.mark.parametrize(
    ("condition", "versions"),
    [
        ("(p % 7)*3 + i < 20", 2),  # the last tile of a row
        ("(p % 7)*3 + i >= 1", 2),  # the first one
        ("((p % 7)*3 + i < 20) && ((p // 7)*2 + i < 28)", 4),  # of rows and of groups
        ("(p + k) % 7 + i < 7", 1),
    ],
)
def test_sums_of_whole_tiles_have_no_condition_on_fused_loops(condition: str, versions: int) -> None:
    add = f"if ({condition}) {{ sum[i] = sum[i] + X[p*4 + i]*W[k] }}"
    kernel = body_of(f"""parallel (p, 0, 98) {{
        // attr [sum] storage_scope = "register"
        allocate sum[float32 * 3]
        unrolled (i, 0, 3) {{ sum[i] = 0f }}
        for (k, 0, 4) {{ unrolled (i, 0, 3) {{ {add} }} }}
        unrolled (i, 0, 3) {{ Y[p*3 + i] = sum[i] }}
    }}""")
    cut = partition(kernel)
    check_same(kernel, cut)
    sums = [s for s in walk(cut.body) if isinstance(s, For) and s.kind == "serial"]
    assert len(sums) == versions
    assert sum(not any(isinstance(x, If) for x in walk(s.body)) for s in sums) == (versions > 1)


@pytest.mark.parametrize("hint", ["", "prefetch X[p*4 + 256]"])
@pytest.mark.parametrize("condition", ["p + i*2 < w", "(i >= 1) && (p + i*2 < w)", "(i < 2) && (p + i*2 < w)"])
def test_an_open_extent_alone_decides_about_whole_tiles(condition: str, hint: str) -> None:
    """Conditions on the number of a row are no branch of the tile: the row is there or not when it is unrolled."""
    row = f"if ({condition}) {{ Y[p*4 + i] = Y[p*4 + i] + X[p*4 + i]*W[k] }}"
    kernel = parse(f"""
        kernel k[w(1)](X: float32[(w*4)], W: float32[4], Y: float32[(w*4)]) -> (Y) {{
            parallel (p, 0, w) {{ for (k, 0, 4) {{ {hint} unrolled (i, 0, 3) {{ {row} }} }} }}
        }}
    """)
    verify(kernel)
    versions = unswitch(kernel)
    rounds = [s for s in walk(unroll(simplify(versions)).body) if isinstance(s, For) and s.kind == "serial"]
    stores = [sum(isinstance(x, Store) for x in walk(s.body)) for s in rounds]
    branches = [sum(isinstance(x, If) for x in walk(s.body)) for s in rounds]
    assert min(branches) == 0 < max(branches)
    assert stores[0] == stores[1] == (3 if condition.startswith("p") else 2)
    for w in (1, 2, 4, 5, 9):
        x, weights = np.arange(w * 4, dtype=np.float32), np.ones(4, np.float32)
        found = [np.zeros(w * 4, np.float32) for _ in range(2)]
        for k, y in zip((kernel, versions), found, strict=True):
            interpret.run(k, [x, weights, y], [w])
        np.testing.assert_array_equal(found[1], found[0])


def test_loops_are_not_cut_at_places_beyond_their_end_at_typical_extents() -> None:
    """Rounds of a window of three, which end before w - 9 but where w is narrow."""
    kernel = parse("""
        kernel k[w(1)](X: float32[w], Y: float32[w]) -> (Y) {
            for (k, 0, 3) { for (j, 0, 4) { if (k + j*3 < w) { Y[k + j*3] = Y[k + j*3] + X[k + j*3]*2f } } }
        }
    """)
    verify(kernel)
    assert str(partition(kernel)) == str(kernel)


@pytest.mark.parametrize("scope", ["register", "local"])
def test_a_long_branch_is_cut_off_beside_sums_in_registers_where_an_open_row_ends(scope: str) -> None:
    update = f"A[i] = A[i] + {' + '.join(['X[x*4 + i + k]'] * 9)}"
    sums = f"for (k, 0, 3) {{ unrolled (i, 0, 4) {{ if (x*4 + i + k < w) {{ {update} }} }} }}"
    stored = "for (j, 0, 4) { if (x*4 + j < w) { Y[x*4 + j] = A[j] } }"
    zeros = "for (z, 0, 4) { A[z] = 0f }"
    kernel = parse(f"""
        kernel k[w(1)](X: float32[w], Y: float32[w]) -> (Y) {{
            for (x, 0, (w + 3)//4) {{
                // attr [A] storage_scope = "{scope}"
                allocate A[float32 * 4]
                {zeros} {sums} {stored}
            }}
        }}
    """)
    verify(kernel)
    body = partition(kernel).body
    verify(kernel.with_body(body))
    first = next(s for s in walk(body) if isinstance(s, For) and s.var.name == "x")
    assert any(isinstance(s, If) for s in walk(first)) == (scope == "local")


def test_let_bound_vectors_that_are_known_stay_vectors() -> None:
    inside = "let at = max(min((o*2 + i)*2, 2), 0) { Y[o*2 + i] = X[at] + W[o*2 + i] }"
    kernel = body_of(f"unrolled (o, 0, 2) {{ vectorized (i, 0, 2) {{ if (o*2 + i < 3) {{ {inside} }} }} }}")
    check_same(kernel, prepare(prepare(kernel)))


def test_too_many_copies_stay_a_loop() -> None:
    kernel = body_of("unrolled (i, 0, 784) { unrolled (j, 0, 784) { Y[j] = X[i] } }")
    prepared = prepare(kernel)
    assert len([s for s in walk(prepared.body) if isinstance(s, Store)]) == 784


def test_conditions_on_memory_are_not_remembered_over_stores() -> None:
    kernel = body_of("for (i, 0, 8) { if (Y[i] < 0f) { Y[i] = 0f if_placeholder } }".replace(" if_placeholder", ""))
    check_same(kernel, prepare(kernel))
    twice = body_of("for (i, 0, 8) { if (Y[i] < 1f) { Y[i] = Y[i] + 1f if (Y[i] < 1f) { Y[i] = 5f } } }")
    assert sum(isinstance(s, If) for s in walk(simplify(twice).body)) == 2
    check_same(twice, simplify(twice))


MICROKERNEL = """
kernel conv(X: float32[70000], W: float32[36864], Y: float32[5376]) -> (Y) {
  parallel (o, 0, 14) {
    // attr [acc] storage_scope = "register"
    allocate acc[float32 * 384]
    unrolled (r, 0, 6) { unrolled (c, 0, 4) { vectorized (v, 0, 16) { acc[r*64 + c*16 + v] = 0f } } }
    for (ko, 0, 36) {
      unrolled (ki, 0, 16) { unrolled (r, 0, 6) { unrolled (c, 0, 4) { vectorized (v, 0, 16) {
        acc[r*64 + c*16 + v] =
          acc[r*64 + c*16 + v] + X[o*5000 + ko*96 + r*16 + ki]*W[ko*1024 + ki*64 + c*16 + v]
      } } } }
    }
    unrolled (r, 0, 6) { unrolled (c, 0, 4) { vectorized (v, 0, 16) {
      Y[o*384 + r*64 + c*16 + v] = max(acc[r*64 + c*16 + v], 0f)
    } } }
  }
}"""


def test_a_microkernel_is_prepared_quickly() -> None:
    kernel = parse(MICROKERNEL)
    fastest, prepared = float("inf"), kernel
    for _ in range(5):
        start = time.process_time()
        prepared = prepare(kernel)
        fastest = min(fastest, time.process_time() - start)
    assert len([s for s in walk(prepared.body) if isinstance(s, Store)]) == 24 + 16 * 24 + 24
    assert fastest < 0.5, f"{1e3 * fastest:.0f} ms"


@pytest.mark.slow
def test_a_microkernel_keeps_results() -> None:
    kernel = parse(MICROKERNEL.replace("(o, 0, 14)", "(o, 0, 1)").replace("(ko, 0, 36)", "(ko, 0, 2)"))
    for a, b in zip(execute(kernel), execute(prepare(kernel)), strict=True):
        np.testing.assert_array_equal(a, b)
