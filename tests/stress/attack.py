"""Attacks on renorm: what one is, and where they are found.

A file of this directory declares attacks by decorating functions of a seed:

    @attack(limit_s=10, in_gate=5)
    def interrupts(seed: int) -> None:
        \"\"\"Ctrl-C at a random moment of a run: the next run is right.\"\"\"

One call is one attempt. It draws what it needs from its seed, and raises AssertionError where renorm gives in. A crash
of the process or an attempt that outlasts its limit is found by who runs it (tests.stress.batch).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

Attempt = Callable[[int], None]


@dataclass(frozen=True)
class Attack:
    """limit_s: seconds after which an attempt counts as a hang, on a machine that does other work too.
    in_gate: how many attempts the gate makes."""

    attempt: Attempt
    limit_s: float
    in_gate: int

    @property
    def name(self) -> str:
        """file.function"""
        return f"{self.attempt.__module__.rpartition('.')[2]}.{self.attempt.__name__}"

    @property
    def claim(self) -> str:
        """The first line of the docstring: what holds however it is attacked."""
        return (self.attempt.__doc__ or "").strip().split("\n")[0]


_declared: dict[str, Attack] = {}


def attack(limit_s: float, in_gate: int) -> Callable[[Attempt], Attempt]:
    """Declares the function below as an attack."""

    def declare(attempt: Attempt) -> Attempt:
        one = Attack(attempt, limit_s, in_gate)
        _declared[one.name] = one
        return attempt

    return declare


def named(name: str) -> Attack:
    """The attack of this name, file.function."""
    import_module(f"tests.stress.{name.partition('.')[0]}")
    return _declared[name]


@cache
def attacks() -> dict[str, Attack]:
    """All attacks by their names, of all files beside this one whose names do not begin with _ or test_. Those of files
    that need PyTorch are missing where it is not installed."""
    stems = {path.stem for path in Path(__file__).parent.glob("[!_]*.py") if not path.stem.startswith("test_")}
    for stem in sorted(stems):
        try:
            import_module(f"tests.stress.{stem}")
        except ModuleNotFoundError as e:
            if e.name != "torch":
                raise
    return {name: one for name, one in sorted(_declared.items()) if name.partition(".")[0] in stems}
