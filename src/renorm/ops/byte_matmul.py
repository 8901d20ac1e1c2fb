"""Matrix products of bytes, which count from the least number that a quantized tensor has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.graph.ir import Node
from renorm.graph.op import Reject, Sample
from renorm.graph.types import i8, u8
from renorm.ops.matmul import Matmul
from renorm.topi.linear import product


class ByteMatmul(Matmul):
    """Matmul of bytes with a matrix of them, summed in int32: exact for fewer than 2^16 terms."""

    signature = "a: u8[*R, M, K], b: i8[K, N] -> y: i32[*R, M, N]"
    types = {}
    onnx = {}

    def fold_after(self, operands: Sequence[Any], axis: int, k: Any, shift: Any) -> Any:
        return f"{self.name} has a weight of integers"

    def fold_before(self, node: Node, operands: Sequence[Any], index: int, m: Any) -> Any:
        return f"{self.name} has a weight of integers"

    def compute(self, a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return product(a, b, wide="int32")

    def reference(self, a: Any, b: Any) -> Any:
        return np.matmul(np.asarray(a, np.int32), np.asarray(b, np.int32))

    samples = [
        Sample(u8[5, 7], i8[7, 3]),
        Sample(u8[2, 5, 8].between(0, 255), i8[8, 35].between(-128, 127)),
        Sample(u8[3, 0], i8[0, 2]),
        Sample(u8[0, 3], i8[3, 2]),
    ]
    rejects = [Reject(u8[5, 7], i8[6, 3], because="K")]
