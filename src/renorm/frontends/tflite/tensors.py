"""Tensors of a file: dtypes, and how the elements of quantized ones are to be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.orders import First, Ordered
from renorm.frontends.tflite import quantized
from renorm.frontends.tflite.flatbuffer import Table
from renorm.graph.ir import Graph, Value

Array = np.ndarray[Any, Any]
Range = tuple[float, float]  # least and greatest

DTYPES = {
    "FLOAT32": "float32", "FLOAT16": "float16", "FLOAT64": "float64", "BFLOAT16": "bfloat16", "INT8": "int8",
    "UINT8": "uint8", "INT16": "int16", "UINT16": "uint16", "INT32": "int32", "UINT32": "uint32", "INT64": "int64",
    "UINT64": "uint64", "BOOL": "bool",
}  # fmt: skip

PACKED = {"INT4": (4, "int8"), "UINT4": (4, "uint8"), "INT2": (2, "int8")}
"""Integers of which several are in one byte: their bits, and the dtype that constants get."""

COMPLEX, RESOURCE = "complex64", "resource"
INNER = {"COMPLEX64": COMPLEX, "RESOURCE": RESOURCE}
"""What operators hand each other, and no input or output is. Complex numbers are pairs along a last axis."""

NUMBER = {dtype: name for name, dtype in DTYPES.items()}
"""The names that the formats have for dtypes."""


@dataclass(frozen=True)
class Scale:
    """real = (stored - zero_point) * scale, with one element along `axis` each, or one for all."""

    scale: Array
    zero_point: Array
    axis: int

    def spread(self, rank: int) -> tuple[Array, Array]:
        """Both as arrays that broadcast to a tensor of that rank."""
        shape = [1] * rank
        if self.scale.size > 1:
            shape[self.axis] = -1
        return self.scale.astype(np.float64).reshape(shape), self.zero_point.astype(np.float64).reshape(shape)

    def is_like(self, other: Scale) -> bool:
        """Return whether both are one and the same for all elements."""
        both = self.scale.size == other.scale.size == 1
        return both and bool(self.scale == other.scale and self.zero_point == other.zero_point)

    def real(self, stored: Array) -> Array:
        scale, zero = self.spread(stored.ndim)
        with np.errstate(over="ignore"):  # LiteRT has infinite numbers there, too
            return ((stored.astype(np.float64) - zero) * scale).astype(np.float32)


def scale_of(table: Table, dtype: str, label: str) -> Scale | None:
    """Return how the elements of a quantized tensor are to be read; None for one that is not quantized."""
    q = table["quantization"]
    if q is None or not q.items("scale") or not dtype.startswith(("int", "uint")):
        return None
    if (details := q["details"]) is not None:
        raise UnsupportedOp(f"{label} is quantized by {details.name}", do="export it in float or per channel")
    scale = np.asarray(q["scale"])
    zero = np.asarray(q["zero_point"] if q.items("zero_point") else np.zeros(scale.size, np.int64))
    axis, shape = q["quantized_dimension"], table.items("shape")
    if zero.size != scale.size or (scale.size > 1 and not (0 <= axis < len(shape) and shape[axis] == scale.size)):
        extents = [int(d) for d in shape]
        raise InvalidModel(
            f"{label}: {scale.size} scales, {zero.size} zero points along axis {axis} of shape {extents}"
        )
    return Scale(scale, zero, axis if scale.size > 1 else 0)  # files say any axis where there is one scale


@dataclass(eq=False)
class Variable:
    """What runs hand on to each other. called: for errors. shape: that of the file, None where it does not say one.
    changes: whether operators assign to it. initial: its elements before the first run. first: the input of the graph
    that it is when a run begins, once it was read. now: what it is at this point of the network, None for `first`."""

    name: str
    called: str
    shape: tuple[int, ...] | None = None
    changes: bool = True
    initial: Array | None = None
    first: Value | None = None
    now: Value | None = None


class Tensor(Ordered):
    """One tensor of the file."""

    def __init__(self, graph: Graph, name: str):
        super().__init__(graph, name)
        self.scale: Scale | None = None
        self.integers: Array | None = None  # that a constant stands for
        self.dtype = ""
        self.variable: Variable | None = None  # what it holds, or which resource it is

    def take(self, other: Tensor) -> None:
        """Become what another tensor is."""
        self._stored, self._first = other._stored, other._first
        self.variable, self.dtype = other.variable, other.dtype or self.dtype

    def counted(self, scale: Scale, dtype: str) -> Tensor | None:
        """Return its integers as a tensor; None where it does not hold such of that dtype and scale."""
        made = Tensor(self.graph, self.name)
        if self.integers is not None:
            if self.scale is None or not self.scale.is_like(scale) or dtypes.from_numpy(self.integers.dtype) != dtype:
                return None
            made._stored = self.graph.constant(self.integers, self.name)
            return made
        if not all(quantized.holds(v, scale, dtype) for v, _ in self.forms()):
            return None
        made._stored, made._first = (None if v is None else quantized.held(v) for v in (self._stored, self._first))
        return made

    def _turned(self, value: Value, perm: Sequence[int]) -> Value:
        turned = quantized.moved(value, lambda v: super(Tensor, self)._turned(v, perm))
        is_counted = quantized.held(value) is not None  # others have their names already
        if is_counted and value is self._first and value.name == self.name:
            self.graph.swap_names(turned, value)
        return turned

    def make(self, result: Value | First | Tensor) -> None:
        if isinstance(result, Tensor):
            self.take(result)
        else:
            super().make(result)
