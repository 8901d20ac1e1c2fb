"""A cache of keys or values with new ones in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm import te
from renorm.core import dims
from renorm.core.dims import Shape
from renorm.core.errors import OperandError
from renorm.core.shapes import normalize_axis
from renorm.expr.nodes import Expr, as_expr, cast, const
from renorm.graph.attributes import Int, String
from renorm.graph.op import OpDef, Reject, Sample
from renorm.graph.types import Operand, f16, f32, i64, u8

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Body, Loops


class TensorScatter(OpDef):
    """y = x, but y[b, at[b] + k] = updates[b, k] with k along axis; circular: what leaves the end goes on at the
    beginning. Without `at` all begin at 0."""

    signature = "x: T[B, *S], updates: T[B, *U], at?: i64[B] -> y: T[B, *S]"
    axis = Int(-2)
    mode = String("linear", among=("linear", "circular"))
    onnx = {"TensorScatter": 24}
    scheduled_as = "given_loops"

    def infer(self, x: Operand, updates: Operand, at: Operand | None) -> Shape:
        axis = normalize_axis(self.axis, x.rank)
        if axis == 0:
            raise OperandError(f"tensor_scatter({x}): axis {self.axis} is that of the batch")
        if x.rank != updates.rank:
            raise OperandError(f"tensor_scatter: {x} and {updates} have different ranks")
        for a, (own, other) in enumerate(zip(x.shape, updates.shape)):
            if isinstance(own, int) and isinstance(other, int) and (other > own or (a != axis and other < own)):
                raise OperandError(f"tensor_scatter: {updates} does not fit into {x} along axis {a}")
            dims.take(other, "<=" if a == axis else "==", own)
        return x.shape

    def compute(self, x: te.Tensor, updates: te.Tensor, at: te.Tensor | None) -> te.Tensor:
        axis = normalize_axis(self.axis, x.ndim)
        given, rounds = [t for t in (x, updates, at) if t is not None], math.prod(x.shape[:axis])
        body = _rows(axis, self.mode == "circular")
        return te.extern(x.shape, given, body, name="updated", dtype=x.dtype, rounds=rounds)

    def reference(self, x: Any, updates: Any, at: Any) -> Any:
        axis = normalize_axis(self.axis, np.ndim(x)) - 1
        y = np.array(x)
        for b, (new, rows) in enumerate(zip(updates, y)):
            places = (0 if at is None else at[b]) + np.arange(new.shape[axis])
            places = places % rows.shape[axis] if self.mode == "circular" and len(places) else places
            for k, place in enumerate(places):
                if 0 <= place < rows.shape[axis]:
                    np.moveaxis(rows, axis, 0)[place] = np.moveaxis(new, axis, 0)[k]
        return y

    samples = [
        Sample(f32[2, 3, 7, 4], f32[2, 3, 2, 4], i64[2].of([1, 5])),
        Sample(f32[3, 5, 2], f32[3, 3, 2], i64[3].of([4, 0, 8]), mode="circular"),
        Sample(f16[2, 6, 3], f16[2, 1, 3]),
        Sample(u8[2, 3, 6], u8[2, 3, 2], i64[2].of([5, -1]), axis=-1),
        Sample(f32[2, 4, 3], f32[2, 4, 3], i64[2].of([1, 0]), axis=1, mode="circular"),
        Sample(f32[2, 4, 3], f32[2, 0, 3], i64[2].of([1, 0])),
    ]
    rejects = [
        Reject(f32[2, 3, 4], f32[2, 4, 4], i64[2], because="does not fit into x"),
        Reject(f32[2, 3, 4], f32[2, 2, 3], i64[2], because="does not fit into x"),
        Reject(f32[2, 3, 4], f32[2, 3], i64[2], because="different ranks"),
        Reject(f32[2, 3], f32[2, 3], i64[2], because="is that of the batch"),
        Reject(f32[2, 3, 4], f32[2, 2, 4], i64[3], because="B"),
    ]


def _rows(axis: int, is_circular: bool) -> Body:
    """The loops of one round, of what one index before the axis has: it is copied, then updated."""

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        x, updates, *given = inputs
        lead = [loops.round // math.prod(x.shape[a + 1 : axis]) % x.shape[a] for a in range(axis)]
        extent = cast("int64", as_expr(x.shape[axis]))
        begin: Expr = loops.let(given[0][lead[0]], "begin") if given else const(0, "int64")

        def each(within: ExitStack, shape: Sequence[Any]) -> list[Expr]:
            return [within.enter_context(loops.for_range(0, d)) for d in shape]

        with ExitStack() as within:
            index = (*lead, *each(within, x.shape[axis:]))
            output[index] = x[index]
        with ExitStack() as within:
            (k,) = each(within, updates.shape[axis : axis + 1])
            place = begin + cast("int64", k)
            place = loops.let(cast("int32", place % extent if is_circular else te.max(te.min(place, extent), -1)), "at")
            within.enter_context(loops.if_scope(place >= 0, place < x.shape[axis]))
            rest = each(within, x.shape[axis + 1 :])
            output[(*lead, place, *rest)] = updates[(*lead, k, *rest)]

    return body
