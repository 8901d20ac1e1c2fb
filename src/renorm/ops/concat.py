"""Joining along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from renorm.core import dims, shapes
from renorm.core.dims import Dim
from renorm.core.errors import OperandError
from renorm.graph.attributes import Int
from renorm.graph.index_map import Joined
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import OnnxNode, Reject, Sample
from renorm.graph.types import boolean, f16, f32, i64
from renorm.ops.shared.movement import Movement


class Concat(Movement):
    """y = x0, x1, ... one after the other along axis; all other extents are equal."""

    signature = "*xs: T[...] -> y: T[...]"
    moves_axes = True
    axis = Int()
    onnx = {"Concat": 1}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Before opset 4 the axis was 1 where it was not given."""
        if node.opset < 4 and "axis" not in node.attributes:
            node = replace(node, attributes={**node.attributes, "axis": 1})
        return super().from_onnx(node)

    def index_map(self, xs: Sequence[Any]) -> Joined:
        if not xs:
            raise OperandError("concat needs at least one operand")
        rank = len(xs[0].shape)
        axis = shapes.normalize_axis(self.axis, rank)
        shape: list[Dim] = list(xs[0].shape)
        for x in xs[1:]:
            if len(x.shape) != rank:
                raise OperandError(f"concat: {x} has rank {len(x.shape)} but {xs[0]} has rank {rank}")
            for k, (own, extent) in enumerate(zip(shape, x.shape)):
                if k == axis:
                    shape[k] = own + extent
                elif isinstance(extent, int) and isinstance(own, int) and extent != own:
                    raise OperandError(f"concat along axis {axis}: {x} and {xs[0]} differ in axis {k}")
                else:
                    dims.take(own, "==", extent)
                    shape[k] = extent if isinstance(extent, int) else own
        return Joined(axis, xs, tuple(shape))

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        return Accepts.ALIKE

    def reference(self, xs: Sequence[Any]) -> Any:
        return np.concatenate(xs, self.axis)

    samples = [
        Sample([f32[2, 3, 5]], axis=0),
        Sample([f32[2, 3, 5], f32[2, 1, 5], f32[2, 4, 5]], axis=1),
        Sample([f32[2, 3], f32[2, 0], f32[2, 2]], axis=-1),
        Sample([i64[2], i64[1], i64[3], i64[1], i64[2]], axis=0),
        Sample([boolean[2, 2], boolean[1, 2]], axis=-2),
        Sample([f16[1, 3], f16[2, 3]], axis=0),
        Sample([f32[0, 3], f32[0, 3]], axis=0),
    ]
    rejects = [
        Reject([f32[2, 3], f32[3, 4]], axis=1, because="differ in axis 0"),
        Reject([f32[2, 3], f32[3]], axis=0, because="has rank 1"),
        Reject([f32[2, 3]], axis=2, because="axis 2 is outside"),
        Reject([f32[2], i64[2]], axis=0, because="is int64"),
        Reject([f32[2]], because="needs axis"),
    ]
