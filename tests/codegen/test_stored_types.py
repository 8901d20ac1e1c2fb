"""Casts from and to elements of at most 8 bits, against ml_dtypes: every code, every float16, what lies around each
number, and what must not be rounded twice; by loops interpreted, machine code, and CUDA C on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.codegen.native import HOST, run_native
from tests.codegen.test_cuda_source import spread
from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler

from renorm import te
from renorm.core import dtypes
from renorm.core.conversion import converted, limits, wrapped
from renorm.core.errors import InvalidExpression
from renorm.tir import interpret

Array = np.ndarray[Any, Any]
FLOATS = tuple(dtypes.FORMATS)
INTEGERS = tuple(d for d in dtypes.STORED if d not in dtypes.FORMATS)


def codes(dtype: str) -> Array:
    """Every byte as an element; of e2m1 every code, since ml_dtypes does not leave out the other bits of its bytes."""
    last = 16 if dtype == "float4e2m1" else 256
    return np.arange(last, dtype=np.uint8).view(dtypes.numpy_dtype(dtype))


def as_ml_dtypes(a: Array, dtype: str) -> Array:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return a.astype(dtypes.numpy_dtype(dtype))


def around(dtype: str) -> Array:
    """Numbers of float32: those of a dtype, the middle between neighbours, both neighbours of each of these, what is
    beyond its range and below its smallest number, and every float16."""
    own = as_ml_dtypes(codes(dtype), "float32")
    own = np.unique(own[np.isfinite(own)])
    middles = (own[1:] + own[:-1]) / 2
    ends = dtypes.FORMATS[dtype].greatest * np.array([1, 17 / 16, 33 / 32, 9 / 8, 5 / 4, 2, 1e10])
    others = np.concatenate([ends, -ends, [np.inf, -np.inf, 1e-30, 1e-45, -1e-45, 3e38]]).astype(np.float32)
    found = np.concatenate([own, middles, others])
    beside = [np.nextafter(found, np.float32(end)) for end in (np.inf, -np.inf)]
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    nan = np.array([np.nan], np.float32)
    return np.concatenate([found, *beside, halves, nan, -nan])


def cast_schedule(n: int, source: str, target: str) -> tuple[te.Schedule, list[te.Tensor]]:
    x = te.placeholder((n,), source, name="x")
    y = te.compute((n,), lambda i: te.cast(target, x[i]), name="y")
    return te.create_schedule(y.op), [x, y]


def by_interpreter(x: Array, source: str, target: str) -> Array:
    s, args = cast_schedule(x.size, source, target)
    y = np.zeros(x.shape, dtypes.numpy_dtype(target))
    interpret.run(te.lower(s, args), [x, y])
    return y


def by_machine_code(x: Array, source: str, target: str) -> Array:
    s, args = cast_schedule(x.size, source, target)
    _, inner = s[args[1]].split(args[1].op.axis[0], factor=16)
    s[args[1]].vectorize(inner)
    y = np.zeros(x.shape, dtypes.numpy_dtype(target))
    run_native(te.lower(s, args), [x, y], HOST)
    return y


def by_cuda(x: Array, source: str, target: str) -> Array:
    s, args = cast_schedule(x.size, source, target)
    spread(s, args[1], vector=4, threads=64)
    y = np.zeros(x.shape, dtypes.numpy_dtype(target))
    host_device.run(te.lower(s, args), [x, y])
    return y


Way = Callable[[Array, str, str], Array]
WAYS = [by_interpreter, by_machine_code, pytest.param(by_cuda, marks=needs_compiler)]


def same_codes(got: Array, expected: Array, x: Array, dtype: str) -> None:
    """Bit by bit; of e2m1, which has no NaN, what NaN becomes has either sign."""
    a, b = got.view(np.uint8), expected.view(np.uint8)
    if dtype == "float4e2m1":
        a, b = (np.where(np.isnan(x), c & 7, c) for c in (a, b))
    wrong = np.flatnonzero(a != b)
    assert not wrong.size, [(x[i], hex(a[i]), hex(b[i])) for i in wrong[:9]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_rounded_to_even(way: Way, dtype: str) -> None:
    x = around(dtype)
    if way is by_interpreter:  # a number at a time
        x = np.concatenate([x[: -(1 << 16)], x[-(1 << 16) :: 61], x[-2:]])
    same_codes(way(x, "float32", dtype), as_ml_dtypes(x, dtype), x, dtype)
    same_codes(converted(x, dtype), as_ml_dtypes(x, dtype), x, dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_float64_is_rounded_once(way: Way, dtype: str) -> None:
    """What is a little beside a tie is one as float32."""
    own = np.unique(np.abs(as_ml_dtypes(codes(dtype), "float32")))
    own = own[np.isfinite(own)]
    ties = ((own[1:] + own[:-1]) / 2).astype(np.float32)
    x = np.concatenate([ties.astype(np.float64) * f for f in (1 + 2.0**-40, 1 - 2.0**-40, -1 - 2.0**-40)])
    nearby = np.concatenate([np.nextafter(ties, np.float32(e)) * s for e, s in ((np.inf, 1), (0, 1), (np.inf, -1))])
    x, nearby = (np.append(a, [np.nan, np.inf, -np.inf, 0.0, -0.0]) for a in (x, nearby.astype(np.float32)))
    same_codes(way(x, "float64", dtype), as_ml_dtypes(nearby.astype(np.float32), dtype), x, dtype)
    same_codes(converted(x, dtype), as_ml_dtypes(nearby.astype(np.float32), dtype), x, dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", dtypes.STORED)
def test_every_code_is_its_number(way: Way, dtype: str) -> None:
    x = np.tile(codes(dtype), 3)[:-5]
    for wide in ("float32", "float64") if dtype in FLOATS else ("float32", "int32", "int8"):
        expected = as_ml_dtypes(x, wide)
        got = way(x, dtype, wide)
        np.testing.assert_array_equal(got, expected)
        if wide.startswith("float"):
            np.testing.assert_array_equal(np.signbit(got)[expected == 0], np.signbit(expected)[expected == 0])
    np.testing.assert_array_equal(way(x, dtype, "bool"), as_ml_dtypes(x, "float32") != 0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap(way: Way, dtype: str) -> None:
    low, high = limits(dtype)
    whole = np.array([*range(-40, 40), 300, 2**31 - 1, -(2**31), low, high, high + 1])
    for source, x in (("int32", whole), ("int64", np.append(whole, [2**40 + 3, -(2**63)])), ("uint8", whole % 256)):
        x = x.astype(source)
        expected = np.array([wrapped(int(v), dtype) for v in x])
        np.testing.assert_array_equal(way(x, source, dtype).astype(np.int64), expected, err_msg=source)
        np.testing.assert_array_equal(converted(x, dtype).astype(np.int64), expected, err_msg=source)
    for source in ("float32", "float64"):  # cut toward zero; beyond int32 as its ends, NaN as 0
        x = np.array([7.9, -8.9, 0.5, -0.5, 15.99, -1.0, 3e9, -3e9, np.inf, np.nan, 2.0, -3.0], source)
        cut = np.clip(np.trunc(np.nan_to_num(x.astype(np.float64), posinf=3e9)), -(2**31), 2**31 - 1)
        expected = np.array([wrapped(int(v), dtype) for v in cut])
        np.testing.assert_array_equal(way(x, source, dtype).astype(np.int64), expected, err_msg=source)
        np.testing.assert_array_equal(converted(x, dtype).astype(np.int64), expected, err_msg=source)


@pytest.mark.parametrize("way", WAYS)
def test_bytes_are_moved_beside_constants_as_they_are(way: Way) -> None:
    """A constant stands as its code beside what is loaded."""
    for dtype, number in (
        ("float8e5m2", 1.75),
        ("float8e4m3fnuz", -240.0),
        ("float4e2m1", -6.0),
        ("int4", -3),
        ("uint2", 3),
    ):

        def padded(x: te.Tensor, dtype: str = dtype, number: float = number) -> te.Tensor:
            return te.compute(
                (70,), lambda i: te.if_then_else(i < 64, x[te.min(i, 63)], te.const(number, dtype)), name="y"
            )

        x = te.placeholder((64,), dtype, name="x")
        y = padded(x)
        s = te.create_schedule(y.op)
        if way is by_cuda:
            spread(s, y)
        a = np.tile(codes(dtype), 4)[:64]
        if dtype in INTEGERS:
            a = converted(np.arange(64) - 5, dtype)
        b = np.zeros(70, a.dtype)
        kernel = te.lower(s, [x, y])
        if way is by_cuda:
            host_device.run(kernel, [a, b])
        else:
            (interpret.run if way is by_interpreter else run_native)(kernel, [a, b])
        expected = np.append(a.astype(np.float32), np.full(6, number, np.float32))
        np.testing.assert_array_equal(b.astype(np.float32), expected)


def test_nothing_is_computed_in_them() -> None:
    x = te.placeholder((4,), "int4", name="x")
    for made in (
        lambda i: x[i] + x[i],
        lambda i: te.max(x[i], x[i]),
        lambda i: te.abs(x[i]),
        lambda i: te.if_then_else(i > 1, x[i], te.const(1, "int8")),
    ):
        with pytest.raises(InvalidExpression, match="int4 is storage only"):
            te.compute((4,), made, name="y")
