"""Rotary embedding: pairs of elements turned by angles that grow with the position of a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.errors import OperandError
from renorm.graph.attributes import Bool, Float, Int
from renorm.graph.op import OnnxNode
from renorm.ops.shared.attending_nodes import row_numbers
from renorm.ops.shared.composite import Composite, apply
from renorm.ops.shared.reshaping import reshaped, reshaped_to


class RotaryEmbedding(Composite):
    """a, b = x1 * cos - x2 * sin, x1 * sin + x2 * cos; x1, x2: halves of a row's first elements, or every second one of
    them. Rows are [N, H, L, E], or [N, L, H * E]."""

    takes = "x, cos, sin, positions?"
    onnx = {"RotaryEmbedding": 23}
    interleaved = Bool(False)
    num_heads = Int(0)
    width = Int(0, onnx="rotary_embedding_dim")

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, cos, sin, positions = operands
        if positions is not None:
            cos, sin = (apply("gather", angles, positions) for angles in (cos, sin))
        return self.turned(x, cos, sin, self.num_heads)

    def turned(self, x: Any, cos: Any, sin: Any, heads: int) -> Any:
        """Return rows turned by angles [N or 1, L, E / 2]."""
        if x.rank == 4:
            cos, sin = (apply("unsqueeze", angles, axes=(1,)) for angles in (cos, sin))
            return rotated(x, cos, sin, self.interleaved, self.width)
        if x.rank != 3 or not heads:
            raise OperandError(f"RotaryEmbedding: {x.type} is [N, H, L, E] or [N, L, H * E], with num_heads")
        cos, sin = (apply("unsqueeze", angles, axes=(2,)) for angles in (cos, sin))
        y = rotated(reshaped(x, 0, 0, heads, -1), cos, sin, self.interleaved, self.width)
        return reshaped_to(y, x.shape)


class MicrosoftRotaryEmbedding(RotaryEmbedding):
    """The same in the words of ONNX Runtime: a position may be the one of the first row, and heads may be as wide as
    tables of angles say."""

    takes = "x, positions, cos, sin"
    onnx = {"com.microsoft::RotaryEmbedding": 1}
    scale = Float(1.0)
    is_packed_batching = Bool(False)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, positions, cos, sin = operands
        if self.is_packed_batching or self.scale != 1:
            raise OperandError("RotaryEmbedding of com.microsoft: is_packed_batching and scale are not read")
        if positions.rank == 1:
            positions = apply(
                "unsqueeze", apply("add", row_numbers(x), positions), axes=(0,)
            )  # rows are axis -2 in both
        cos, sin = (apply("gather", angles, positions) for angles in (cos, sin))
        heads = self.num_heads
        if x.rank == 3 and not heads and isinstance(x.shape[-1], int) and isinstance(cos.shape[-1], int):
            heads = x.shape[-1] // (2 * cos.shape[-1])
        return self.turned(x, cos, sin, heads)


def rotated(x: Any, cos: Any, sin: Any, interleaved: bool, width: int = 0) -> Any:
    """Return the rows of a tensor of rank 4 with their first `width` elements turned; 0: all. Angles broadcast."""
    extent, rest = x.shape[-1], None
    if width and width != extent:
        rest = _part(x, width, None)
        x = _part(x, 0, width)
    held = width or extent
    if not isinstance(held, int) or held % 2:
        raise OperandError(f"RotaryEmbedding: {held} elements of {x.type} are turned, no known number of pairs")
    if interleaved:
        pairs = reshaped_to(x, (*x.shape[:-1], held // 2, 2))
        first, second = (apply("gather", pairs, np.asarray(i), axis=4) for i in range(2))
    else:
        first, second = _part(x, 0, held // 2), _part(x, held // 2, held)
    real = apply("sub", apply("mul", first, cos), apply("mul", second, sin))
    imaginary = apply("add", apply("mul", first, sin), apply("mul", second, cos))
    if interleaved:
        both = [apply("unsqueeze", part, axes=(4,)) for part in (real, imaginary)]
        y = reshaped_to(apply("concat", both, axis=4), x.shape)
        return y if rest is None else apply("concat", [y, rest], axis=3)
    return apply("concat", [real, imaginary, *([] if rest is None else [rest])], axis=3)


def _part(x: Any, begin: int, end: int | None) -> Any:
    ends = np.asarray([np.iinfo(np.int64).max if end is None else end])
    return apply("slice", x, np.asarray([begin]), ends, np.asarray([3]))
