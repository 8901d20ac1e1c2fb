"""What inference takes to be so of open extents: that two are equal, that one is not larger, or a multiple.

A network with inputs [N, 3] and [M, 3] that adds both has N == M, or no result; a table of 512 rows of which it reads
the first L has L <= 512. Whoever infers a shape says what it takes to be so (`dims.take`), where numbers would be
compared; `noted` collects. A call must be held against that before anything runs, and within a call it is a fact.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from renorm.core.dims import TAKEN, Dim, Sizes, bounds, substitute


@dataclass(frozen=True)
class Condition:
    """left == right, or left <= right."""

    left: Dim
    relation: str
    right: Dim

    def holds(self, sizes: Sizes) -> bool | None:
        """Return whether it holds where symbols are these numbers; None where they leave it open."""
        return self.replaced(sizes).decided()

    def replaced(self, sizes: Sizes) -> Condition:
        """Return the condition with symbols replaced."""
        return Condition(substitute(self.left, sizes), self.relation, substitute(self.right, sizes))

    def decided(self) -> bool | None:
        """Return whether it holds for all values of its symbols, or for none; None otherwise."""
        least, most = bounds(self.left - self.right)
        if self.relation == "<=":
            return True if most <= 0 else False if least > 0 else None
        return True if least == most == 0 else False if least > 0 or most < 0 else None

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


@contextmanager
def noted() -> Generator[list[Condition]]:
    """Collect what is taken to be so inside the block."""
    found, taken = list[Condition](), list[tuple[Dim, str, Dim]]()
    token = TAKEN.set(taken)
    try:
        yield found
    finally:
        TAKEN.reset(token)
        found += (c for c in dict.fromkeys(Condition(*t) for t in taken) if c.decided() is not True)
