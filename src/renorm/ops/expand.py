"""Broadcasting to a shape."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import dims
from renorm.core.dims import Dim
from renorm.graph.op import BROADCAST, Reject, Sample
from renorm.graph.types import Operand, boolean, f16, f32, i64
from renorm.ops import exact
from renorm.ops.family import Injective


class Expand(Injective):
    """y = x broadcast together with a tensor of this shape, by NumPy's rules; so 1 keeps an extent of x."""

    signature = "x: T[...], shape!: i64[R] -> y: T[...]"
    onnx = {"Expand": 8}
    fusion = BROADCAST

    def infer(self, x: Operand, shape: Operand) -> tuple[Dim | None, ...]:
        if shape.known is None:
            return (None,) * max(x.rank, dims.static(shape.shape, "the shape operand")[0])
        return dims.broadcast(x.shape, tuple(shape.known))

    def compute(self, x: te.Tensor, shape: np.ndarray[Any, Any]) -> te.Tensor:
        return topi.broadcast_to(x, dims.static(dims.broadcast(x.shape, shape.tolist())))

    def reference(self, x: Any, shape: Any) -> Any:
        return x * np.ones(shape, np.asarray(x).dtype)

    def known_result(self, x: exact.Known, shape: exact.Known) -> np.ndarray[Any, Any] | None:
        if x[1] is None or shape[1] is None:
            return None
        to = dims.broadcast(x[1].shape, tuple(shape[1]))
        extents = [d for d in to if isinstance(d, int)]
        return np.broadcast_to(x[1], extents) if len(extents) == len(to) and prod(extents) <= exact.MOST else None

    samples = [
        Sample(f32[3, 1], i64[3].of([2, 1, 4])),
        Sample(f32[2, 1, 3], i64[3].of([1, 5, 1])),
        Sample(f32[()], i64[2].of([2, 3])),
        Sample(f32[2, 3], i64[1].of([1])),
        Sample(f16[1], i64[1].of([0])),
        Sample(i64[1, 3], i64[2].of([2, 3])),
        Sample(boolean[1], i64[2].of([2, 2])),
    ]
    rejects = [Reject(f32[3], i64[1].of([4]), because="do not broadcast")]
