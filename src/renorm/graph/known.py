"""Elements that are known before a network runs: Python integers, NumPy floats of the value's dtype, or Syms."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.conversion import limits, wrapped
from renorm.core.dims import Quotient, Sizes, Sym, substitute


def elements(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Elements for `known`: Python integers; floats as NumPy scalars, whose arithmetic rounds as their dtype does."""
    if array.dtype.kind != "f":
        return array.astype(object)
    known = np.empty(array.shape, dtype=object)
    for i, element in enumerate(array.flat):
        known.flat[i] = element
    return known


def within(known: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any] | None:
    """Known elements as a dtype holds them: integers wrap when they are computed, too, and no quotient of extents is
    known to be one. Extents are taken to fit."""
    if dtypes.is_int(dtype):
        if any(isinstance(e, Quotient) for e in known.flat):
            return None
        low, high = limits(dtype)
        beyond = {i: e for i, e in np.ndenumerate(known) if isinstance(e, int) and not low <= e <= high}
        known = known.copy() if beyond else known
        for index, e in beyond.items():
            known[index] = wrapped(e, dtype)
    return known


def substituted(known: Any, sizes: Sizes) -> np.ndarray[Any, Any]:
    """Return elements whose symbols are replaced."""
    made = np.empty(known.shape, dtype=object)
    for index, e in np.ndenumerate(known):
        made[index] = substitute(e, sizes) if isinstance(e, Sym) else e
    return made
