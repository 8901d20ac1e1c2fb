"""A constant times factors, not computed yet: large weights are rounded once, without ever being held in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core import dtypes

Array = np.ndarray[Any, Any]


class Product:
    """data * factor, where factor broadcasts to the shape of data; the product is one of float64."""

    def __init__(self, data: Array, factor: Array):
        self.data, self.factor, self._rounded = data, factor, dict[str, Array]()

    def exact(self) -> Array:
        """In float64."""
        return np.multiply(self.data, self.factor, dtype=np.float64)

    def rounded(self, dtype: str) -> Array:
        """Rounded once to a dtype; infinite where that cannot hold it."""
        if dtype not in self._rounded:
            with np.errstate(over="ignore"):
                if dtype == "float32":  # NumPy computes in pieces of 64 KiB: no array in float64 is made
                    made = np.empty(self.data.shape, np.float32)
                    np.multiply(self.data, self.factor, out=made, dtype=np.float64, casting="same_kind")
                else:
                    made = self.exact().astype(dtypes.numpy_dtype(dtype))
            self._rounded[dtype] = made
        return self._rounded[dtype]
