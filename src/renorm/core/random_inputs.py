"""Random inputs on which networks are compared and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.conversion import converted
from renorm.core.dims import Dim, integer, substitute, symbols_of
from renorm.core.inputs import IDLE, Typed, fixed_extents
from renorm.core.stated import Stated, stated

Array = np.ndarray[Any, Any]


def random_inputs(
    inputs: Sequence[Typed],
    seed: int = 0,
    shapes: Mapping[str, Sequence[Stated]] | None = None,
    integers: tuple[int, int] = (0, 1),
    sizes: Mapping[str, int] = MappingProxyType({}),
    held: Mapping[str, Array] = MappingProxyType({}),
) -> dict[str, Array]:
    """Return an array for each input, by name and in order: standard normal floats, truths, and integers from the first
    to the last of `integers`; 0 and 1 are legal indices more often than others. Open extents are those of `shapes` or
    `sizes`, by symbols, and 1 where these have none, or the least that they may be; so are elements that decide shapes.
    held: what is given for some inputs, of which shapes, and elements that decide shapes, tell extents of others. Raise
    InvalidInput where `shapes` contradicts the inputs."""
    rng, arrays = np.random.default_rng(seed), dict[str, Array]()
    given: Mapping[str, Any] = {**(shapes or {}), **{name: array.shape for name, array in held.items()}}
    elements = {v.name: held[v.name].reshape(-1).tolist() for v in inputs if v.deciding and v.name in held}
    numbers = {name: shape for name, shape in given.items() if all(map(_is_number, shape))}
    extents, _ = stated(inputs, {n: s for n, s in given.items() if n not in numbers}, None, "the network")
    values = {**extents, **sizes, **fixed_extents(inputs, numbers, "the network", elements)}
    for v in inputs:
        shape, own = ([_size(substitute(d, values)) for d in told] for told in (v.shape, v.deciding))
        shape = [int(d) for d in numbers[v.name]] if v.name in numbers else shape
        least, most = integers if dtypes.is_int(v.dtype) else (0, 1)
        least = max(least, 0) if dtypes.lookup(v.dtype).kind == "uint" else least
        drawn = rng.standard_normal(shape) if dtypes.is_float(v.dtype) else rng.integers(least, most + 1, shape)
        own = [0 if d == IDLE else d for d in own]
        arrays[v.name] = converted(np.array(own).reshape(shape) if own else drawn, v.dtype)
    return {**arrays, **held}


def _is_number(extent: Any) -> bool:
    return isinstance(extent, (int, np.integer)) and not isinstance(extent, bool)


def _size(extent: Dim) -> int:
    """Return an extent where symbols are 1, or the least that they may be."""
    return integer(substitute(extent, {s: max(1, s.least) for s in symbols_of(extent)}))
