"""Convolutions with fewer products: Winograd's minimal filtering over tiles of the result; of a transposed convolution,
over tiles of each of its phases, which are convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm.core.dims import Dim
from renorm.graph.attributes import Ints
from renorm.graph.op import Reject, Sample
from renorm.graph.types import TensorType, f32, f64
from renorm.ops.conv import Conv
from renorm.ops.conv_transpose import ConvTranspose
from renorm.ops.shared.filtering import convolution, transposed
from renorm.ops.shared.tiled import OPERANDS, Tiled
from renorm.ops.shared.window import Span


class WinogradConv(Tiled, Conv):
    """Conv by tiles of tile[0] by tile[1] results."""

    signature = OPERANDS
    filter = staticmethod(convolution)
    result_axis = 0

    def extents(self, spatial: Sequence[Dim], kernel: Sequence[Dim]) -> Sequence[Dim]:
        return self.positions(spatial, kernel)

    samples = [
        Sample(f32[1, 3, 7, 6], f32[5, 3, 3, 3], f32[5], pads=(1, 1, 1, 1)),
        Sample(f32[2, 2, 5, 9], f32[3, 2, 3, 3], tile=(2, 2), pads=(0, 1, 2, 0), group=1, dilations=(1, 1)),
        Sample(f32[1, 17, 9, 13], f32[33, 17, 3, 3], f32[33], pads=(1, 0, 0, 1)),
        Sample(f32[1, 4, 12, 9], f32[5, 4, 3, 3], f32[5], strides=(2, 2), pads=(1, 1, 1, 1), tile=(2, 3)),
        Sample(f32[1, 4, 8, 9], f32[5, 4, 1, 7], f32[5], pads=(0, 3, 0, 3), tile=(1, 2)),
        Sample(f32[1, 4, 9, 8], f32[5, 4, 5, 1], auto_pad="SAME_UPPER", tile=(2, 1)),
        Sample(f32[1, 3, 20, 18], f32[6, 3, 7, 7], strides=(2, 2), pads=(3, 3, 3, 3), tile=(2, 2)),
        Sample(f32[2, 3, 7, 6], f32[36, 3, 5], f32[5], pads=(1, 1, 1, 1), kernel_shape=(3, 3)),
        Sample(f32[1, 3, 9, 6], f32[20, 3, 5], tile=(2, 2), strides=(1, 2), kernel_shape=(3, 3)),
        Sample(f32[2, 3, 7, 6], f32[36, 3, 5], f32[5], pads=(1, 1, 1, 1), kernel_shape=(3, 3), joined=True),
        Sample(f32[0, 2, 6, 6], f32[3, 2, 3, 3]),
        Sample(f64[1, 2, 6, 6], f64[3, 2, 3, 3], f64[3]),
        Sample(f32[0, 3, 7, 6], f32[36, 3, 5], f32[5], kernel_shape=(3, 3)),
    ]
    rejects = [
        Reject(f32[1, 3, 17, 16], f32[5, 3, 9, 9], because="no tile [4, 4] of a window of [9, 9]"),
        Reject(f32[1, 3, 7, 6], f32[5, 3, 3, 3], dilations=(2, 2), because="dilations of 1"),
        Reject(f32[1, 3, 7, 6], f32[5, 3, 1, 3], strides=(2, 1), because="strides [2, 1]"),
        Reject(f32[1, 3, 7, 6], f32[5, 4, 3, 3], because="x has 3 channels, expected 4"),
        Reject(f32[1, 3, 7, 6], f32[16, 3, 5], kernel_shape=(3, 3), because="w has 16 planes, but tiles need 36"),
        Reject(f32[1, 3, 7, 6], f32[3, 5], because="neither a weight"),
        Reject(f32[1, 3, 2, 6], f32[5, 3, 3, 3], because="does not fit into axis 2"),
    ]


class WinogradConvTranspose(Tiled, ConvTranspose):
    """ConvTranspose by tiles of tile[0] by tile[1] results of each phase."""

    signature = OPERANDS
    tile = Ints((2, 2))
    filter = staticmethod(transposed)
    result_axis = 1

    def extents(self, spatial: Sequence[Dim], kernel: Sequence[Dim]) -> Sequence[Dim]:
        return [extent for extent, _, _ in self.results(spatial, kernel)]

    def along_axes(self, spatial: Sequence[int], kernel: Sequence[int]) -> list[Span]:
        return self.transposed(spatial, kernel)[0]

    def nominal_flops(self, operands: Sequence[TensorType | None], results: Sequence[TensorType]) -> Dim | None:
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
        Sample(f32[2, 3, 4, 3], f32[3, 4, 4, 4], strides=(2, 2), pads=(1, 1, 1, 1), joined=True),
        Sample(f32[0, 2, 3, 3], f32[2, 3, 3, 3], strides=(2, 2)),
        Sample(f64[1, 2, 3, 3], f64[2, 3, 4, 4], f64[3], strides=(2, 2), tile=(4, 4)),
    ]
    rejects = [
        Reject(f32[2, 3, 5, 7], f32[3, 4, 2, 2], strides=(3, 3), because="strides [3, 3]"),
        Reject(f32[2, 3, 5, 7], f32[3, 4, 9, 3], tile=(4, 4), because="no tile [4, 4] of a window of [9, 3]"),
        Reject(f32[2, 4, 5, 7], f32[4, 2, 3, 3], group=2, because="one group"),
    ]
