"""Inverses of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import take
from renorm.core.dtypes import FLOATS
from renorm.core.errors import OperandError
from renorm.graph.op import OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops.shared.elimination import inverses


class Inverse(OpDef):
    """y[..] is the matrix of which x[..] @ y[..] is 1. Where there is none its elements are no numbers, or infinite."""

    signature = "x: T[*S] -> y: T[*S]"
    types = {"T": FLOATS}
    onnx = {"com.microsoft::Inverse": 1}
    scheduled_as = "given_loops"

    def wants_digits(self, index: int) -> str:
        return "errors of a matrix grow with its condition"

    def infer(self, x: Operand) -> None:
        squared("inverse", x)

    def to_onnx(self, node: Any, opset: int) -> Any:
        """ONNX has no such op."""
        return None

    def compute(self, x: te.Tensor) -> te.Tensor:
        both, rows = inverses(x), x.shape[-1]
        return te.compute(
            x.shape, lambda *i: both[(*i[:-1], i[-1] + rows)].astype(x.dtype), name="inverse", tag=te.tag.INJECTIVE
        )

    def reference(self, x: Any) -> Any:
        return np.linalg.inv(x)

    samples = [
        Sample(f32[3, 3]),
        Sample(f32[2, 3, 5, 5]),
        Sample(f64[2, 7, 7], tolerance=1e-10),
        Sample(f32[4, 4].of([[0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 4], [0, 0, -0.5, 0]])),
        Sample(f32[3, 3].of([[1e-6, 1, 0], [1, 1, 1], [0, 1, -1]])),
        Sample(f32[3, 1, 1].of([[[2]], [[-4]], [[0.5]]])),
        Sample(f16[2, 3, 3]),
        Sample(bf16[2, 2]),
        Sample(f32[0, 3, 3]),
        Sample(f32[2, 0, 0]),
    ]
    rejects = [
        Reject(f32[3], because="is no matrix"),
        Reject(f32[2, 3, 4], because="3 rows and 4 columns"),
    ]


def squared(name: str, x: Operand) -> None:
    """Take it that the matrices of an operand have as many rows as columns; OperandError where they have not."""
    if x.rank < 2:
        raise OperandError(f"{name}: {x} is no matrix")
    rows, columns = x.shape[-2:]
    if isinstance(rows, int) and isinstance(columns, int) and rows != columns:
        raise OperandError(f"{name}: {x} has {rows} rows and {columns} columns")
    take(rows, "==", columns)
