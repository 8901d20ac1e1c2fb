"""How many rounds loops have and how often conditions hold, at some points of their variables.

A point is one round of each loop that is entered; they are spread evenly over all rounds together (multiples of square
roots of primes). What holds in one round of a few hundred may be missed: for estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from renorm.core.conversion import truncated
from renorm.expr.nodes import Binary, Call, Cast, Const, Expr, Not, OpenVar, Select, Var
from renorm.tir.nodes import For
from renorm.tir.scope import typical

Array = np.ndarray[Any, Any]

_POINTS = 256
_ROOTS = np.sqrt([2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37])


def _divided(a: Array, b: Array) -> Array:
    return a // np.where(b == 0, 1, b)


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "//": _divided, "%": lambda a, b: a - b * _divided(a, b),
    "min": np.minimum, "max": np.maximum, "&&": np.logical_and, "||": np.logical_or, "==": np.equal,
    "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip


class Samples:
    """Points of the loops around a place. here: those that reach it."""

    def __init__(self) -> None:
        self._values: dict[Expr, Array] = {}
        self._here = np.ones(_POINTS, bool)

    def enter(self, loop: For) -> float:
        """Take a loop in; return how many rounds it has in the mean."""
        rounds = np.broadcast_to(np.maximum(0, self._at(loop.extent)), _POINTS)
        place = np.modf((np.arange(_POINTS) + 0.5) * _ROOTS[len(self._values) % len(_ROOTS)])[0]
        self._values[loop.var] = self._at(loop.start) + np.floor(rounds * place).astype(np.int64)
        return float(rounds[self._here].mean())

    def bind(self, var: Var, value: Expr) -> None:
        self._values[var] = self._at(value)

    @contextmanager
    def where(self, condition: Expr, holds: bool) -> Generator[float]:
        """Be where a condition holds, or does not; gives in which part of all rounds that is."""
        before, truth = self._here, self._at(condition) != 0
        here = before & (truth if holds else ~truth)
        share = float(here.sum() / before.sum())
        self._here = here if share else before
        yield share
        self._here = before

    def _at(self, e: Expr) -> Array:
        """Return an expression at the points; 1 where nothing is known."""
        match e:
            case OpenVar():
                return np.asarray(typical(e))
            case Var() if e in self._values:
                return self._values[e]
            case Const():
                return np.asarray(truncated(e.value, "int64"))
            case Binary() if e.op in _BINARY:
                return _BINARY[e.op](self._at(e.a), self._at(e.b))
            case Not():
                return self._at(e.a) == 0
            case Cast(a=a) | Call(name="likely", args=(a,)):
                return self._at(a)
            case Select():
                return np.where(self._at(e.condition) != 0, self._at(e.then), self._at(e.otherwise))
            case _:
                return np.asarray(1)
