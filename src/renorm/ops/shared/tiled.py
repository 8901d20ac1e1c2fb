"""Base of convolutions that need fewer products by tiles of their result (filtering.py, winograd.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from renorm import te
from renorm.core.dims import Dim, Shape, is_static, size, take
from renorm.core.errors import OperandError
from renorm.graph.attributes import Bool, Ints
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE
from renorm.graph.types import Operand, TensorType
from renorm.ops.shared.filtering import Filter, has_points
from renorm.ops.shared.window import Span, Windowed
from renorm.ops.shared.winograd import tiled

OPERANDS = "x: T[N, C, H, W], w: T[...], b?: T[M] -> y: T[...]"


class Tiled(Windowed):
    """A mixin before the op that computes the same directly: two spatial axes, one group, dilations of 1.

    w: the weight as the direct op has it, transformed in the kernel; or U[P, C, M] that it becomes
    (winograd_weight.py), with kernel_shape. tile: results of one tile along both axes; of a transposed convolution, of
    each phase. joined: whether tiles of a plane are one row, which registers may fit better. It equals the direct op in
    exact arithmetic, for finite numbers: an infinity or a NaN in x spreads over all results of every tile that reads
    it, and so does what overflows in a transform, whose sums exceed x up to 33 times for 4 results of 3 taps.
    """

    types = {"T": ("float32", "float64")}
    onnx = {}
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "winograd"
    magnifies_weights = True
    tile = Ints((4, 4))
    joined = Bool(False)
    filter: ClassVar[Callable[[int, int, int, int], Filter]]  # one of filtering.py
    result_axis: int  # axis of result channels of the direct op's weight; the other one of the first two is that of x

    def infer(self, x: Operand, w: Operand, b: Operand | None) -> tuple[Dim | None, ...]:
        if self.values["group"] != 1 or {*self.along("dilations", 2)} != {1}:
            raise OperandError(f"{self.name}({x}, {w}): tiles need one group and dilations of 1")
        if w.rank not in (3, 4):
            raise OperandError(f"{self.name}({x}, {w}): w is neither a weight of two axes nor a transformed one")
        kernel, strides = self.kernel(w.shape), self.along("strides", 2)
        if not is_static(kernel):
            raise OperandError(f"{self.name}({x}, {w}): the window must be known, of which matrices of tiles are made")
        if len(self.tile) != 2 or not all(has_points(m, k, s) for m, k, s in zip(self.tile, kernel, strides)):
            raise OperandError(
                f"{self.name}({x}, {w}): no tile {list(self.tile)} of a window of {list(kernel)} with strides"
                f" {list(strides)}",
                do="take smaller tiles, and strides that no window is smaller than",
            )
        channels, results = (w.shape[i] for i in ((1, 2) if w.rank == 3 else (1 - self.result_axis, self.result_axis)))
        for operand, name, extent, expected in ((x, "x", x.shape[1], channels), (b, "b", b and b.shape[0], results)):
            if operand is not None and isinstance(extent, int) and isinstance(expected, int) and extent != expected:
                raise OperandError(f"{self.name}({x}, {w}): {name} has {extent} channels, expected {expected}")
            if extent is not None:
                take(extent, "==", expected)
        if w.rank == 3:  # wherever results begin, tiles have as many products
            planes = prod(type(self).filter(m, k, s, 0).products for m, k, s in zip(self.tile, kernel, strides))
            if isinstance(w.shape[0], int) and w.shape[0] != planes:
                raise OperandError(f"{self.name}({x}, {w}): w has {w.shape[0]} planes, but tiles need {planes}")
            take(w.shape[0], "==", planes)
        return (x.shape[0], results, *self.extents(x.shape[2:], kernel))

    def kernel(self, shape: Shape) -> tuple[Any, ...]:
        """Extents of the window for a weight of a shape."""
        return self.known_kernel(shape[2:]) if len(shape) == 4 else self.along("kernel_shape", 2)

    def extents(self, spatial: Sequence[Dim], kernel: Sequence[Dim]) -> Sequence[Dim]:
        """Spatial extents of the result."""
        raise NotImplementedError(f"{self.name} has no extents")

    def along_axes(self, spatial: Sequence[int], kernel: Sequence[int]) -> list[Span]:
        """The window along both axes."""
        return self.spans(spatial, kernel)

    def filters(self, spatial: Sequence[int], kernel: Sequence[int]) -> tuple[Filter, Filter]:
        """Return how tiles are computed along both axes."""
        down, across = (
            type(self).filter(m, s.kernel, s.stride, s.before)
            for m, s in zip(self.tile, self.along_axes(spatial, kernel))
        )
        return down, across

    def label(self, operands: Sequence[TensorType | None]) -> str:
        tile = "x".join(str(m) for m in (self.tile if len({*self.tile}) > 1 else self.tile[:1]))
        return f"winograd{tile}_{super().label(operands)}"

    def channel_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        w = operands[1]
        return None if index != 1 or w is None else 2 if w.rank == 3 else self.result_axis

    def summed_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        return None

    def compute(self, x: te.Tensor, w: te.Tensor, b: te.Tensor | None) -> te.Tensor:
        kernel = self.kernel(w.shape)
        results = w.shape[2 if len(w.shape) == 3 else self.result_axis]
        extents: list[Any] = list(self.extents(x.shape[2:], kernel))  # open ones count as ints
        shape = (x.shape[0], results, *extents)
        return tiled(x, w, b, self.filters(x.shape[2:], kernel), shape, self.result_axis, self.joined)

    def nominal_flops(self, operands: Sequence[TensorType | None], results: Sequence[TensorType]) -> Dim | None:
        (x, w, *_), (y,) = operands, results
        assert x is not None
        assert w is not None
        return 2 * x.shape[1] * size(self.kernel(w.shape)) * size(y.shape)

    def reference(self, x: Any, w: Any, b: Any) -> Any:
        if w.ndim == 4:
            return super().reference(x, w, b)
        kernel = self.kernel(w.shape)
        down, across = self.filters(x.shape[2:], kernel)
        extents = [int(str(e)) for e in self.extents(x.shape[2:], kernel)]
        data = x
        for axis, f, extent in ((2, down, extents[0]), (3, across, extents[1])):
            first = f.start + f.step * np.arange(-(-extent // f.results))[:, None] + np.arange(f.elements)
            inside = (first >= 0) & (first < x.shape[axis])
            taken = np.take(data, np.clip(first, 0, x.shape[axis] - 1), axis=axis if axis == 2 else axis + 1)
            data = np.where(inside if axis == 3 else inside[..., None], taken, 0.0)
        u = w.reshape(down.products, across.products, *w.shape[1:])  # data: [N, C, p, k, q, l]
        v = np.einsum("ik,jl,scpkql->scpqij", down.b, across.b, data, optimize=True)
        product = np.einsum("scpqij,ijck->skpqij", v, u, optimize=True)
        y = np.einsum("hi,wj,skpqij->skphqw", down.a, across.a, product, optimize=True)
        y = y.reshape(*y.shape[:2], y.shape[2] * y.shape[3], y.shape[4] * y.shape[5])[:, :, : extents[0], : extents[1]]
        return y if b is None else y + b.reshape(-1, 1, 1)
