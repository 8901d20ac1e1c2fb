"""Options of `compile`: checked once, and handed on as one record."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from renorm import targets
from renorm.core import system
from renorm.core.dtypes import PRECISIONS
from renorm.core.errors import InvalidInput
from renorm.core.limits import DEFAULT, Limits
from renorm.core.target import Target
from renorm.driver.kernels import Progress
from renorm.driver.weights import SharedConstants
from renorm.runtime.checks import Check
from renorm.runtime.openmp import ParallelRegion
from renorm.runtime.state import State


@dataclass(frozen=True)
class Options:
    """The request to `compile`."""

    target: Target
    level: int
    keep: tuple[str, ...]
    verify: bool
    threads: int | ParallelRegion | None = None
    progress: Progress | None = None
    precision: str = "fast"
    without: tuple[str, ...] = ()  # passes that are left out; see verified.UNSEEN
    state: State | None = None  # the last inputs of the graph, and what its last outputs become
    checked: bool = False
    checks: tuple[Check, ...] = ()  # of which the graph has outputs
    specializations: int = 0
    shared: SharedConstants | None = None  # of modules for other extents of the same network
    limits: Limits = DEFAULT
    device: int = 0
    is_planned: bool = False  # no code is made
    is_final: bool = True  # nothing more will be told of extents of inputs before a run


def options_of(
    target: str | Target = "llvm",
    opt_level: int = 3,
    keep: Sequence[str] = (),
    threads: int | ParallelRegion | None = None,
    verify: bool = False,
    precision: str = "fast",
    progress: Progress | None = None,
    limits: Limits = DEFAULT,
    runs: bool = True,
) -> Options:
    """Return what `compile` is asked for with these arguments. runs: so that code is made, which this machine must be
    able to run where it is for it. Raises InvalidInput, InvalidTarget."""
    if opt_level not in (0, 1, 2, 3):
        raise InvalidInput(f"opt_level is {opt_level!r}", ["known: 0, 1, 2, 3"])
    if precision not in PRECISIONS:
        raise InvalidInput(f"precision is {precision!r}", [f"known: {', '.join(map(repr, PRECISIONS))}"])
    if not isinstance(limits, Limits):
        raise InvalidInput(f"limits is {limits!r}", ["expected renorm.Limits(...)"])
    chosen = targets.find(target)
    if runs:
        system.require(chosen)
    return Options(chosen, opt_level, keep_names(keep), verify, threads, progress, precision, limits=limits)


def keep_names(keep: Sequence[str]) -> tuple[str, ...]:
    """`keep` and what the environment variable RENORM_KEEP adds to it, each once. Raises InvalidInput."""
    given = [keep] if isinstance(keep, str) else keep
    if not isinstance(given, Iterable) or not all(isinstance(name, str) for name in given):
        raise InvalidInput(f"keep is {keep!r}", ["expected names of ops or nodes"])
    return tuple(
        dict.fromkeys((*given, *(k.strip() for k in os.environ.get("RENORM_KEEP", "").split(",") if k.strip())))
    )
