"""Boxes of images, resampled to one size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from renorm import te
from renorm.core import dims
from renorm.core.dims import Dim
from renorm.core.dtypes import FLOATS
from renorm.core.errors import OperandError
from renorm.graph.attributes import Float, Int, String
from renorm.graph.ir import Node
from renorm.graph.op import Demand, OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64, i64
from renorm.ops.gather import within
from renorm.ops.shared.boxes import LANES, bins


class RoiAlign(OpDef):
    """y[r, c] = the box rois[r] = x1, y1, x2, y2 of image batch_indices[r], in bins: the mean of positions in each,
    interpolated between four elements, or the greatest of these elements times their weights.

    A bin has sampling_ratio^2 positions, or where that is 0 one for each element that it is wide and high. Positions
    more than an element outside count as 0. Coordinates are of corners of elements (half_pixel), or of their middles,
    where a box is one element wide and high at least.
    """

    signature = "x: T[N, C, H, W], rois: T[R, 4], batch_indices: i64[R] -> y: T[...]"
    types = {"T": FLOATS}
    mode = String("avg", among=("avg", "max"))
    output_height = Int(1, at_least=1)
    output_width = Int(1, at_least=1)
    sampling_ratio = Int(0, at_least=0)
    spatial_scale = Float(1.0)
    coordinate_transformation_mode = String("half_pixel", among=("half_pixel", "output_half_pixel"))
    onnx = {"RoiAlign": 10}
    scheduled_as = "given_loops"

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Before opset 16 coordinates were those of middles."""
        given = dict(node.attributes)
        if node.opset < 16:
            given["coordinate_transformation_mode"] = "output_half_pixel"
        return cls(**given)(*cls.arrange(node.operands), name=node.name)

    def to_onnx(self, node: Node, opset: int) -> Any:
        said = super().to_onnx(node, opset)
        if said is None or opset >= 16:
            return said
        is_old = said[1].pop("coordinate_transformation_mode", "half_pixel") == "output_half_pixel"
        return said if is_old else None

    def infer(self, x: Operand, rois: Operand, batch_indices: Operand) -> tuple[Dim, ...]:
        shape = (rois.shape[0], x.shape[1], self.output_height, self.output_width)
        if 0 in (x.shape[0], *x.shape[2:]) and 0 not in shape:
            raise OperandError(f"roi_align({x}): an axis has no elements, and {rois} asks for some")
        for extent in (x.shape[0], *x.shape[2:]):
            dims.take(dims.minimum(1, dims.size(shape)), "<=", extent)
        return shape

    def demands(self, node: Node) -> list[Demand]:
        x, _, batch_indices = node.operands
        return [Demand(batch_indices, (0,), x.shape[:1])]

    def compute(self, x: te.Tensor, rois: te.Tensor, batch_indices: te.Tensor) -> te.Tensor:
        channels: Any = x.shape[1]
        rounds = rois.shape[0] * ((channels + (LANES - 1)) // LANES)
        shape = (rois.shape[0], channels, self.output_height, self.output_width)
        is_half = self.coordinate_transformation_mode == "half_pixel"
        body = bins(shape[2:], self.sampling_ratio, self.spatial_scale, is_half, self.mode == "max")
        return te.extern(shape, [x, rois, batch_indices], body, name="aligned", dtype=x.dtype, rounds=rounds)

    def reference(self, x: Any, rois: Any, batch_indices: Any) -> Any:
        x, is_half = np.asarray(x), self.coordinate_transformation_mode == "half_pixel"
        y = np.zeros((len(rois), x.shape[1], self.output_height, self.output_width))
        for r, (box, n) in enumerate(zip(np.asarray(rois) * self.spatial_scale - 0.5 * is_half, batch_indices)):
            image, lines = x[within(n, len(x))], list[Any]()
            for axis, count in ((1, self.output_height), (0, self.output_width)):
                size = box[axis + 2] - box[axis] if is_half else max(box[axis + 2] - box[axis], 1.0)
                each = self.sampling_ratio or max(math.ceil(size / count), 0)
                steps = (np.arange(count * each) + 0.5) * (size / count / max(each, 1))
                extent = image.shape[2 - axis]
                lines.append([_line(box[axis] + s, extent) for s in steps])
            found = np.zeros((len(x[0]), *map(len, lines)))
            for (i, rows), (j, columns) in ((a, b) for a in enumerate(lines[0]) for b in enumerate(lines[1])):
                terms = [image[:, p, q] * v * w for p, v in rows for q, w in columns]
                if terms:
                    found[:, i, j] = np.max(terms, 0) if self.mode == "max" else np.sum(terms, 0)
            if found.size:
                cut = found.reshape(len(found), self.output_height, -1, self.output_width, len(lines[1]) // y.shape[3])
                y[r] = (np.max if self.mode == "max" else np.mean)(cut, (2, 4))
        return y

    samples = [
        Sample(
            *(f32[2, 3, 7, 9], f32[3, 4].of([[1, 0.5, 6.3, 5], [-3, -2, 4, 3], [7, 6, 2, 1]]), i64[3].of([1, 0, 1])),
            output_height=2,
            output_width=3,
            sampling_ratio=2,
        ),
        Sample(
            f32[1, 2, 7, 9],
            f32[2, 4].of([[0, 0, 17, 12.5], [30, 3, 40, 9]]),
            i64[2].of([0, 0]),
            output_width=2,
            spatial_scale=0.5,
        ),
        Sample(
            f32[2, 35, 4, 5],
            f32[3, 4].of([[1, 1, 3, 3], [2, 2, 2, 2], [4, 3, 5, 6]]),
            i64[3].of([-1, 1, 0]),
            coordinate_transformation_mode="output_half_pixel",
            output_height=3,
        ),
        Sample(
            f32[1, 2, 6, 5],
            f32[2, 4].of([[0.2, 1, 4.8, 5], [3, -4, 9, 2]]),
            i64[2].of([0, 0]),
            mode="max",
            output_height=2,
            output_width=2,
            sampling_ratio=3,
        ),
        Sample(f64[1, 1, 4, 4], f64[1, 4].of([[1, 2, 3, 4]]), i64[1].of([0]), mode="max", output_width=3),
        Sample(f16[1, 2, 4, 4], f16[1, 4].of([[1, 2, 3, 4]]), i64[1].of([0]), output_width=3, tolerance=2e-3),
        Sample(bf16[1, 2, 4, 4], bf16[1, 4].of([[1, 0, 3, 3.5]]), i64[1].of([0]), output_width=2),
        Sample(f32[1, 2, 3, 3], f32[0, 4], i64[0]),
        Sample(f32[1, 0, 3, 3], f32[1, 4], i64[1].of([0])),
    ]
    rejects = [
        Reject(f32[1, 2, 3, 3], f32[2, 5], i64[2], because="5"),
        Reject(f32[1, 2, 3, 3], f32[2, 4], i64[3], because="R"),
        Reject(f32[1, 2, 0, 3], f32[2, 4], i64[2], because="an axis has no elements"),
        Reject(f32[1, 2, 3, 3], f32[2, 4], i64[2], output_height=0, because="must be at least 1"),
    ]


def _line(at: float, extent: int) -> list[tuple[int, float]]:
    """Return elements along an axis and their weights; none where a position is outside."""
    if at < -1 or at > extent:
        return []
    at = min(max(at, 0.0), extent - 1)
    low = int(at)
    return [(low, 1 - (at - low)), (min(low + 1, extent - 1), at - low)]
