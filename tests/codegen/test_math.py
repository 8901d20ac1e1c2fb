"""Elementary functions: the errors that their docstrings state, over all kinds of bit patterns, and special values."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.codegen.native import HOST, Native, program

from renorm.codegen.llvm import compile_kernel
from renorm.expr.nodes import Binary, Broadcast, Call, Const, Expr, Load, Ramp, Var, const
from renorm.tir.nodes import Buffer, For, Store

Array = np.ndarray[Any, Any]


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[x.dtype])(x)  # glibc's in float64, below 1 ulp itself


ORACLE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp, "log": np.log, "tanh": np.tanh, "erf": _erf, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip
# errors in ulp that are promised for (float32, float64)
PROMISED = {
    "exp": (1, 1), "log": (1, 1), "tanh": (2, 2), "erf": (6, 2), "sigmoid": (2.5, 2), "sqrt": (0.5, 0.5),
    "rsqrt": (1.5, 1.5), "sin": (0.51, 1), "cos": (0.51, 1), "tan": (0.51, 3), "asin": (0.51, 2), "acos": (0.51, 2),
    "atan": (0.51, 2), "sinh": (0.51, 3), "cosh": (0.51, 2), "asinh": (0.51, 3), "acosh": (0.51, 3),
    "atanh": (0.51, 3),
}  # fmt: skip


def elementwise(build: Callable[..., Expr], dtypes: list[str], out: str, n: int, lanes: int) -> Native:
    """y[i] = build(x0[i], x1[i], ...) over n elements, `lanes` at a time."""
    xs = [Buffer(f"x{k}", d, n) for k, d in enumerate(dtypes)]
    y, i = Buffer("y", out, n), Var("i")
    index: Expr = Ramp(i * lanes, const(1), lanes) if lanes > 1 else i
    body = Store(y, index, build(*(Load(x, [index]) for x in xs)))
    kernel = program("f", (*xs, y), For(i, const(0), const(n // lanes), "parallel", body))
    return Native(compile_kernel(kernel, HOST))


def apply(build: Callable[..., Expr], *xs: Array, out: str | None = None, lanes: int = 8) -> Array:
    n = len(xs[0])
    padded = [np.concatenate([x, np.ones(-n % lanes, x.dtype)]) for x in xs]
    y = np.zeros(len(padded[0]), out or xs[0].dtype)
    dtypes = [str(x.dtype) for x in xs]
    elementwise(build, dtypes, str(y.dtype), len(y), lanes)(*padded, y)
    return y[:n]


def ulps(got: Array, exact: Array) -> Array:
    """|got - exact| in units of got's last place at |exact|; 0 where both are NaN or the same infinity."""
    dtype = got.dtype
    limits = np.finfo(dtype)
    with np.errstate(all="ignore"):
        magnitude = np.minimum(np.maximum(np.abs(exact), limits.smallest_normal), limits.max)
        unit = np.ldexp(exact.dtype.type(1), np.frexp(magnitude)[1] - 1 - limits.nmant)
        error = np.abs(got.astype(exact.dtype) - exact) / unit
        rounded = exact.astype(dtype)
    same = (np.isnan(got) & np.isnan(exact)) | (np.isinf(rounded) & (got == rounded))
    wrong = np.isnan(got) | np.isnan(exact) | (np.isinf(got) != np.isinf(rounded))
    return np.where(same, 0, np.where(wrong, np.inf, error))


def sample(dtype: str, n: int, seed: int = 0) -> Array:
    """Random bit patterns, moderate numbers, numbers near 1, and the edges of the format."""
    rng = np.random.default_rng(seed)
    unsigned = np.uint32 if dtype == "float32" else np.uint64
    patterns = rng.integers(0, np.iinfo(unsigned).max, n // 2, unsigned, endpoint=True).view(dtype)
    limits = np.finfo(dtype)
    edges = [0.0, 1.0, 2.0, 0.5, np.inf, limits.tiny, limits.max, limits.smallest_subnormal, limits.eps, 88.7, 709.7]
    edges += [104.0, 745.2, 9.0, 19.0, 0.6, 3.95, 6.0, np.pi / 2, np.pi, 2.0**27, 2.0**28, 0.4142135623730951]
    with np.errstate(over="ignore"):
        parts = [
            np.array([np.nan, *edges, *(-e for e in edges)]),
            rng.standard_normal(n // 4) * 3,
            rng.uniform(-1.5, 1.5, n // 8),
            1 + rng.standard_normal(n // 16) * 1e-3,
            np.arange(1, n // 32) * (np.pi / 2),  # where sin and cos nearly vanish
            rng.uniform(-110, 110, n // 32) if dtype == "float32" else rng.uniform(-750, 750, n // 32),
        ]
        return np.concatenate([patterns, *(p.astype(dtype) for p in parts)])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ORACLE)
def test_the_error_is_what_the_docstring_promises(name: str, dtype: str) -> None:
    x = sample(dtype, 1 << 15)
    got = apply(lambda a: Call(name, [a]), x)
    with np.errstate(all="ignore"):
        exact = ORACLE[name](x.astype(np.float64 if dtype == "float32" else np.longdouble))
    errors = ulps(got, exact)
    worst = int(np.argmax(errors))
    promised = PROMISED[name][dtype == "float64"]
    assert errors[worst] <= promised, f"{name}({x[worst]!r}) = {got[worst]!r}, exact {exact[worst]!r}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sigmoid"])
def test_every_exponent_and_many_mantissas_in_float32(name: str) -> None:
    step = 257  # coprime to the period of the mantissa: all signs and exponents, spread mantissas
    x = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    native = None
    for chunk in np.array_split(x[: len(x) // 16 * 16], 16):
        chunk = np.ascontiguousarray(chunk[: len(chunk) // 16 * 16])
        native = native or elementwise(lambda a: Call(name, [a]), ["float32"], "float32", len(chunk), 16)
        got = np.empty_like(chunk)
        native(chunk[: native.compiled.phases[0] * 16], got)
        with np.errstate(all="ignore"):
            exact = ORACLE[name](chunk.astype(np.float64)) if name != "erf" else _erf_fast(chunk)
        errors = ulps(got, exact)
        worst = int(np.argmax(errors))
        assert errors[worst] <= PROMISED[name][0], f"{name}({chunk[worst]!r}) = {got[worst]!r}"


def test_an_exponential_that_is_zero_takes_no_longer() -> None:
    """Masked scores of attention: instructions with results below the normal range take eight times as long."""
    n, times = 1 << 14, list[float]()
    run = elementwise(lambda x: Call("exp", [x]), ["float32"], "float32", n, 16)
    memory = np.empty(2 * n + 16, np.float32)
    first = -memory.ctypes.data // 4 % 16
    x, y = memory[first : first + n], memory[first + n : first + 2 * n]
    for score in (-1.0, -1e4, -math.inf):
        x[:], spent = score, list[float]()
        for _ in range(50):
            since = time.perf_counter()
            run(x, y)
            spent.append(time.perf_counter() - since)
        times.append(min(spent))
        assert np.allclose(y, np.exp(score))
    assert max(times) < 3 * times[0]


def test_erf_stays_within_one() -> None:
    x = np.linspace(2.5, 12, 1 << 14, dtype=np.float32)
    got = apply(lambda a: Call("erf", [a]), np.concatenate([x, -x]))
    assert np.abs(got).max() == 1
    assert (got[: len(x)] == -got[len(x) :]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_erf_is_exactly_one_where_it_rounds_to_one(dtype: str) -> None:
    """GELU multiplies what is left of 1 by its argument, however large."""
    start = 4.1 if dtype == "float32" else 6.0
    x = np.concatenate([np.linspace(start, 40, 1 << 10), np.logspace(1, 38, 1 << 10), [np.inf]]).astype(dtype)
    got = apply(lambda a: Call("erf", [a]), np.concatenate([x, -x]))
    np.testing.assert_array_equal(got, np.sign(np.concatenate([x, -x])))


def _erf_fast(x: Array) -> Array:
    """erf of float32 numbers; of each distinct rounded argument once where it no longer changes."""
    wide = np.clip(x.astype(np.float64), -6, 6)
    return _erf(wide)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted({*ORACLE, "floor", "ceil", "trunc", "round", "abs", "sign"}))
def test_zeros_keep_their_sign_and_nan_stays(name: str, dtype: str) -> None:
    x = np.array([0.0, -0.0, np.nan], dtype)
    oracle = {**ORACLE, "round": np.rint, **{n: getattr(np, n) for n in ("floor", "ceil", "trunc", "abs", "sign")}}
    got = apply(lambda a: Call(name, [a]), x, lanes=1)
    with np.errstate(all="ignore"):
        expected = oracle[name](x)
    np.testing.assert_array_equal(got, expected.astype(dtype))
    np.testing.assert_array_equal(np.signbit(got[:2]), np.signbit(expected[:2]) & ~np.isnan(expected[:2]))
    assert np.isnan(got[2])


@pytest.mark.parametrize("lanes", [1, 2, 3, 16, 64])
@pytest.mark.parametrize("name", ["exp", "erf", "tan"])
def test_any_number_of_lanes_gives_the_same_bits(name: str, lanes: int) -> None:
    x = sample("float32", 960)[:960]
    x = x[: len(x) // lanes * lanes]
    got = apply(lambda a: Call(name, [a]), x, lanes=lanes)
    np.testing.assert_array_equal(got, apply(lambda a: Call(name, [a]), x, lanes=1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_is_exact_and_halves_go_to_even(dtype: str) -> None:
    x = np.concatenate([sample(dtype, 4096), np.arange(-20, 20).astype(dtype) / 2])
    oracles = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint, "abs": np.abs}
    for name, oracle in oracles.items():
        with np.errstate(invalid="ignore"):  # signalling NaNs
            expected = oracle(x)
        np.testing.assert_array_equal(apply(lambda a, name=name: Call(name, [a]), x), expected)
    np.testing.assert_array_equal(apply(lambda a: Call("isnan", [a]), x, out="bool"), np.isnan(x))
    np.testing.assert_array_equal(apply(lambda a: Call("isinf", [a]), x, out="bool"), np.isinf(x))


def _pairs(dtype: str, n: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(1)
    limits = np.finfo(dtype)
    one_side = [0.0, 1.0, 2.0, 0.5, 3.0, np.inf, limits.tiny, limits.max, limits.smallest_subnormal, 7.0, 2.5, 1e10]
    special = np.array([np.nan, *one_side, *(-v for v in one_side)], dtype)
    a, b = (g.ravel() for g in np.meshgrid(special, special))
    with np.errstate(over="ignore", under="ignore"):
        x = [a, sample(dtype, n)[:n], np.exp(rng.uniform(-20, 20, n)), np.exp(rng.uniform(-0.01, 0.01, n))]
        y = [b, sample(dtype, n, 2)[:n], rng.standard_normal(n) * 10, rng.standard_normal(n) * 30000]
        return np.concatenate([v.astype(dtype) for v in x]), np.concatenate([v.astype(dtype) for v in y])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_power_of_two_vectors(dtype: str) -> None:
    x, y = _pairs(dtype, 4096)
    got = apply(lambda a, b: Binary("pow", a, b), x, y)
    wide = np.float64 if dtype == "float32" else np.longdouble
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(wide), y.astype(wide))
    errors = ulps(got, exact)
    worst = int(np.argmax(errors))
    assert errors[worst] <= 1, f"{x[worst]!r} ** {y[worst]!r} = {got[worst]!r}, exact {exact[worst]!r}"
    numbers = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(exact[numbers]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_and_floor_division_are_numpys(dtype: str) -> None:
    x, y = _pairs(dtype, 512)
    cases: list[tuple[Callable[..., Expr], Callable[..., Array]]] = [
        (lambda a, b: Call("fmod", [a, b]), np.fmod),
        (lambda a, b: Binary("%", a, b), np.remainder),
        (lambda a, b: Binary("//", a, b), np.floor_divide),
    ]
    for build, oracle in cases:
        got = apply(build, x, y)
        with np.errstate(all="ignore"):
            expected = oracle(x, y)
        np.testing.assert_array_equal(got, expected)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, 16, -1, -2, 0.5, -0.5])
def test_constant_powers_need_no_logarithm(exponent: float) -> None:
    x = np.concatenate([np.linspace(-3, 3, 41), [np.inf, -np.inf, np.nan, 0.0, -0.0]]).astype(np.float32)
    build = lambda a: Binary("pow", a, Broadcast(Const(exponent, "float32"), a.lanes))  # noqa: E731
    compiled = elementwise(build, ["float32"], "float32", 16, 8).compiled
    assert "bitcast" not in compiled.llvm
    got = apply(build, x)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), np.full(x.shape, float(exponent)))  # a scalar 0.5 is another function
    assert np.max(ulps(got, exact)) <= max(1, abs(exponent))
