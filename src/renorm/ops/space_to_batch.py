"""Blocks of pixels to samples and back, along any number of spatial axes. Exporters of TensorFlow write a dilated
convolution as a plain one between the two."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from renorm.core.dims import take
from renorm.core.errors import OperandError
from renorm.graph.attributes import Ints
from renorm.graph.index_map import Moved, Padded, Permuted, Regrouped
from renorm.graph.op import Reject, Sample
from renorm.graph.types import f16, f32
from renorm.ops.shared.movement import Movement


def _checked(op: Any, x: Any, edges: tuple[int, ...]) -> int:
    """The number of spatial axes, for which op must have blocks and edges."""
    rank = len(x.shape) - 2
    if len(op.blocks) != rank or len(edges) != 2 * rank or rank < 1:
        raise OperandError(
            f"{op.name}({x}): {len(op.blocks)} blocks and {len(edges)} edges for {rank} spatial axes",
            do="give one block for each, and all elements before, axis by axis, then all elements after",
        )
    if min(op.blocks) < 1 or min(edges) < 0:
        raise OperandError(f"{op.name}({x}): blocks must be at least 1, edges at least 0")
    return rank


class SpaceToBatch(Movement):
    """y[b*N + n, c, *s] = x[n, c, *(s * blocks + coordinates of b - before)], 0 outside; b counts positions in a block.

    pads: all elements before, axis by axis, then all elements after.
    """

    signature = "x: T[N, C, *S] -> y: T[...]"
    blocks = Ints()
    pads = Ints()

    def index_map(self, x: Any) -> Moved:
        rank = _checked(self, x, self.pads)
        padded = Padded(((0, 0), (0, 0), *zip(self.pads[:rank], self.pads[rank:])))
        n, c, *spatial = padded.extents(x.shape)
        for extent, block in zip(spatial, self.blocks):
            if isinstance(extent, int) and extent % block:
                raise OperandError(f"space_to_batch({x}): {extent} padded elements are no multiple of block {block}")
            take(extent % block, "==", 0)
        counts = [e // b for e, b in zip(spatial, self.blocks)]
        cut = Regrouped((n, c, *(e for pair in zip(counts, self.blocks) for e in pair)))
        order = Permuted((*range(3, 3 + 2 * rank, 2), 0, 1, *range(2, 2 + 2 * rank, 2)))
        return Moved(x, padded, cut, order, Regrouped((n * prod(self.blocks), c, *counts)))

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


class BatchToSpace(Movement):
    """y[n, c, *s] = x[b*N + n, c, *((s + before) // blocks)], where b is the position of s + before in its block.

    crops: all elements cut off before, axis by axis, then all elements after.
    """

    signature = "x: T[N, C, *S] -> y: T[...]"
    blocks = Ints()
    crops = Ints()

    def index_map(self, x: Any) -> Moved:
        rank, (n, c, *spatial) = _checked(self, x, self.crops), x.shape
        count = prod(self.blocks)
        if isinstance(n, int) and n % count:
            raise OperandError(f"batch_to_space({x}): {n} samples are no multiple of {count}, the blocks' size")
        take(n % count, "==", 0)
        order = [a for i in range(rank) for a in (rank + 2 + i, i)]
        found = Moved(
            x,
            Regrouped((*self.blocks, n // count, c, *spatial)),
            Permuted((rank, rank + 1, *order)),
            Regrouped((n // count, c, *(e * b for e, b in zip(spatial, self.blocks)))),
            Padded(((0, 0), (0, 0), *((-b, -a) for b, a in zip(self.crops, self.crops[rank:])))),
        )
        if any(isinstance(e, int) and e < 0 for e in found.shape):
            raise OperandError(f"batch_to_space({x}): crops {list(self.crops)} leave less than nothing")
        return found

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
