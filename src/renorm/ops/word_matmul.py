"""Matrix products of integers of 16 bits, which are those of quantized tensors less their zero points."""

from __future__ import annotations

from renorm.graph.op import Reject, Sample
from renorm.graph.types import i16
from renorm.ops.byte_matmul import ByteMatmul


class WordMatmul(ByteMatmul):
    """Matmul of integers up to 255 away from 0, summed in int32: exact for fewer than 2^15 terms."""

    signature = "a: i16[*R, M, K], b: i16[K, N] -> y: i32[*R, M, N]"
    types = {}

    samples = [
        Sample(i16[5, 7], i16[7, 3]),
        Sample(i16[2, 5, 8].between(-255, 255), i16[8, 35].between(-255, 255)),
        Sample(i16[3, 0], i16[0, 2]),
        Sample(i16[0, 3], i16[3, 2]),
    ]
    rejects = [Reject(i16[5, 7], i16[6, 3], because="K")]
