"""Blocks of channels to blocks of pixels and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.dims import take
from renorm.core.errors import OperandError
from renorm.graph.attributes import Int, String
from renorm.graph.index_map import Moved, Permuted, Regrouped
from renorm.graph.ir import Node
from renorm.graph.op import Reject, Sample
from renorm.graph.types import f16, f32
from renorm.ops.shared.movement import Movement


class DepthToSpace(Movement):
    """y[n, c, h*B + i, w*B + j] = x[n, (i*B + j)*C + c, h, w], or x[n, (c*B + i)*B + j, h, w] in mode CRD; B =
    blocksize."""

    signature = "x: T[N, D, H, W] -> y: T[...]"
    blocksize = Int(at_least=1)
    mode = String("DCR", among=("DCR", "CRD"))
    onnx = {"DepthToSpace": 1}

    def index_map(self, x: Any) -> Moved:
        (n, d, h, w), b = x.shape, self.blocksize
        if isinstance(d, int) and d % (b * b):
            raise OperandError(f"depth_to_space({x}): {d} channels are not a multiple of blocksize^2 = {b * b}")
        take(d % (b * b), "==", 0)
        c = d // (b * b)
        if self.mode == "DCR":
            steps = Regrouped((n, b, b, c, h, w)), Permuted((0, 3, 4, 1, 5, 2))
        else:
            steps = Regrouped((n, c, b, b, h, w)), Permuted((0, 1, 4, 2, 5, 3))
        return Moved(x, *steps, Regrouped((n, c, h * b, w * b)))

    def reference(self, x: Any) -> Any:
        n, d, h, w = np.shape(x)
        b = self.blocksize
        if self.mode == "DCR":
            cut = np.reshape(x, (n, b, b, d // b**2, h, w)).transpose(0, 3, 4, 1, 5, 2)
        else:
            cut = np.reshape(x, (n, d // b**2, b, b, h, w)).transpose(0, 1, 4, 2, 5, 3)
        return cut.reshape(n, d // b**2, h * b, w * b)

    samples = [
        Sample(f32[2, 8, 3, 2], blocksize=2),
        Sample(f32[2, 8, 3, 2], blocksize=2, mode="CRD"),
        Sample(f32[1, 18, 1, 2], blocksize=3),
        Sample(f16[1, 2, 2, 2], blocksize=1),
    ]
    rejects = [
        Reject(f32[1, 6, 2, 2], blocksize=2, because="not a multiple"),
        Reject(f32[1, 4, 2], blocksize=2, because="has rank 3"),
        Reject(f32[1, 4, 2, 2], blocksize=2, mode="RCD", because="known: DCR, CRD"),
    ]


class SpaceToDepth(Movement):
    """y[n, (i*B + j)*C + c, h, w] = x[n, c, h*B + i, w*B + j], or y[n, (c*B + i)*B + j, h, w] in mode CRD; B =
    blocksize."""

    signature = "x: T[N, C, H, W] -> y: T[...]"
    blocksize = Int(at_least=1)
    mode = String("DCR", among=("DCR", "CRD"))
    onnx = {"SpaceToDepth": 1}

    def to_onnx(self, node: Node, opset: int) -> Any:
        """Modes came with opset 28."""
        return super().to_onnx(node, opset) if opset >= 28 or self.mode == "DCR" else None

    def index_map(self, x: Any) -> Moved:
        (n, c, h, w), b = x.shape, self.blocksize
        if any(isinstance(e, int) and e % b for e in (h, w)):
            raise OperandError(f"space_to_depth({x}): height and width are not multiples of blocksize {b}")
        for e in (h, w):
            take(e % b, "==", 0)
        order = (0, 3, 5, 1, 2, 4) if self.mode == "DCR" else (0, 1, 3, 5, 2, 4)
        cut = Regrouped((n, c, h // b, b, w // b, b)), Permuted(order)
        return Moved(x, *cut, Regrouped((n, c * (b * b), h // b, w // b)))

    def reference(self, x: Any) -> Any:
        n, c, h, w = np.shape(x)
        b = self.blocksize
        cut = np.reshape(x, (n, c, h // b, b, w // b, b))
        cut = np.einsum("nchiwj->nijchw" if self.mode == "DCR" else "nchiwj->ncijhw", cut)
        return cut.reshape(n, c * b * b, h // b, w // b)

    samples = [
        Sample(f32[2, 3, 4, 6], blocksize=2),
        Sample(f32[1, 2, 3, 3], blocksize=3),
        Sample(f32[2, 3, 4, 6], blocksize=2, mode="CRD"),
        Sample(f16[1, 1, 2, 2], blocksize=1),
    ]
    rejects = [
        Reject(f32[1, 3, 4, 5], blocksize=2, because="not multiples"),
        Reject(f32[1, 3, 4, 4], blocksize=0, because="must be at least 1"),
    ]
