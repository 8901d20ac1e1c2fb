"""Arithmetic sequences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from renorm import te
from renorm.core import dtypes
from renorm.core.dims import Dim, Sym, maximum, take
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, cast, const
from renorm.graph.ir import Node, Value
from renorm.graph.op import Reach, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64, i32, i64
from renorm.ops.shared import exact
from renorm.ops.shared.family import Injective
from renorm.te.open_dims import OpenDims


class Range(Injective):
    """y = start, start + delta, start + 2 * delta, ... up to but without limit."""

    signature = "start!: T[...], limit!: T[...], delta!: T[...] -> y: T[...]"
    types = {"T": (*dtypes.FLOATS, "int16", "int32", "int64")}
    onnx = {"Range": 11}
    onnx_ignored = ("stash_type",)  # sums of 16-bit floats are in float32, as its default says

    def infer(self, start: Operand, limit: Operand, delta: Operand) -> tuple[Dim | None, ...]:
        for bound in (start, limit, delta):
            if bound.rank > 1 or bound.shape not in ((), (1,)):
                raise OperandError(f"range: {bound} is not a scalar")
        return (_count(*(None if o.known is None else o.known.reshape(-1)[0] for o in (start, limit, delta))),)

    def compute(self, start: Any, limit: Any, delta: Any) -> te.Tensor:
        open_dims, bounds = OpenDims(), [v.reshape(-1).tolist()[0] for v in (start, limit, delta)]
        known = [v.dtype for v in (start, limit, delta) if v.dtype != object]  # open ones are integers
        dtype = dtypes.from_numpy(known[0]) if known else "int64"
        count = _count(*(open_dims.dim(e) if isinstance(e, Expr) else e for e in bounds))
        assert count is not None  # inference has found it
        wide = dtypes.compute_dtype(dtype)
        first, step = (cast(wide, e) if isinstance(e, Expr) else const(e, wide) for e in (bounds[0], bounds[2]))

        def element(i: Expr) -> Expr:
            return cast(dtype, cast(wide, i) * step + first)

        return te.compute((open_dims.extent(count),), element, name="range", tag=te.tag.INJECTIVE)

    def reference(self, start: Any, limit: Any, delta: Any) -> Any:
        start, limit, delta = (np.reshape(v, ()) for v in (start, limit, delta))
        return start + np.arange(max(0, int(np.ceil((limit - start) / delta)))) * delta

    def known_result(self, start: exact.Known, limit: exact.Known, delta: exact.Known) -> np.ndarray[Any, Any] | None:
        bounds = [b for o in (start, limit, delta) if o[1] is not None and isinstance(b := o[1].reshape(-1)[0], int)]
        if len(bounds) < 3:
            return None
        count = _count(*bounds)
        return np.array(range(*bounds), dtype=object) if isinstance(count, int) and count <= exact.MOST else None

    def known_range(self, node: Node, ranges: Mapping[Value, Reach]) -> Reach | None:
        bounds = [None if v is None or v.known is None else v.known.reshape(-1)[0] for v in node.inputs]
        start, limit, delta = (b if isinstance(b, (int, Sym)) else None for b in bounds)
        return None if start is None or limit is None or not isinstance(delta, int) or delta < 1 else (start, limit - 1)

    def to_onnx(self, node: Any, opset: int) -> Any:
        """ONNX takes scalars only."""
        if any(v.rank and v.data is None for v in node.operands):
            return None
        return "Range", {}, [v.data.reshape(()) if v.rank else v for v in node.operands]

    samples = [
        Sample(i64[()].of(0), i64[()].of(5), i64[()].of(1)),
        Sample(i32[()].of(10), i32[()].of(4), i32[()].of(-2)),
        Sample(f32[()].of(1), f32[()].of(5.5), f32[()].of(1.5)),
        Sample(f64[1].of([0]), f64[1].of([1]), f64[1].of([0.25])),
        Sample(f16[()].of(1), f16[()].of(5), f16[()].of(1.5)),
        Sample(bf16[()].of(250), bf16[()].of(264), bf16[()].of(1)),
        Sample(i64[()].of(3), i64[()].of(3), i64[()].of(1)),
        Sample(i64[()].of(3), i64[()].of(0), i64[()].of(1)),
    ]
    rejects = [
        Reject(i64[2].of([0, 1]), i64[()].of(3), i64[()].of(1), because="is not a scalar"),
        Reject(i64[()].of(0), i64[()].of(3), i64[()].of(0), because="delta is 0"),
        Reject(i64[()].of(0), f32[()].of(3), i64[()].of(1), because="limit is float32"),
    ]


def _count(start: Any, limit: Any, delta: Any) -> Dim | None:
    """Return how many elements; None where that is not known yet."""
    if delta is not None and not isinstance(delta, Sym) and delta == 0:
        raise OperandError("range: delta is 0")
    if start is None or limit is None or delta is None:
        return None
    if any(isinstance(b, exact.Ratio) for b in (start, limit, delta)):
        return None
    if isinstance(start, Sym) or isinstance(limit, Sym) or isinstance(delta, Sym):
        if isinstance(delta, Sym):
            take(1, "<=", delta)
        numbers = [b if isinstance(b, Sym) else exact.fraction(b) for b in (start, limit, delta)]
        parts = math.lcm(*(b.denominator for b in numbers if isinstance(b, Fraction)))
        if None in numbers or parts > exact.MOST_PARTS:
            return None
        first, last, step = (b * parts if isinstance(b, Sym) else int((b or 0) * parts) for b in numbers)
        if any(isinstance(b, (float, np.floating)) for b in (start, limit, delta)):
            for b in (first, last):
                take(b, "<=", 2**24)  # which floats of 32 bits hold exactly
        is_up = isinstance(step, Sym) or step > 0
        span, step = (last - first, step) if is_up else (first - last, -step)
        return maximum(0, (span + (step - 1)) // step)
    if isinstance(delta, int):  # not len(range(...)), which has no more than 64 bits
        return max(0, -((start - limit) // delta))
    return max(0, math.ceil((float(limit) - float(start)) / float(delta)))
