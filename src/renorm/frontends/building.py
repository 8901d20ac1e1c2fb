"""Build nodes that make a value of another dtype, shape or place: for readers of libraries' programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.dims import Dim, Shape, Sym
from renorm.core.errors import InvalidModel
from renorm.graph.ir import Graph, Value
from renorm.ops.shared.reshaping import reshaped_to

_MOST_HELD = 1 << 20  # positions that are a constant; more are computed when the network runs


@dataclass(frozen=True)
class Building:
    """Base of the calls that readers are given. graph: where nodes go."""

    graph: Graph

    def cast(self, x: Value, dtype: str) -> Value:
        if x.dtype == dtype:
            return x
        if x.data is not None and x.rank == 0:
            return self.graph.constant(x.data.astype(dtypes.numpy_dtype(dtype)), "number")
        return ops.cast(x, to=dtype)

    def told(self, elements: np.ndarray[Any, Any]) -> Value:
        """Return whole numbers, of which some may be open extents, as what an op is told."""
        return self.graph.open_constant(elements, "extents", "int64")

    def integers(self, elements: Sequence[Dim]) -> Value:
        """Return a vector of such numbers."""
        _check(elements)
        held = np.empty(len(elements), object)
        held[:] = elements
        return self.told(held)

    def reshaped(self, x: Value, shape: Shape) -> Value:
        _check(shape)
        return x if x.shape == tuple(shape) else reshaped_to(x, tuple(shape), self.integers)

    def expanded(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == tuple(shape) else ops.expand(x, self.integers(shape))

    def sliced(self, x: Value, axis: int, start: Dim, end: Dim, step: int = 1) -> Value:
        """Return x[start:end:step] along an axis."""
        bounds = self.integers([start]), self.integers([end])
        if step == 1:
            return ops.slice(x, *bounds, np.array([axis]))
        return ops.slice(x, *bounds, np.array([axis]), np.array([step]))

    def positions(self, n: Dim, dtype: str = "int64") -> Value:
        """Return 0, 1, ..., n - 1."""
        _check([n])
        if isinstance(n, int) and n <= _MOST_HELD:
            return self.graph.constant(np.arange(n).astype(dtypes.numpy_dtype(dtype)), "positions")
        return self.cast(ops.range(np.asarray(0), self.told(np.array(n, object)), np.asarray(1)), dtype)


def one_hot(indices: Value, depth: int, values: Value | np.ndarray[Any, Any], axis: int) -> Value:
    """Return values[0] with values[1] at indices, of which those below 0 are nowhere, unlike ONNX's."""
    whole, end = ops.cast(indices, to="int64"), np.asarray(depth, np.int64)
    return ops.one_hot(ops.where(ops.less(whole, np.asarray(0)), end, whole), end, values, axis=axis)


def _check(extents: Iterable[object]) -> None:
    """Raise InvalidModel for what is no extent: in damaged files an integer may be anything."""
    if wrong := [d for d in extents if not isinstance(d, (int, np.integer, Sym))]:
        raise InvalidModel(f"{wrong[0]!r} is no extent")
