"""Extents that may be open: as those of core.dims, and whether two are equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Union

from renorm.core.dims import APPLIED, Dim
from renorm.core.errors import InvalidExpression
from renorm.expr.bounds import open_truth
from renorm.expr.nodes import Binary, Cast, Const, Expr, OpenVar, as_expr

Extent = Union[int, Expr]


def as_dim(extent: Extent, of: Callable[[OpenVar], Dim]) -> Dim:
    """Return an extent as one of core.dims. of: gives what stands for a variable. Raises InvalidExpression for what is
    no polynomial of extents, their quotients, remainders, minima and maxima."""
    match extent:
        case Const():
            return int(extent.value)
        case OpenVar():
            return of(extent)
        case Cast():
            return as_dim(extent.a, of)
        case Binary(op=op) if op in APPLIED:
            return APPLIED[op](as_dim(extent.a, of), as_dim(extent.b, of))
        case Expr():
            raise InvalidExpression(f"{extent} is not an extent", ["expected sums, products and quotients"])
        case _:
            return int(extent)


def same_extent(a: Extent, b: Extent) -> bool:
    """Return whether two extents are equal; open ones, where they are at all values of their variables."""
    if isinstance(a, Expr) or isinstance(b, Expr):
        return a is b or open_truth(as_expr(a).equal(b)) is True
    return a == b


def at_most(a: Extent, b: Extent) -> bool:
    """Return whether an extent is known not to exceed another; open ones, at all values of their variables."""
    if isinstance(a, Expr) or isinstance(b, Expr):
        return open_truth(as_expr(a) <= b) is True
    return a <= b


def differ(a: Extent, b: Extent) -> bool:
    """Return whether two extents are known to differ; open ones, at all values of their variables."""
    if isinstance(a, Expr) or isinstance(b, Expr):
        return open_truth(as_expr(a).equal(b)) is False
    return a != b
