"""Tolerances: the distance of results from the definition of their network in float64. All who compare ask here.

    tolerance(d) = sqrt(LAYERS) * (u(d) + sqrt(TERMS) * u(a))        a: the dtype in which arithmetic on d runs

u is the unit roundoff: half the distance from 1 to the next number. A layer rounds by u(d) when it stores a result, and
by u(a) for each term that it sums. n independent roundings add up to sqrt(n) roundings (Higham and Mary, SIAM J. Sci.
Comput. 41, 2019): those of the terms of a sum, and those of consecutive layers. The tolerance is relative to the
largest value of each channel. Where terms cancel, a channel is more sensitive than any table can say: there
`core.difference.judge` allows MARGIN times what rounding was measured to move (passes.sensitivity).

Integers and truths have the tolerance 0, because the next integer is another index or class. They may differ where
rounding of the floating values that they are computed from decides them. NaN must stand where NaN is expected, and an
infinity where the same one is, unless rounding decides that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import InvalidInput

LAYERS = 256  # consecutive ones, more than in any network that we know
TERMS = 10_000  # of one sum: 1,111 channels of 3 x 3
AMPLITUDE = 4.0  # how many times too large the roundings are by which sensitivity is measured
MARGIN = 4.0  # deviations of what these move: 16 of the network's own
DRAWS = (4, 16)  # measurements: the first number decides nearly all; what it would refuse is measured more often
STEPS = 3  # that outputs of quantized networks may differ by: a runtime rounds their integers at each operator

Movements = Callable[[int], Sequence[np.ndarray[Any, Any]]]
"""Return that many measurements of how far the elements of a result move when roundings are drawn AMPLITUDE times as
large; inf where a number becomes NaN or infinite, or the other way round."""


def tolerance(dtype: str, layers: int = LAYERS) -> float:
    """Return the largest error of a value of this dtype after so many layers, relative to the largest value of its
    channel; 0 for integers and truths."""
    if not dtypes.is_float(dtype):
        return 0.0
    arithmetic = dtypes.unit_roundoff(dtypes.compute_dtype(dtype))
    return sqrt(layers) * (dtypes.unit_roundoff(dtype) + sqrt(TERMS) * arithmetic)


@dataclass(frozen=True)
class Tolerance:
    """A user's allowance: an element differs where |before - after| exceeds both `absolute` and `relative` times the
    largest value that the tensor has before, or `steps` in the place of the latter for integers and truths. relative:
    None for what the dtype and the sensitivity of the network allow in each channel. Raise InvalidInput for a negative
    number and for NaN."""

    absolute: float = 0.0
    relative: float | None = 0.0
    steps: float = 0.0

    def __post_init__(self) -> None:
        if not (self.absolute >= 0 and (self.relative is None or self.relative >= 0)):  # nothing is above NaN
            raise InvalidInput(f"a tolerance is {self.absolute} absolute, {self.relative} relative")
