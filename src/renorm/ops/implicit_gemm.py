"""Convolutions as matrix products whose columns are what windows hold, which is made where it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim, take
from renorm.core.errors import OperandError
from renorm.graph.attributes import Bool
from renorm.graph.ir import Node
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, f16, f32, f64
from renorm.ops.conv import Conv
from renorm.ops.shared.precision import add_channels, wide
from renorm.ops.shared.window import pad
from renorm.te.open_dims import larger


class ImplicitGemm(Conv):
    """Conv of a weight [*K, C/group, M]: side by side in memory are result channels, around them channels of x. Of a
    weight [M, *K, C/group], along_terms, those are that are added up.

    What threads of a GPU read of it together then lies together, and as long as a sum stays at one tap, addresses and
    padding are the same for all of its terms. Tensor cores take terms side by side.
    """

    signature = "x: T[N, C, *S], w: T[...], b?: T[M] -> y: T[...]"
    onnx = {}
    along_terms = Bool(False)

    def infer(self, x: Operand, w: Operand, b: Operand | None) -> tuple[Dim | None, ...]:
        if x.rank != w.rank:
            raise OperandError(f"{self.name}({x}, {w}): x has {x.rank - 2} spatial axes but w has {w.rank - 2}")
        kernel, depth, results = self._extents(w.shape)
        if isinstance(results, int) and results % self.group:
            raise OperandError(f"{self.name}({x}, {w}): group {self.group} does not divide {results} results of w")
        if isinstance(depth, int) and isinstance(x.shape[1], int) and x.shape[1] != self.group * depth:
            raise OperandError(f"{self.name}({x}, {w}): x has {x.shape[1]} channels, expected {self.group * depth}")
        if b is not None and isinstance(b.shape[0], int) and isinstance(results, int) and b.shape[0] != results:
            raise OperandError(f"{self.name}({x}, {w}, {b}): b has {b.shape[0]} channels, expected {results}")
        take(x.shape[1], "==", self.group * depth)
        take(results % self.group, "==", 0)
        if b is not None:
            take(b.shape[0], "==", results)
        return (x.shape[0], results, *self.positions(x.shape[2:], self.known_kernel(kernel)))

    def _extents(self, shape: Sequence[Any]) -> tuple[tuple[Any, ...], Any, Any]:
        """Return the window of a weight, the terms of each tap, and how many results there are."""
        *kernel, depth, results = (*shape[1:], shape[0]) if self.along_terms else shape
        return tuple(kernel), depth, results

    def channel_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        w = operands[1]
        return (0 if self.along_terms else w.rank - 1) if index == 1 and w is not None else None

    def summed_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        return None

    def fold_after(self, operands: Sequence[Any], axis: int, k: Any, shift: Any) -> Any:
        return f"{self.name} holds its weight in an order of its own"

    def fold_before(self, node: Node, operands: Sequence[Any], index: int, m: Any) -> Any:
        return f"{self.name} holds its weight in an order of its own"

    def compute(self, x: te.Tensor, w: te.Tensor, b: te.Tensor | None) -> te.Tensor:
        kernel, depth, m = self._extents(w.shape)
        spans = self.spans(x.shape[2:], kernel)
        per_group = larger(1, m // self.group)
        data = pad(x, [s.before for s in spans], [s.after for s in spans])
        ks = [te.reduce_axis((0, s.kernel), name=f"k{i}") for i, s in enumerate(spans)]
        ic = te.reduce_axis((0, depth), name="ic")

        def element(n: Any, oc: Any, *out: Any) -> Any:
            channel = ic if self.group == 1 else (oc // per_group) * depth + ic
            at = [o * s.stride + k * s.dilation for o, k, s in zip(out, ks, spans)]
            weight = w[(oc, *ks, ic) if self.along_terms else (*ks, ic, oc)]
            return te.sum(wide(data[(n, channel, *at)]) * wide(weight), axis=[*ks, ic])

        shape = (x.shape[0], m, *self.counts(x.shape[2:], kernel))
        y = te.compute(shape, element, name="conv", tag="implicit_gemm", attrs={"groups": self.group})
        return add_channels(y, b).astype(x.dtype)

    def reference(self, x: Any, w: Any, b: Any) -> Any:
        return super().reference(x, np.moveaxis(w, -1, 1) if self.along_terms else np.moveaxis(w, (-1, -2), (0, 1)), b)

    samples = [
        Sample(f32[2, 3, 5, 7], f32[3, 2, 3, 4], f32[4]),
        Sample(f32[1, 4, 6, 5], f32[3, 3, 2, 6], None, group=2, pads=(1, 0, 2, 1), strides=(2, 1)),
        Sample(f32[1, 2, 9, 8], f32[2, 3, 2, 3], f32[3], dilations=(3, 2), strides=(2, 3), pads=(0, 2, 1, 1)),
        Sample(f32[1, 4, 6, 5], f32[6, 3, 3, 2], f32[6], group=2, pads=(1, 0, 2, 1), strides=(2, 1), along_terms=True),
        Sample(f16[1, 16, 5, 4], f16[3, 1, 1, 16], along_terms=True),
        Sample(f32[2, 3, 8], f32[3, 3, 5], f32[5], auto_pad="SAME_UPPER", strides=(3,)),
        Sample(f32[1, 2, 7, 6], f32[4, 3, 2, 2], auto_pad="SAME_LOWER", strides=(2, 2), kernel_shape=(4, 3)),
        Sample(f32[1, 2, 4, 5, 3], f32[2, 3, 1, 2, 3], f32[3], pads=(1, 1, 0, 0, 1, 0)),
        Sample(f32[0, 2, 4, 4], f32[3, 3, 2, 3], f32[3]),
        Sample(f64[1, 3, 4, 4], f64[1, 1, 3, 2], f64[2]),
        Sample(f16[1, 16, 4, 4], f16[3, 3, 16, 2], f16[2]),
        Sample(bf16[1, 2, 4, 4], bf16[3, 3, 2, 2]),
    ]
    rejects = [
        Reject(f32[2, 3, 5, 7], f32[3, 3, 2, 4], because="x has 3 channels, expected 2"),
        Reject(f32[2, 4, 5, 7], f32[3, 3, 2, 5], group=2, because="group 2 does not divide 5"),
        Reject(f32[2, 3, 5], f32[3, 3, 3, 4], because="1 spatial axes but w has 2"),
        Reject(f32[2, 3, 5, 7], f32[6, 3, 3, 4], because="does not fit into axis 2"),
        Reject(f32[2, 3, 5, 7], f32[3, 3, 3, 4], f32[3], because="b has 3 channels, expected 4"),
        Reject(f32[2, 4, 5, 7], f32[5, 3, 3, 2], group=2, along_terms=True, because="group 2 does not divide 5"),
        Reject(f32[2, 3, 5, 7], f32[4, 3, 3, 2], along_terms=True, because="x has 3 channels, expected 2"),
    ]
