"""Loops print as the articles print them, read back, and say where a text is wrong."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from tests.mutated_texts import mutated
from tests.tir.programs import check_same, kernels

from renorm.core.errors import InvalidLoops, ParseError
from renorm.expr.nodes import Load, Var, const
from renorm.tir.nodes import Allocate, Barrier, Buffer, For, If, Kernel, Let, Produce, Store, seq
from renorm.tir.parse import parse
from renorm.tir.passes import prepare
from renorm.tir.text import full, simple
from renorm.tir.verify import verify


@settings(max_examples=60, deadline=None)
@given(kernels())
def test_what_is_printed_reads_back(kernel: Kernel) -> None:
    for k in (kernel, prepare(kernel)):
        again = parse(full(k))
        assert full(again) == full(k)
        check_same(k, again)


EVERYTHING = """\
kernel every.thing(X: float32[64], I: int64[8], Y: float32[64], Z: uint8[4]) -> (Y, Z) {
  // attr [T] storage_scope = "local"
  allocate T[float32 * 8]
  produce T {
    for (i, 0, 8) {
      prefetch X[((i*8) + 67)]
      T[i] = (X[((i*8) + 3)]*-2f)
    }
  }
  parallel (i, 0, 4) {
    {
      // attr [U] storage_scope = "register"
      allocate U[float32 * 8]
      U[ramp(0, 1, 8)] = T[ramp(0, 1, 8)]
      vectorized (v, 0, 8) {
        Y[((i*8) + v)] = U[v]
      }
    }
    if (((i < 3) && !(i == 0))) {
      Y[ramp((i*8), 1, 8) if (ramp(i, 1, 8) < x8(9))] = max(X[ramp((i*8), 1, 8) if (ramp(i, 1, 8) < x8(9))], x8(0f))
    } else {
      let k = (i + 1) {
        Y[(k//2)] = select((k > 2), (float32)-inf, if_then_else(isnan(X[k]), 1e-05f, pow(X[(k % 3)], 0.5f)))
      }
    }
  }
  unrolled (n: int64, (int64)0, (int64)4) {
    let at = max(min(I[n], (int64)63), (int64)0) {
      Z[n] = uint8(X[at])
    }
  }
  // attr [iter_var(blockIdx.x, , blockIdx.x)] thread_extent = 2
  // attr [S] storage_scope = "shared"
  allocate S[float64 * 4]
  {
    // attr [iter_var(t, , threadIdx.x)] thread_extent = 4
    S[t] = (float64(X[t])/0.1)
  }
  barrier(shared)
  // attr [iter_var(t, , threadIdx.x)] thread_extent = 4
  Y[((blockIdx.x*4) + t)] = float32(S[(3 - t)])
}"""


def test_every_construct_reads_back() -> None:
    kernel = parse(EVERYTHING)
    verify(kernel)
    assert str(kernel) == EVERYTHING
    assert kernel.outputs == {"Y", "Z"}


OPEN = """\
kernel rows[n(1), m(1), tiles(1) = ((m + 7)//8)](X: float32[(n*m)], Y: float32[24]) -> (Y) if (((n*m) - 24) == 0) {
  for (i, 0, 24) {
    Y[i] = X[i]
  }
}"""


def test_what_callers_see_to_reads_back() -> None:
    kernel = parse(OPEN)
    verify(kernel)
    assert str(kernel) == OPEN
    with pytest.raises(InvalidLoops, match="read of X"):
        verify(parse(OPEN.replace("- 24", "- 23")))
    with pytest.raises(ParseError, match="a condition"):
        parse(OPEN.replace(" == 0", ""))


def test_the_articles_form_is_the_body_alone() -> None:
    X, T = Buffer("X", "float32", 25088), Buffer("T_add", "float32", 32)
    i = Var("ax0")
    body = Allocate(
        T, Produce("T_add", For(i, const(0), const(32), "serial", Store(T, i, Load(X, (i * 784,)) + 1e-05)))
    )
    assert simple(Kernel("main", (X,), body)) == (
        '// attr [T_add] storage_scope = "global"\n'
        "allocate T_add[float32 * 32]\n"
        "produce T_add {\n"
        "  for (ax0, 0, 32) {\n"
        "    T_add[ax0] = (X[(ax0*784)] + 1e-05f)\n"
        "  }\n"
        "}"
    )


def test_names_that_meet_are_told_apart() -> None:
    outer, inner, A, B = Var("i"), Var("i"), Buffer("for", "float32", 8), Buffer("i", "float32", 8)
    store = Store(A, outer + inner, Load(B, (inner,)))
    nest = For(outer, const(0), const(4), "serial", For(inner, const(0), const(4), "serial", store))
    kernel = Kernel("k", (A, B), nest, frozenset({"for"}))
    assert str(kernel).splitlines()[:4] == [
        "kernel k(for_1: float32[8], i: float32[8]) -> (for_1) {",
        "  for (i_1, 0, 4) {",
        "    for (i_2, 0, 4) {",
        "      for_1[(i_1 + i_2)] = i[i_2]",
    ]
    check_same(kernel, parse(str(kernel)))


def test_statements_print_alone() -> None:
    x, A = Var("x"), Buffer("A", "float32", 8)
    assert (
        str(If(x < 3, seq([Store(A, x, const(0.0)), Barrier()]))) == "if ((x < 3)) {\n  A[x] = 0f\n  barrier(shared)\n}"
    )
    assert str(Let(x, const(1), Store(A, x, const(0.0)))) == "let x = 1 {\n  A[x] = 0f\n}"


GOOD = "kernel k(X: float32[8], Y: float32[8]) -> (Y) {\n  for (i, 0, 8) {\n    Y[i] = (X[i] + 1f)\n  }\n}"


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "expected"),
    [
        ("+ 1f", "+ 1", 3, 18, r"operands of one type, found float32 \+ int32"),
        ("X[i]", "Q[i]", 3, 13, r"a buffer \(there are X, Y\), found 'Q'"),
        ("X[i]", "X[j]", 3, 15, r"a variable \(there are i\), found 'j'"),
        ("(i, 0, 8)", "(i, 0 8)", 2, 13, "',', found '8'"),
        ("1f)", "1f", 4, 3, r"'\)', found '}'"),
        ("-> (Y)", "-> (Z)", 1, 44, "the name of a parameter, found 'Z'"),
        ("float32[8], Y", "float31[8], Y", 1, 13, "a dtype, found 'float31'"),
        ("X[i] +", "exq(X[i]) +", 3, 13, "a function, found 'exq'"),
        ("X[i] +", "fma(X[i]) +", 3, 13, "fma takes 3 arguments, not 1"),
        ("\n}", "\n} }", 5, 3, "end of the text, found '}'"),
        ("  for (i", '  // attr [S] storage_scope = "shard"\n  for (i', 2, 31, "a scope .*found '\"shard\"'"),
        ("Y[i] =", "Y[i] = $", 3, 12, r"an expression, found '\$'"),
        ("for (i, 0, 8)", "for (i: int33, 0, 8)", 2, 11, "a dtype, found 'int33'"),
        ("(i, 0, 8) {", "(i, 0, 8)\n  // attr [S] storage_scope", 3, 3, "'{', found '//'"),
        ("+ 1f", "+ 1f\n  // attr [S] storage_scope", 4, 3, r"'\)', found '// attr'"),
        ("Y[i] = ", "Y[i if  i] = ", 3, 13, "a condition, found an expression of type int32"),
        ("+ 1f", "+ ramp(i, 1, 1f)", 3, 20, "a number of lanes as last argument of ramp, found 1f"),
        ("  for (i", "  allocate S[bool * 2.]\n  for (i", 2, 21, "a number of elements, found '2.'"),
    ],
)
def test_errors_name_line_column_and_what_was_expected(
    old: str, new: str, line: int, column: int, expected: str
) -> None:
    with pytest.raises(ParseError, match=expected) as raised:
        parse(GOOD.replace(old, new, 1))
    assert f"line {line}, column {column}:" in raised.value.headline
    assert raised.value.facts[1] == " " * (column - 1) + "^"


def test_precedence_stands_in_for_parentheses() -> None:
    loose = GOOD.replace("(X[i] + 1f)", "X[i]*2f + X[7 - i % 3*2]/4f - 1f")
    tight = "(((X[i]*2f) + (X[(7 - ((i % 3)*2))]/4f)) - 1f)"
    assert tight in str(parse(loose))


def test_brackets_within_brackets_without_end_are_an_error() -> None:
    with pytest.raises(ParseError, match="line 2, column 100005: expected an expression, found the end of the text"):
        parse("kernel k(X: float32[4]) -> (X) {\n  X[" + "(" * 100_000)


@pytest.mark.parametrize(
    "statement", [f"X[{'(' * 100_000}1{')' * 100_000}] = 1f", f"{'if (true) {' * 20_000}{'}' * 20_000}"]
)
def test_brackets_are_read_however_deep_they_are(statement: str) -> None:
    assert isinstance(parse(f"kernel k(X: float32[4]) -> (X) {{ {statement} }}"), Kernel)


@settings(deadline=None, max_examples=300)
@given(mutated([EVERYTHING, GOOD]))
def test_what_is_wrong_in_a_text_is_a_parse_error(text: str) -> None:
    with suppress(ParseError):
        kernel = parse(text)
        assert str(parse(str(kernel))) == str(kernel)
