"""How the axes of a stage come from one another: split, fuse, and the axis of a stage that has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from renorm.expr.nodes import Expr
from renorm.te.tensor import IterVar


@dataclass(frozen=True, eq=False)
class Split:
    """parent = outer * (extent of inner) + inner, by factor (extent of inner) or by nparts (extent of outer)."""

    parent: IterVar
    outer: IterVar
    inner: IterVar
    factor: int | None
    nparts: int | None

    def extents(self, extent: int) -> tuple[int, int]:
        """Extents of outer and inner where the parent has `extent`: no rounds that would all be outside."""
        if isinstance(extent, Expr):  # open: at most this much
            other = self.factor or self.nparts or 1
            rest = (extent + (other - 1)) // other
            return (rest, other) if self.factor else (other, rest)
        if extent == 0:
            return 0, 1
        if self.factor is not None:
            inner = min(self.factor, extent)
        else:
            assert self.nparts is not None
            inner = -(-extent // self.nparts)
        return -(-extent // inner), inner


@dataclass(frozen=True, eq=False)
class Fuse:
    """fused = outer * (extent of inner) + inner."""

    outer: IterVar
    inner: IterVar
    fused: IterVar


@dataclass(frozen=True, eq=False)
class Singleton:
    """An axis of extent 1 that stands for no axis at all, so that a stage without axes has a loop to bind."""

    axis: IterVar


Relation = Union[Split, Fuse, Singleton]
