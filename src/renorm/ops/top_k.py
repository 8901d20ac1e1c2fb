"""The largest elements along an axis, or the smallest, in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim, take
from renorm.core.dtypes import NUMBERS
from renorm.core.errors import OperandError
from renorm.core.shapes import normalize_axis
from renorm.expr.nodes import Expr, any_of, cast, const
from renorm.graph.attributes import Bool, Int
from renorm.graph.op import OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64, i8, i32, i64, u8
from renorm.ops.shared.sorting import Entries, key_dtype, merge, order, sort
from renorm.topi.transform import unravel

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Body, Loops

AT_ONCE = 64  # elements that are looked at between two sorts, at least
_ODD = [1, math.nan, 3, -math.inf, math.nan, math.inf]


class TopK(OpDef):
    """values, indices = the k largest elements along axis (or the smallest), and where they are, in order. Of equal
    ones the first come first. NaN is larger than any number, as NumPy sorts it."""

    signature = "x: T[...], k!: i64[1] -> values: T[...], indices: i64[...]"
    types = {"T": NUMBERS}
    axis = Int(-1)
    largest = Bool(True)
    sorted = Bool(True)
    onnx = {"TopK": 1}
    scheduled_as = "given_loops"

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Before opset 10 k was an attribute."""
        if node.opset >= 10:
            return super().from_onnx(node)
        attributes = dict(node.attributes)
        k = np.array([attributes.pop("k")])
        return super().from_onnx(replace(node, operands=(node.operands[0], k), attributes=attributes))

    def to_onnx(self, node: Any, opset: int) -> Any:
        if opset >= 11:
            return super().to_onnx(node, opset)
        x, k = node.operands
        if not self.largest or (opset < 10 and not (k.data is not None and k.data[0])):
            return None
        as_attribute = {"axis": self.axis, "k": int(k.data[0])} if opset < 10 else {}
        return ("TopK", as_attribute, [x]) if opset < 10 else ("TopK", {"axis": self.axis}, [x, k])

    def infer(self, x: Operand, k: Operand) -> list[tuple[Dim | None, ...]]:
        axis = normalize_axis(self.axis, x.rank)
        count = None if k.known is None else k.known[0]
        if isinstance(count, int) and count < 0:
            raise OperandError(f"top_k: k is {count}, which is negative")
        extent = x.shape[axis]
        if isinstance(count, int) and isinstance(extent, int) and count > extent:
            raise OperandError(f"top_k({x}): k is {count}, and axis {self.axis} has {extent} elements")
        if count is not None:
            take(count, "<=", extent)
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        return [shape, shape]

    def compute(self, x: te.Tensor, k: np.ndarray[Any, Any]) -> list[te.Tensor]:
        axis, (count,) = normalize_axis(self.axis, x.ndim), k.tolist()
        rows = x
        if axis < x.ndim - 1:  # elements that are compared are neighbours
            extents = (*x.shape[:axis], *x.shape[axis + 1 :], x.shape[axis])
            rows = te.compute(extents, lambda *i: x[(*i[:axis], i[-1], *i[axis:-1])], name="rows", tag=te.tag.INJECTIVE)
        found = self.found(rows, count)

        def place(i: Sequence[Expr]) -> Expr:
            return found[(*i[:axis], *i[axis + 1 :], i[axis])]

        def value(*i: Expr) -> Expr:
            inside = te.max(te.min(place(i), x.shape[axis] - 1), 0)
            return x[(*i[:axis], inside, *i[axis + 1 :])]

        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        values = te.compute(shape, value, name="values", tag=te.tag.INJECTIVE)
        return [values, te.compute(shape, lambda *i: cast("int64", place(i)), name="indices", tag=te.tag.INJECTIVE)]

    def found(self, rows: te.Tensor, count: Any) -> te.Tensor:
        """Return where the first `count` elements are along the last axis, int32."""
        outer: Sequence[Any] = rows.shape[:-1]
        body, rounds = _rows(self.largest), math.prod(outer)
        return te.extern((*outer, count), [rows], body, name="order", dtype="int32", rounds=rounds)

    def reference(self, x: Any, k: Any) -> Any:
        n, axis = np.shape(x)[self.axis], self.axis
        if self.largest:  # the last of equal ones is the first from behind
            found = n - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
        else:
            found = np.argsort(x, axis, kind="stable")
        found = np.take(found, np.arange(k[0]), axis)
        return np.take_along_axis(np.asarray(x), found, axis), found

    samples = [
        Sample(f32[3, 7], i64[1].of([3])),
        Sample(f32[3, 7], i64[1].of([7]), largest=False),
        Sample(f32[2, 33, 3], i64[1].of([5]), axis=1),
        Sample(f32[5, 2], i64[1].of([4]), axis=0, largest=False),
        Sample(f32[70], i64[1].of([21])),
        Sample(i32[2, 9].of([[1, 3, 3, 1, 0, 3, 1, 1, 3], [2] * 9]), i64[1].of([6])),
        Sample(i64[2, 5].of([[2**40, 1, 2**40, -(2**50), 0], [1, 0, 1, 0, 1]]), i64[1].of([4]), largest=False),
        Sample(
            f32[2, 6].of([[1, math.nan, 3, -math.inf, math.nan, math.inf], [0.0, -0.0, 1, -1, 0, math.nan]]),
            i64[1].of([5]),
        ),
        Sample(f32[6].of([1, math.nan, 3, -math.inf, math.nan, math.inf]), i64[1].of([5]), largest=False),
        Sample(u8[4, 5], i64[1].of([2])),
        Sample(i8[3, 6], i64[1].of([2]), largest=False),
        Sample(f16[2, 9], i64[1].of([4])),
        Sample(bf16[2, 9], i64[1].of([4])),
        Sample(f64[1, 4], i64[1].of([1]), sorted=False),
        Sample(f32[3, 4], i64[1].of([0])),
        Sample(f32[0, 4], i64[1].of([2])),
        Sample(f32[2, 1, 2], i64[1].of([1]), axis=1),
    ]
    rejects = [
        Reject(f32[3], i64[1].of([4]), because="k is 4, and axis -1 has 3 elements"),
        Reject(f32[3], i64[1].of([-1]), because="is negative"),
        Reject(f32[3], i64[1].of([1]), axis=1, because="axis 1 is outside"),
        Reject(f32[3], i64[2].of([1, 1]), because="k has 2 where 1 is expected"),
    ]


def _rows(largest: bool) -> Body:
    """The loops of a row: what comes before the k-th best so far is collected, sorted where it has become much, and
    merged with the best. Of a row in random order that is little; no row takes longer than to sort all of it."""

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        (x,) = inputs
        *outer, n = x.shape
        k, row = output.shape[-1], unravel(loops.round, outer)
        before, dtype, part = order(x.dtype, largest), key_dtype(x.dtype), k + AT_ONCE
        best, spare = (Entries.of(loops, part * 2 + k, x.dtype, name) for name in ("best", "spare"))
        counts = loops.allocate((2,), "int32", "counts")  # entries in order, and all
        worst = loops.allocate((1,), dtype, "worst")
        counts[0] = 0
        counts[1] = 0
        worst[0] = const(0, dtype)
        with loops.for_range(0, (n + (part - 1)) // part, "number") as number:
            first, ordered = loops.let(number * part, "first"), loops.let(counts[0], "ordered")
            last = loops.let(te.min(first + part, n), "last")
            with loops.if_scope(first >= 0, last <= n), loops.for_range(first, last) as i:
                key = loops.let(cast(dtype, x[(*row, i)]), "key")
                with loops.if_scope(any_of(ordered < k, before(key, worst[0]))):
                    at = loops.let(counts[1], "at")
                    with loops.if_scope(at >= 0, at < best.most):
                        best.put(at, i, key)
                    counts[1] = at + 1
            end = loops.let(counts[1], "end")
            is_much = loops.let(any_of(ordered < k, last >= n, end >= part + k), "much")
            with loops.if_scope(is_much):
                low, kept = loops.let(const(0), "low"), loops.let(te.min(end, k), "kept")
                sort(loops, best, spare, ordered, end, before)
                merge(loops, best, spare, low, ordered, end, kept, before)
                with loops.for_range(0, k, "o") as o, loops.if_scope(o < kept):
                    best.put(o, spare.places[o], spare.keys[o])
                counts[0] = kept
                counts[1] = kept
                worst[0] = best.keys[k - 1]
        with loops.for_range(0, k, "o") as o:
            output[(*row, o)] = best.places[o]

    return body
