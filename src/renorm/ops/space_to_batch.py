"""Blocks of pixels to samples and back, along any number of spatial axes. Exporters of TensorFlow write a dilated
convolution as a plain one between the two."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr
from renorm.graph.attributes import Ints
from renorm.graph.channels import Carry, every
from renorm.graph.ir import Node
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, f16, f32
from renorm.ops.family import Injective


def _checked(op: Any, x: Operand, edges: tuple[int, ...]) -> int:
    """The number of spatial axes, for which op must have blocks and edges."""
    rank = x.rank - 2
    if len(op.blocks) != rank or len(edges) != 2 * rank or rank < 1:
        raise OperandError(
            f"{op.name}({x}): {len(op.blocks)} blocks and {len(edges)} edges for {rank} spatial axes",
            do="give one block for each, and all elements before, axis by axis, then all elements behind",
        )
    if min(op.blocks) < 1 or min(edges) < 0:
        raise OperandError(f"{op.name}({x}): blocks must be at least 1, edges at least 0")
    return rank


def _block(blocks: tuple[int, ...], number: Any) -> list[Any]:
    """Coordinates of a sample's block, the last axis fastest."""
    found: list[Any] = []
    for a in range(len(blocks)):
        inner = prod(blocks[a + 1 :])
        found.append(number // inner % blocks[a])
    return found


class SpaceToBatch(Injective):
    """y[b*N + n, c, *s] = x[n, c, *(s * blocks + coordinates of b - before)], 0 outside; b counts positions in a block.

    pads: all elements before, axis by axis, then all elements behind.
    """

    signature = "x: T[N, C, *S] -> y: T[...]"
    blocks = Ints()
    pads = Ints()

    def carried(self, node: Node, index: int, axis: int) -> Carry | None:
        return every(node.output.shape[1], 1, fixed=0.0 if any(self.pads) else None) if axis == 1 else None

    def infer(self, x: Operand) -> tuple[Dim, ...]:
        rank = _checked(self, x, self.pads)
        spatial: list[Dim] = []
        for a, (extent, block) in enumerate(zip(x.shape[2:], self.blocks)):
            whole = extent + (self.pads[a] + self.pads[rank + a])
            if isinstance(whole, int) and whole % block:
                raise OperandError(f"space_to_batch({x}): {whole} padded elements are no multiple of block {block}")
            spatial.append(whole // block)
        return (x.shape[0] * prod(self.blocks), x.shape[1], *spatial)

    def compute(self, x: te.Tensor) -> te.Tensor:
        n, c, *spatial = x.shape
        rank = len(spatial)
        counts = [(e + self.pads[a] + self.pads[rank + a]) // self.blocks[a] for a, e in enumerate(spatial)]

        def element(sample: Expr, channel: Expr, *index: Expr) -> Expr:
            block = _block(self.blocks, sample // max(n, 1))
            at = [i * b + o - p for i, b, o, p in zip(index, self.blocks, block, self.pads)]
            inside = [t for p, e in zip(at, spatial) for t in (p >= 0, p < e)]
            return te.if_then_else(te.all(*inside), x[(sample % max(n, 1), channel, *at)], te.const(0, x.dtype))

        shape = (n * prod(self.blocks), c, *counts)
        return te.compute(shape, element, name="space_to_batch", tag=te.tag.INJECTIVE)

    def reference(self, x: Any) -> Any:
        n, c, *spatial = np.shape(x)
        rank = len(spatial)
        padded = np.pad(x, [(0, 0), (0, 0), *zip(self.pads[:rank], self.pads[rank:])])
        cut = [s for e, b in zip(padded.shape[2:], self.blocks) for s in (e // b, b)]
        inner = [3 + 2 * a for a in range(rank)]
        parts = padded.reshape(n, c, *cut).transpose(*inner, 0, 1, *(2 + 2 * a for a in range(rank)))
        return parts.reshape(n * prod(self.blocks), c, *cut[::2])

    samples = [
        Sample(f32[2, 3, 4, 6], blocks=(2, 3), pads=(0, 0, 0, 0)),
        Sample(f32[1, 2, 5, 3], blocks=(2, 2), pads=(1, 2, 0, 1)),
        Sample(f16[3, 1, 5], blocks=(3,), pads=(2, 2)),
        Sample(f32[1, 1, 2, 2, 4], blocks=(2, 1, 4), pads=(0, 1, 0, 0, 0, 0)),
    ]
    rejects = [
        Reject(f32[1, 3, 4, 5], blocks=(2, 2), pads=(0, 0, 0, 0), because="no multiple"),
        Reject(f32[1, 3, 4, 4], blocks=(2,), pads=(0, 0), because="2 spatial axes"),
        Reject(f32[1, 3, 4, 4], blocks=(2, 0), pads=(0, 0, 0, 0), because="at least 1"),
    ]


class BatchToSpace(Injective):
    """y[n, c, *s] = x[b*N + n, c, *((s + before) // blocks)], where b is the position of s + before in its block.

    crops: all elements cut off before, axis by axis, then all elements behind.
    """

    signature = "x: T[N, C, *S] -> y: T[...]"
    blocks = Ints()
    crops = Ints()

    def carried(self, node: Node, index: int, axis: int) -> Carry | None:
        return every(node.output.shape[1], 1) if axis == 1 else None

    def infer(self, x: Operand) -> tuple[Dim, ...]:
        rank, count = _checked(self, x, self.crops), prod(self.blocks)
        if isinstance(x.shape[0], int) and x.shape[0] % count:
            raise OperandError(
                f"batch_to_space({x}): {x.shape[0]} samples are no multiple of {count}, the blocks' size"
            )
        spatial = [
            e * b - (self.crops[a] + self.crops[rank + a]) for a, (e, b) in enumerate(zip(x.shape[2:], self.blocks))
        ]
        if any(isinstance(e, int) and e < 0 for e in spatial):
            raise OperandError(f"batch_to_space({x}): crops {list(self.crops)} leave less than nothing")
        return (x.shape[0] // count, x.shape[1], *spatial)

    def compute(self, x: te.Tensor) -> te.Tensor:
        n, c, *spatial = x.shape
        rank, samples = len(spatial), n // prod(self.blocks)
        counts = [e * self.blocks[a] - self.crops[a] - self.crops[rank + a] for a, e in enumerate(spatial)]

        def element(sample: Expr, channel: Expr, *index: Expr) -> Expr:
            number: Any = 0
            at: list[Expr] = []
            for i, b, before in zip(index, self.blocks, self.crops):
                number = number * b + (i + before) % b
                at.append((i + before) // b)
            return x[(number * samples + sample, channel, *at)]

        return te.compute((samples, c, *counts), element, name="batch_to_space", tag=te.tag.INJECTIVE)

    def reference(self, x: Any) -> Any:
        n, c, *spatial = np.shape(x)
        rank, samples = len(spatial), n // prod(self.blocks)
        parts = np.reshape(x, (*self.blocks, samples, c, *spatial))
        order = [a for i in range(rank) for a in (rank + 2 + i, i)]
        whole = parts.transpose(rank, rank + 1, *order)
        whole = whole.reshape(samples, c, *(e * b for e, b in zip(spatial, self.blocks)))
        ends = [e - behind for e, behind in zip(whole.shape[2:], self.crops[rank:])]
        return whole[(slice(None), slice(None), *(slice(b, e) for b, e in zip(self.crops, ends)))]

    samples = [
        Sample(f32[12, 3, 2, 2], blocks=(2, 3), crops=(0, 0, 0, 0)),
        Sample(f32[8, 2, 3, 2], blocks=(2, 2), crops=(1, 0, 0, 1)),
        Sample(f16[3, 2, 4], blocks=(3,), crops=(2, 2)),
    ]
    rejects = [
        Reject(f32[3, 3, 4, 4], blocks=(2, 2), crops=(0, 0, 0, 0), because="no multiple"),
        Reject(f32[4, 3, 1, 1], blocks=(2, 2), crops=(2, 0, 1, 0), because="less than nothing"),
    ]
