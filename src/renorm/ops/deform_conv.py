"""A convolution whose window has an offset for each of its elements at each position."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from renorm.core.dims import is_static, static
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import OperandError
from renorm.graph.attributes import Int, Ints
from renorm.graph.op import OnnxNode
from renorm.ops.shared.composite import Composite, apply


class DeformConv(Composite):
    """y[n, m, o] = b[m] + sum over c, k of w[m, c, k] * x[n, c, o * strides + k * dilations - pads + offset[n, k, o]] *
    mask[n, k, o]: x interpolated between four elements, 0 outside. Each of offset_group parts of channels has offsets
    of its own. Elements are sampled, then multiplied by a convolution with a window of one."""

    takes = "x, w, offset, b?, mask?"
    onnx = {"DeformConv": 19}
    dilations = Ints(None)
    group = Int(1, at_least=1)
    kernel_shape = Ints(None)
    offset_group = Int(1, at_least=1)
    pads = Ints(None)
    strides = Ints(None)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, w, offset, b, mask = operands
        if x.rank != 4 or w.rank != 4 or offset.rank != 4:
            raise OperandError(f"DeformConv: {x.type} and {w.type} are no images with two axes")
        known = (*x.shape[1:], *w.shape, *offset.shape[1:])
        if not is_static(known):
            raise OperandError(f"DeformConv({x.type}): all extents but the first must be known", do="give shapes=")
        channels, h, width, outputs, per_group, kh, kw, offsets, oh, ow = static(known)
        groups, taps = self.offset_group, kh * kw
        if channels % groups or offsets != 2 * groups * taps or per_group * self.group != channels:
            raise OperandError(
                f"DeformConv: {offset.type} are no offsets of {groups} parts of {channels} channels, or {w.type} no "
                f"weights of {self.group} groups"
            )
        part = channels // groups
        moved = _reshaped(
            apply("transpose", _reshaped(offset, taps, 2, oh, ow), perm=(0, 1, 3, 4, 2)), taps * oh, ow, 2
        )
        base = self._places((kh, kw), (oh, ow)).reshape(1, taps * oh, ow, 2)
        places = apply("add", moved, base.astype(numpy_dtype(x.dtype)))
        grid = apply("gather", places, np.array([1, 0]), axis=3)  # the last axis first
        sampled = apply("grid_sample", _reshaped(x, part, h, width), grid, in_elements=True)
        sampled = _reshaped(sampled, part, taps, oh, ow)
        if mask is not None:
            sampled = apply("mul", sampled, _reshaped(mask, 1, taps, oh, ow))
        weight = apply("reshape", w, np.array([outputs, per_group * taps, 1, 1]))
        columns = _reshaped(sampled, channels * taps, oh, ow)
        return apply("conv", columns, weight, b, group=self.group)

    def _places(self, kernel: tuple[int, int], positions: tuple[int, int]) -> np.ndarray[Any, Any]:
        """Return where elements of windows are without an offset, as [kh, kw, oh, ow, axis]."""
        pads, strides, dilations = self.pads or (0, 0, 0, 0), self.strides or (1, 1), self.dilations or (1, 1)
        y, x = (
            np.arange(count) * strides[a] + np.arange(k)[:, None] * dilations[a] - pads[a]
            for a, (k, count) in enumerate(zip(kernel, positions))
        )
        shape = (*kernel, *positions)
        return np.stack(
            [np.broadcast_to(y[:, None, :, None], shape), np.broadcast_to(x[None, :, None], shape)], axis=-1
        )


def _reshaped(x: Any, *shape: int) -> Any:
    """`x` with what these extents leave in front of them."""
    return apply("reshape", x, np.array([-1, *shape])) if prod(shape) else x
