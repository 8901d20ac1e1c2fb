"""Native code against the loop interpreter, bit for bit, on random programs.

Float programs are built so that contraction cannot show: products are of small multiples of 1/2, which no operation of
float32 or float64 rounds; what rounds (quotients, square roots) is not multiplied afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import HOST, program, run_native

from renorm.codegen.llvm import compile_kernel
from renorm.codegen.phases import cut
from renorm.core import dtypes
from renorm.core.conversion import converted
from renorm.expr.nodes import (
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Ramp,
    Select,
    Var,
    const,
)
from renorm.tir import interpret
from renorm.tir.nodes import Allocate, Buffer, For, If, Kernel, Let, Seq, Stmt, Store
from renorm.tir.parse import parse

N = 48  # elements of every buffer; divisible by the lanes used here
Array = np.ndarray[Any, Any]
quick = settings(max_examples=40, deadline=None)


def fill(dtype: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    kind = dtypes.lookup(dtype)
    if kind.kind == "float":
        values = rng.integers(-16, 17, N) / 2
        special = rng.choice([np.nan, np.inf, -np.inf, -0.0], N)
        return np.where(rng.random(N) < 0.1 * (seed % 2), special, values).astype(dtypes.numpy_dtype(dtype))
    if kind.kind == "bool":
        return rng.random(N) < 0.5
    limits = np.iinfo(dtype)
    small = rng.integers(max(-9, int(limits.min)), 10, N).astype(dtype)
    return np.where(rng.random(N) < 0.3, rng.integers(limits.min, limits.max, N, dtype, endpoint=True), small)


def same_bits(got: Array, expected: Array, signed_zeros: bool = True) -> None:
    """Equal representations; NaN equals any NaN. signed_zeros: whether -0.0 differs from 0.0."""
    if not signed_zeros and dtypes.is_float(dtypes.from_numpy(expected.dtype)):
        got, expected = (np.where(a == 0, np.zeros((), a.dtype), a) for a in (got, expected))
    plain = [a.view(f"u{a.itemsize}") for a in (got, expected)]
    if dtypes.is_float(dtypes.from_numpy(expected.dtype)):
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(got), nan)
        plain = [np.where(nan, 0, p) for p in plain]
    np.testing.assert_array_equal(plain[0], plain[1])


def check(kernel: Kernel, arrays: list[Array], threads: int = 1, signed_zeros: bool = True) -> None:
    """Every array is the same after the interpreter and after native code."""
    expected, got = [a.copy() for a in arrays], [a.copy() for a in arrays]
    interpret.run(kernel, expected)
    run_native(kernel, got, threads=threads)
    for g, e in zip(got, expected, strict=True):
        same_bits(g, e, signed_zeros)


# expressions -----------------------------------------------------------------------------------------------------


class Leaves:
    """Loads of x0, x1, x2 at the elements at hand, of one dtype."""

    def __init__(self, dtype: str, lanes: int):
        self.buffers = [Buffer(f"x{k}", dtype, N) for k in range(3)]
        self.dtype, self.lanes = dtype, lanes
        self.i = Var("i")
        self.index: Expr = Ramp(self.i * lanes, const(1), lanes) if lanes > 1 else self.i

    def load(self, k: int) -> Expr:
        return Load(self.buffers[k], [self.index])

    def number(self, value: float) -> Expr:
        c = Const(value, self.dtype)
        return Broadcast(c, self.lanes) if self.lanes > 1 else c


@st.composite
def conditions(draw: st.DrawFn, leaves: Leaves, depth: int) -> Expr:
    kind = draw(st.sampled_from(["compare", "and", "or", "not"])) if depth else "compare"
    if kind == "compare":
        op = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]))
        return Binary(op, draw(exact(leaves, depth - 1)), draw(exact(leaves, depth - 1)))
    if kind == "not":
        return Not(draw(conditions(leaves, depth - 1)))
    return Binary("&&" if kind == "and" else "||", draw(conditions(leaves, depth - 1)), draw(conditions(leaves, 0)))


@st.composite
def exact(draw: st.DrawFn, leaves: Leaves, depth: int) -> Expr:
    """An expression that no operation rounds."""
    if depth <= 0:
        if draw(st.booleans()):
            return leaves.load(draw(st.integers(0, 2)))
        return leaves.number(draw(st.integers(0, 8)) if dtypes.lookup(leaves.dtype).kind != "bool" else True)
    kind = draw(st.sampled_from(["binary", "binary", "select", "if", "call", "cast"]))
    is_bool = leaves.dtype == "bool"
    if kind == "binary" or is_bool:
        op = draw(st.sampled_from(["&&", "||", "min", "max"] if is_bool else ["+", "-", "*", "min", "max"]))
        return Binary(op, draw(exact(leaves, depth - 1)), draw(exact(leaves, depth - 1)))
    a = draw(exact(leaves, depth - 1))
    if kind == "select":
        return Select(draw(conditions(leaves, depth - 1)), a, draw(exact(leaves, depth - 1)))
    if kind == "if":
        return Call("if_then_else", [draw(conditions(leaves, 0)), a, draw(exact(leaves, depth - 1))])
    if kind == "cast":
        if dtypes.is_float(leaves.dtype):
            zero, most = leaves.number(0), leaves.number(8)
            finite = Select(Binary("==", a, a), Binary("min", Binary("max", a, zero), most), zero)
            return Cast(leaves.dtype, Cast("int32", Call("floor", [finite])))
        return Cast(leaves.dtype, Cast(draw(st.sampled_from(["int8", "uint16", "int64"])), a))
    names = ["abs", "sign", "floor", "ceil", "round", "trunc"] if dtypes.is_float(leaves.dtype) else ["abs", "sign"]
    return Call(draw(st.sampled_from(names)), [a])


@st.composite
def elementwise(draw: st.DrawFn, dtype: str) -> tuple[Kernel, list[Array]]:
    lanes = draw(st.sampled_from([1, 1, 4, 16]))
    leaves = Leaves(dtype, lanes)
    value = draw(exact(leaves, draw(st.integers(1, 3))))
    if dtype in ("float32", "float64") and draw(st.booleans()):
        # a divisor that is zero is 0.0: which zero min and max give is nobody's to rely on, and quotients show it
        other = Binary("+", draw(exact(leaves, 1)), leaves.number(0))
        value = draw(
            st.sampled_from(
                [
                    Binary("/", value, other),
                    Call("sqrt", [value]),
                    Binary("//", value, other),
                    Binary("%", value, other),
                ]
            )
        )
    elif dtypes.is_int(dtype) and draw(st.booleans()):
        divisor = Binary("max", Call("abs", [draw(exact(leaves, 1))]), leaves.number(3))
        value = Binary(draw(st.sampled_from(["/", "//", "%"])), value, divisor)
    y = Buffer("y", value.dtype, N)
    body = For(
        leaves.i,
        const(0),
        const(N // lanes),
        draw(st.sampled_from(["serial", "parallel", "unrolled"])),
        Store(y, leaves.index, value),
    )
    arrays = [fill(dtype, draw(st.integers(0, 99))) for _ in range(3)]
    return program("f", (*leaves.buffers, y), body), [
        *arrays,
        np.zeros(N, dtypes.numpy_dtype(value.dtype)),
    ]


@pytest.mark.parametrize("dtype", dtypes.ALL)
def test_expressions(dtype: str) -> None:
    @quick
    @given(elementwise(dtype))
    def run(case: tuple[Kernel, list[Array]]) -> None:
        check(*case, signed_zeros=False)  # which zero min and max give is nobody's to rely on, in NumPy neither

    run()


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("source", [*dtypes.ALL, "tf32"])
@pytest.mark.parametrize("target", [*dtypes.ALL, "tf32"])
def test_casts_in_range(source: str, target: str, lanes: int) -> None:
    leaves = Leaves(source, lanes)
    y = Buffer("y", target, N)
    store = Store(y, leaves.index, Cast(target, leaves.load(0)))
    kernel = program("c", (leaves.buffers[0], y), For(leaves.i, const(0), const(N // lanes), "serial", store))
    x = fill(source, 4)
    if dtypes.is_float(source) and dtypes.lookup(target).kind == "uint":
        x = np.abs(x)
    check(kernel, [x, np.zeros(N, dtypes.numpy_dtype(target))])


def _nearest_even(x: Array, digits: int, least_exponent: int) -> Array:
    """x rounded to a format of so many bits after the leading one, as float64; exact, since float64 holds all of it."""
    exponent = np.maximum(np.frexp(x)[1] - 1, least_exponent)
    unit = np.ldexp(1.0, exponent - digits)
    rounded = np.rint(x / unit) * unit
    limit = np.ldexp(2.0 - 2.0**-digits, 1 - least_exponent)
    return np.where(np.abs(rounded) > limit, np.copysign(np.inf, x), rounded)


@pytest.mark.parametrize("source", ["float32", "float64"])
@pytest.mark.parametrize(("target", "digits", "least"), [("float16", 10, -14), ("bfloat16", 7, -126)])
def test_narrowing_rounds_once_to_nearest_even(source: str, target: str, digits: int, least: int) -> None:
    rng = np.random.default_rng(5)
    n = 1 << 12
    unsigned = "u4" if source == "float32" else "u8"
    with np.errstate(all="ignore"):
        patterns = rng.integers(0, np.iinfo(unsigned).max, n, unsigned, endpoint=True).view(source)
        x = _nearest_even(np.exp(rng.uniform(-20, 13, n)), digits, least)
        ties = (x + np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 1, least) - digits - 1)).astype(source)
        around = [np.nextafter(ties, np.array(side, source)) for side in (-np.inf, np.inf)]
        values = np.concatenate([patterns, ties, *around, np.array([np.inf, -np.inf, 0.0, -0.0] * 4, source)])
        expected = _nearest_even(values.astype(np.float64), digits, least).astype(dtypes.numpy_dtype(target))
    a, y, i = Buffer("a", source, len(values)), Buffer("y", target, len(values)), Var("i")
    index = Ramp(i * 16, const(1), 16)
    store = Store(y, index, Cast(target, Load(a, [index])))
    got = np.zeros(len(values), dtypes.numpy_dtype(target))
    run_native(program("c", (a, y), For(i, const(0), const(len(values) // 16), "serial", store)), [values, got])
    same_bits(got, expected)


@pytest.mark.parametrize("lanes", [1, 8])
def test_tf32_is_rounded_as_constants_are(lanes: int) -> None:
    rng = np.random.default_rng(6)
    x = rng.integers(0, 1 << 32, 1 << 12, np.uint32)
    x[::2] = (x[::2] & 0xFFFFE000) | 0x1000  # ties
    leaves = Leaves("float32", lanes)
    values = x.view(np.float32)
    a, y = Buffer("a", "float32", len(x)), Buffer("y", "tf32", len(x))
    index = leaves.i if lanes == 1 else Ramp(leaves.i * lanes, const(1), lanes)
    store = Store(y, index, Cast("tf32", Load(a, [index])))
    got = np.zeros(len(x), np.float32)
    loop = For(leaves.i, const(0), const(len(x) // lanes), "serial", store)
    run_native(program("c", (a, y), loop), [values, got])
    same_bits(got, converted(values, "tf32"))


def test_casts_out_of_range_saturate() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, -0.5, 300.7, -300.7], np.float32)
    for target in dtypes.INTS:
        a, y, i = Buffer("a", "float32", 8), Buffer("y", target, 8), Var("i")
        kernel = program("c", (a, y), For(i, const(0), const(8), "serial", Store(y, i, Cast(target, Load(a, [i])))))
        got = np.zeros(8, target)
        run_native(kernel, [x, got])
        limits = np.iinfo(target)
        expected = [
            0
            if v != v
            else max(int(limits.min), min(int(limits.max), int(v) if np.isfinite(v) else (1 if v > 0 else -1) * 2**70))
            for v in x.tolist()
        ]
        assert got.tolist() == expected


@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("added", [0, 30, -128, 70000.0, 0.5])
@pytest.mark.parametrize("cut", [None, (-3, 100), (0, 127), (5, 9), (-1e6, 0.5)])
def test_what_is_rounded_and_cast_is_an_even_half_and_saturates(
    target: str, added: float, cut: tuple[float, float] | None
) -> None:
    limits = np.iinfo(target)
    ends = [end - added + d for end in (limits.min, limits.max) for d in (-1.5, -1, -0.5, -0.25, 0, 0.25, 0.5, 1, 1.5)]
    special = [np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, -(2.0**31), 0.5, 1.5, -0.5, -2.5, -0.0, 0.1, 7]
    x = np.array([*ends, *special], np.float32)
    sums = (np.rint(x) if cut is None else np.rint(x).clip(*cut)) + np.float32(added)
    expected = np.nan_to_num(sums, nan=0, posinf=1e30, neginf=-1e30).clip(limits.min, limits.max)
    for lanes in (4, 8, 16):
        a, y, i = Buffer("a", "float32", len(x)), Buffer("y", target, len(x)), Var("i")
        index = Ramp(i * lanes, const(1), lanes)
        whole = Call("round", [Load(a, [index])])
        if cut is not None:
            low, high = (Broadcast(const(end, "float32"), lanes) for end in cut)
            whole = Binary("min", Binary("max", whole, low), high)
        moved = Binary("+", whole, Broadcast(const(added, "float32"), lanes))
        loop = For(
            i, const(0), const(len(x) // lanes), "serial", Store(y, index, Cast(target, moved if added else whole))
        )
        got = np.zeros(len(x), target)
        run_native(program("c", (a, y), loop), [x, got])
        assert got.tolist() == expected.astype(np.int64).tolist()


def test_minimum_and_maximum_propagate_nan_from_either_side() -> None:
    x = np.array([np.nan, 1.0, np.nan, -np.inf], np.float32)
    y = np.array([1.0, np.nan, np.nan, np.inf], np.float32)
    a, b, z, i = Buffer("a", "float32", 4), Buffer("b", "float32", 4), Buffer("z", "float32", 4), Var("i")
    for op, oracle in (("min", np.minimum), ("max", np.maximum)):
        for left, right, expected in (
            (Load(a, [i]), Load(b, [i]), oracle(x, y)),
            (Load(a, [i]), const(0.0), oracle(x, np.float32(0))),
            (const(0.0), Load(a, [i]), oracle(np.float32(0), x)),
        ):
            got = np.zeros(4, np.float32)
            store = Store(z, i, Binary(op, left, right))
            run_native(program("m", (a, b, z), For(i, const(0), const(4), "serial", store)), [x, y, got])
            np.testing.assert_array_equal(got, expected)


def test_integer_division_never_traps() -> None:
    least = np.iinfo(np.int32).min
    x = np.array([7, -7, 7, -7, least, 5, least, 0], np.int32)
    y = np.array([2, 2, -2, -2, -1, 0, 0, 3], np.int32)
    a, b, z = Buffer("a", "int32", 8), Buffer("b", "int32", 8), Buffer("z", "int32", 8)
    i = Var("i")
    for lanes in (1, 8):
        index = Ramp(i * 8, const(1), 8) if lanes == 8 else i
        for op, expected in (
            ("//", [3, -4, -4, 3, least, 0, 0, 0]),
            ("%", [1, 1, -1, -1, 0, 0, 0, 0]),
            ("/", [3, -3, -3, 3, least, 0, 0, 0]),
        ):
            got = np.zeros(8, np.int32)
            body = For(
                i,
                const(0),
                const(8 // lanes),
                "serial",
                Store(z, index, Binary(op, Load(a, [index]), Load(b, [index]))),
            )
            run_native(program("d", (a, b, z), body), [x, y, got])
            assert got.tolist() == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_zeros_that_are_known_divided_by_a_condition(dtype: str) -> None:
    lanes = 8
    c, d, z = Buffer("c", "bool", lanes), Buffer("d", "bool", lanes), Buffer("z", dtype, lanes)
    lane = Ramp(const(0), const(1), lanes)
    is_odd = Binary("==", Binary("%", lane, Broadcast(const(2), lanes)), Broadcast(const(1), lanes))
    zero, one = (Broadcast(Const(n, dtype), lanes) for n in (0, 1))
    top = Select(Load(d, [lane]), zero, Select(is_odd, one, zero))
    chosen = Select(is_odd, Load(d, [lane]), Load(c, [lane]))
    kernel = program("k", (c, d, z), Store(z, lane, Binary("/", top, Cast(dtype, chosen))))
    with np.errstate(divide="ignore", invalid="ignore"):
        for bits in range(16):
            pattern = np.resize([bits >> k & 1 for k in range(4)], (2, lanes)).astype(bool)
            check(kernel, [pattern[0], pattern[1, ::-1].copy(), fill(dtype, 1)[:lanes]])


# memory ----------------------------------------------------------------------------------------------------------


@st.composite
def vector_accesses(draw: st.DrawFn) -> tuple[Kernel, list[Array]]:
    """y[ramp] = x[some vector], possibly under predicates, with any stride and shape of index."""
    dtype = draw(st.sampled_from(["float32", "float64", "float16", "int8", "int32", "bool"]))
    lanes = draw(st.sampled_from([2, 4, 8, 16]))
    x, y, order = Buffer("x", dtype, N), Buffer("y", dtype, N), Buffer("order", "int32", N)
    i = Var("i")
    spread = lambda e: Broadcast(e, lanes)  # noqa: E731
    plain = Ramp(i * lanes, const(1), lanes)
    limit = draw(st.integers(0, N))
    last = spread(const(N - 1))
    indirect = Binary("min", Binary("max", Load(order, [plain]), spread(const(0))), last)
    index = draw(
        st.sampled_from(
            [
                plain,
                Ramp(const(N - 1) - i, const(-1), lanes),
                Ramp(i, const(2), lanes),
                Ramp(i % 3, const(3), lanes),
                Ramp(i, const(0), lanes),
                Binary("//", plain, spread(const(3))),
                Binary("%", plain, spread(const(4))),
                Binary("%", Binary("*", plain, spread(const(5))), spread(const(N))),
                Binary("min", plain, spread(const(N // 2))),
                indirect,
                Binary("-", last, indirect),
            ]
        )
    )
    predicate = draw(
        st.sampled_from(
            [
                None,
                Binary("<", plain, spread(const(limit))),
                Binary(">=", plain, spread(i + limit)),
                Binary("==", Binary("%", plain, spread(const(3))), spread(const(0))),
                Binary("<", Load(order, [plain]), spread(const(limit))),
            ]
        )
    )
    value: Expr = Load(x, [index], predicate)
    if draw(st.booleans()) and predicate is not None:
        value = Call("if_then_else", [predicate, Load(x, [index]), Load(x, [plain])])
    destination: Expr = plain
    if draw(st.booleans()):
        destination = draw(st.sampled_from([Ramp(const(N - 1) - i * lanes, const(-1), lanes), indirect]))
    store = Store(y, destination, value, draw(st.sampled_from([None, predicate])))
    loop = For(i, const(0), const(N // lanes), draw(st.sampled_from(["serial", "unrolled"])), store)
    permutation = np.random.default_rng(draw(st.integers(0, 9))).permutation(N).astype(np.int32)
    return program("v", (x, order, y), loop), [fill(dtype, 1), permutation, fill(dtype, 2)]


@settings(max_examples=150, deadline=None)
@given(vector_accesses())
def test_vector_accesses(case: tuple[Kernel, list[Array]]) -> None:
    check(*case)


@st.composite
def indices(draw: st.DrawFn, names: list[Var], depth: int) -> Expr:
    """Index arithmetic of loop variables, with negative intermediate values."""
    if depth == 0:
        return draw(st.sampled_from([*names, const(draw(st.integers(-9, 9)))]))
    a, b = draw(indices(names, depth - 1)), draw(indices(names, depth - 1))
    op = draw(st.sampled_from(["+", "-", "*", "//", "%", "/", "min", "max", "select"]))
    if op in ("//", "%", "/"):
        return Binary(op, a, const(draw(st.sampled_from([1, 2, 3, 4, 7, 16]))))
    if op == "select":
        return Select(Binary(draw(st.sampled_from(["<", "==", ">="])), a, b), a, b)
    return Binary(op, a, b)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_index_arithmetic(data: st.DataObject) -> None:
    i, j, t = Var("i"), Var("j"), Var("t")
    e = data.draw(indices([i, j], 3))
    flat = e % N
    x, y, z = Buffer("x", "float32", N), Buffer("y", "float32", 64), Buffer("z", "int32", 64)
    kinds = st.sampled_from(["serial", "unrolled", "parallel"])
    at = i * 8 + j
    inner = Let(t, flat, Seq((Store(y, at, Load(x, [t])), Store(z, at, e))))
    loops = For(j, const(0), const(8), data.draw(kinds), inner)
    start = data.draw(st.integers(0, 3))
    body: Stmt = For(i, const(start), const(8 - start), data.draw(kinds), loops)
    kernel = program("i", (x, y, z), body)
    check(kernel, [fill("float32", 0), np.zeros(64, np.float32), np.zeros(64, np.int32)])


# statements ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["global", "shared", "local", "register"])
@pytest.mark.parametrize("size", [64, 2048])
@pytest.mark.parametrize("threads", [1, 3])
def test_buffers_of_every_scope_and_size(scope: str, size: int, threads: int) -> None:
    """A running sum by way of a temporary inside a parallel loop: on the stack, or in scratch where it is large."""
    rows = 6
    x, y = Buffer("x", "float32", rows * size), Buffer("y", "float32", rows * size)
    t, r, a, b = Buffer("t", "float32", size, scope), Var("r"), Var("a"), Var("b")
    first = Store(t, const(0), Load(x, [r * size]))
    running = For(a, const(1), const(size - 1), "serial", Store(t, a, Load(t, [a - 1]) + Load(x, [r * size + a])))
    out = For(b, const(0), const(size), "serial", Store(y, r * size + b, Load(t, [b])))
    kernel = program("s", (x, y), For(r, const(0), const(rows), "parallel", Allocate(t, Seq((first, running, out)))))
    data = np.random.default_rng(0).integers(-9, 9, rows * size).astype(np.float32)
    check(kernel, [data, np.zeros(rows * size, np.float32)], threads)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_phases_see_what_the_ones_before_wrote(threads: int) -> None:
    x, y, t, u = (Buffer(name, "float32", N) for name in "xytu")
    i, j, k, c = Var("i"), Var("j"), Var("k"), Var("c")
    body = Allocate(
        t,
        Seq(
            (
                For(i, const(0), const(N), "parallel", Store(t, i, Load(x, [i]) + 1.0)),
                Store(t, const(0), Load(t, [const(N - 1)])),
                Let(
                    c,
                    const(N) - 1,
                    Allocate(
                        u,
                        Seq(
                            (
                                For(j, const(0), const(N), "parallel", Store(u, c - j, Load(t, [j]))),
                                For(k, const(3), const(N - 3), "parallel", Store(y, k, Load(u, [k]) - Load(t, [c]))),
                            )
                        ),
                    ),
                ),
            )
        ),
    )
    kernel = program("p", (x, y), body)
    phases, workspaces = cut(kernel)
    assert [p.extent for p in phases] == [N, 1, N, N - 3]
    assert workspaces == (t, u)
    check(kernel, [fill("float32", 0), np.zeros(N, np.float32)], threads)


def test_control_flow_and_bounds_known_only_at_run_time() -> None:
    """A triangular loop whose extent is read from memory, under conditions; some trips are zero."""
    x, y, n = Buffer("x", "float32", N), Buffer("y", "float32", N), Buffer("n", "int32", N)
    i, j, t = Var("i"), Var("j"), Var("t")
    add = Store(y, i, Load(y, [i]) + Load(x, [j]))
    loop = For(j, i % 3, t, "serial", If(Binary("<", Load(x, [j]), const(0.0)), add, Store(y, i, Load(y, [i]) - 1.0)))
    clamped = Binary("min", Binary("max", Load(n, [i]), const(0)), const(30))
    body = Let(t, clamped, If(i > 5, loop, Store(y, i, const(7.0))))
    kernel = program("c", (x, n, y), For(i, const(0), const(N), "serial", body))
    trips = np.random.default_rng(0).integers(0, 20, N).astype(np.int32)
    check(kernel, [fill("float32", 0), trips, fill("float32", 1)])


def test_what_no_store_touches_is_loaded_once() -> None:
    """A written parameter overlaps no other (codegen.abi), so storing y leaves the scale as it was."""
    x, scale, y = Buffer("x", "float32", N), Buffer("scale", "float32", 1), Buffer("y", "float32", N)
    stores = [Store(y, const(i), Load(x, [const(i)]) * Load(scale, [const(0)])) for i in range(N)]
    kernel = program("s", (x, scale, y), Seq(tuple(stores)))
    check(kernel, [fill("float32", 0), fill("float32", 2)[:1].copy(), fill("float32", 4)])
    assert compile_kernel(kernel, HOST).llvm.count("= load float") == N + 1


def test_elements_may_be_computed_in_place() -> None:
    """Where every element is read before it is written at its own index, one array may be operand and result."""
    x, y, i = Buffer("x", "float32", N), Buffer("y", "float32", N), Var("i")
    kernel = program("p", (x, y), For(i, const(0), const(N), "serial", Store(y, i, Load(x, [i]) + 1.0)))
    data = fill("float32", 0)
    expected = data + np.float32(1)
    run_native(kernel, [data, data])
    np.testing.assert_array_equal(data, expected)


def test_an_unrolled_loop_of_many_trips_stays_a_loop() -> None:

    y, i = Buffer("y", "float32", 1 << 20), Var("i")
    kernel = program("u", (y,), For(i, const(0), const(1 << 20), "unrolled", Store(y, i, const(1.0))))
    assert len(compile_kernel(kernel, HOST).llvm) < 10_000


def test_an_axis_that_was_fused_and_taken_apart_is_read_as_vectors() -> None:
    """(f // 7) * 7 + f % 7 with f = 16*o + i, where 16*o has been reduced modulo 7 on one side only."""
    o, lanes = Var("o"), 16
    lane = Ramp(const(0), const(1), lanes)

    def spread(e: Expr) -> Expr:
        return Broadcast(e, lanes)

    fused = Binary("+", spread(o * 16), lane)
    reduced = Binary("+", spread(o * 2), lane)
    index = Binary(
        "+",
        Binary("*", Binary("//", fused, spread(const(7))), spread(const(7))),
        Binary("%", reduced, spread(const(7))),
    )
    x, y = Buffer("x", "float32", N), Buffer("y", "float32", N)
    kernel = program(
        "r", (x, y), For(o, const(0), const(3), "serial", Store(y, Ramp(o * 16, const(1), 16), Load(x, [index])))
    )
    assert "load <16 x float>" in compile_kernel(kernel, HOST).llvm
    check(kernel, [fill("float32", 1), np.zeros(N, np.float32)])


def test_indices_are_compared_in_64_bits() -> None:
    """Whatever they are written in: a bound may be beyond the type of its index."""
    text = """kernel k(Y: float32[8]) -> (Y) {
  for (k, 0, 8) {
    if (((k*1073741824) >= 4294967296)) {
      Y[k] = 1f
    } else {
      Y[k] = 0f
    }
  }
}"""
    ours, theirs = np.full(8, 7, np.float32), np.full(8, 7, np.float32)
    run_native(parse(text), [ours])
    interpret.run(parse(text), [theirs])
    assert ours.tolist() == theirs.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
