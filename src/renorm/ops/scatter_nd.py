"""A tensor some of whose slices are replaced, by whole indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm import te, topi
from renorm.core import dims
from renorm.core.dims import Shape, is_static
from renorm.core.dtypes import ALL
from renorm.core.errors import OperandError
from renorm.graph.attributes import String
from renorm.graph.ir import Node
from renorm.graph.op import Demand, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, boolean, f16, f32, i64, u8
from renorm.ops.gather import within
from renorm.ops.shared.updates import REDUCTIONS, check_reduction, numpy_update, updated

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Body, Loops

_LINES, _ELEMENTS = 1024, 1024  # of one round: lines along the last axis, and elements of each


class ScatterNd(OpDef):
    """y = x, but y[*indices[j..], k..] = updates[j.., k..]: the last axis of indices holds whole indices; with a
    reduction, what was there and the update are added, multiplied, or the less or the greater of both. Of equal indices
    the last one counts, or all in order."""

    signature = "x: T[*X], indices: i64[...], updates: T[...] -> y: T[*X]"
    types = {"T": ALL}
    reduction = String("none", among=REDUCTIONS)
    onnx = {"ScatterND": 11}
    scheduled_as = "given_loops"

    def to_onnx(self, node: Node, opset: int) -> Any:
        """Reductions came with opset 16, two of them with 18."""
        since = {"none": 11, "add": 16, "mul": 16}.get(self.reduction, 18)
        return super().to_onnx(node, opset) if opset >= since else None

    def infer(self, x: Operand, indices: Operand, updates: Operand) -> Shape:
        check_reduction("scatter_nd", self.reduction, x)
        if x.rank < 1 or indices.rank < 1:
            raise OperandError(f"scatter_nd: {x} and {indices} need an axis at least")
        named = indices.shape[-1]
        depth = named if isinstance(named, int) else _depth(x, indices, updates)
        if not 0 <= depth <= x.rank:
            raise OperandError(f"scatter_nd: {indices} names {depth} axes, and {x} has {x.rank}")
        dims.take(named, "==", depth)
        wanted = (*indices.shape[:-1], *x.shape[depth:])
        if len(wanted) != updates.rank or any(
            isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(wanted, updates.shape)
        ):
            raise OperandError(f"scatter_nd: {updates} is not of the shape {dims.format_shape(wanted)}")
        for own, other in zip(wanted, updates.shape):
            dims.take(own, "==", other)
        if 0 in x.shape[:depth] and is_static(updates.shape) and 0 not in updates.shape:
            raise OperandError(f"scatter_nd: an axis of {x} has no elements, {indices} asks for some")
        for extent in x.shape[:depth]:
            dims.take(dims.minimum(1, dims.size(indices.shape)), "<=", extent)
        return x.shape

    def demands(self, node: Node) -> list[Demand]:
        x, indices, updates = node.operands
        depth = _depth(x, indices, updates)
        return [Demand(indices, tuple(range(depth)), x.shape[:depth])] if depth else []

    def compute(self, x: te.Tensor, indices: te.Tensor, updates: te.Tensor) -> te.Tensor:
        rounds = math.prod(_parts(x.shape))
        given = [x, indices, updates]
        return te.extern(x.shape, given, _part(self.reduction), name="scattered", dtype=x.dtype, rounds=rounds)

    def reference(self, x: Any, indices: Any, updates: Any) -> Any:
        y, updates = np.array(x), np.asarray(updates)
        for at in np.ndindex(*np.shape(indices)[:-1]):
            place = tuple(int(within(i, n)) for i, n in zip(indices[at], y.shape))
            y[place] = numpy_update(self.reduction, y[place], updates[at])
        return y

    samples = [
        Sample(f32[5, 3], i64[4, 1].of([[3], [0], [-1], [3]]), f32[4, 3]),
        Sample(f32[2, 3, 4, 5], i64[2, 2, 2].of([[[0, 1], [1, -1]], [[1, 2], [0, 1]]]), f32[2, 2, 4, 5]),
        Sample(f32[3, 4], i64[5, 2].of([[0, 1], [-1, 3], [0, 1], [2, 2], [0, 1]]), f32[5], reduction="add"),
        Sample(f32[9], i64[4, 1].of([[8], [1], [-8], [4]]), f32[4], reduction="mul"),
        Sample(f32[3, 2, 7], i64[2, 1].of([[2], [2]]), f32[2, 2, 7], reduction="max"),
        Sample(f32[2, 3], i64[1, 1, 1].of([[[1]]]), f32[1, 1, 3].of([[[math.nan, -math.inf, 0]]]), reduction="min"),
        Sample(i64[1100, 2, 3], i64[3, 2].of([[1099, 1], [5, 0], [1023, -1]]), i64[3, 3], reduction="add"),
        Sample(f16[2, 3], i64[3, 1].of([[1], [1], [1]]), f16[3, 3], reduction="add", tolerance=4e-3),
        Sample(bf16[4], i64[2, 1].of([[3], [0]]), bf16[2]),
        Sample(u8[2, 1030], i64[3, 2].of([[0, 1029], [1, 1024], [1, -1]]), u8[3]),
        Sample(boolean[2, 2], i64[1, 3, 2].of([[[0, 0], [1, 0], [1, 1]]]), boolean[1, 3]),
        Sample(f32[2, 3], i64[2, 0], f32[2, 2, 3]),
        Sample(f32[2, 3], i64[0, 1], f32[0, 3]),
        Sample(f32[3], i64[1].of([2]), f32[()]),
        Sample(f32[0, 3], i64[0, 2], f32[0]),
    ]
    rejects = [
        Reject(f32[3], i64[2, 2], f32[2], because="names 2 axes, and x"),
        Reject(f32[3, 2], i64[2, 1], f32[2, 3], because="is not of the shape [2, 2]"),
        Reject(f32[3, 2], i64[2, 1], f32[2], because="is not of the shape [2, 2]"),
        Reject(f32[0, 3], i64[2, 1], f32[2, 3], because="has no elements"),
        Reject(boolean[3], i64[2, 1], boolean[2], reduction="max", because="of numbers only"),
        Reject(f32[()], i64[1], f32[()], because="need an axis at least"),
    ]


def _depth(x: Any, indices: Any, updates: Any) -> int:
    """Return how many axes an index names, as ranks have it."""
    return len(x.shape) + len(indices.shape) - 1 - len(updates.shape)


def _parts(shape: Sequence[Any]) -> tuple[Any, Any]:
    """Return into how many parts lines are cut, and how many of these each round has all of."""
    lines: Any = math.prod(shape[:-1])
    return (lines + (_LINES - 1)) // _LINES, (shape[-1] + (_ELEMENTS - 1)) // _ELEMENTS


def _part(reduction: str) -> Body:
    """The loops of one round: its part of all lines along the last axis is copied, then it looks for updates of it."""

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        x, indices, updates = inputs
        depth, last, n = _depth(x, indices, updates), len(x.shape) - 1, x.shape[-1]
        _, along = _parts(x.shape)
        lines: Any = math.prod(x.shape[:-1])
        first = loops.let(loops.round // along * _LINES, "first")
        begin = loops.let(loops.round % along * _ELEMENTS, "begin")
        beyond = loops.let(te.min(first + _LINES, lines), "beyond")
        end = loops.let(te.min(begin + _ELEMENTS, n), "end")
        with loops.for_range(first, beyond, "line") as line:
            index = topi.transform.unravel(line, x.shape[:-1])
            with loops.for_range(begin, end, "element") as k:
                output[(*index, k)] = x[(*index, k)]
        with ExitStack() as each:
            which = tuple(each.enter_context(loops.for_range(0, d, "j")) for d in indices.shape[:-1])
            chosen = [
                loops.let(topi.within(indices[(*which, a)], extent), "chosen")
                for a, extent in enumerate(x.shape[:depth])
            ]
            rest = [each.enter_context(loops.for_range(0, d, "k")) for d in x.shape[depth:last]]
            place = [*chosen, *rest]
            line = loops.let(topi.transform.ravel(place[:last], x.shape[:-1]), "line")
            each.enter_context(loops.if_scope(line >= first, line < beyond))
            if depth > last:
                each.enter_context(loops.if_scope(place[last] >= begin, place[last] < end))
            else:
                rest.append(each.enter_context(loops.for_range(begin, end, "element")))
                place.append(rest[-1])
            at = tuple(place)
            output[at] = updated(reduction, output[at], updates[(*which, *rest)])

    return body
