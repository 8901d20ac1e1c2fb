"""Random inputs on which networks are compared and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import Typed, static, substitute_shape, symbols_of
from renorm.core.stated import Stated, stated

Array = np.ndarray[Any, Any]


def random_inputs(
    inputs: Sequence[Typed],
    seed: int = 0,
    shapes: Mapping[str, Sequence[Stated]] | None = None,
    integers: tuple[int, int] = (0, 1),
) -> dict[str, Array]:
    """Return an array for each input, by name and in order: standard normal floats, truths, and integers from the first
    to the last of `integers`; 0 and 1 are legal indices more often than others. Open extents are those of `shapes`, and
    1 where it has none, or the least that they may be. Raise InvalidInput where `shapes` contradicts the inputs."""
    rng, arrays = np.random.default_rng(seed), dict[str, Array]()
    extents, _ = stated(inputs, shapes, None, "the network")
    for v in inputs:
        shape = substitute_shape(v.shape, extents)
        shape = static(substitute_shape(shape, {s: max(1, s.least) for d in shape for s in symbols_of(d)}))
        dtype, (least, most) = dtypes.numpy_dtype(v.dtype), integers if dtypes.is_int(v.dtype) else (0, 1)
        least = max(least, 0) if dtype.kind == "u" else least
        drawn = rng.standard_normal(shape) if dtypes.is_float(v.dtype) else rng.integers(least, most + 1, shape)
        arrays[v.name] = drawn.astype(dtype)
    return arrays
