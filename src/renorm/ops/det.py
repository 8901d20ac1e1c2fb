"""Determinants of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.graph.op import OpDef, Reject, Sample
from renorm.graph.types import f16, f32, f64
from renorm.ops.shared.elimination import determinants


class Det(OpDef):
    """y = the determinant of each matrix that the last two axes hold: by elimination in float64."""

    signature = "x: T[*S, M, M] -> y: T[*S]"
    types = {"T": FLOATS}
    onnx = {"Det": 11}
    scheduled_as = "given_loops"

    def compute(self, x: te.Tensor) -> te.Tensor:
        made = determinants(x)
        return te.compute(x.shape[:-2], lambda *i: made[(*i, 2)].astype(x.dtype), name="det", tag=te.tag.INJECTIVE)

    def reference(self, x: Any) -> Any:
        return np.linalg.det(x) if np.size(x) or 0 not in np.shape(x)[:-2] else np.zeros(np.shape(x)[:-2])

    samples = [
        Sample(f32[3, 3]),
        Sample(f32[2, 3, 5, 5]),
        Sample(f32[4, 1, 1]),
        Sample(f32[2, 3, 3].of([[[0, 2, 1], [0, 0, 3], [4, 1, 1]], [[1, 2, 3], [2, 4, 6], [0, 1, 1]]])),
        Sample(f64[2, 7, 7]),
        Sample(f16[2, 2, 2], tolerance=5e-3),
        Sample(f32[0, 3, 3]),
    ]
    rejects = [
        Reject(f32[2, 3], because="M"),
        Reject(f32[3], because="has rank 1"),
    ]
