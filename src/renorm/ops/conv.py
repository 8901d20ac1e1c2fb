"""Convolution of any rank, with groups (as deep-learning frameworks have it: a cross-correlation)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.dtypes import FLOATS, compute_dtype
from renorm.graph.attributes import Int
from renorm.graph.channels import ChannelMap
from renorm.graph.deferred import times
from renorm.graph.ir import Node
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, f16, f32, f64
from renorm.ops.shared.folding import border, in_float64, scaled_product, unabsorbed, window_hits, with_bias
from renorm.ops.shared.precision import add_channels, wide
from renorm.ops.shared.window import Windowed, check_group, pad, window_view
from renorm.te.open_dims import larger


class Conv(Windowed):
    """y[n, m, o] = b[m] + sum over c < C/group and k of x[n, c + first, o*strides + k*dilations - pads] * w[m, c, k].

    first = (m // (M/group)) * (C/group): channels are cut into `group` parts, and every result channel sees one of
    them. Outside of x there are zeros.
    """

    signature = "x: T[N, C, *S], w: T[M, P, *K], b?: T[M] -> y: T[...]"
    types = {"T": FLOATS}
    onnx = {"Conv": 1}
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "convolution"
    is_product = True
    group = Int(1, at_least=1)

    def infer(self, x: Operand, w: Operand, b: Operand | None) -> tuple[Dim | None, ...]:
        check_group(self, self.group, x, w, w.shape[1], w.shape[0])
        return (x.shape[0], w.shape[0], *self.positions(x.shape[2:], self.known_kernel(w.shape[2:])))

    def label(self, operands: Sequence[TensorType | None]) -> str:
        return f"conv{operands[0].rank - 2}d" if operands[0] else self.name

    def channel_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        return 0 if index == 1 else None

    def summed_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        return 1 if index == 1 and self.group == 1 else None

    def fold_after(self, operands: Sequence[Any], axis: int, k: Any, shift: Any) -> Any:
        return scaled_product(self, operands, axis, k, shift, lambda w, k: times(w, k.reshape(-1, *[1] * (w.ndim - 1))))

    def fold_before(self, node: Node, operands: Sequence[Any], index: int, m: ChannelMap) -> Any:
        """w * k per input channel; the shift gives each position of y the sum of the taps that lie inside x."""
        x, w, b = operands
        if reason := unabsorbed(self, m, w, b):
            return reason
        scaled = w if m.k is None else times(w, self._per_input(m.k, w.shape))
        if m.shift is None or not m.shift.any():
            return self, [x, scaled, b], None
        taps = (in_float64(w) * self._per_input(m.shift, w.shape)).sum(axis=1)
        if not any(before or behind for before, behind in self._padding(node)):
            total = taps.reshape(len(taps), -1).sum(axis=1)
            return self, [x, scaled, total if b is None else b + total], None
        extents = node.inputs[0].type.shape[2:] if node.inputs[0] is not None else ()
        if not all(isinstance(e, int) for e in extents):
            return "its shift is not the same at the border, which pads with zeros, and extents are not known"
        spans = self.spans([int(str(e)) for e in extents], taps.shape[1:])
        counts = self.counts([int(str(e)) for e in extents], taps.shape[1:])
        seen = [window_hits(s, count) for s, count in zip(spans, counts)]
        return self, [x, scaled, None], with_bias(border(taps, seen), b)

    def _per_input(self, values: Any, shape: Sequence[int]) -> Any:
        """One number per input channel, as an array that broadcasts to the weight [M, C/g, *K]."""
        parted = values.reshape(self.group, 1, shape[1])
        spread = np.broadcast_to(parted, (self.group, shape[0] // self.group, shape[1]))
        return spread.reshape(shape[0], shape[1], *[1] * (len(shape) - 2))

    def to_onnx(self, node: Node, opset: int) -> tuple[str, dict[str, Any], list[Any]] | None:
        return self.padded(node, super().to_onnx(node, opset), node.operands[1].shape[2:])

    def _padding(self, node: Node) -> list[tuple[int, int]]:
        """Elements of padding around each axis; (1, 1) stands for those of an auto_pad that are not known."""
        x, w = node.inputs[:2]
        assert x is not None
        assert w is not None
        if not self.auto_pad.startswith("SAME"):
            return self.explicit_pads(x.rank - 2)
        if not all(isinstance(d, int) for d in (*x.shape[2:], *w.shape[2:])):
            return [(1, 1)]
        spans = self.spans([int(str(d)) for d in x.shape[2:]], [int(str(d)) for d in w.shape[2:]])
        return [(s.before, s.after) for s in spans]

    def compute(self, x: te.Tensor, w: te.Tensor, b: te.Tensor | None) -> te.Tensor:
        y = self.sums(x, w)
        assert y.dtype == compute_dtype(x.dtype)
        return add_channels(y, b).astype(x.dtype)

    def sums(self, x: te.Tensor, w: te.Tensor, wide: Callable[[Any], Any] = wide, outside: float = 0.0) -> te.Tensor:
        """Return the sums without a bias. wide: a factor in the dtype that is summed in; outside: what is there."""
        spans = self.spans(x.shape[2:], w.shape[2:])
        (m, depth), per_group = w.shape[:2], larger(1, w.shape[0] // self.group)
        data = pad(x, [s.before for s in spans], [s.after for s in spans], outside)
        ic = te.reduce_axis((0, depth), name="ic")
        ks = [te.reduce_axis((0, s.kernel), name=f"k{i}") for i, s in enumerate(spans)]

        def element(n: Any, oc: Any, *out: Any) -> Any:
            channel = ic if self.group == 1 else (oc // per_group) * depth + ic
            at = [o * s.stride + k * s.dilation for o, k, s in zip(out, ks, spans)]
            return te.sum(wide(data[(n, channel, *at)]) * wide(w[(oc, ic, *ks)]), axis=[ic, *ks])

        shape = (x.shape[0], m, *self.counts(x.shape[2:], w.shape[2:]))
        attrs = {
            "groups": self.group,
            "strides": tuple(s.stride for s in spans),
            "dilations": tuple(s.dilation for s in spans),
        }
        return te.compute(shape, element, name="conv", tag="conv", attrs=attrs)

    def reference(self, x: Any, w: Any, b: Any, outside: float = 0.0) -> Any:
        spans = self.spans(x.shape[2:], w.shape[2:])
        windows, rank = window_view(x, spans, outside), len(spans)
        parts: list[Any] = []
        for xs, ws in zip(np.split(windows, self.group, axis=1), np.split(w, self.group, axis=0), strict=True):
            # contract channels and window of both; what is left is n, *positions, m
            axes = (1, *range(2 + rank, 2 + 2 * rank))
            parts.append(np.moveaxis(np.tensordot(xs, ws, (axes, range(1, 2 + rank))), -1, 1))
        y = np.concatenate(parts, axis=1)
        return y if b is None else y + b.reshape(-1, *[1] * rank)

    samples = [
        Sample(f32[2, 3, 5, 7], f32[4, 3, 3, 2], f32[4]),
        Sample(f32[1, 4, 6, 5], f32[6, 2, 3, 3], None, group=2, pads=(1, 0, 2, 1), strides=(2, 1)),
        Sample(f32[2, 3, 6, 5], f32[3, 1, 3, 3], f32[3], group=3, pads=(1, 1, 1, 1)),
        Sample(f32[1, 2, 9, 8], f32[3, 2, 2, 3], f32[3], dilations=(3, 2), strides=(2, 3), pads=(0, 2, 1, 1)),
        Sample(f32[2, 3, 8], f32[5, 3, 3], f32[5], auto_pad="SAME_UPPER", strides=(3,)),
        Sample(f32[1, 2, 7, 6], f32[2, 2, 4, 3], auto_pad="SAME_LOWER", strides=(2, 2), kernel_shape=(4, 3)),
        Sample(f32[1, 2, 4, 5, 3], f32[3, 2, 2, 3, 1], f32[3], pads=(1, 1, 0, 0, 1, 0)),
        Sample(f32[0, 2, 4, 4], f32[3, 2, 3, 3], f32[3]),
        Sample(f64[1, 3, 4, 4], f64[2, 3, 1, 1], f64[2]),
        Sample(f16[1, 16, 4, 4], f16[2, 16, 3, 3], f16[2]),
        Sample(bf16[1, 2, 4, 4], bf16[2, 2, 3, 3]),
    ]
    rejects = [
        Reject(f32[2, 3, 5, 7], f32[4, 2, 3, 3], because="x has 3 channels, expected 2"),
        Reject(f32[2, 4, 5, 7], f32[5, 2, 3, 3], group=2, because="group 2 does not divide 5"),
        Reject(f32[2, 3, 5], f32[4, 3, 3, 3], because="1 spatial axes but w has 2"),
        Reject(f32[2, 3, 5, 7], f32[4, 3, 6, 3], because="does not fit into axis 2"),
        Reject(f32[2, 3, 5, 7], f32[4, 3, 3, 3], f32[3], because="b has M = 3 but w has M = 4"),
        Reject(f32[2, 3, 5, 7], f32[4, 3, 3, 3], strides=(2,), because="strides [2] needs one value for each of 2"),
        Reject(f32[2, 3, 5, 7], f32[4, 3, 3, 3], pads=(1, 1), because="pads [1, 1] needs two values"),
        Reject(f32[2, 3, 5, 7], f32[4, 3, 3, 3], pads=(-1, 0, 0, 0), because="must not be negative"),
        Reject(f32[2, 3, 5, 7], f32[4, 3, 3, 3], kernel_shape=(3, 5), because="contradicts the weight"),
    ]
