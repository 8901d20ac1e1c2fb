"""Layouts of values: in which order memory holds the elements, and in which dtype. Shapes and ops know nothing of them.

A value without a layout is row-major. [N, C, H, W] in Layout(1, 16) lies in memory as [N, C / 16, H, W, 16]: a
position holds 16 channels side by side, which fill a vector register. In Layout(dtype="bfloat16") it is row-major, and
its elements, which are float32 for all who read it, are rounded when they are written: once, after all that their
kernel does to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from renorm.core import dtypes
from renorm.core.dims import Shape, format_shape


@dataclass(frozen=True)
class Layout:
    """Axis number `axis` is cut into blocks of `lanes` elements; within a block, elements lie side by side. None leaves
    memory row-major. dtype: what memory holds float32 elements in, rounded; None: as they are."""

    axis: int | None = None
    lanes: int = 1
    dtype: str | None = None

    def refuses(self, shape: Shape) -> str | None:
        """Return why a value of this shape cannot lie so, as a sentence; None where it can."""
        if self.axis is None:
            return None
        if not 0 <= self.axis < len(shape):
            return f"{self} cuts axis {self.axis}, but {format_shape(shape)} has {len(shape)}"
        extent = shape[self.axis]
        if self.lanes < 2 or not isinstance(extent, int) or extent % self.lanes:
            return f"{self} needs a multiple of {self.lanes} elements along axis {self.axis} of {format_shape(shape)}"
        return None

    def memory(self, index: Sequence[int], inside: int) -> tuple[int, ...]:
        """A shape as memory has it (inside: lanes), or the place of an element (inside: which of its block)."""
        if self.axis is None:
            return tuple(index)
        return (*(n // self.lanes if a == self.axis else n for a, n in enumerate(index)), inside)

    def __str__(self) -> str:
        """As the text of a graph has it."""
        blocks = [] if self.axis is None else [f"blocked({self.axis}, {self.lanes})"]
        return " ".join([*blocks, *([f"as {dtypes.short(self.dtype)}"] if self.dtype else [])])


class Accepts(Enum):
    """Which layout an op reads an operand in, or writes its results in, without loss."""

    ROW_MAJOR = "row-major only"
    ALIKE = "blocks of channels, where all operands and results that say so lie in them"
    EITHER = "both, whatever the other operands and the results are"
