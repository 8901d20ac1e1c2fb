"""A tensor some of whose slices are replaced, by whole indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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

_ELEMENTS = 256  # of a slice, about, that a round has, which looks at all indices
_MANY = 16  # elements of an axis that is cut, where there is such a one: the first, so that parts are whole in memory
_LEAST = 1 << 14  # elements that a round has, about, of however few updates
_OPEN_PLACES = 1 << 16  # of slices, that a round has where nobody knows how many updates there are


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
        rounds = _Rounds.of(x.shape, indices.shape, _depth(x, indices, updates)).count
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


@dataclass(frozen=True)
class _Rounds:
    """Share out slices and places to rounds, each of which looks at all indices for those in its part: to so many that
    looking takes about as long as copying, at most.

    parts: of the axis `axis` of slices, into which they are cut, None where they have none; part: its elements in each.
    places: of slices in each.
    """

    axis: int | None
    part: int
    parts: Any
    places: int
    blocks: Any

    @staticmethod
    def of(shape: Sequence[Any], indices: Sequence[Any], depth: int) -> _Rounds:
        """Return them for the shapes of x and of indices."""
        axis = max(range(depth, len(shape)), key=lambda a: min(_known(shape[a]), _MANY), default=None)
        others = _known(math.prod(d for a, d in enumerate(shape) if a >= depth and a != axis))
        part = 1 if axis is None else max(1, _ELEMENTS // max(1, others))
        parts = 1 if axis is None else (shape[axis] + (part - 1)) // part
        updates: Any = math.prod(indices[:-1])
        least = -(-_LEAST // max(1, part * others))
        places = max(updates, least) if isinstance(updates, int) else _OPEN_PLACES
        return _Rounds(axis, part, parts, places, (math.prod(shape[:depth]) + (places - 1)) // places)

    @property
    def count(self) -> Any:
        return self.blocks * self.parts


def _known(extent: Any) -> int:
    """Return an extent, large if it is open."""
    return extent if isinstance(extent, int) else _OPEN_PLACES


def _part(reduction: str) -> Body:
    """The loops of one round: its part of slices is copied, then it looks for updates of it."""

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        x, indices, updates = inputs
        depth = _depth(x, indices, updates)
        rounds = _Rounds.of(x.shape, indices.shape, depth)
        first = loops.let(loops.round // rounds.parts * rounds.places, "first")
        beyond = loops.let(te.min(first + rounds.places, math.prod(x.shape[:depth])), "beyond")
        begin = loops.let(loops.round % rounds.parts * rounds.part, "begin")

        def elements(within: ExitStack) -> list[Any]:
            """Enter the loops over the elements of a slice that this round has."""
            found = list[Any]()
            for a, extent in enumerate(x.shape[depth:], depth):
                bounds = (begin, te.min(begin + rounds.part, extent)) if a == rounds.axis else (0, extent)
                found.append(within.enter_context(loops.for_range(*bounds, "k")))
            return found

        with ExitStack() as each:
            place = each.enter_context(loops.for_range(first, beyond, "place"))
            index = topi.transform.unravel(place, x.shape[:depth])
            at = (*index, *elements(each))
            output[at] = x[at]
        with ExitStack() as each:
            which = tuple(each.enter_context(loops.for_range(0, d, "j")) for d in indices.shape[:-1])
            chosen = [
                loops.let(topi.within(indices[(*which, a)], extent), "chosen")
                for a, extent in enumerate(x.shape[:depth])
            ]
            place = loops.let(topi.transform.ravel(chosen, x.shape[:depth]), "place")
            each.enter_context(loops.if_scope(place >= first, place < beyond))
            rest = elements(each)
            at = (*chosen, *rest)
            output[at] = updated(reduction, output[at], updates[(*which, *rest)])

    return body
