"""Networks that are no one graph: data which they compute end their loops and choose their branches (runtime.steps).

A frontend cuts the network where it cannot be read into one graph, and raises `Hosted` with the outline; who compiles
it runs the steps in order, over arrays by their names. A piece is read once the types of its inputs are known, and may
have an outline of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from renorm.core.errors import UntoldOperand
from renorm.core.limits import Limits
from renorm.core.stated import Declared
from renorm.graph.ir import Graph
from renorm.runtime.steps import Part, Plan

Types = Mapping[str, Declared]
Reading = Callable[["Types | None", Mapping[str, Any], Limits], Graph]


@dataclass(frozen=True)
class Piece:
    """A part that is read by itself. read: the graph for inputs of these types (None: as the network declares them),
    of which some have these elements."""

    part: Part
    read: Reading


@dataclass(frozen=True)
class Outline:
    """A network in steps. pieces: of the parts of the plan, in their order. first: which of them takes nothing but
    inputs of the network, in their order; None: none does."""

    plan: Plan
    pieces: tuple[Piece, ...]
    first: int | None = None


class Hosted(UntoldOperand):
    """A network is no one graph: it runs by its outline."""

    def __init__(
        self,
        headline: str,
        facts: Iterable[str] = (),
        do: str | None = None,
        operand: object = None,
        outline: Outline | None = None,
    ):
        super().__init__(headline, facts, do, operand)
        self.outline = outline


@dataclass(frozen=True)
class Typed:
    """A piece for inputs of certain types: a source that `driver.compile` compiles as it does a file."""

    piece: Piece
    types: Types | None

    def read(self, elements: Mapping[str, Any], limits: Limits) -> Graph:
        return self.piece.read(self.types, elements, limits)
