"""The difference of results from what they should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TOLERANCE = 1e-4  # of the largest element of an output of a network


def largest(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """Return the largest difference of outputs, relative to the largest element of each; infinity where one is not a
    number. The arrays are of NumPy or PyTorch, in pairs of one kind, and differences in their wider type."""
    errors = [float(abs(a - b).max()) / max(float(abs(b).max()), 1e-30) for a, b in zip(found, wanted, strict=True)]
    return max(e if e == e else float("inf") for e in errors)
