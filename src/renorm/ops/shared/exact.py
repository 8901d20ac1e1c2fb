"""Arithmetic of known elements, by which the shape chains of exporters are followed before shapes are fixed.

An element is an int, a bool, a NumPy float of the value's own precision, a Sym, or a Ratio, a part of one on its way to
be rounded. A function returns None where the answer depends on what a Sym will be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from renorm.core import dims
from renorm.core.dims import Dim, Quotient, Shape, Sym, bounds
from renorm.core.spans import decided
from renorm.expr.nodes import fold_integers

Known = tuple[Shape, "np.ndarray[Any, Any] | None"]
"""An operand as `known_result` sees it: its shape, and its elements where they are known."""

MOST = 1024  # elements of one value that are tracked; real chains have fewer than 20


def elementwise(f: Callable[..., Any], *operands: Known) -> np.ndarray[Any, Any] | None:
    """`f` over known elements with broadcasting; None where an operand is unknown, or `f` cannot say."""
    arrays = [known for _, known in operands if known is not None]
    if len(arrays) < len(operands):
        return None
    if any(isinstance(e, Quotient) for a in arrays for e in a.flat):
        return None  # a scale is only handed on
    spread = np.broadcast_arrays(*arrays)
    result = np.empty(spread[0].shape, dtype=object)
    if result.size > MOST:
        return None
    for index in np.ndindex(result.shape) if result.size else ():  # which is slow along many of no elements
        element = f(*(a[index] for a in spread))
        if element is None:
            return None
        result[index] = element
    return result


@dataclass(frozen=True)
class Ratio:
    """A float: an extent over a power of two, which floats hold exactly."""

    extent: Dim
    over: int

    def floor(self) -> Dim:
        return self.extent // self.over

    def ceil(self) -> Dim:
        return (self.extent + (self.over - 1)) // self.over

    def truncated(self) -> Dim | None:
        return self.floor() if bounds(self.extent)[0] >= 0 else None

    def __neg__(self) -> Ratio:
        return Ratio(-self.extent, self.over)


MOST_PARTS = 64  # of an extent; exporters write halves, quarters, and 32nds


def _times(a: Any, factor: Fraction) -> Any:
    """a, an extent or a part of one, times a number; None where floats may round it."""
    extent, over = (a.extent, a.over) if isinstance(a, Ratio) else (a, 1)
    factor /= over
    parts = factor.denominator
    if parts > MOST_PARTS or parts & (parts - 1):
        return None
    made = extent * factor.numerator
    return made // parts if made % parts == 0 else Ratio(made, parts)


def fraction(x: Any) -> Fraction | None:
    """Return a finite number exactly; None of anything else."""
    is_number = isinstance(x, (int, float, np.floating)) and not isinstance(x, bool) and np.isfinite(x)
    return Fraction(float(x) if isinstance(x, np.floating) else x) if is_number else None


def multiply(a: Any, b: Any) -> Any:
    """A float times an extent may be a part of it."""
    for one, other in ((a, b), (b, a)):
        if isinstance(one, (Sym, Ratio)) and isinstance(other, (np.floating, int)):
            factor = fraction(other)
            return None if factor is None else _times(one, factor)
    return _multiplied(a, b)


def _arithmetic(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(a: Any, b: Any) -> Any:
        if isinstance(a, Ratio) or isinstance(b, Ratio):
            return None
        if isinstance(a, Sym) or isinstance(b, Sym):  # a float that meets an extent must be whole
            a, b = _whole(a), _whole(b)
            return None if a is None or b is None else f(a, b)
        with np.errstate(all="ignore"):
            return f(a, b)

    return apply


def _whole(x: Any) -> Any:
    if isinstance(x, Ratio):
        return None
    if isinstance(x, np.floating):
        return int(x) if float(x).is_integer() else None
    return x


add = _arithmetic(lambda a, b: a + b)
subtract = _arithmetic(lambda a, b: a - b)
_multiplied = _arithmetic(lambda a, b: a * b)


def _part(a: Any, b: Any) -> Any:
    """An extent over a float, where floats hold it exactly."""
    by = fraction(b) if isinstance(a, (Sym, Ratio)) and isinstance(b, np.floating) else None
    return _times(a, 1 / by) if by else None


def divide(a: Any, b: Any) -> Any:
    """Integers truncate toward zero. An extent over an extent is known where it divides, and else a Quotient, which is
    none of integers; one over a float is where it divides, or where that is a power of two."""
    if (part := _part(a, b)) is not None:
        return part
    if isinstance(a, Ratio) or isinstance(b, Ratio):
        return None
    if isinstance(a, Sym) or isinstance(b, Sym):
        by = _whole(b)  # an extent, or a number that is no power of two
        if isinstance(by, Sym) and isinstance(whole := _whole(a), int):
            return Quotient(whole, by)
        if not isinstance(a, Sym) or by is None or bounds(by)[0] < 0 or by == 0:
            return None
        if bounds(a)[0] < 0:
            dims.take(0, "<=", a)  # else it would not be rounded down
        return a // by if isinstance(b, int) or a % by == 0 else Quotient(a, by)
    if isinstance(a, np.floating):
        with np.errstate(all="ignore"):
            return a / b
    return fold_integers("/", a, b)


def modulo(a: Any, b: Any) -> Any:
    """a - b * floor(a / b), over integers."""
    if isinstance(a, Sym):
        return a % b if isinstance(b, int) and b > 0 else None
    return fold_integers("%", a, b) if isinstance(a, int) and isinstance(b, int) else None


def remainder(a: Any, b: Any) -> Any:
    """a - b * trunc(a / b), over integers; the same as modulo for extents."""
    if isinstance(a, Sym):
        return modulo(a, b)
    quotient = fold_integers("/", a, b) if isinstance(a, int) and isinstance(b, int) else None
    return None if quotient is None else a - b * quotient


def power(a: Any, b: Any) -> Any:
    return fold_integers("pow", a, b) if isinstance(a, int) and isinstance(b, int) else None


def _compared(op: str, a: Any, b: Any) -> bool | None:
    difference = subtract(int(a) if isinstance(a, bool) else a, int(b) if isinstance(b, bool) else b)
    return None if difference is None else decided(op, bounds(difference))


def equal(a: Any, b: Any) -> bool | None:
    return _compared("==", a, b)


def greater(a: Any, b: Any) -> bool | None:
    return _compared(">", a, b)


def greater_or_equal(a: Any, b: Any) -> bool | None:
    return _compared(">=", a, b)


def less(a: Any, b: Any) -> bool | None:
    return _compared("<", a, b)


def less_or_equal(a: Any, b: Any) -> bool | None:
    return _compared("<=", a, b)


def maximum(a: Any, b: Any) -> Any:
    is_above = greater_or_equal(a, b)
    return _extreme(dims.maximum, a, b) if is_above is None else a if is_above else b


def minimum(a: Any, b: Any) -> Any:
    is_above = greater_or_equal(a, b)
    return _extreme(dims.minimum, a, b) if is_above is None else b if is_above else a


def _extreme(f: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    a, b = _whole(a), _whole(b)
    return None if a is None or b is None else f(a, b)
