"""Arguments that lie in memory which holds more between their elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from renorm.core.errors import InvalidExpression


class Window(NamedTuple):
    """Where the elements of an argument lie in memory that holds more: element (i, j, ...) is number i * strides[0] +
    j * strides[1] + ... of `size` elements. The order is that of a row-major array."""

    strides: tuple[int, ...]
    size: int

    @staticmethod
    def of(name: str, shape: Sequence[int], strides: Sequence[int]) -> Window:
        """The smallest that holds all elements. Raises InvalidExpression where strides do not belong to the shape of
        the tensor called `name`."""
        size = min(1, math.prod(shape))
        for extent, stride in zip(reversed(shape), reversed(strides)):
            if extent > 1 and stride < size:
                break
            size += (extent - 1) * stride if size else 0
        else:
            if len(shape) == len(strides):
                return Window(tuple(strides), size)
        raise InvalidExpression(
            f"{name} of shape {tuple(shape)} cannot lie with strides {tuple(strides)}",
            do="give one stride per axis, so far apart that what lies after the axis fits between",
        )

    def joint_axes(self, shape: Sequence[int]) -> int:
        """Return how many of the last axes lie in memory as those of a row-major array do."""
        stride = 1
        for k, (extent, own) in enumerate(zip(reversed(shape), reversed(self.strides))):
            if own != stride and extent != 1:
                return k
            stride *= extent
        return len(shape)
