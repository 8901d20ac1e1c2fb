"""Extents as elements: shape and size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core import dims
from renorm.core.dims import Dim
from renorm.expr.nodes import Expr, as_expr, cast, const, select
from renorm.graph.attributes import Int
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, boolean, f32, i64
from renorm.ops.shared import exact
from renorm.ops.shared.family import Injective


def elements(extents: Sequence[Dim | Expr], dtype: str, name: str) -> te.Tensor:
    """Return extents as elements [number of them]."""
    held = [cast(dtype, as_expr(d)) for d in extents]

    def element(i: Expr) -> Expr:
        value: Expr = held[-1] if held else const(0, dtype)
        for k, extent in reversed(list(enumerate(held[:-1]))):
            value = select(i <= k, extent, value)
        return value

    return te.compute((len(held),), element, name=name, tag=te.tag.INJECTIVE)


class Shape(Injective):
    """y = the extents of x, of those axes that x.shape[start:end] gives in Python."""

    signature = "x: T[...] -> y: i64[...]"
    start = Int(0)
    end = Int(None)
    onnx = {"Shape": 1}

    def extents(self, shape: dims.Shape) -> tuple[Dim, ...]:
        return shape[self.start : self.end]

    def infer(self, x: Operand) -> tuple[Dim, ...]:
        return (len(self.extents(x.shape)),)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return elements(self.extents(x.shape), "int64", "shape")

    def reference(self, x: Any) -> Any:
        return np.array(np.shape(x)[slice(self.start, self.end)], np.int64)

    def known_result(self, x: exact.Known) -> np.ndarray[Any, Any]:
        return np.array(self.extents(x[0]), dtype=object)

    samples = [
        Sample(f32[2, 3, 5]),
        Sample(f32[2, 3, 5], start=1),
        Sample(f32[2, 3, 5], start=-2, end=-1),
        Sample(f32[2, 3, 5], start=-9, end=9),
        Sample(f32[2, 3], start=1, end=0),
        Sample(f32[()]),
        Sample(boolean[0, 4]),
    ]
    rejects = [Reject(i64[2], start=0.5, because="has a fraction")]


class Size(Injective):
    """y = the number of elements of x."""

    signature = "x: T[...] -> y: i64[]"
    onnx = {"Size": 1}

    def infer(self, x: Operand) -> tuple[Dim, ...]:
        return ()

    def compute(self, x: te.Tensor) -> te.Tensor:
        return te.compute((), lambda: cast("int64", as_expr(x.size)), name="size", tag=te.tag.INJECTIVE)

    def reference(self, x: Any) -> Any:
        return np.int64(np.size(x))

    def known_result(self, x: exact.Known) -> np.ndarray[Any, Any]:
        return np.array(dims.size(x[0]), dtype=object)

    samples = [Sample(f32[2, 3, 5]), Sample(f32[()]), Sample(i64[0, 3])]
    rejects = [Reject(f32[2], start=1, because="no attribute 'start'")]
