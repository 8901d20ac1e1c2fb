"""Convolutions of integers of 16 bits, which are those of quantized tensors less their zero points."""

from __future__ import annotations

from renorm.graph.op import Reject, Sample
from renorm.graph.types import f32, i16, i32
from renorm.ops.byte_conv import ByteConv


class WordConv(ByteConv):
    """Conv of integers up to 255 away from 0, summed in int32: exact for fewer than 2^15 terms."""

    signature = "x: i16[N, C, *S], w: i16[M, P, *K], b?: i32[M] -> y: i32[...]"
    types = {}

    samples = [
        Sample(i16[2, 3, 5, 7], i16[4, 3, 3, 2], i32[4], pads=(1, 0, 2, 1), outside=3),
        Sample(i16[1, 16, 5, 4].between(-255, 255), i16[18, 16, 1, 1].between(-255, 255), strides=(2, 1)),
        Sample(i16[1, 4, 6, 5].between(-255, 255), i16[6, 2, 3, 2].between(-128, 127), group=2, kernel_shape=(3, 2),
               auto_pad="SAME_UPPER", dilations=(1, 2)),
        Sample(i16[0, 2, 4, 4], i16[3, 2, 3, 3]),
    ]  # fmt: skip
    rejects = [
        Reject(i16[2, 3, 5, 7], i16[4, 2, 3, 3], because="x has 3 channels, expected 2"),
        Reject(f32[2, 3, 5, 7], i16[4, 3, 3, 3], because="x is float32"),
    ]
