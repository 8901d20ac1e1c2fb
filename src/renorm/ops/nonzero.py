"""Places of the elements that are not zero, and what a condition selects.

How many there are depends on data: an operand says so, which is told before the op runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, cast

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.dtypes import ALL
from renorm.core.errors import OperandError
from renorm.core.shapes import normalize_axis
from renorm.graph import registry
from renorm.graph.ir import Node, Value
from renorm.graph.op import OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import Operand, boolean, f16, f32, f64, i32, i64, u8
from renorm.ops.cast import Cast
from renorm.ops.gather import Gather
from renorm.ops.reshape import Reshape
from renorm.ops.shared import exact

COUNTED = frozenset({"cast", "reshape", "reduce_sum"})  # what a count of nonzero elements is made of


class Nonzero(OpDef):
    """y[:, k] = index of the k-th element of x that is not 0, in row-major order; 0 where there are fewer than count.
    What comes after the first `count` is left out. NaN is not 0."""

    signature = "x: T[...], count!: i64[1] -> y: i64[...]"
    types = {"T": ALL}
    onnx = {"NonZero": 9, "Compress": 9}
    scheduled_as = "given_loops"

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """ONNX has no operand for the count: nodes of their own find it. Compress gathers by the indices of what its
        condition selects, whose elements may be fewer than those of the axis."""
        if node.op_type == "NonZero":
            (x,) = node.operands
            return cls()(x, counted(x), name=node.name)
        x, condition = node.operands
        axis = node.attribute("axis")
        x = Reshape()(x, np.array([-1])) if axis is None else x
        axis = normalize_axis(axis or 0, x.rank)
        if condition.rank != 1:
            raise OperandError(f"Compress: its condition {condition.type} has rank {condition.rank}, expected 1")
        wanted, there = condition.shape[0], x.shape[axis]
        if isinstance(wanted, int) and isinstance(there, int) and wanted > there:
            raise OperandError(f"Compress: {wanted} conditions for {there} elements along axis {axis}")
        indices = Reshape()(cls()(condition, counted(condition)), np.array([-1]))
        return Gather(axis=axis)(x, indices, name=node.name)

    def to_onnx(self, node: Node, opset: int) -> Any:
        """ONNX counts by itself: an operand that says another count cannot be written."""
        x, count = node.operands
        return ("NonZero", {}, [x]) if opset >= 9 and is_count(count, x) else None

    def infer(self, x: Operand, count: Operand) -> tuple[Dim | None, ...]:
        extent = None if count.known is None else count.known[0]
        if isinstance(extent, int) and extent < 0:
            raise OperandError(f"nonzero: a count of {extent} is negative")
        return (x.rank, extent)

    def compute(self, x: te.Tensor, count: np.ndarray[Any, Any]) -> te.Tensor:
        (extent,) = count.tolist()
        return te.extern((x.ndim, extent), [x], _found, name="nonzero", dtype="int64")

    def reference(self, x: Any, count: Any) -> Any:
        found = np.stack(np.nonzero(x)) if np.ndim(x) else np.zeros((0, 1), np.int64)
        (extent,) = count.tolist()
        return np.pad(found[:, :extent], ((0, 0), (0, max(0, extent - found.shape[1]))))

    def known_result(self, x: exact.Known, count: exact.Known) -> np.ndarray[Any, Any] | None:
        (_, elements), (_, given) = x, count
        if elements is None or given is None or not all(isinstance(e, int) for e in (*elements.flat, *given)):
            return None
        is_small = math.prod((elements.ndim, given[0])) <= exact.MOST
        return np.asarray(self.reference(elements, given), object) if is_small else None

    samples = [
        Sample(f32[3, 5].of([[0, 1, -0.0, 2, 0], [0] * 5, [math.nan, 0, -1, 0, math.inf]]), i64[1].of([5])),
        Sample(f32[7].of([0, 3, 0, 0, 1, 2, 0]), i64[1].of([6])),
        Sample(f32[4].of([1, 1, 0, 1]), i64[1].of([2])),
        Sample(boolean[2, 3, 4], i64[1].of([12])),
        Sample(i32[2, 1, 3].of([[[0, -4, 0]], [[1, 0, 2]]]), i64[1].of([3])),
        Sample(i64[2, 2].of([[0, 1], [2**40, 0]]), i64[1].of([2])),
        Sample(u8[5].of([0, 255, 0, 1, 0]), i64[1].of([2])),
        Sample(f16[3].of([0, 6e-8, 0]), i64[1].of([1])),
        Sample(f64[2, 3].of([[0, 5e-324, 0], [0, 0, 0]]), i64[1].of([0])),
        Sample(f32[()].of(2), i64[1].of([1])),
        Sample(f32[0, 3], i64[1].of([0])),
        Sample(f32[0, 3], i64[1].of([2])),
    ]
    rejects = [
        Reject(f32[3], i64[1].of([-1]), because="is negative"),
        Reject(f32[3], i64[2].of([1, 2]), because="count has 2 where 1 is expected"),
    ]


def counted(x: Value, name: str = "") -> Value:
    """Return how many elements of a value are not 0, as a value of one element. name: a hint, x_count if none is
    given; extents that follow from it are called so."""
    ones = Cast(to="int64")(x if x.dtype == "bool" else Cast(to="bool")(x))
    total = registry.find("reduce_sum")(axes=tuple(range(x.rank)), keepdims=False) if x.rank else (lambda one: one)
    count = cast(Value, total(ones))
    count.graph.rename(count, name or f"{x.name}_count", exact=False)
    return cast(Value, Reshape()(count, np.array([1])))


def is_count(count: Any, x: Any, *also: str) -> bool:
    """Return whether a value is what `counted` makes of x, or of what ops of these names make of x."""
    ops = set[str]()
    while isinstance(count, Value) and count is not x and count.producer is not None:
        ops.add(count.producer.op.name)
        count = count.producer.inputs[0]
    return count is x and {"reduce_sum", *also} <= ops <= COUNTED.union(also)


def _found(loops: te.given_loops.Loops, inputs: Sequence[te.given_loops.Array], output: te.given_loops.Array) -> None:
    (x,) = inputs
    rank, count = output.shape
    found = loops.allocate((1,), "int32", "found")
    found[0] = 0
    with ExitStack() as within:
        index = tuple(within.enter_context(loops.for_range(0, extent)) for extent in x.shape)
        element = x[index]
        within.enter_context(loops.if_scope(element if x.dtype == "bool" else element != 0))
        at = loops.let(found[0], "at")
        with loops.if_scope(at >= 0, at < count):
            for axis in range(rank):
                output[axis, at] = index[axis]
        found[0] = at + 1
    end = loops.let(found[0], "end")
    with loops.if_scope(end >= 0), loops.for_range(end, count) as k:
        for axis in range(rank):
            output[axis, k] = 0
