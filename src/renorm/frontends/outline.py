"""Networks that are no one graph: data which they compute end their loops and choose their branches.

    before   x, w -> h, c            a Piece: a graph of its own
    Rounds   c, h -> h'              its body, a Piece, as often as data say
    after    h' -> y                 a Piece

A frontend cuts the network where it cannot be read into one graph, and raises `Hosted` with the outline; who compiles
it runs the steps in order, over arrays by their names. A piece is read once the types of its inputs are known, and may
have an outline of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from renorm.core.errors import UntoldOperand
from renorm.core.limits import Limits
from renorm.core.stated import Declared
from renorm.graph.ir import Graph

Types = Mapping[str, Declared]
Reading = Callable[["Types | None", Mapping[str, Any], Limits], Graph]


@dataclass(frozen=True)
class Piece:
    """A part that is read by itself. inputs: names of the values that it takes, none of them twice; outputs: of those
    that it computes. read: the graph for inputs of these types (None: as the network declares them), of which some have
    these elements."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    read: Reading


@dataclass(frozen=True)
class Body:
    """A piece as what runs it sees it. results: names of its outputs or of what it sees, which it passes on."""

    piece: Piece
    results: tuple[str, ...]


@dataclass(frozen=True)
class Along:
    """Along which axis slices are read or results are put together, and whether from the end."""

    axis: int = 0
    is_backward: bool = False


@dataclass(frozen=True)
class Rounds:
    """A body that runs round by round, on what it made in the round before.

    name: of the node. kind: its op. count, condition: names of the values that say how many rounds there are at most,
    and whether there is a first one; None: they do not end it. states: of the values of the first round. sliced: of
    those of which each round takes a slice. number, going, carried, slices: what the body calls its number, the
    condition, states and slices; None: it takes none. body: its results are the condition, where there is one, states,
    and what is put together, for which `stacked` has one entry each. results: names of states after the last round and
    of what was put together; "" for what nobody reads.
    """

    name: str
    kind: str
    count: str | None
    condition: str | None
    states: tuple[str, ...]
    number: str | None
    going: str | None
    carried: tuple[str, ...]
    body: Body
    results: tuple[str, ...]
    stacked: tuple[Along, ...] = ()
    sliced: tuple[tuple[str, Along], ...] = ()
    slices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """One of two bodies, which a condition chooses. results: names of their results."""

    name: str
    kind: str
    condition: str
    bodies: tuple[Body, Body]
    results: tuple[str, ...]


Step = Union[Piece, Rounds, Choice]


@dataclass(frozen=True)
class Outline:
    """A network in steps. inputs: those that a call gives. first: the piece among steps that takes nothing but inputs;
    None: there is none. outputs: with the names of the values that they are."""

    name: str
    inputs: tuple[Declared, ...]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, str], ...]
    first: Piece | None = None


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


def pieces(outline: Outline) -> Sequence[Piece]:
    """Return all pieces of an outline, in order."""
    found = list[Piece]()
    for step in outline.steps:
        if isinstance(step, Piece):
            found.append(step)
        else:
            found += [b.piece for b in ((step.body,) if isinstance(step, Rounds) else step.bodies)]
    return found
