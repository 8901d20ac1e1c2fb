"""Transposed convolution with fewer products: each of its phases is a convolution, computed by tiles of the result."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm.core.dims import Dim
from renorm.graph.attributes import Ints
from renorm.graph.op import Reject, Sample
from renorm.graph.types import TensorType, f32, f64
from renorm.ops.conv_transpose import ConvTranspose
from renorm.ops.shared.filtering import transposed
from renorm.ops.shared.tiled import OPERANDS, Tiled
from renorm.ops.shared.window import Span


class WinogradConvTranspose(Tiled, ConvTranspose):
    """ConvTranspose by tiles of tile[0] by tile[1] results of each phase."""

    signature = OPERANDS
    tile = Ints((2, 2))
    filter = staticmethod(transposed)
    result_axis = 1

    def extents(self, spatial: Sequence[Dim], kernel: Sequence[int | None]) -> Sequence[Dim | None]:
        return [extent for extent, _, _ in self.results(spatial, kernel)]

    def along_axes(self, spatial: Sequence[int], kernel: Sequence[int]) -> list[Span]:
        return self.transposed(spatial, kernel)[0]

    def nominal_flops(self, operands: Sequence[TensorType | None], results: Sequence[TensorType]) -> int | None:
        every = super().nominal_flops(operands, results)
        return None if every is None else every // prod(self.along("strides", 2))

    samples = [
        Sample(f32[2, 3, 4, 3], f32[3, 4, 4, 4], f32[4], strides=(2, 2), pads=(1, 1, 1, 1)),
        Sample(f32[1, 2, 3, 4], f32[2, 3, 3, 3], f32[3], strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 1)),
        Sample(f32[1, 17, 5, 4], f32[17, 19, 4, 3], tile=(3, 4), strides=(2, 1), pads=(0, 2, 1, 0)),
        Sample(f32[1, 2, 3, 3], f32[2, 2, 6, 3], strides=(3, 2), pads=(5, 0, 0, 1), group=1, dilations=(1, 1)),
        Sample(f32[1, 2, 3, 3], f32[2, 2, 3, 3], strides=(3, 2), output_shape=(10, 8)),
        Sample(f32[1, 2, 3, 3], f32[2, 2, 3, 4], strides=(2, 2), auto_pad="SAME_UPPER"),
        Sample(f32[2, 3, 4, 3], f32[36, 3, 4], f32[4], strides=(2, 2), pads=(1, 1, 1, 1), kernel_shape=(4, 4)),
        Sample(f32[0, 2, 3, 3], f32[2, 3, 3, 3], strides=(2, 2)),
        Sample(f64[1, 2, 3, 3], f64[2, 3, 4, 4], f64[3], strides=(2, 2), tile=(4, 4)),
    ]
    rejects = [
        Reject(f32[2, 3, 5, 7], f32[3, 4, 2, 2], strides=(3, 3), because="strides [3, 3]"),
        Reject(f32[2, 3, 5, 7], f32[3, 4, 9, 3], tile=(4, 4), because="no tile [4, 4] of a window of [9, 3]"),
        Reject(f32[2, 4, 5, 7], f32[4, 2, 3, 3], group=2, because="one group"),
    ]
