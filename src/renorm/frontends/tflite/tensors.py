"""Tensors of a file as values of a graph, each in up to two orders of axes.

Files keep channels last, convolutions of a graph want them first. A tensor is held as its operator made it (`stored`:
as in the file; `first`: channels first) and made in the other order when somebody asks; a transpose that nobody reads
goes with dead code. Up to two axes there is no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.tflite.flatbuffer import Table
from renorm.graph.ir import Graph, Value

Array = np.ndarray[Any, Any]
Range = tuple[float, float]  # least and greatest

DTYPES = {
    "FLOAT32": "float32", "FLOAT16": "float16", "FLOAT64": "float64", "BFLOAT16": "bfloat16", "INT8": "int8",
    "UINT8": "uint8", "INT16": "int16", "UINT16": "uint16", "INT32": "int32", "UINT32": "uint32", "INT64": "int64",
    "UINT64": "uint64", "BOOL": "bool",
}  # fmt: skip

NUMBER = {dtype: name for name, dtype in DTYPES.items()}
"""The names that the formats have for dtypes."""


def to_first(rank: int) -> tuple[int, ...]:
    """Return the axes of a tensor in the file, in the order channels first."""
    return (0, rank - 1, *range(1, rank - 1)) if rank > 2 else tuple(range(rank))


def to_stored(rank: int) -> tuple[int, ...]:
    """Return the axes of a tensor with channels first, in the order of the file."""
    return (0, *range(2, rank), 1) if rank > 2 else tuple(range(rank))


@dataclass(frozen=True)
class First:
    """A result with channels first."""

    value: Value


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

    def real(self, stored: Array) -> Array:
        scale, zero = self.spread(stored.ndim)
        return ((stored.astype(np.float64) - zero) * scale).astype(np.float32)


def scale_of(table: Table, dtype: str, label: str) -> Scale | None:
    """Return how the elements of a quantized tensor are to be read; None for one that is not quantized."""
    q = table["quantization"]
    if q is None or not q.items("scale") or not dtype.startswith(("int", "uint")):
        return None
    if q["details_type"]:
        raise UnsupportedOp(f"{label} is quantized by {q['details'].name}", do="export it in float or per channel")
    scale = np.asarray(q["scale"])
    zero = np.asarray(q["zero_point"] if q.items("zero_point") else np.zeros(scale.size, np.int64))
    axis, shape = q["quantized_dimension"], table.items("shape")
    if zero.size != scale.size or (scale.size > 1 and not (0 <= axis < len(shape) and shape[axis] == scale.size)):
        extents = [int(d) for d in shape]
        raise InvalidModel(
            f"{label}: {scale.size} scales, {zero.size} zero points along axis {axis} of shape {extents}"
        )
    return Scale(scale, zero, axis)


class Tensor:
    """One tensor of the file."""

    def __init__(self, graph: Graph, name: str):
        self.graph, self.name = graph, name
        self.scale: Scale | None = None
        self.range: Range | None = None  # of the real numbers that it is; None where nothing is known
        self.dtype = ""
        self._stored: Value | None = None
        self._first: Value | None = None

    @property
    def is_made(self) -> bool:
        return self._stored is not None or self._first is not None

    @property
    def is_first(self) -> bool:
        """Return whether only the form with channels first exists, so that asking for the other costs a transpose."""
        return self._stored is None and self._first is not None

    @property
    def value(self) -> Value:
        """In whichever form it is."""
        found = self._stored if self._stored is not None else self._first
        assert found is not None
        return found

    def forms(self) -> list[tuple[Value, bool]]:
        """Return the values that it is, and whether each has channels first."""
        both = [(self._stored, False), (self._first, True)]
        return [(v, is_first) for v, is_first in both if v is not None]

    def make(self, result: Value | First) -> None:
        """The result of the operator that makes this tensor."""
        if isinstance(result, First) and result.value.rank > 2:
            self._first = result.value
        else:
            self._stored = result.value if isinstance(result, First) else result

    def stored(self) -> Value:
        if self._stored is None:
            assert self._first is not None
            self._stored = self._turned(self._first, to_stored(self._first.rank))
        return self._stored

    def first(self) -> Value:
        if self._first is None:
            assert self._stored is not None
            if self._stored.rank <= 2:
                return self._stored
            self._first = self._turned(self._stored, to_first(self._stored.rank))
        return self._first

    def _turned(self, value: Value, perm: Sequence[int]) -> Value:
        if value.data is not None:
            return self.graph.constant(np.ascontiguousarray(value.data.transpose(perm)), value.name, value.source)
        turned = ops.transpose(value, perm=perm, name=f"{self.name}.order")
        if value is self._first and value.name == self.name:  # what is in the file's order has the file's name
            self.graph.swap_names(turned, value)
        return turned
