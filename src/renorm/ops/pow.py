"""Powers, with NumPy broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.conversion import limits
from renorm.core.dtypes import NUMBERS, is_float
from renorm.expr.nodes import Expr, all_of, any_of, binary, cast, select
from renorm.graph.op import Reject, Sample
from renorm.graph.types import boolean, f16, f32, f64, i8, i32, i64, u8, u64
from renorm.ops.shared import exact
from renorm.ops.shared.family import Aligned


class Pow(Aligned):
    """y = a^b, in the type of a, in which powers of integers wrap. The exponent has a type of its own."""

    signature = "a: T[...], b: U[...] -> y: T[...]"
    types = {"T": NUMBERS, "U": NUMBERS}
    onnx = {"Pow": 1}
    known_element = staticmethod(exact.power)

    def element(self, a: Expr, b: Expr) -> Expr:
        """Return a power modulo 2^64 of integers. With a negative exponent all but 1 and -1 have 0 (0 too)."""
        if is_float(a.dtype) or is_float(b.dtype):
            wide = a.dtype if is_float(a.dtype) else "float64"
            return cast(a.dtype, binary("pow", cast(wide, a), cast(wide, b)))
        base, exponent = cast("int64", a), cast("uint64", b)
        if limits(b.dtype)[0] < 0:
            has_inverse = all_of(a <= 1, a >= -1) if limits(a.dtype)[0] < 0 else a <= 1
            n, base = cast("int64", b), select(any_of(b >= 0, has_inverse), base, 0)
            exponent = cast("uint64", select(n < 0, 2 - n % 2, n))
        return cast(a.dtype, binary("pow", cast("uint64", base), exponent))

    def numpy(self, a: Any, b: Any) -> Any:
        if all(np.issubdtype(np.asarray(x).dtype, np.integer) for x in (a, b)):
            return np.vectorize(_whole_power, otypes=[np.uint64])(a, b).astype(np.asarray(a).dtype)
        return np.power(np.asarray(a, np.float64), np.asarray(b, np.float64))

    samples = [
        Sample(f32[2, 3, 5].between(0.1, 3), f32[3, 1]),
        Sample(f32[2, 7], f32[()].of(2.0)),
        Sample(f32[7].of([-2, -1, -0.5, 0, 1, 2, 3]), f32[()].of(3)),
        Sample(f32[4].of([0, 1, 4, 9]), f32[()].of(0.5)),
        Sample(f32[3].of([2, 4, 0.5]), f32[()].of(-1)),
        Sample(f32[5].between(0.5, 2), i64[5].of([-2, -1, 0, 1, 3])),
        Sample(f64[5].of([-3, -2, 0, 2, 3]), i32[()].of(2)),
        Sample(i64[4].of([-3, 0, 2, 5]), i64[()].of(3)),
        Sample(i32[3].of([4, 9, 16]), f32[()].of(0.5)),
        Sample(i32[3].of([2000, -7, 3]), i64[3].of([3, 31, 100])),
        Sample(u8[7].of([0, 1, 2, 3, 5, 7, 255]), u8[()].of(200)),
        Sample(i64[4].of([0, 2, -1, 3]), i64[4].of([-(2**63), -(2**63), -(2**63) + 1, 2**63 - 1])),
        Sample(u64[3].of([2**64 - 1, 3, 2**63]), u64[3].of([2, 2**64 - 1, 3])),
        Sample(u64[3].of([2**64 - 1, 1, 3]), i8[3].of([-1, -2, -128])),
        Sample(i64[6].of([-3, -1, -1, 0, 1, 3]), i32[6].of([-1, -2, -3, -1, -5, -1])),
        Sample(f16[4].between(0.5, 2), f16[()].of(2), tolerance=2e-3),
    ]
    rejects = [
        Reject(f32[3], f32[2], because="do not broadcast"),
        Reject(boolean[3], f32[3], because="a is bool"),
    ]


def _whole_power(a: Any, b: Any) -> int:
    base, n = int(a), int(b)
    return 0 if n < 0 and abs(base) > 1 else pow(base, abs(n), 1 << 64)
