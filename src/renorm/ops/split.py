"""Cutting along an axis."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from renorm.core import dims, shapes
from renorm.core.dims import Dim
from renorm.core.errors import OperandError
from renorm.graph.attributes import Int
from renorm.graph.index_map import IndexMap, Moved, Strided
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import OnnxNode, Reject, Sample
from renorm.graph.types import Operand, f16, f32, i64
from renorm.ops.shared.movement import Movement

_MOST = 1 << 20  # pieces: more than a network has, and few enough to be listed


class Split(Movement):
    """ys = pieces of x along axis: of the extents in sizes, or num_outputs pieces of ceil(extent / num_outputs), the
    last smaller."""

    signature = "x: T[...], sizes!?: i64[K] -> *ys: T[...]"
    axis = Int(0)
    num_outputs = Int(None, at_least=1)
    onnx = {"Split": 1}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """The sizes were an attribute from opset 2 to 12. Where nothing is said, the outputs are counted and must be
        equal."""
        x, sizes = node.operands[0], node.operands[1] if len(node.operands) > 1 else None
        if sizes is None and node.attribute("split"):
            sizes = np.asarray(node.attribute("split"), np.int64)
        count = node.attribute("num_outputs")
        if sizes is None and count is None:
            count = len(node.outputs)
            extent = x.shape[shapes.normalize_axis(node.attribute("axis", 0), x.rank)]
            if isinstance(extent, int) and extent % count:
                raise OperandError(f"Split: {count} outputs do not divide extent {extent}", do="give the sizes (split)")
        return cls(axis=node.attribute("axis", 0), num_outputs=None if sizes is not None else count)(
            x, sizes, name=node.name
        )

    def extents(self, extent: Dim, sizes: Any) -> list[Dim | None]:
        """Extents of the pieces."""
        if sizes is not None:
            return list(sizes)
        count = self.num_outputs or 1
        piece = (extent + (count - 1)) // count
        last = extent - piece * (count - 1)
        dims.take(0, "<=", last)
        if isinstance(last, int) and last < 0:
            raise OperandError(f"split: extent {extent} cannot be cut into {count} pieces of {piece}")
        return [piece] * (count - 1) + [last]

    def infer(self, x: Operand, sizes: Operand | None) -> list[tuple[Dim | None, ...]]:
        axis = shapes.normalize_axis(self.axis, x.rank)
        if (sizes is None) == (self.num_outputs is None):
            raise OperandError(f"split({x}): give either sizes or num_outputs")
        (count,) = (self.num_outputs,) if sizes is None else dims.static(sizes.shape, "how many sizes there are")
        if count is not None and count > _MOST:
            raise OperandError(f"split: {count} pieces, at most {_MOST} are possible")
        if count is not None and sizes is not None and sizes.known is None:
            return [(*x.shape[:axis], None, *x.shape[axis + 1 :])] * count
        known = None if sizes is None or sizes.known is None else sizes.known.tolist()
        pieces, extent = self.extents(x.shape[axis], known), x.shape[axis]
        total: Dim = sum((p for p in pieces if p is not None), 0)
        if isinstance(total, int) and isinstance(extent, int) and total != extent:
            raise OperandError(f"split({x}): sizes add up to {total}, but axis {axis} has {extent}")
        dims.take(total, "==", extent)
        return [(*x.shape[:axis], piece, *x.shape[axis + 1 :]) for piece in pieces]

    def index_map(self, x: Any, sizes: Any) -> list[IndexMap] | None:
        axis = shapes.normalize_axis(self.axis, len(x.shape))
        pieces = self.extents(x.shape[axis], None if sizes is None else sizes.tolist())
        if any(p is None for p in pieces):
            return None
        before, behind = (slice(None),) * axis, (slice(None),) * (len(x.shape) - axis - 1)
        ends = list(accumulate((p for p in pieces if p is not None), initial=0))
        ends[-1] = x.shape[axis]  # which the pieces add up to
        return [Moved(x, Strided((*before, slice(*cut), *behind))) for cut in pairwise(ends)]

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        return Accepts.ALIKE

    def reference(self, x: Any, sizes: Any) -> Any:
        if sizes is not None:
            return np.split(x, np.cumsum(sizes)[:-1], self.axis)
        piece = -(-x.shape[self.axis] // self.num_outputs)
        return np.split(x, [piece * k for k in range(1, self.num_outputs)], self.axis)

    def to_onnx(self, node: Any, opset: int) -> Any:
        """Sizes are an operand since opset 13; without num_outputs, which came at 18, they are left out for equal
        pieces only.
        """
        x, sizes = node.operands
        attributes: dict[str, Any] = {"axis": self.axis} if self.axis else {}
        if opset >= 18:
            return "Split", attributes | ({"num_outputs": self.num_outputs} if self.num_outputs else {}), [x, sizes]
        extents = [v.shape[self.axis] for v in node.outputs]
        if sizes is None and not dims.is_static(extents):
            return None  # whether the pieces are equal is not known
        if sizes is None and len(set(extents)) > 1:
            sizes = np.array(extents)
        if opset >= 13:
            return "Split", attributes, [x, sizes]
        return ("Split", {**attributes, "split": extents}, [x]) if dims.is_static(extents) else None

    samples = [
        Sample(f32[6, 3], i64[3].of([1, 2, 3])),
        Sample(f32[2, 7, 5], i64[2].of([4, 3]), axis=1),
        Sample(f32[2, 6], None, axis=-1, num_outputs=3),
        Sample(f32[2, 7], None, axis=1, num_outputs=3),
        Sample(f32[4], i64[3].of([0, 4, 0])),
        Sample(f16[4], None, num_outputs=1),
        Sample(f32[2, 0], None, axis=1, num_outputs=3),
    ]
    rejects = [
        Reject(f32[2, 10], i64[2].of([-1, 11]), axis=1, because="would have the shape [2, -1]"),
        Reject(f32[6], i64[2].of([1, 2]), because="add up to 3"),
        Reject(f32[6], None, because="either sizes or num_outputs"),
        Reject(f32[6], None, axis=1, num_outputs=2, because="axis 1 is outside"),
        Reject(f32[2], None, num_outputs=4, because="cannot be cut"),
    ]
