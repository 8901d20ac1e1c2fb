"""Elements by indices. Negative indices count from the end; one that lies outside reads the nearest element.

References do the same. Modules that are compiled with `checked=True` raise instead. Indices are data: no index map.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import dims, shapes
from renorm.core.dims import Dim, is_static, static
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr
from renorm.graph.attributes import Int
from renorm.graph.ir import Node
from renorm.graph.op import Demand, Reject, Sample
from renorm.graph.types import Operand, f16, f32, i32, i64
from renorm.ops.shared import exact
from renorm.ops.shared.family import Injective

INDICES = ("int64", "int32")


def indexed(node: Node, axis: int, is_whole: bool = False) -> list[Demand]:
    """That indices, the second operand, are within an axis of the first; is_whole: within as many as their last axis
    says. Of a single axis constant ones are: `check_indices`."""
    x, indices, *_ = node.operands
    first, count = axis % x.rank, static(indices.shape[-1:])[0] if is_whole else 1
    if not count or (not is_whole and indices.is_constant):
        return []
    axes = range(first, first + count)
    return [Demand(indices, tuple(axes), x.shape[first : axes.stop])]


def check_indices(x: Operand, axis: int, indices: Operand) -> None:
    """Raises where known indices lie outside an axis of known extent."""
    extent = x.shape[axis]
    if extent == 0 and is_static(indices.shape) and 0 not in indices.shape:
        raise OperandError(f"{x}: axis {axis} has no elements, {indices} asks for some")
    dims.take(dims.minimum(1, dims.size(indices.shape)), "<=", extent)
    for i in [] if indices.known is None else indices.known.reshape(-1).tolist():
        if isinstance(i, int) and isinstance(extent, int) and not -extent <= i < extent:
            raise OperandError(f"{x}: index {i} is outside axis {axis} of extent {extent}")
        dims.take(-i if isinstance(i, int) and i < 0 else i + 1, "<=", extent)


def within(indices: Any, extent: int) -> Any:
    """Indices as kernels read them: in [0, extent)."""
    indices = np.asarray(indices)
    return np.clip(np.where(indices < 0, indices + extent, indices), 0, max(extent - 1, 0))


class Gather(Injective):
    """y[i.., j.., k..] = x[i.., indices[j..], k..], where indices stand at `axis`."""

    signature = "x: T[...], indices: I[...] -> y: T[...]"
    types = {"I": INDICES}
    axis = Int(0)
    onnx = {"Gather": 1}

    def infer(self, x: Operand, indices: Operand) -> tuple[Dim, ...]:
        axis = shapes.normalize_axis(self.axis, x.rank)
        check_indices(x, axis, indices)
        return (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])

    def compute(self, x: te.Tensor, indices: te.Tensor) -> te.Tensor:
        return topi.take(x, indices, shapes.normalize_axis(self.axis, x.ndim), "from_end")

    def reference(self, x: Any, indices: Any) -> Any:
        return np.take(x, within(indices, np.shape(x)[self.axis]), self.axis)

    def demands(self, node: Node) -> list[Demand]:
        return indexed(node, self.axis)

    def known_result(self, x: exact.Known, indices: exact.Known) -> np.ndarray[Any, Any] | None:
        (_, elements), (_, at) = x, indices
        if elements is None or at is None or not all(isinstance(i, int) for i in at.reshape(-1).tolist()):
            return None
        return np.asarray(self.reference(elements, at.astype(np.int64)), dtype=object)

    samples = [
        Sample(f32[5, 3], i64[4].of([0, 4, -1, 2])),
        Sample(f32[2, 5, 3], i64[2, 2].of([[1, 0], [-5, 3]]), axis=1),
        Sample(f32[2, 3], i32[()].of(-1), axis=-1),
        Sample(f32[4], i64[()].of(2)),
        Sample(f16[3, 2], i64[0].of([])),
        Sample(i64[4], i64[2].of([3, 1])),
        Sample(f32[0, 3], i64[0].of([])),
    ]
    rejects = [
        Reject(f32[3], i64[1].of([0]), axis=1, because="axis 1 is outside"),
        Reject(f32[3], f32[1], because="indices is float32"),
        Reject(f32[3, 2], i64[1].of([0]), axis=-3, because="axis -3 is outside"),
        Reject(f32[0, 3], i64[2], because="axis 0 has no elements"),
    ]


class GatherElements(Injective):
    """y[i] = x[i, but indices[i] at axis]; y has the shape of indices."""

    signature = "x: T[...], indices: I[*J] -> y: T[*J]"
    types = {"I": INDICES}
    axis = Int(0)
    onnx = {"GatherElements": 11}

    def infer(self, x: Operand, indices: Operand) -> dims.Shape:
        axis = shapes.normalize_axis(self.axis, x.rank)
        if x.rank != indices.rank:
            raise OperandError(f"gather_elements: {x} and {indices} have different ranks")
        for a, (own, wanted) in enumerate(zip(x.shape, indices.shape)):
            if a != axis and isinstance(own, int) and isinstance(wanted, int) and wanted > own:
                raise OperandError(f"gather_elements: {indices} is larger than {x} in axis {a}")
            dims.take(own if a == axis else wanted, "<=", own)
        check_indices(x, axis, indices)
        return indices.shape

    def demands(self, node: Node) -> list[Demand]:
        return indexed(node, self.axis)

    def compute(self, x: te.Tensor, indices: te.Tensor) -> te.Tensor:
        axis = shapes.normalize_axis(self.axis, x.ndim)

        def element(*i: Expr) -> Expr:
            read = x[(*i[:axis], topi.within(indices[i], x.shape[axis]), *i[axis + 1 :])]
            return topi.where_any(x.shape[axis], read)

        return te.compute(indices.shape, element, name="gather_elements", tag=te.tag.INJECTIVE)

    def reference(self, x: Any, indices: Any) -> Any:
        kept = tuple(
            slice(None) if a == self.axis % np.ndim(x) else slice(0, n) for a, n in enumerate(np.shape(indices))
        )
        return np.take_along_axis(np.asarray(x)[kept], within(indices, np.shape(x)[self.axis]), self.axis)

    samples = [
        Sample(f32[3, 3], i64[2, 3].of([[1, 2, 0], [2, 0, -3]])),
        Sample(f32[2, 4], i32[2, 5].of([[0, 1, 2, 3, -1], [3, 3, 0, 0, 1]]), axis=1),
        Sample(f32[3, 4], i64[2, 1].of([[3], [-4]]), axis=-1),
    ]
    rejects = [
        Reject(f32[3], i64[2, 2], because="different ranks"),
        Reject(f32[2, 3], i64[3, 3], axis=1, because="larger than x"),
        Reject(f32[0, 3], i64[2, 3], because="axis 0 has no elements"),
    ]
