"""Spans of integers: the least and greatest value, and what arithmetic and comparisons make of them."""

from __future__ import annotations

from math import inf

Span = tuple[float, float]  # least and greatest value, or infinities; finite ends are Python integers
EVERYTHING: Span = (-inf, inf)
# what holds of integers where op does not
NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def span_of(op: str, a: Span, b: Span) -> Span:
    """Least and greatest value of x op y for all x and y within their spans."""
    (l1, h1), (l2, h2) = a, b
    match op:
        case "+":
            return (l1 + l2, h1 + h2)
        case "-":
            return (l1 - h2, h1 - l2)
        case "*":
            corners = [_product(x, y) for x in a for y in b]
            return (min(corners), max(corners))
        case "//" | "/":
            if min(b) <= 0 <= max(b):  # under facts that never hold together l2 may exceed h2
                return EVERYTHING
            corners = [_quotient(x, y, op == "//") for x in a for y in b]
            return (min(corners), max(corners))
        case "%":
            if l2 <= 0:
                return EVERYTHING
            if l1 >= 0 and h1 < l2:
                return a
            return (0, min(h2 - 1, h1 if l1 >= 0 else inf))
        case "fmod":  # 0 by zero
            most = max(abs(l2), abs(h2), 1) - 1
            return (max(min(l1, 0), -most), min(max(h1, 0), most))
        case "min":
            return (min(l1, l2), min(h1, h2))
        case "max":
            return (max(l1, l2), max(h1, h2))
        case _:
            return EVERYTHING


def _product(x: float, y: float) -> float:
    return 0 if x == 0 or y == 0 else x * y


def _quotient(x: float, y: float, floor: bool) -> float:
    if x in (inf, -inf):
        return x if y > 0 else -x
    if y in (inf, -inf):
        return (0 if (x >= 0) == (y > 0) or x == 0 else -1) if floor else 0
    exact = int(x) // int(y)
    return exact if floor or exact >= 0 else -(abs(int(x)) // abs(int(y)))


def either(a: Span, b: Span) -> Span:
    """Least and greatest value of what lies in one span or in the other."""
    return min(a[0], b[0]), max(a[1], b[1])


def is_finite(span: Span) -> bool:
    return span[0] > -inf and span[1] < inf


def is_within(span: Span, size: int) -> bool:
    """Return whether all of a span are indices of `size` elements."""
    return span[0] >= 0 and span[1] < size


def fits_int32(span: Span) -> bool:
    return span[0] >= -(2**31) and span[1] < 2**31


def decided(op: str, difference: Span) -> bool | None:
    """The truth of `d op 0` for all d within the span; None where some are true and some are not."""
    low, high = difference
    if op in (">", ">=", "!="):
        opposite = decided(NEGATED[op], difference)
        return None if opposite is None else not opposite
    always, never = {
        "<": (high < 0, low >= 0),
        "<=": (high <= 0, low > 0),
        "==": (low == high == 0, low > 0 or high < 0),
    }[op]
    return True if always else False if never else None
