"""Comparison of arrays, for tests of programs that are written with renorm."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7) -> None:
    """Raise AssertionError, which shows where, unless both have one shape and |actual - desired| <= atol + rtol *
    |desired| for all elements."""
    actual, desired = np.asanyarray(actual), np.asanyarray(desired)
    np.testing.assert_equal(actual.shape, desired.shape)
    np.testing.assert_allclose(actual, desired, rtol=rtol, atol=atol)


__all__ = ["assert_allclose"]
