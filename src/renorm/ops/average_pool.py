"""Average pooling over a window of the spatial axes."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.expr.extents import at_most, same_extent
from renorm.graph.attributes import Bool
from renorm.graph.channels import Carry, every
from renorm.graph.ir import Node
from renorm.graph.op import Sample
from renorm.graph.types import bf16, f16, f32
from renorm.ops.shared.pooling import Pool
from renorm.ops.shared.precision import wide
from renorm.ops.shared.window import Span, window_view
from renorm.te import tag


class AveragePool(Pool):
    """y[n, c, o] = mean over k of x[n, c, o*strides + k*dilations - pads].

    The mean is over the elements of the window that lie in x; with count_include_pad also over those in the padding,
    which are 0. What ceil_mode adds after the padding never counts.
    """

    signature = "x: T[N, C, *S] -> y: T[...]"
    types = {"T": FLOATS}
    onnx = {"AveragePool": 1}
    count_include_pad = Bool(False)

    def propagate_channels(self, node: Node, index: int, axis: int) -> Carry | None:
        counted = self.count_include_pad and (self.auto_pad.startswith("SAME") or any(self.pads or ()))
        return every(node.output.shape[1], 1, fixed=0.0 if counted else None) if axis == 1 else None

    def compute(self, x: te.Tensor) -> te.Tensor:
        spans = self.spans(x.shape[2:], self.kernel_shape)
        counts = self.counts(x.shape[2:], self.kernel_shape, self.ceil_mode)
        total = self.over_windows(x, te.sum, wide)

        def mean(n: Any, c: Any, *out: Any) -> Any:
            sizes = [self.size(o, s, count) for o, s, count in zip(out, spans, counts)]
            constant = prod(size for size in sizes if isinstance(size, int))
            varying = [size for size in sizes if not isinstance(size, int)]
            size = reduce(lambda a, b: a * b, varying, te.const(constant, "int32"))
            return total[(n, c, *out)] / size.astype(total.dtype)

        return te.compute(total.shape, mean, name="average_pool", tag=tag.ELEMWISE).astype(x.dtype)

    def size(self, o: Any, s: Span, count: int) -> Any:
        """Return how many elements of window o count along one axis: an int where all windows are alike."""
        # the range of elements that count, from the first element of window 0 on
        low, high = (0, s.before + s.extent + s.after) if self.count_include_pad else (s.before, s.before + s.extent)
        if same_extent(low, 0) and at_most((count - 1) * s.stride + s.reach, high):
            return s.kernel
        # taps k with low <= o * stride + k * dilation < high
        first = te.max(low - o * s.stride + (s.dilation - 1), 0) // s.dilation
        behind = te.min((high - o * s.stride + (s.dilation - 1)) // s.dilation, s.kernel)
        return behind - first

    def reference(self, x: Any) -> Any:
        # what counts is a one, what does not a zero; both pooled alike
        own, (spans, _) = self.spans(x.shape[2:], self.kernel_shape), self.windows(x.shape[2:])
        width = [(s.before, s.after) if self.count_include_pad else (0, 0) for s in own]
        ones = np.pad(np.ones(x.shape), [(0, 0), (0, 0), *width], constant_values=1.0)
        rest = [replace(s, before=s.before - b, after=max(0, s.after - a)) for s, (b, a) in zip(spans, width)]
        taps = tuple(range(x.ndim, 2 * x.ndim - 2))
        return self.window_elements(x).sum(axis=-1) / window_view(ones, rest).sum(axis=taps)

    samples = [
        *Pool.samples,
        Sample(f32[1, 2, 7, 6], kernel_shape=(3, 3), strides=(2, 2), pads=(1, 0, 2, 1), count_include_pad=True),
        Sample(
            f32[1, 2, 8, 7],
            kernel_shape=(3, 2),
            strides=(2, 3),
            pads=(1, 1, 1, 1),
            ceil_mode=True,
            count_include_pad=True,
        ),
        Sample(f32[1, 2, 9, 8], kernel_shape=(2, 3), dilations=(3, 2), pads=(2, 1, 1, 3)),
        Sample(
            f32[1, 2, 9, 8],
            kernel_shape=(3, 3),
            dilations=(2, 2),
            pads=(2, 1, 1, 3),
            count_include_pad=True,
            ceil_mode=True,
        ),
        Sample(f16[1, 2, 12, 12].between(100, 101), kernel_shape=(10, 10)),
        Sample(bf16[1, 2, 4, 4], kernel_shape=(2, 2)),
    ]
