"""Group normalization: channels of a sample in groups, every group over its channels and their spatial extent."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import size, take
from renorm.core.errors import OperandError, UnsupportedOp
from renorm.graph.attributes import Float, Int
from renorm.graph.ir import Node
from renorm.graph.op import OnnxNode, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops.shared import builders
from renorm.ops.shared.composite import apply
from renorm.ops.shared.groups import AffineGroupNorm
from renorm.ops.shared.reshaping import reshaped, reshaped_like, reshaped_to


class GroupNorm(AffineGroupNorm):
    """y = scale * (x - mean) / sqrt(var + epsilon) + bias; mean and population variance per sample and group of C /
    num_groups neighbouring channels, scale and bias per channel."""

    signature = "x: T[N, C, *S], scale: T[C], bias: T[C] -> y: T[N, C, *S]"
    onnx_changed = {"GroupNormalization": "its scale is per group at 18 and per channel at 21"}
    onnx = {"GroupNormalization": 18}
    num_groups = Int(at_least=1)
    epsilon = Float(1e-5, at_least=0.0)
    stash_type = Int(1)

    def infer(self, x: Operand, scale: Operand, bias: Operand) -> None:
        channels = x.shape[1]
        if isinstance(channels, int) and channels % self.num_groups:
            raise OperandError(f"{self.name}({x}): num_groups {self.num_groups} does not divide {channels} channels")
        take(channels % self.num_groups, "==", 0)

    def group_count(self, channels: int) -> int:
        return self.num_groups

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """At opset 18 scale and bias have one number per group, from 21 on one per channel."""
        x, *parameters = cls.arrange(node.operands)
        chosen = {k: v for k, v in node.attributes.items() if k in cls.attributes}
        if node.opset < 21:
            groups, channels = int(chosen.get("num_groups", 1)), x.shape[1]
            if not isinstance(channels, int):
                raise UnsupportedOp(
                    f"{node.op_type} of opset {node.opset}: the number of channels of {x.type} is not known"
                )
            parameters = [_per_channel(p, groups, channels) for p in parameters]
        return cls(**chosen)(x, *parameters, name=node.name)

    def in_onnx(self, node: Node) -> Any:
        """Before opset 21 as instance norm between reshapes: the op of opset 18 is deprecated, its scale per group."""
        x, *parameters = node.operands
        ones = np.ones(self.num_groups, dtypes.numpy_dtype(x.dtype))
        rows = reshaped_to(x, (x.shape[0], self.num_groups, size(x.shape[1:]) // self.num_groups))
        y = builders.find("instance_norm")(rows, ones, ones * 0, epsilon=self.epsilon, name=node.name)
        scale, bias = (reshaped(p, -1, *[1] * (x.rank - 2)) for p in parameters)
        return apply("add", apply("mul", reshaped_like(y, x), scale), bias)

    samples = [
        Sample(f32[2, 6, 5, 7], f32[6], f32[6], num_groups=3),
        Sample(f32[2, 4, 9], f32[4], f32[4], num_groups=1, epsilon=1e-12),
        Sample(f32[1, 4, 2, 3, 4], f32[4], f32[4], num_groups=4),
        Sample(f32[3, 4], f32[4], f32[4], num_groups=2),
        Sample(f32[2, 4, 4, 4].between(79999.0, 80003.0), f32[4], f32[4], num_groups=2),
        Sample(f32[2, 4, 4, 4].between(0.7, 0.7), f32[4], f32[4], num_groups=2, tolerance=0.0),
        Sample(f32[0, 4, 3], f32[4], f32[4], num_groups=2),
        Sample(f64[1, 4, 3, 4], f64[4], f64[4], num_groups=2, stash_type=11),
        Sample(f16[1, 4, 8, 8].between(200.0, 201.0), f16[4], f16[4], num_groups=2),
        Sample(bf16[1, 2, 4, 4], bf16[2], bf16[2], num_groups=2),
    ]
    rejects = [
        Reject(f32[2, 6, 5], f32[6], f32[6], num_groups=4, because="num_groups 4 does not divide 6 channels"),
        Reject(f32[2, 6, 5], f32[3], f32[3], num_groups=3, because="scale has C = 3 but x has C = 6"),
        Reject(f32[2, 6, 5], f32[6], f32[6], because="needs num_groups"),
        Reject(f32[2, 6, 5], f32[6], f32[6], num_groups=0, because="at least 1"),
    ]


def _per_channel(parameter: Any, groups: int, channels: int) -> Any:
    """One number per group as one per channel."""
    if parameter.data is not None:
        return parameter.graph.constant(np.repeat(parameter.data, channels // groups), f"{parameter.name}_per_channel")
    shape = np.asarray([groups, channels // groups], np.int64)
    return reshaped(builders.find("expand")(reshaped(parameter, groups, 1), shape), channels)
