"""Changes of shape that importers put round an op: ONNX flattens where our ops name axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from renorm.core.dims import Shape, is_static, size, static
from renorm.graph.ir import Graph, Value
from renorm.ops.shared import builders


def flattened(x: Any, axis: int) -> Any:
    """`x` as a matrix: axes before `axis` are rows, the others columns."""
    return builders.find("flatten")(x, axis=axis)


def reshaped(x: Any, *shape: int) -> Any:
    """`x` in another shape; one extent may be -1."""
    return builders.find("reshape")(x, np.asarray(shape, np.int64))


def told_by_numbers(before: Shape, after: Shape) -> tuple[int, ...] | None:
    """Return the operand by which Reshape makes a shape of another one, whose extents may be open: 0 keeps an extent,
    -1 is what is left. None where that cannot say it."""
    if is_static(after):
        return static(after)
    kept = [d if isinstance(d, int) else 0 if axis < len(before) and before[axis] == d else -1
            for axis, d in enumerate(after)]  # fmt: skip
    if kept.count(-1) > 1 or 0 in after:
        return None
    rest = size(d for d, k in zip(after, kept) if k > 0)
    total = size(d for axis, d in enumerate(before) if axis >= len(kept) or kept[axis])
    # what is kept may be 0 elements long: it is on both sides, and says nothing of what is left
    return tuple(kept) if -1 not in kept or total == rest * after[kept.index(-1)] else None


def reshaped_to(x: Any, shape: Shape, told: Callable[[Shape], Value] | None = None) -> Any:
    """`x`, a value, in another shape, whose extents may be open: told by numbers where they can say it, which files
    have. told: makes a value of extents; by default `extents_of` does."""
    numbers = told_by_numbers(x.shape, shape)
    if is_static(shape) and 0 in shape:
        return builders.find("reshape")(x, np.asarray(shape, np.int64), allowzero=True)
    if numbers is not None:
        return reshaped(x, *numbers)
    return builders.find("reshape")(x, told(shape) if told else extents_of(x.graph, shape), allowzero=True)


def extents_of(graph: Graph, shape: Shape) -> Value:
    """Return a shape as what Reshape is told: each extent is what it says, where it is 0 too (allowzero)."""
    to = np.empty(len(shape), dtype=object)
    to[:] = shape
    return graph.open_constant(to, "shape", "int64")


def reshaped_like(y: Any, x: Any) -> Any:
    """`y` in the shape of `x`, which may be symbolic."""
    return reshaped_to(y, x.shape) if is_static(x.shape) else builders.find("reshape")(y, builders.find("shape")(x))
