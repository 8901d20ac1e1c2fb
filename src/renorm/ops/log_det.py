"""Logarithms of determinants."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.graph.op import OpDef, Reject, Sample
from renorm.graph.types import bf16, f16, f32, f64
from renorm.ops.shared.elimination import determinants


class LogDet(OpDef):
    """y[.., 0] = the sign of the determinant of each matrix, y[.., 1] = log |determinant|, be that beyond floats."""

    signature = "x: T[*S, M, M] -> y: T[*S, 2]"
    types = {"T": FLOATS}
    scheduled_as = "given_loops"

    def wants_digits(self, index: int) -> str:
        return "errors of a determinant grow with the condition of the matrix"

    def to_onnx(self, node: Any, opset: int) -> Any:
        """ONNX has no such op."""
        return None

    def compute(self, x: te.Tensor) -> te.Tensor:
        made = determinants(x)
        shape = (*x.shape[:-2], 2)
        return te.compute(shape, lambda *i: made[i].astype(x.dtype), name="log_det", tag=te.tag.INJECTIVE)

    def reference(self, x: Any) -> Any:
        return np.stack(np.linalg.slogdet(x), -1)

    samples = [
        Sample(f32[3, 3]),
        Sample(f32[2, 3, 5, 5]),
        Sample(f64[2, 7, 7], tolerance=1e-10),
        Sample(f32[2, 2, 2].of([[[1, 2], [2, 4]], [[0, -1e30], [-1e30, 0]]])),
        Sample(f32[3, 1, 1].of([[[2]], [[-4]], [[0]]])),
        Sample(f16[2, 3, 3]),
        Sample(bf16[2, 2]),
        Sample(f32[0, 3, 3]),
        Sample(f32[2, 0, 0]),
    ]
    rejects = [
        Reject(f32[2, 3], because="M"),
        Reject(f32[3], because="has rank 1"),
    ]
