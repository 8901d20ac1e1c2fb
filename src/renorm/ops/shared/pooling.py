"""The base of pools: which padding they take, where ceil_mode ends, and what is computed over each window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from renorm import te
from renorm.core.dims import Dim
from renorm.core.errors import OperandError
from renorm.graph.attributes import Bool, Ints
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, f16, f32, f64
from renorm.ops.shared.window import Span, Windowed, pad, window_view
from renorm.te.open_dims import larger


class Pool(Windowed):
    """Base of ops that make one element of each window of each channel. ceil_mode: the last window may stand out."""

    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "reduction"
    kernel_shape = Ints()
    ceil_mode = Bool(False)

    def infer(self, x: Operand) -> tuple[Dim | None, ...]:
        kernel = self.along("kernel_shape", x.rank - 2)
        for axis, ((before, after), k, d) in enumerate(
            zip(self.explicit_pads(len(kernel)), kernel, self.along("dilations", len(kernel)), strict=True)
        ):
            if max(before, after) > d * (k - 1):
                raise OperandError(
                    f"{self.name}: axis {axis + 2} is padded by {before} and {after} for a window of {d * (k - 1) + 1}",
                    ["a window could lie in padding alone"],
                    "pad by less than the window",
                )
        return (*x.shape[:2], *self.positions(x.shape[2:], kernel, self.ceil_mode))

    def to_onnx(self, node: Node, opset: int) -> tuple[str, dict[str, Any], list[Any]] | None:
        return self.padded(node, super().to_onnx(node, opset), self.kernel_shape)

    def label(self, operands: Sequence[TensorType | None]) -> str:
        return f"{self.name}{operands[0].rank - 2}d" if operands[0] else self.name

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        return Accepts.ALIKE

    def windows(self, spatial: Sequence[int]) -> tuple[list[Span], list[int]]:
        """The window along every axis, padded to the end of its last position, and how many positions there are."""
        spans = self.spans(spatial, self.kernel_shape)
        counts = self.counts(spatial, self.kernel_shape, self.ceil_mode)
        if not self.ceil_mode:
            return spans, counts
        ends = [(n - 1) * s.stride + s.reach - s.before - s.extent for n, s in zip(counts, spans, strict=True)]
        return [replace(s, after=larger(s.after, end)) for s, end in zip(spans, ends)], counts

    def over_windows(
        self, x: te.Tensor, combine: Callable[..., Any], term: Callable[[Any], Any], outside: float = 0.0
    ) -> te.Tensor:
        """The stage of `combine` (te.sum, te.max) of `term` over windows of `x`, which is `outside` in padding."""
        spans, counts = self.windows(x.shape[2:])
        data = pad(x, [s.before for s in spans], [s.after for s in spans], outside)
        ks = [te.reduce_axis((0, s.kernel), name=f"k{i}") for i, s in enumerate(spans)]

        def element(n: Any, c: Any, *out: Any) -> Any:
            at = [o * s.stride + k * s.dilation for o, k, s in zip(out, ks, spans)]
            return combine(term(data[(n, c, *at)]), axis=ks)

        return te.compute((*x.shape[:2], *counts), element, name="over_windows", tag="pool")

    def window_elements(self, x: Any, outside: float = 0.0) -> Any:
        """The elements of each window of an array, as [N, C, *positions, elements]; for references."""
        every = window_view(x, self.windows(x.shape[2:])[0], outside)
        return every.reshape(*every.shape[: x.ndim], prod(self.kernel_shape))

    samples = [
        Sample(f32[2, 3, 5, 7], kernel_shape=(2, 3)),
        Sample(f32[1, 2, 7, 6], kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
        Sample(f32[1, 2, 8, 8], kernel_shape=(3, 3), strides=(2, 2), ceil_mode=True),
        Sample(f32[1, 2, 9, 8], kernel_shape=(2, 3), dilations=(3, 2)),
        Sample(f32[2, 3, 8], kernel_shape=(3,), auto_pad="SAME_UPPER", strides=(3,)),
        Sample(f32[1, 2, 7, 6], kernel_shape=(4, 3), auto_pad="SAME_LOWER", strides=(2, 2)),
        Sample(f32[1, 2, 4, 5, 3], kernel_shape=(2, 2, 2)),
        Sample(f32[0, 2, 4, 4], kernel_shape=(2, 2)),
        Sample(f64[1, 2, 4, 4], kernel_shape=(2, 2), pads=(1, 1, 1, 1)),
        Sample(f16[1, 2, 4, 4], kernel_shape=(2, 2)),
        Sample(bf16[1, 2, 4, 4], kernel_shape=(2, 2), pads=(1, 1, 1, 1)),
    ]
    rejects = [
        Reject(f32[2, 3, 5, 7], kernel_shape=(3,), because="needs one value for each of 2 spatial axes"),
        Reject(f32[2, 3, 5, 7], kernel_shape=(6, 3), because="does not fit into axis 2"),
        Reject(f32[2, 3, 5, 7], kernel_shape=(2, 2), pads=(2, 0, 0, 0), because="a window could lie in padding alone"),
        Reject(f32[2, 3, 5, 7], because="needs kernel_shape"),
    ]
