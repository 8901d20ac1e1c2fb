"""Columns of a convolution, added up to images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import dims
from renorm.core.dims import Dim
from renorm.core.dtypes import NUMBERS
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, all_of, const, select
from renorm.graph.attributes import Ints
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, OpDef, Reject, Sample
from renorm.graph.types import Operand, f16, f32, f64, i32, i64
from renorm.ops.shared.precision import wide


class Col2im(OpDef):
    """y[n, c, s] = sum of x[n, (c, k), p] over all places k of a block at positions p with s = p * strides + k *
    dilations - pads: each element of a block goes back where it came from."""

    signature = "x: T[N, D, L], image_shape!: i64[A], block_shape!: i64[A] -> y: T[...]"
    types = {"T": NUMBERS}
    dilations = Ints(None)
    pads = Ints(None)
    strides = Ints(None)
    onnx = {"Col2Im": 18}
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "reduction"

    def infer(self, x: Operand, image_shape: Operand, block_shape: Operand) -> tuple[Dim, ...]:
        if image_shape.known is None or block_shape.known is None:
            raise OperandError(f"col2im({x}): image_shape and block_shape must be known at compile time")
        images, blocks = self._numbers(image_shape.known), self._numbers(block_shape.known)
        counts, channels, there = prod(self._counts(images, blocks)), prod(blocks), x.shape[1]
        if isinstance(there, int) and there % channels:
            raise OperandError(f"col2im({x}): {there} channels are no multiple of the {channels} elements of a block")
        if isinstance(x.shape[2], int) and x.shape[2] != counts:
            raise OperandError(f"col2im({x}): blocks {blocks} have {counts} positions in images {images}")
        dims.take(there % channels, "==", 0)
        dims.take(x.shape[2], "==", counts)
        return (x.shape[0], there // channels, *images)

    def _numbers(self, given: Any) -> list[int]:
        return [dims.number(e, "col2im: an extent") for e in given.reshape(-1).tolist()]

    def _each(self, rank: int) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]:
        """Return strides, dilations, and pads before and after."""
        pads = self.pads or (0,) * (2 * rank)
        found = (self.strides or (1,) * rank, self.dilations or (1,) * rank, pads[:rank], pads[rank:])
        if any(len(v) != rank for v in found) or min((*found[0], *found[1])) < 1:
            raise OperandError(f"col2im: strides, dilations and pads are not those of {rank} axes")
        return found

    def _counts(self, images: Sequence[int], blocks: Sequence[int]) -> list[int]:
        """Return how many positions a block has along each axis."""
        lines = zip(images, blocks, *self._each(len(images)), strict=True)
        return [max((d + b + a - dilation * (k - 1) - 1) // s + 1, 0) for d, k, s, dilation, b, a in lines]

    def compute(self, x: te.Tensor, image_shape: Any, block_shape: Any) -> te.Tensor:
        images, blocks = self._numbers(image_shape), self._numbers(block_shape)
        counts, (strides, dilations, before, _) = self._counts(images, blocks), self._each(len(images))
        ks = [te.reduce_axis((0, k), name=f"k{i}") for i, k in enumerate(blocks)]

        def element(n: Expr, c: Expr, *s: Expr) -> Expr:
            inside, places = list[Expr](), list[Expr]()
            for i, k, stride, dilation, b, count in zip(s, ks, strides, dilations, before, counts):
                at = i + b - k * dilation
                inside += [at >= 0, (at % stride).equal(0), at < count * stride]
                places.append(te.max(te.min(at // stride, count - 1), 0))
            channel = c * prod(blocks) + topi.transform.ravel([k.var for k in ks], blocks)
            e = wide(x[n, channel, topi.transform.ravel(places, counts)])
            return te.sum(select(all_of(*inside), e, const(0, e.dtype)), axis=ks)

        shape = (x.shape[0], x.shape[1] // prod(blocks), *images)
        if not prod(counts):
            return topi.full(shape, x.dtype, 0)
        return te.compute(shape, element, name="images", tag=te.tag.COMM_REDUCE).astype(x.dtype)

    def reference(self, x: Any, image_shape: Any, block_shape: Any) -> Any:
        x, images, blocks = np.asarray(x), tuple(image_shape), tuple(block_shape)
        counts, (strides, dilations, before, after) = self._counts(images, blocks), self._each(len(images))
        n, channels = x.shape[0], x.shape[1] // prod(blocks)
        columns = x.reshape(n, channels, *blocks, *counts)
        padded = np.zeros((n, channels, *(d + b + a for d, b, a in zip(images, before, after))), x.dtype)
        for k in np.ndindex(*blocks):
            at = (slice(i * d, i * d + s * c, s) for i, d, s, c in zip(k, dilations, strides, counts))
            padded[(..., *at)] += columns[(slice(None), slice(None), *k)]
        return padded[(..., *(slice(b, b + d) for b, d in zip(before, images)))]

    samples = [
        Sample(f32[1, 6, 20], i64[2].of([5, 7]), i64[2].of([2, 3]), strides=(1, 1)),
        Sample(f32[2, 12, 12], i64[2].of([5, 7]), i64[2].of([3, 2]), strides=(2, 2), pads=(1, 0, 1, 1)),
        Sample(f32[1, 4, 9], i64[2].of([5, 7]), i64[2].of([2, 2]), dilations=(2, 4)),
        Sample(i32[2, 6, 4], i64[1].of([6]), i64[1].of([3])),
        Sample(f64[1, 8, 6], i64[3].of([2, 3, 4]), i64[3].of([2, 2, 2])),
        Sample(f16[1, 4, 6], i64[2].of([3, 4]), i64[2].of([2, 2]), tolerance=2e-3),
        Sample(f32[0, 6, 20], i64[2].of([5, 7]), i64[2].of([2, 3])),
    ]
    rejects = [
        Reject(f32[1, 5, 20], i64[2].of([5, 7]), i64[2].of([2, 3]), because="no multiple of the 6 elements"),
        Reject(f32[1, 6, 21], i64[2].of([5, 7]), i64[2].of([2, 3]), because="have 20 positions"),
        Reject(f32[1, 6, 20], i64[2].of([5, 7]), i64[2].of([2, 3]), strides=(1,), because="are not those of 2 axes"),
    ]
