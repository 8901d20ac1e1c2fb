"""Broadcasting to a shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core import dims, shapes
from renorm.graph.index_map import Moved, Regrouped, Repeated
from renorm.graph.op import BROADCAST, Reject, Sample
from renorm.graph.types import boolean, f16, f32, i64
from renorm.ops.shared.movement import Movement


class Expand(Movement):
    """y = x broadcast together with a tensor of this shape, by NumPy's rules; so 1 keeps an extent of x."""

    signature = "x: T[...], shape!: i64[R] -> y: T[...]"
    onnx = {"Expand": 8}
    fusion = BROADCAST

    def open_rank(self, x: Any, *static: Any) -> int:
        return max(len(x.shape), dims.axes_said(static[0].shape, "the shape operand"))

    def index_map(self, x: Any, shape: Any) -> Moved:
        to = shapes.broadcast(x.shape, shape.tolist())
        own = (1,) * (len(to) - len(x.shape)) + tuple(x.shape)
        return Moved(x, Regrouped(own), Repeated(tuple(e if d == 1 else 1 for d, e in zip(own, to))))

    def reference(self, x: Any, shape: Any) -> Any:
        return x * np.ones(shape, np.asarray(x).dtype)

    samples = [
        Sample(f32[3, 1], i64[3].of([2, 1, 4])),
        Sample(f32[2, 1, 3], i64[3].of([1, 5, 1])),
        Sample(f32[()], i64[2].of([2, 3])),
        Sample(f32[2, 3], i64[1].of([1])),
        Sample(f16[1], i64[1].of([0])),
        Sample(i64[1, 3], i64[2].of([2, 3])),
        Sample(boolean[1], i64[2].of([2, 2])),
    ]
    rejects = [
        Reject(f32[3], i64[1].of([4]), because="do not broadcast"),
        Reject(f32[1], i64[1].of([-1]), because="would have the shape [-1]"),
    ]
