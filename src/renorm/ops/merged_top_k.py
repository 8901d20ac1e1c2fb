"""The largest elements along an axis by merges of runs, each of whose results is found by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from renorm import te
from renorm.core.dims import Dim
from renorm.core.errors import OperandError
from renorm.core.shapes import normalize_axis
from renorm.expr.nodes import Expr, Not, all_of, any_of, cast, const, select
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64, i8, i64
from renorm.ops.shared.sorting import Before, key_dtype, order
from renorm.ops.top_k import TopK
from renorm.topi.transform import unravel

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Body, Loops

RUN = 64  # elements that are put in order by counting how many come before each


class MergedTopK(TopK):
    """TopK for as many threads as there are elements.

    rank of an element in its run of 64  ->  places of a run by rank  ->  runs merged two by two, the first k of each

    A thread finds an element of a merged run by a binary search: how many of the first p elements are of the first run.
    """

    signature = TopK.signature
    onnx = {}
    scheduled_as = "given_loops"

    def to_onnx(self, node: Any, opset: int) -> None:
        """ONNX knows it as TopK."""
        return

    def infer(self, x: Operand, k: Operand) -> list[tuple[Dim | None, ...]]:
        extent = x.shape[normalize_axis(self.axis, x.rank)]
        if not isinstance(extent, int) or k.known is None or not isinstance(k.known[0], int):
            raise OperandError(f"{self.name}({x}): k and the extent of axis {self.axis} must be known")
        return super().infer(x, k)

    def found(self, rows: te.Tensor, count: Any) -> te.Tensor:
        *outer, n = rows.shape
        width = min(RUN, n)
        if not count:
            return te.compute((*outer, 0), lambda *i: const(0, "int32"), name="order")
        before, dtype = order(rows.dtype, self.largest), key_dtype(rows.dtype)
        j = te.reduce_axis((0, width), "j")

        def rank(*i: Expr) -> Expr:
            *row, at = i
            other = at // RUN * RUN + j
            own, its = cast(dtype, rows[i]), cast(dtype, rows[(*row, te.min(other, n - 1))])
            comes = select(other < at, Not(before(own, its)), before(its, own))
            return te.sum(cast("int32", all_of(other < n, comes)), axis=j)

        ranks = te.compute(rows.shape, rank, name="ranks")
        m = te.reduce_axis((0, width), "m")

        def place(*i: Expr) -> Expr:
            *row, run, at = i
            element = run * RUN + m
            is_there = all_of(element < n, ranks[(*row, te.min(element, n - 1))].equal(cast("int32", at)))
            return te.max(select(is_there, cast("int32", element), const(-1, "int32")), axis=m)

        runs, length = -(-n // RUN), min(width, count)
        best = te.compute((*outer, runs, length), place, name="places")
        width = RUN
        while runs > 1:
            runs, kept = -(-runs // 2), min(2 * length, count)
            best = te.extern(
                (*outer, runs, kept), [rows, best], _merged(width, before), name=f"merged{width}", dtype="int32",
                rounds=math.prod(outer) * runs * kept,
            )  # fmt: skip
            width, length = 2 * width, kept
        return te.compute((*outer, count), lambda *i: best[(*i[:-1], 0, i[-1])], name="order", tag=te.tag.INJECTIVE)

    samples = [
        Sample(f32[3, 7], i64[1].of([3])),
        Sample(f32[2, 200, 3], i64[1].of([5]), axis=1),
        Sample(f32[2, 3, 130], i64[1].of([100]), largest=False),
        Sample(f32[1, 449], i64[1].of([449])),
        Sample(i8[2, 150], i64[1].of([70])),
        Sample(f32[6].of([1, math.nan, 3, -math.inf, math.nan, math.inf]), i64[1].of([5]), largest=False),
        Sample(f16[2, 65], i64[1].of([65])),
        Sample(bf16[2, 129], i64[1].of([1])),
        Sample(f64[1, 4], i64[1].of([1]), sorted=False),
        Sample(f32[3, 4], i64[1].of([0])),
        Sample(f32[0, 4], i64[1].of([2])),
    ]
    rejects = [
        Reject(f32[3], i64[1].of([4]), because="k is 4, and axis -1 has 3 elements"),
        Reject(f32[3], i64[1].of([-1]), because="is negative"),
    ]


def _merged(width: int, before: Before) -> Body:
    """The loops of an element of two runs that are merged. width: elements of the row that a run stands for, of which
    its best are there."""

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        rows, source = inputs
        *outer, n = rows.shape
        runs, length = source.shape[-2:]
        *_, pairs, kept = output.shape
        row = unravel(loops.round // (pairs * kept), outer)
        pair, p = loops.let(loops.round // kept % pairs, "pair"), loops.let(loops.round % kept, "p")
        firsts = pair * 2, te.min(pair * 2 + 1, runs - 1)
        counts = [loops.let(te.max(te.min(n - (pair * 2 + i) * width, length), 0), "count") for i in range(2)]

        def place(i: int, at: Expr) -> Expr:
            """Return the element at a place of run i, or of its nearest one."""
            return source[(*row, firsts[i], te.max(te.min(at, length - 1), 0))]

        def key(element: Expr) -> Expr:
            return cast(key_dtype(rows.dtype), rows[(*row, te.max(te.min(element, n - 1), 0))])

        low, high = (loops.allocate((1,), "int32", name) for name in ("low", "high"))
        low[0] = te.max(p - counts[1], 0)
        high[0] = te.min(p, counts[0])
        with loops.for_range(0, length.bit_length(), "step"):
            begin, end = loops.let(low[0], "begin"), loops.let(high[0], "end")
            middle = loops.let((begin + end) // 2, "middle")
            with loops.if_scope(begin < end):
                a, b = loops.let(key(place(0, middle)), "a"), loops.let(key(place(1, p - 1 - middle)), "b")
                is_before = loops.let(Not(before(b, a)), "is_before")
                low[0] = select(is_before, middle + 1, begin)
                high[0] = select(is_before, end, middle)
        taken = loops.let(low[0], "taken")
        first, second = loops.let(place(0, taken), "first"), loops.let(place(1, p - taken), "second")
        is_second = all_of(p - taken < counts[1], any_of(taken >= counts[0], before(key(second), key(first))))
        found = select(is_second, second, first)
        output[(*row, pair, p)] = select(p < counts[0] + counts[1], found, const(-1, "int32"))

    return body
