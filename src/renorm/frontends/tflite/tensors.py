"""Tensors of a file: dtypes, and how the elements of quantized ones are to be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.orders import Ordered
from renorm.frontends.tflite.flatbuffer import Table
from renorm.graph.ir import Graph

Array = np.ndarray[Any, Any]
Range = tuple[float, float]  # least and greatest

DTYPES = {
    "FLOAT32": "float32", "FLOAT16": "float16", "FLOAT64": "float64", "BFLOAT16": "bfloat16", "INT8": "int8",
    "UINT8": "uint8", "INT16": "int16", "UINT16": "uint16", "INT32": "int32", "UINT32": "uint32", "INT64": "int64",
    "UINT64": "uint64", "BOOL": "bool",
}  # fmt: skip

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


class Tensor(Ordered):
    """One tensor of the file."""

    def __init__(self, graph: Graph, name: str):
        super().__init__(graph, name)
        self.scale: Scale | None = None
        self.range: Range | None = None  # of the real numbers that it is; None where nothing is known
        self.dtype = ""
