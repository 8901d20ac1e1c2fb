"""Transposed convolution of any rank, with groups: the gradient of a convolution with respect to its input.

Along one axis, x[i] * w[k] is added to y[i * stride + k * dilation - before]. At dilation 1 this is computed phase by
phase, and no zero is multiplied: with o + before = q * stride + r, the elements of phase r see only the taps k = r +
stride * j, and

    y[o] = sum over j of x[q - j] * w[r + stride * j],     j = 0 .. ceil((kernel - r) / stride) - 1

which is a convolution of stride 1 per phase. Phases that have the same number of taps are one stage; there are at
most two such numbers along an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from renorm import te
from renorm.core import dims, shapes
from renorm.core.dims import Dim, is_static, static, take
from renorm.core.dtypes import FLOATS
from renorm.core.errors import OperandError
from renorm.graph.attributes import Int, Ints
from renorm.graph.channels import ChannelMap
from renorm.graph.deferred import times
from renorm.graph.ir import Node
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, f16, f32, f64
from renorm.ops.shared.folding import in_float64, scaled_product, transposed_border, unabsorbed, with_bias
from renorm.ops.shared.phases import gathered, sub_pixel
from renorm.ops.shared.precision import add_channels
from renorm.ops.shared.window import Span, Windowed, check_group
from renorm.te.open_dims import OpenDims


class ConvTranspose(Windowed):
    """y[n, m, i*strides + k*dilations - pads] = b[m] + sum over c and k of x[n, c, i] * w[c, m, k], per group.

    w is [C, M/group, *K]: input channels c of a group feed the M/group result channels of that group. output_padding
    adds elements at the end of every axis; output_shape states the spatial extents of y, and pads follow from it, as
    they do from auto_pad.
    """

    signature = "x: T[N, C, *S], w: T[C, P, *K], b?: T[M] -> y: T[...]"
    types = {"T": FLOATS}
    onnx = {"ConvTranspose": 1}
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "transposed_convolution"
    is_product = True
    group = Int(1, at_least=1)
    output_padding = Ints(None)
    output_shape = Ints(None)

    def infer(self, x: Operand, w: Operand, b: Operand | None) -> tuple[Dim | None, ...]:
        check_group(self, self.group, x, w, w.shape[0] // self.group, w.shape[0])
        result = w.shape[1] * self.group
        if b is not None and isinstance(result, int) and isinstance(b.shape[0], int) and b.shape[0] != result:
            raise OperandError(f"{self.name}({x}, {w}, {b}): b has {b.shape[0]} elements, y has {result} channels")
        if b is not None:
            take(b.shape[0], "==", result)
        kernel = self.known_kernel(w.shape[2:])
        return (x.shape[0], result, *(extent for extent, _, _ in self.results(x.shape[2:], kernel)))

    def results(self, spatial: Sequence[Dim], kernel: Sequence[Dim]) -> list[tuple[Dim, Dim, Dim]]:
        """Along every axis (extent of y, padding before, padding after).

        Padding is never negative: what the products do not reach of a stated extent holds the bias alone, and auto_pad
        gives e * s elements only where they reach as many. An odd element of it is taken off at the front, with
        SAME_UPPER at the end.
        """
        rank = len(spatial)
        strides, dilations, pads = self.along("strides", rank), self.along("dilations", rank), self.explicit_pads(rank)
        extra = self.along("output_padding", rank, 0, 0)
        stated = self.output_shape[-rank:] if self.output_shape is not None and rank else None
        if stated is not None and len(stated) != rank:
            raise OperandError(f"{self.name}: output_shape {list(stated)} needs one value for each of {rank} axes")
        found: list[tuple[Dim, Dim, Dim]] = []
        for i, (e, k, s, d) in enumerate(zip(spatial, kernel, strides, dilations, strict=True)):
            whole = shapes.transposed_extent(e, k, s, d, 0, 0, extra[i])
            if stated is None and not self.auto_pad.startswith("SAME"):
                extent = whole - sum(pads[i])
                if isinstance(extent, int) and extent < 1:
                    raise OperandError(
                        f"{self.name}: pads {list(pads[i])} leave nothing of the {whole} elements of axis {i + 2}"
                    )
                take(1, "<=", extent)
                found.append((extent, *pads[i]))
                continue
            extent = stated[i] if stated else e * s
            total = dims.maximum(0, whole - extent)
            if stated is None:  # auto_pad only takes away: strides beyond the kernel leave fewer than e * s
                extent = extent + dims.minimum(0, whole - extent)
            less, more = total // 2, total - total // 2
            found.append((extent, less, more) if self.auto_pad == "SAME_UPPER" else (extent, more, less))
        return found

    def label(self, operands: Sequence[TensorType | None]) -> str:
        return f"conv{operands[0].rank - 2}d_transpose" if operands[0] else self.name

    def channel_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        return 1 if index == 1 else None

    def summed_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        return 0 if index == 1 and self.group == 1 else None

    def fold_after(self, operands: Sequence[Any], axis: int, k: Any, shift: Any) -> Any:
        def weight_times(w: Any, k: Any) -> Any:
            # [M] as [1, M], or as [C, M/g]: the rows of a group have the factors of that group's results
            rows = np.repeat(k.reshape(self.group, -1), w.shape[0] // self.group if self.group > 1 else 1, 0)
            return times(w, rows.reshape(*rows.shape, *[1] * (w.ndim - 2)))

        return scaled_product(self, operands, axis, k, shift, weight_times)

    def fold_before(self, node: Node, operands: Sequence[Any], index: int, m: ChannelMap) -> Any:
        """w * k per input channel; the shift gives each position of y the sum of the taps that reach it."""
        x, w, b = operands
        if reason := unabsorbed(self, m, w, b):
            return reason
        rows = (-1, *[1] * (len(w.shape) - 1))
        scaled = w if m.k is None else times(w, m.k.reshape(rows))
        if m.shift is None or not m.shift.any():
            return self, [x, scaled, b], None
        spatial = () if node.inputs[0] is None else node.inputs[0].shape[2:]
        if not is_static(spatial):
            return "its shift is not the same everywhere in the result, and extents are not known"
        taps = (in_float64(w) * m.shift.reshape(rows)).reshape(self.group, -1, *w.shape[1:]).sum(axis=1)
        rest = transposed_border(taps.reshape(-1, *w.shape[2:]), *self.transposed(static(spatial), w.shape[2:]))
        return self, [x, scaled, None], with_bias(rest, b)

    def compute(self, x: te.Tensor, w: te.Tensor, b: te.Tensor | None) -> te.Tensor:
        spans, extents = self.transposed(x.shape[2:], w.shape[2:])
        form = sub_pixel if all(s.has_phases for s in spans) else gathered
        y = form(x, w, self.group, spans, extents)
        return add_channels(y, b).astype(x.dtype)

    def transposed(self, spatial: Sequence[int], kernel: Sequence[int]) -> tuple[list[Span], list[int]]:
        """The window along every axis of x, and the extents of y."""
        rank, open_dims = len(spatial), OpenDims()
        results = self.results(open_dims.shape(spatial), open_dims.shape(kernel))
        steps = zip(spatial, kernel, self.along("strides", rank), self.along("dilations", rank), strict=True)
        pads: list[tuple[Any, ...]] = [tuple(map(open_dims.extent, around)) for _, *around in results]
        spans = [Span(*step, *around) for step, around in zip(steps, pads)]
        return spans, [open_dims.extent(extent) for extent, _, _ in results]

    def reference(self, x: Any, w: Any, b: Any) -> Any:
        spans, extents = self.transposed(x.shape[2:], w.shape[2:])
        whole = [(s.extent - 1) * s.stride + s.reach for s in spans]
        room = [n + s.before + e for n, s, e in zip(whole, spans, extents)]  # after the products: output_padding
        y = np.zeros((x.shape[0], w.shape[1] * self.group, *room))
        inputs, outputs = w.shape[0] // self.group, w.shape[1]
        for g, taps in product(range(self.group), np.ndindex(w.shape[2:])):
            weight = w[(slice(g * inputs, (g + 1) * inputs), slice(None), *taps)]
            at = [
                slice(k * s.dilation, k * s.dilation + (s.extent - 1) * s.stride + 1, s.stride)
                for k, s in zip(taps, spans)
            ]
            part = np.einsum("nc...,cm->nm...", x[:, g * inputs : (g + 1) * inputs], weight)
            y[(slice(None), slice(g * outputs, (g + 1) * outputs), *at)] += part
        y = y[(slice(None), slice(None), *(slice(s.before, s.before + e) for s, e in zip(spans, extents)))]
        return y if b is None else y + b.reshape(-1, *[1] * len(spans))

    samples = [
        Sample(f32[2, 3, 4, 3], f32[3, 4, 4, 4], f32[4], strides=(2, 2), pads=(1, 1, 1, 1)),
        Sample(f32[1, 2, 3, 4], f32[2, 3, 3, 3], f32[3], strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 1)),
        Sample(f32[2, 2, 3, 4], f32[2, 3, 3, 2], kernel_shape=(3, 2)),
        Sample(f32[1, 4, 3, 4], f32[4, 3, 5, 3], f32[6], group=2, strides=(3, 2), pads=(0, 2, 1, 1)),
        Sample(f32[1, 3, 3, 2], f32[3, 1, 2, 3], f32[3], group=3, strides=(3, 4)),
        Sample(f32[1, 2, 4, 3], f32[2, 3, 3, 2], f32[3], dilations=(2, 3), strides=(1, 2), pads=(1, 0, 0, 2)),
        Sample(f32[1, 2, 3], f32[2, 3, 2], dilations=(3,), strides=(2,), output_padding=(2,)),
        Sample(f32[1, 2, 3], f32[2, 3, 5], strides=(4,), pads=(3, 2)),
        Sample(f32[1, 2, 3, 3], f32[2, 2, 3, 3], strides=(3, 2), output_shape=(10, 8)),
        Sample(f32[1, 2, 3, 3], f32[2, 2, 3, 4], strides=(2, 2), auto_pad="SAME_UPPER"),
        Sample(f32[1, 2, 3, 3], f32[2, 2, 4, 3], strides=(2, 3), auto_pad="SAME_LOWER"),
        Sample(f32[1, 2, 2, 3, 2], f32[2, 2, 3, 2, 1], f32[2], strides=(2, 1, 2), pads=(1, 0, 0, 1, 1, 0)),
        Sample(f32[0, 2, 3, 3], f32[2, 3, 3, 3], strides=(2, 2)),
        Sample(f64[1, 2, 3, 3], f64[2, 3, 2, 2], f64[3], strides=(2, 2)),
        Sample(f16[1, 8, 3, 3], f16[8, 2, 2, 2], f16[2], strides=(2, 2)),
        Sample(bf16[1, 2, 3, 3], bf16[2, 2, 3, 3]),
    ]
    rejects = [
        Reject(f32[2, 3, 5, 7], f32[4, 2, 3, 3], because="w has C = 4 but x has C = 3"),
        Reject(f32[2, 5, 5, 7], f32[5, 2, 3, 3], group=2, because="group 2 does not divide 5"),
        Reject(f32[2, 3, 5], f32[3, 3, 3, 3], because="1 spatial axes but w has 2"),
        Reject(f32[2, 3, 5, 7], f32[3, 4, 3, 3], f32[3], because="b has 3 elements, y has 4 channels"),
        Reject(f32[2, 3, 1, 1], f32[3, 4, 3, 3], pads=(2, 1, 1, 1), because="leave nothing of the 3 elements"),
        Reject(f32[2, 3, 5, 7], f32[3, 4, 3, 3], output_padding=(1,), because="needs one value for each of 2"),
        Reject(f32[2, 3, 5, 7], f32[3, 4, 3, 3], output_shape=(4,), because="output_shape [4] needs one value"),
    ]
