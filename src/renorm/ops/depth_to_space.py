"""Blocks of channels to blocks of pixels and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr
from renorm.graph.attributes import Int, String
from renorm.graph.channels import Carry, taken
from renorm.graph.ir import Node
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, f16, f32
from renorm.ops.family import Injective


class DepthToSpace(Injective):
    """y[n, c, h*B + i, w*B + j] = x[n, (i*B + j)*C + c, h, w], or x[n, (c*B + i)*B + j, h, w] in mode CRD; B =
    blocksize."""

    signature = "x: T[N, D, H, W] -> y: T[...]"
    blocksize = Int(at_least=1)
    mode = String("DCR", among=("DCR", "CRD"))
    onnx = {"DepthToSpace": 1}

    def infer(self, x: Operand) -> tuple[Dim, ...]:
        n, d, h, w = x.shape
        b = self.blocksize
        if isinstance(d, int) and d % (b * b):
            raise OperandError(f"depth_to_space({x}): {d} channels are not a multiple of blocksize^2 = {b * b}")
        return (n, d // (b * b), h * b, w * b)

    def carried(self, node: Node, index: int, axis: int) -> Carry | None:
        x, squared = node.inputs[0], self.blocksize**2
        if axis != 1 or x is None or not isinstance(x.shape[1], int):
            return None
        channels = np.arange(x.shape[1])
        held = channels % (x.shape[1] // squared or 1) if self.mode == "DCR" else channels // squared
        return Carry(1, np.stack([held, channels], axis=1))

    def compute(self, x: te.Tensor) -> te.Tensor:
        n, d, h, w = x.shape
        b = self.blocksize
        depth = d // (b * b)

        def element(i: Expr, c: Expr, y: Expr, z: Expr) -> Expr:
            row, column = y % b, z % b
            channel = (row * b + column) * depth + c if self.mode == "DCR" else (c * b + row) * b + column
            return x[i, channel, y // b, z // b]

        return te.compute((n, depth, h * b, w * b), element, name="depth_to_space", tag=te.tag.INJECTIVE)

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


class SpaceToDepth(Injective):
    """y[n, (i*B + j)*C + c, h, w] = x[n, c, h*B + i, w*B + j]; B = blocksize."""

    signature = "x: T[N, C, H, W] -> y: T[...]"
    blocksize = Int(at_least=1)
    onnx = {"SpaceToDepth": 1}

    def infer(self, x: Operand) -> tuple[Dim, ...]:
        n, c, h, w = x.shape
        b = self.blocksize
        if any(isinstance(e, int) and e % b for e in (h, w)):
            raise OperandError(f"space_to_depth({x}): height and width are not multiples of blocksize {b}")
        return (n, c * (b * b), h // b, w // b)

    def carried(self, node: Node, index: int, axis: int) -> Carry | None:
        x, blocks = node.inputs[0], self.blocksize**2
        if axis != 1 or x is None or not isinstance(x.shape[1], int):
            return None
        return taken(np.tile(np.arange(x.shape[1]), blocks), 1)

    def compute(self, x: te.Tensor) -> te.Tensor:
        n, c, h, w = x.shape
        b = self.blocksize

        def element(i: Expr, d: Expr, y: Expr, z: Expr) -> Expr:
            block = d // max(c, 1)
            return x[i, d % max(c, 1), y * b + block // b, z * b + block % b]

        return te.compute((n, c * b * b, h // b, w // b), element, name="space_to_depth", tag=te.tag.INJECTIVE)

    def reference(self, x: Any) -> Any:
        n, c, h, w = np.shape(x)
        b = self.blocksize
        cut = np.reshape(x, (n, c, h // b, b, w // b, b)).transpose(0, 3, 5, 1, 2, 4)
        return cut.reshape(n, c * b * b, h // b, w // b)

    samples = [
        Sample(f32[2, 3, 4, 6], blocksize=2),
        Sample(f32[1, 2, 3, 3], blocksize=3),
        Sample(f16[1, 1, 2, 2], blocksize=1),
    ]
    rejects = [
        Reject(f32[1, 3, 4, 5], blocksize=2, because="not multiples"),
        Reject(f32[1, 3, 4, 4], blocksize=0, because="must be at least 1"),
    ]
