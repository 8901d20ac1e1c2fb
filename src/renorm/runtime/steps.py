"""Networks that are no one program, as data: data which they compute end their loops and choose their branches.

    Part     x, w -> h, c          a program of its own
    Rounds   c, h -> h'            its body, a part, as often as data say
    Part     h' -> y

Steps take and give arrays by the names of values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Union

from renorm.runtime.program import TensorSpec


@dataclass(frozen=True)
class Part:
    """inputs: names of the values that it takes, none of them twice; outputs: of those that it computes."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Whole:
    """A part, by its number, that runs once."""

    part: int


@dataclass(frozen=True)
class Body:
    """A part, by its number, as what runs it sees it. results: names of its outputs or of what it sees, which it passes
    on."""

    part: int
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
    those of which each round takes a slice, with how. number, going, carried, slices: what the body calls its number,
    the condition, states and slices; None: it takes none. body: its results are the condition, where there is one,
    states, and what is put together, for which `stacked` has one entry each. results: names of states after the last
    round and of what was put together; "" for what nobody reads.
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


Step = Union[Whole, Rounds, Choice]


@dataclass(frozen=True)
class Plan:
    """A network in steps. inputs: those that a call gives. outputs: with the names of the values that they are.
    obstacle: why it is no one program. results: the outputs with their types, as far as these are the same in all
    calls; none where they are not."""

    name: str
    inputs: tuple[TensorSpec, ...]
    parts: tuple[Part, ...]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, str], ...]
    obstacle: str = ""
    results: tuple[TensorSpec, ...] = ()

    @property
    def names(self) -> list[str]:
        """Return the names of parts in the order of steps."""
        return [self.parts[number].name for step in self.steps for number in parts_of(step)]

    def fault(self) -> str:
        """Return what contradicts itself; "" where nothing does."""
        known = {v.name for v in self.inputs}
        for step in self.steps:
            needed, bodies, made = _flow(step)
            if not all(0 <= part < len(self.parts) for part in parts_of(step)):
                return f"{step} runs a part that there is not"
            if isinstance(step, Whole):
                needed, made = self.parts[step.part].inputs, self.parts[step.part].outputs
            for body, own in bodies:
                part = self.parts[body.part]
                needed = (*needed, *(n for n in (*part.inputs, *body.results) if n not in {*own, *part.outputs}))
            if isinstance(step, Rounds):
                count = (step.condition is not None) + len(step.states) + len(step.stacked)
                pairs = [(step.carried, step.states), (step.slices, step.sliced), (range(count), step.body.results)]
                if any(len(a) != len(b) for a, b in pairs) or len(made) > len(step.states) + len(step.stacked):
                    return f"{step.kind} {step.name!r} has other numbers of states than its body"
            elif any(len(made) > len(body.results) for body, _ in bodies):
                return f"{step} has more results than a branch"
            if missing := [n for n in needed if n not in known]:
                return f"{missing[0]!r} is read before it is there"
            known.update(made)
        if self.results and len(self.results) != len(self.outputs):
            return f"{len(self.results)} types for {len(self.outputs)} outputs"
        return next((f"output {n!r} is not there" for n, value in self.outputs if value not in known), "")


def _flow(step: Step) -> tuple[tuple[str, ...], list[tuple[Body, set[str | None]]], tuple[str, ...]]:
    """Return what a step reads itself, its bodies with what each is given besides, and what it makes."""
    if isinstance(step, Whole):
        return (), [], ()
    if isinstance(step, Choice):
        return (step.condition,), [(body, set[str | None]()) for body in step.bodies], step.results
    own = {step.number, step.going, *step.carried, *step.slices}
    read = (step.count, step.condition, *step.states, *(name for name, _ in step.sliced))
    return tuple(n for n in read if n is not None), [(step.body, own)], step.results


def parts_of(step: Step) -> Iterator[int]:
    """Yield the numbers of the parts that a step runs."""
    if isinstance(step, Whole):
        yield step.part
    else:
        yield from (b.part for b in ((step.body,) if isinstance(step, Rounds) else step.bodies))
