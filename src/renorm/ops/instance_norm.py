"""Instance normalization: every channel of every sample, over its own spatial extent."""

from __future__ import annotations

from renorm.graph.attributes import Float
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import Reject, Sample
from renorm.graph.types import bf16, f16, f32, f64
from renorm.ops.shared.groups import AffineGroupNorm
from renorm.te.open_dims import larger


class InstanceNorm(AffineGroupNorm):
    """y = scale * (x - mean) / sqrt(var + epsilon) + bias; mean and population variance per sample and channel."""

    signature = "x: T[N, C, *S], scale: T[C], bias: T[C] -> y: T[N, C, *S]"
    onnx = {"InstanceNormalization": 1}
    onnx_ignored = ("consumed_inputs",)
    epsilon = Float(1e-5, at_least=0.0)

    def group_count(self, channels: int) -> int:
        return larger(1, channels)

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        return Accepts.ALIKE if index in (None, 0) else Accepts.ROW_MAJOR

    samples = [
        Sample(f32[2, 3, 5, 7], f32[3], f32[3]),
        Sample(f32[1, 2, 9], f32[2], f32[2], epsilon=1e-12),
        Sample(f32[2, 3, 2, 3, 4], f32[3], f32[3], epsilon=0.1),
        Sample(f32[2, 3, 4, 4].between(79999.0, 80003.0), f32[3], f32[3]),
        Sample(f32[2, 3, 4, 4].between(0.7, 0.7), f32[3], f32[3], tolerance=0.0),
        Sample(f32[1, 2, 4, 4].between(-1e30, 1e30), f32[2], f32[2]),
        Sample(f32[0, 3, 4, 4], f32[3], f32[3]),
        Sample(f32[2, 3, 1, 1], f32[3], f32[3]),
        Sample(f64[1, 2, 3, 4], f64[2], f64[2]),
        Sample(f16[1, 2, 8, 8].between(200.0, 201.0), f16[2], f16[2]),
        Sample(bf16[1, 2, 4, 4], bf16[2], bf16[2]),
    ]
    rejects = [
        Reject(f32[2, 3, 5], f32[4], f32[3], because="scale has C = 4 but x has C = 3"),
        Reject(f32[2, 3, 5], f32[3], f16[3], because="bias is float16"),
        Reject(f32[2], f32[2], f32[2], because="x has rank 1"),
        Reject(f32[2, 3, 5], f32[3], f32[3], epsilon=-1.0, because="at least 0"),
    ]
