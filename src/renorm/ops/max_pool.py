"""Max pooling over a window of the spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.expr.nodes import all_of, any_of, call, cast, const, identity_element, select
from renorm.graph.attributes import Int
from renorm.graph.channels import Carry, every
from renorm.graph.ir import Node
from renorm.graph.op import OnnxNode, Sample
from renorm.graph.types import bf16, f32, f64, i8, u8
from renorm.ops.shared.pooling import Pool
from renorm.ops.shared.window import pad

_NOWHERE = 2**62  # more than any number of an element


class MaxPool(Pool):
    """y[n, c, o] = maximum over k of x[n, c, o*strides + k*dilations - pads]; what is outside of x does not count."""

    signature = "x: T[N, C, *S] -> y: T[...]"
    types = {"T": (*FLOATS, "int8", "uint8")}
    onnx = {"MaxPool": 1}
    onnx_ignored = ("storage_order",)  # of the positions, which are another op's

    def propagate_channels(self, node: Node, index: int, axis: int) -> Carry | None:
        return every(node.output.shape[1], 1, positive=True) if axis == 1 else None

    def compute(self, x: te.Tensor) -> te.Tensor:
        return self.over_windows(x, te.max, lambda e: e, identity_element("max", x.dtype).value)

    def reference(self, x: Any) -> Any:
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        return self.window_elements(x, lowest).max(axis=-1)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Result 1, the positions of the maxima, is an op of its own."""
        if not any(node.is_asked[1:]):
            return super().from_onnx(node)
        return super().from_onnx(node), MaxPoolPositions.from_onnx(node)

    samples = [
        *Pool.samples,
        Sample(f32[1, 2, 5, 5].between(-3, -1), kernel_shape=(2, 2), strides=(2, 3), pads=(1, 0, 0, 1), ceil_mode=True),
        Sample(f32[1, 1, 4].of([1, float("nan"), -float("inf"), 2]), kernel_shape=(2,)),
        Sample(f64[1, 2, 4, 4], kernel_shape=(2, 2)),
        Sample(i8[1, 2, 4, 4].between(-120, -100), kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        Sample(u8[1, 2, 4, 4], kernel_shape=(2, 2)),
    ]


class MaxPoolPositions(Pool):
    """y[n, c, o] = where the maximum of a window is, as a number of all elements of x, in row-major order; along the
    spatial axes in column-major order where storage_order is 1. The first of equal ones counts, and NaN first."""

    signature = "x: T[N, C, *S] -> y: i64[...]"
    types = {"T": (*FLOATS, "int8", "uint8")}
    storage_order = Int(0, at_least=0)
    onnx_place = 1

    def to_onnx(self, node: Node, opset: int) -> Any:
        """The second output of MaxPool, since opset 8."""
        given = {a: value for a, value in self.values.items() if value != type(self).attributes[a].default}
        return ("MaxPool", given, list(node.inputs)) if opset >= 8 else None

    def _number(self, shape: Any, n: Any, c: Any, at: Sequence[Any]) -> Any:
        """Return the number of an element. at: where it is along the spatial axes."""
        found = n * shape[1] + c
        axes = list(zip(shape[2:], at, strict=True))
        inner = axes[0][1] * 0
        for extent, i in reversed(axes) if self.storage_order else axes:
            inner = inner * extent + i
        return found * prod(shape[2:]) + inner

    def compute(self, x: te.Tensor) -> te.Tensor:
        lowest = identity_element("max", x.dtype).value
        most = self.over_windows(x, te.max, lambda e: e, lowest)
        spans, counts = self.windows(x.shape[2:])
        data = pad(x, [s.before for s in spans], [s.after for s in spans], lowest)
        ks = [te.reduce_axis((0, s.kernel), name=f"k{i}") for i, s in enumerate(spans)]

        def element(n: Any, c: Any, *out: Any) -> Any:
            places = [o * s.stride + k * s.dilation for o, k, s in zip(out, ks, spans)]
            at = [i - s.before for i, s in zip(places, spans)]
            inside = [e for i, s in zip(at, spans) for e in (i >= 0, i < s.extent)]
            e = data[(n, c, *places)]
            is_found = any_of(e.equal(most[(n, c, *out)]), call("isnan", e))
            number = cast("int64", self._number(x.shape, n, c, at))
            return te.min(select(all_of(*inside, is_found), number, const(_NOWHERE, "int64")), axis=ks)

        return te.compute((*x.shape[:2], *counts), element, name="positions", tag="pool")

    def reference(self, x: Any) -> Any:
        every = np.empty(x.shape, np.float64)
        for n, c, *at in np.ndindex(*x.shape):
            every[(n, c, *at)] = self._number(x.shape, n, c, at)
        values, numbers = (
            self.window_elements(x, -np.inf if x.dtype.kind == "f" else 0),
            self.window_elements(every, -1),
        )
        most = np.where(numbers < 0, -np.inf, values).max(axis=-1, keepdims=True)
        hits = ((values == most) | np.isnan(values)) & (numbers >= 0)
        return np.where(hits, numbers, np.inf).min(axis=-1).astype(np.int64)

    samples = [
        Sample(f32[2, 3, 5, 7], kernel_shape=(2, 3)),
        Sample(f32[2, 2, 7, 6], kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), storage_order=1),
        Sample(f32[1, 2, 5, 5].between(-3, -1), kernel_shape=(2, 2), strides=(2, 3), pads=(1, 0, 0, 1), ceil_mode=True),
        Sample(f32[1, 2, 9, 8], kernel_shape=(2, 3), dilations=(3, 2)),
        Sample(f32[1, 1, 6].of([1, 1, float("nan"), -float("inf"), -float("inf"), 2]), kernel_shape=(2,), pads=(0, 1)),
        Sample(f64[1, 2, 3, 4, 3], kernel_shape=(2, 2, 2), storage_order=1),
        Sample(i8[1, 2, 4, 4].of(np.arange(32) % 3 - 120), kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        Sample(bf16[1, 2, 4, 4], kernel_shape=(2, 2), auto_pad="SAME_UPPER"),
        Sample(f32[0, 2, 4, 4], kernel_shape=(2, 2)),
    ]
