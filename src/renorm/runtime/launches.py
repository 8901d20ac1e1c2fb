"""Launches of code for GPUs, as a program has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

GPU = "cuda"  # Machine.arch of code for GPUs
ALIGNED = 16  # bytes: the widest access of a thread; what a launch is given begins at a multiple of it


@dataclass(frozen=True)
class Launch:
    """One launch on a GPU. function: its name in the object. grid, block: extents x, y, z. args: which arguments of a
    step it takes, by their indices, in the order of its parameters. shared: bytes of shared memory that it asks for."""

    function: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: tuple[int, ...]
    shared: int = 0


def problems(code: str, launches: Sequence[Launch], expected: int, arguments: int) -> Iterator[str]:
    """Yield what is wrong with the launches of a code. expected: how many there must be. arguments: the fewest that a
    step gives it."""
    if len(launches) != expected:
        yield f"{code}: {len(launches)} launches, expected {expected}"
    for x in launches:
        if not (len(x.grid) == len(x.block) == 3 and min(*x.grid, *x.block) >= 1):
            yield f"{code}: {x.function} of {x.grid} x {x.block}"
        for a in x.args:
            if not 0 <= a < arguments:
                yield f"{code}: {x.function} takes argument {a}, there are {arguments}"
