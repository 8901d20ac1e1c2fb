"""Limits of what a model may ask for, checked before it is allocated or run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from math import log10

from renorm.core import cgroups
from renorm.core.errors import InvalidInput, LimitExceeded

_ADDRESSES = 1 << 62  # elements from which on indices do not fit into 64 bits with their signs and strides

Found = tuple[str, int, str]  # a limit, the number that was found, and where


@dataclass(frozen=True)
class Limits:
    """The most that a model may ask for. What is more is refused, with one error (LimitExceeded) that says all of it: a
    file of a few bytes may describe a network that takes all memory, or has no end.

    file_bytes: of one file of a model. nodes: of a model, with those in branches and in functions that are called.
    expansions: nodes that bodies of the model's own functions put in the place of calls. nesting: graphs within each
    other, and functions that call functions. elements: of one tensor. bytes: inputs, outputs and constants together,
    and weights with the memory for values between; by default what this process may use. operations: of one run, each
    element that is computed or added up counted once.
    """

    file_bytes: int = 1 << 36
    nodes: int = 200_000
    expansions: int = 100_000
    nesting: int = 32
    elements: int = 1 << 36
    bytes: int = field(default_factory=cgroups.memory)
    operations: int = 1 << 46

    def __post_init__(self) -> None:
        for name, most in vars(self).items():
            if isinstance(most, bool) or not isinstance(most, (int, float)) or most != most // 1 or most < 0:
                raise InvalidInput(f"limits: {name} is {most!r}", ["expected a whole number, 0 or more"])
            object.__setattr__(self, name, int(most))  # 1e15 is a way to write it
        object.__setattr__(self, "elements", min(self.elements, _ADDRESSES))

    def check(self, what: str, found: Iterable[Found]) -> None:
        """Raise LimitExceeded that lists all of `found` that is more than allowed. what: how errors call the model."""
        over = [(name, number, where) for name, number, where in found if number > getattr(self, name)]
        if not over:
            return
        names = list(dict.fromkeys(name for name, _, _ in over))
        fixed = ["elements"] if any(number > _ADDRESSES for name, number, _ in over if name == "elements") else []
        names = [name for name in names if name not in fixed]
        raised, options = ", ".join(f"{n}=..." for n in names), " ".join(f"--limit {n}=..." for n in names)
        raise LimitExceeded(
            f"{what}: it asks for more than is allowed",
            [
                f"{name}: {_text(number)}, at most {_text(getattr(self, name))}" + (f"; {where}" if where else "")
                for name, number, where in over
            ],
            f"if that is meant, raise the limit: limits=renorm.Limits({raised}), {options}"
            if names
            else "such tensors have no addresses: make it smaller",
        )


NAMES = tuple(f.name for f in fields(Limits))
DEFAULT = Limits()


def _text(number: int) -> str:
    """As digits; where these are many as about how many."""
    return f"{number:,}" if number < 10**12 else f"{number:.3g}" if number < 10**300 else f"10^{log10(number):.0f}"
