"""Small integers copied to blocks of channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.expr.extents import same_extent
from renorm.expr.nodes import const
from renorm.graph.attributes import Int
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import INJECTIVE, OpDef, Reject, Sample
from renorm.graph.types import Operand, f32, i16, u8


class BlockedNumbers(OpDef):
    """y[n, c] = x[n, c] for c < C, and 0 for others of `channels`: a copy that may lie in blocks of channels, which x
    does not."""

    signature = "x: T[N, C, *S] -> y: T[...]"
    types = {"T": ("uint8", "int16")}
    fusion = INJECTIVE
    scheduled_as = "injective"
    channels = Int(at_least=1)

    def infer(self, x: Operand) -> tuple[Dim, ...]:
        return (x.shape[0], self.channels, *x.shape[2:])

    def compute(self, x: te.Tensor) -> te.Tensor:
        def element(n: Any, c: Any, *s: Any) -> Any:
            if same_extent(x.shape[1], self.channels):
                return x[(n, c, *s)]
            return te.if_then_else(c < x.shape[1], x[(n, c, *s)], const(0, x.dtype))

        return te.compute((x.shape[0], self.channels, *x.shape[2:]), element, name="blocked", tag=te.tag.INJECTIVE)

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        return Accepts.EITHER

    def reference(self, x: Any) -> Any:
        more = max(0, self.channels - x.shape[1])
        return np.pad(x, [(0, 0), (0, more), *[(0, 0)] * (x.ndim - 2)])[:, : self.channels]

    samples = [
        Sample(u8[2, 3, 5, 7].between(0, 255), channels=16),
        Sample(u8[1, 24, 3, 5].between(0, 255), channels=32),
        Sample(u8[2, 16, 9].between(0, 255), channels=16),
        Sample(u8[0, 3, 2], channels=4),
        Sample(i16[1, 3, 5, 7], channels=8),
    ]
    rejects = [Reject(f32[2, 3, 5], channels=16, because="x is float32")]
