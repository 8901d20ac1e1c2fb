"""Bits of integers: and, or, exclusive or, not, shifts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from renorm.core.conversion import limits
from renorm.core.dtypes import INTS
from renorm.expr.nodes import Expr, call, const
from renorm.graph.attributes import String
from renorm.graph.op import OpDef, Reject, Sample
from renorm.graph.types import f32, i8, i16, i32, i64, u8, u32, u64
from renorm.ops.shared.family import Elementwise, entry, method

UFUNCS: dict[str, Callable[[Any, Any], Any]] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def row(name: str) -> type[OpDef]:
    """T op T -> T over all integers, bit by bit."""

    def element(a: Expr, b: Expr) -> Expr:
        return call(f"bitwise_{name}", a, b)

    return entry(
        Elementwise,
        f"Bitwise{name.capitalize()}",
        f"y = a {name} b, bit by bit.",
        __name__,
        signature="a: T[...], b: T[...] -> y: T[...]",
        types={"T": INTS},
        onnx={f"Bitwise{name.capitalize()}": 18},
        commutative=True,
        element=method(element),
        numpy=method(UFUNCS[name]),
        samples=[
            Sample(i32[3, 4, 5], i32[3, 4, 5]),
            Sample(u8[3, 1, 5].of(np.arange(240, 255).reshape(3, 1, 5)), u8[4, 1].of([[255], [170], [85], [0]])),
            Sample(i8[5].of([-128, -1, 0, 1, 127]), i8[5].of([127, -128, -1, 3, 85])),
            Sample(i64[2, 2].of([[-1, 2**62], [-(2**63), 7]]), i64[()].of(2**62 + 5)),
            Sample(u64[2].of([2**64 - 1, 5]), u64[2].of([2**63, 3])),
            Sample(i16[0, 3], i16[3]),
        ],
        rejects=[
            Reject(f32[2], f32[2], because="a is float32"),
            Reject(i32[2, 3], i32[2], because="do not broadcast"),
        ],
    )


class BitwiseNot(Elementwise):
    """y = not x, bit by bit."""

    signature = "x: T[...] -> y: T[...]"
    types = {"T": INTS}
    onnx = {"BitwiseNot": 18}

    def element(self, x: Expr) -> Expr:
        low, high = limits(x.dtype)
        return call("bitwise_xor", x, const(-1 if low < 0 else high, x.dtype))

    def numpy(self, x: Any) -> Any:
        return np.invert(x)

    samples = [
        Sample(i32[3, 4, 5]),
        Sample(u32[3, 4]),
        Sample(u8[5].of([0, 1, 85, 170, 255])),
        Sample(i64[2].of([-(2**63), 2**63 - 1])),
    ]
    rejects = [Reject(f32[2], because="x is float32")]


class BitShift(Elementwise):
    """y = x shifted by `by` bits; to the right with its sign. By a negative number, or all of its bits or more: to 0,
    or of a negative number to the right to -1."""

    signature = "x: T[...], by: T[...] -> y: T[...]"
    types = {"T": INTS}
    direction = String(among=("LEFT", "RIGHT"))
    onnx = {"BitShift": 11}

    def element(self, x: Expr, by: Expr) -> Expr:
        return call(f"shift_{self.direction.lower()}", x, by)

    def numpy(self, x: Any, by: Any) -> Any:
        inside = (by >= 0) & (by < 8 * np.asarray(x).dtype.itemsize)
        shift = np.left_shift if self.direction == "LEFT" else np.right_shift
        beyond = np.zeros_like(x) if self.direction == "LEFT" else np.minimum(np.sign(x), 0)
        return np.where(inside, shift(x, np.where(inside, by, 0)), beyond)

    samples = [
        Sample(u8[5].of([255, 129, 7, 200, 1]), u8[5].of([1, 7, 0, 8, 255]), direction="RIGHT"),
        Sample(u8[5].of([255, 129, 7, 200, 1]), u8[5].of([1, 7, 0, 8, 255]), direction="LEFT"),
        Sample(i8[6].of([-128, -1, 100, -7, -7, 7]), i8[6].of([3, 1, 2, 8, -1, -1]), direction="RIGHT"),
        Sample(i8[6].of([-128, -1, 100, 1, 3, 7]), i8[6].of([3, 1, 2, 7, 8, -1]), direction="LEFT"),
        Sample(u32[2, 3], u32[3].of([1, 31, 32]), direction="LEFT"),
        Sample(i64[3].of([-(2**63), 2**62, 5]), i64[3].of([63, 62, 64]), direction="RIGHT"),
        Sample(i64[3].of([-(2**63), 2**62 + 3, 5]), i64[3].of([1, 1, 64]), direction="LEFT"),
        Sample(u64[2].of([2**64 - 1, 2**63]), u64[2].of([1, 63]), direction="RIGHT"),
        Sample(i32[2, 3, 4], i32[()].of(3), direction="RIGHT"),
    ]
    rejects = [
        Reject(f32[2], f32[2], direction="LEFT", because="x is float32"),
        Reject(i32[2], i32[2], direction="UP", because="direction"),
    ]


TABLE = [row(name) for name in UFUNCS]
