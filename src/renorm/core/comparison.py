"""Inputs that networks are compared on, and how far their results are apart.

Differences are relative to the largest value of what is expected, as all of renorm's promises are; those of integers
are not, which are counts and indices, of which the next one is another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import Typed, fixed_extents, static, substitute_shape, symbols_of

Array = np.ndarray[Any, Any]


def random_inputs(
    inputs: Sequence[Typed], seed: int = 0, shapes: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Array]:
    """An array for each input, by name and in order: standard normal floats, and integers 0 and 1, which are legal
    indices more often than others. Extents that are open are those of `shapes`, as far as it says, and 1 otherwise.
    Raises InvalidInput where `shapes` contradicts the inputs."""
    rng, arrays = np.random.default_rng(seed), dict[str, Array]()
    sizes = fixed_extents(inputs, shapes or {}, "the network")
    for v in inputs:
        open_ = {s: 1 for d in v.shape for s in symbols_of(d)}
        shape = static(substitute_shape(v.shape, open_ | sizes), f"input {v.name}")
        drawn = rng.standard_normal(shape) if dtypes.is_float(v.dtype) else rng.integers(0, 2, shape)
        arrays[v.name] = drawn.astype(dtypes.numpy_dtype(v.dtype))
    return arrays


def largest(array: Array) -> float:
    """The largest finite absolute value; 0.0 where there is none."""
    wide = np.abs(np.asarray(array, np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0.0))


def is_counted(array: Array) -> bool:
    """Whether elements are integers or truths, whose differences are not relative to anything."""
    return array.dtype.kind in "iub"


def distances(a: Array, b: Array) -> Array:
    """|a - b| element by element, for integers without rounding: 0 where both are NaN or the same infinity, inf where
    only one is. Shapes are equal."""
    # float64 has fewer digits than 64-bit integers, long double has 64 or more on every machine that code runs on
    dtype = np.longdouble if any(is_counted(x) and x.itemsize == 8 for x in (a, b)) else np.float64
    wide, other = np.asarray(a, dtype), np.asarray(b, dtype)
    with np.errstate(invalid="ignore"):
        found = np.where((wide == other) | (np.isnan(wide) & np.isnan(other)), 0.0, np.abs(wide - other))
    return np.where(np.isnan(found), np.inf, found)


def difference(found: Array, expected: Array) -> float:
    """The largest difference relative to the largest value of `expected`, or absolute where all of that are zero, or
    integers; inf where shapes differ, or NaN and infinities do not stand in the same places."""
    if found.shape != expected.shape:
        return float("inf")
    scale = 1.0 if is_counted(expected) else largest(expected) or 1.0
    return float(distances(found, expected).max(initial=0.0)) / scale
