"""Checks of data while a network runs that was compiled with them: indices within their axes, and divisors
that are not zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.dims import Dim, static
from renorm.core.errors import InvalidInput

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Check:
    """node: whose operand is looked at. axes, extents: which its indices are of, one after the other; nothing for a
    divisor. The program has two outputs for it, the least and the greatest: of the indices of each axis, or of where
    the divisor is 0."""

    node: str
    axes: tuple[int, ...] = ()
    extents: tuple[Dim, ...] = ()

    def problems(self, least: Array, greatest: Array) -> list[str]:
        if not self.extents:
            return [f"node {self.node!r} divides by zero"] if greatest.any() else []
        found = list[str]()
        for axis, extent, low, high in zip(
            self.axes, static(self.extents), least.tolist(), greatest.tolist(), strict=True
        ):
            # of an axis without elements there are no indices: what is measured is what stands for none
            outside = [i for i in (low, high) if not -extent <= i < max(extent, 1)]
            found += [f"node {self.node!r}: index {i} is outside axis {axis} of extent {extent}" for i in outside[:1]]
        return found


def judge(name: str, checks: Sequence[Check], results: Sequence[Array]) -> None:
    """Raises InvalidInput that lists what the data broke. results: two arrays for each check."""
    pairs = zip(checks, results[::2], results[1::2], strict=True)
    problems = [problem for check, least, greatest in pairs for problem in check.problems(least, greatest)]
    if problems:
        raise InvalidInput(f"{name}: the inputs lead to what has no value", problems)
