"""A tensor some of whose elements are replaced, by indices along one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm import te, topi
from renorm.core import dims, shapes
from renorm.core.dims import Shape
from renorm.core.dtypes import ALL
from renorm.core.errors import OperandError
from renorm.graph.attributes import Int, String
from renorm.graph.ir import Node
from renorm.graph.op import Demand, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, boolean, f16, f32, i8, i32, i64
from renorm.ops.gather import INDICES, check_indices, indexed, within
from renorm.ops.shared.updates import REDUCTIONS, check_reduction, numpy_update, updated

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Body, Loops

_LANES = 16  # lines of elements in one round, where neighbours in memory are of different ones


class ScatterElements(OpDef):
    """y = x, but y[i, but indices[i] at axis] = updates[i]; with a reduction, what was there and updates[i] are added,
    multiplied, or the less or the greater of both. Of equal indices the last one counts, or all in order."""

    signature = "x: T[*X], indices: I[*J], updates: T[*J] -> y: T[*X]"
    types = {"T": ALL, "I": INDICES}
    axis = Int(0)
    reduction = String("none", among=REDUCTIONS)
    onnx = {"ScatterElements": 11, "Scatter": 9}
    scheduled_as = "given_loops"

    def to_onnx(self, node: Node, opset: int) -> Any:
        """Reductions came with opset 16, two of them with 18."""
        since = {"none": 9, "add": 16, "mul": 16}.get(self.reduction, 18)
        written = {"axis": self.axis} | ({} if self.reduction == "none" else {"reduction": self.reduction})
        return ("Scatter" if opset < 11 else "ScatterElements", written, list(node.inputs)) if opset >= since else None

    def infer(self, x: Operand, indices: Operand, updates: Operand) -> Shape:
        axis = shapes.normalize_axis(self.axis, x.rank)
        check_reduction("scatter_elements", self.reduction, x)
        if x.rank != indices.rank:
            raise OperandError(f"scatter_elements: {x} and {indices} have different ranks")
        for a, (own, wanted) in enumerate(zip(x.shape, indices.shape)):
            if a != axis and isinstance(own, int) and isinstance(wanted, int) and wanted > own:
                raise OperandError(f"scatter_elements: {indices} is larger than {x} in axis {a}")
            dims.take(own if a == axis else wanted, "<=", own)
        check_indices(x, axis, indices)
        return x.shape

    def demands(self, node: Node) -> list[Demand]:
        return indexed(node, self.axis)

    def compute(self, x: te.Tensor, indices: te.Tensor, updates: te.Tensor) -> te.Tensor:
        axis = shapes.normalize_axis(self.axis, x.ndim)
        rounds = math.prod(_rounds(x.shape, axis))
        given = [x, indices, updates]
        return te.extern(x.shape, given, _lines(axis, self.reduction), name="scattered", dtype=x.dtype, rounds=rounds)

    def reference(self, x: Any, indices: Any, updates: Any) -> Any:
        y, axis = np.array(x), self.axis % np.ndim(x)
        for at in np.ndindex(*np.shape(indices)):
            place = (*at[:axis], within(indices[at], y.shape[axis]), *at[axis + 1 :])
            y[place] = numpy_update(self.reduction, y[place], updates[at])
        return y

    samples = [
        Sample(f32[3, 5], i64[2, 5].of([[1, 0, 2, -1, 1], [0, 2, -3, 1, 1]]), f32[2, 5]),
        Sample(f32[2, 7], i32[2, 4].of([[1, 3, 1, -7], [6, 6, 6, 6]]), f32[2, 4], axis=1),
        Sample(f32[2, 7], i64[1, 5].of([[1, 3, 1, 1, -1]]), f32[1, 5], axis=-1, reduction="add"),
        Sample(f32[3, 2, 37], i64[2, 2, 35], f32[2, 2, 35], axis=0, reduction="mul"),
        Sample(f32[2, 6, 3], i64[2, 4, 2].of(np.arange(16) % 5), f32[2, 4, 2], axis=1, reduction="max"),
        Sample(i64[9], i64[6].of([3, 1, 3, -9, 8, 0]), i64[6], reduction="min"),
        Sample(f32[3].of([math.nan, 1, -math.inf]), i64[3].of([0, 1, 1]), f32[3].of([2, math.nan, 7]), reduction="max"),
        Sample(f16[3, 4], i64[3, 5].of([[0, 1, 2, 3, 3]] * 3), f16[3, 5], axis=1, reduction="add", tolerance=4e-3),
        Sample(bf16[5], i64[2].of([4, 0]), bf16[2]),
        Sample(i8[2, 5], i64[2, 1].of([[4], [2]]), i8[2, 1], axis=1, reduction="add"),
        Sample(boolean[2, 5], i64[2, 3].of([[4, 0, 1], [2, 2, 2]]), boolean[2, 3], axis=1),
        Sample(f32[3, 4], i64[0, 4], f32[0, 4]),
        Sample(f32[0, 3], i64[0, 3], f32[0, 3]),
    ]
    rejects = [
        Reject(f32[3], i64[2, 2], f32[2, 2], because="different ranks"),
        Reject(f32[2, 3], i64[3, 3], f32[3, 3], axis=1, because="larger than x"),
        Reject(f32[0, 3], i64[2, 3], f32[2, 3], because="axis 0 has no elements"),
        Reject(f32[2, 3], i64[1, 3], f32[1, 2], because="3"),
        Reject(boolean[3], i64[2], boolean[2], reduction="add", because="of numbers only"),
    ]


def _rounds(shape: Sequence[Any], axis: int) -> list[Any]:
    """Return how many rounds there are along each axis: none along that of the indices, and several lines of the last
    one together."""
    last = len(shape) - 1
    return [1 if a == axis else (d + (_LANES - 1)) // _LANES if a == last else d for a, d in enumerate(shape)]


def _lines(axis: int, reduction: str) -> Body:
    """The loops of the lines along an axis that one round has: they are copied, then updated in order."""

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        x, indices, updates = inputs
        last, counts, n = len(x.shape) - 1, _rounds(x.shape, axis), x.shape[axis]
        index = list[Any]()
        for a, count in enumerate(counts):
            after = math.prod(counts[a + 1 :])
            index.append(loops.round // after % count)

        def each(within: ExitStack, array: Array, name: str) -> tuple[Any, ...]:
            """Enter the loops over elements of this round."""
            along = within.enter_context(loops.for_range(0, array.shape[axis], name))
            place = [along if a == axis else i for a, i in enumerate(index)]
            if axis != last:
                first = index[last] * _LANES
                end = te.min(first + _LANES, array.shape[last])
                place[last] = within.enter_context(loops.for_range(first, end, f"{name}_lane"))
            return tuple(place)

        with ExitStack() as within:
            at = each(within, x, "copied")
            output[at] = x[at]
        with ExitStack() as within:
            inside = [index[a] < d for a, d in enumerate(indices.shape) if a not in (axis, last)]
            inside += [index[last] < indices.shape[last]] if axis != last and not inside else []
            within.enter_context(loops.if_scope(*inside))
            at = each(within, indices, "k")
            chosen = loops.let(topi.within(indices[at], n), "chosen")
            place = (*at[:axis], chosen, *at[axis + 1 :])
            output[place] = updated(reduction, output[place], updates[at])

    return body
