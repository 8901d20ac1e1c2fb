"""Another shape for the same elements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from renorm.core import dims
from renorm.core.dims import Dim
from renorm.core.errors import OperandError
from renorm.graph.attributes import Bool
from renorm.graph.index_map import Moved, Regrouped
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import OnnxNode, Reject, Sample
from renorm.graph.types import f16, f32, i64
from renorm.ops.shared.movement import Movement


class Reshape(Movement):
    """y = the elements of x in order; an extent of 0 keeps that of x (unless allowzero), and one -1 stands for what is
    left."""

    signature = "x: T[...], shape!: i64[R] -> y: T[...]"
    allowzero = Bool(False)
    onnx = {"Reshape": 1}
    onnx_ignored = ("consumed_inputs",)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Before opset 5 the shape was an attribute."""
        if node.opset >= 5:
            return super().from_onnx(node)
        attributes = dict(node.attributes)
        shape = np.asarray(attributes.pop("shape", ()), np.int64)
        return super().from_onnx(replace(node, operands=(node.operands[0], shape), attributes=attributes))

    def open_rank(self, x: Any, *static: Any) -> int:
        return dims.axes_said(static[0].shape, "the shape operand of reshape, of shape")

    def index_map(self, x: Any, shape: Any) -> Moved:
        return Moved(x, Regrouped(self.shape_of(x.shape, shape.tolist())))

    def shape_of(self, old: dims.Shape, wanted: list[Any]) -> tuple[Dim | None, ...]:
        """The result's extents; None for one that cannot be known yet."""
        shown = f"reshape of {dims.format_shape(old)} to {dims.format_shape(wanted)}"
        if any(isinstance(d, int) and d < -1 for d in wanted) or wanted.count(-1) > 1:
            raise OperandError(f"{shown}: an extent is negative", ["one -1 may stand for what is left"])
        kept = [not self.allowzero and isinstance(d, int) and d == 0 for d in wanted]
        if any(k and axis >= len(old) for axis, k in enumerate(kept)):
            raise OperandError(f"{shown}: a 0 keeps the extent of x, which has no such axis")
        if self.allowzero and 0 in wanted and -1 in wanted:
            raise OperandError(f"{shown}: with allowzero, 0 and -1 do not go together")
        # extents that are kept cancel, which leaves a -1 known where they are symbolic, or 0
        total = dims.size(d for axis, d in enumerate(old) if axis >= len(kept) or not kept[axis])
        rest = dims.size(d for d, k in zip(wanted, kept) if not k and not (isinstance(d, int) and d == -1))
        found = [old[axis] if k else d for axis, (d, k) in enumerate(zip(wanted, kept))]
        if -1 not in wanted:
            if isinstance(total, int) and isinstance(rest, int) and total != rest:
                raise OperandError(f"{shown}: {dims.size(old)} elements and {dims.size(found)}")
            dims.take(total, "==", rest)
            return tuple(found)
        left = _quotient(total, rest)
        if isinstance(total, int) and isinstance(rest, int) and left is None:
            raise OperandError(f"{shown}: {total} elements are not a multiple of {rest}")
        return tuple(left if isinstance(d, int) and d == -1 else d for d in found)

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        x = node.inputs[0]
        keeps = x is not None and x.shape[:2] == node.output.shape[:2] and index in (None, 0)
        return Accepts.ALIKE if keeps else Accepts.ROW_MAJOR

    def reference(self, x: Any, shape: Any) -> Any:
        to = [d if d or self.allowzero else np.shape(x)[k] for k, d in enumerate(shape)]
        if -1 in to and np.size(x) == 0:  # NumPy leaves this open: an axis that is not kept takes what is left
            rest = [n for k, n in enumerate(np.shape(x)) if k >= len(shape) or shape[k]]
            to[to.index(-1)] = int(np.prod(rest)) // -int(np.prod([d for d in shape if d]))
        return np.reshape(x, to)

    def to_onnx(self, node: Any, opset: int) -> Any:
        x, shape = node.operands
        if shape.data is not None and -1 in shape.data and 0 in x.shape:  # which ONNX leaves open
            to = node.output.shape
            return ("Reshape", {"allowzero": 1}, [x, np.array(to)]) if opset >= 14 and dims.is_static(to) else None
        if opset >= 14 or (opset >= 5 and not self.allowzero):
            return super().to_onnx(node, opset)
        if shape.data is None or self.allowzero:
            return None
        return "Reshape", {"shape": shape.data.tolist()}, [x]

    samples = [
        Sample(f32[2, 3, 4], i64[2].of([6, 4])),
        Sample(f32[2, 3, 4], i64[3].of([4, 3, 2])),
        Sample(f32[2, 3, 4], i64[2].of([0, -1])),
        Sample(f32[2, 3, 4], i64[4].of([1, -1, 1, 8])),
        Sample(f32[1, 6, 1, 1], i64[2].of([1, 6])),
        Sample(f32[1, 1], i64[0].of([])),
        Sample(f32[()], i64[2].of([1, 1])),
        Sample(f32[0, 3], i64[2].of([3, 0]), allowzero=1),
        Sample(f32[0, 3], i64[2].of([0, -1])),
        Sample(f16[12], i64[2].of([3, 4])),
        Sample(i64[4, 6], i64[3].of([3, 4, 2])),
    ]
    rejects = [
        Reject(f32[2, 3], i64[2].of([4, 2]), because="6 elements and 8"),
        Reject(f32[2, 3], i64[2].of([4, -1]), because="not a multiple of 4"),
        Reject(f32[2, 3], i64[2].of([-1, -1]), because="one -1"),
        Reject(f32[2, 3], i64[3].of([2, 3, 0]), because="no such axis"),
        Reject(f32[0, 3], i64[2].of([0, -1]), allowzero=1, because="do not go together"),
    ]


def _quotient(total: Dim, rest: Dim) -> Dim | None:
    """total / rest; None where numbers do not divide."""
    if rest == 0 or (isinstance(total, int) and isinstance(rest, int) and total % rest):
        return None
    dims.take(total % rest, "==", 0)
    dims.take(1, "<=", rest)
    return total // rest
