"""Functions with open extents: compiled once, and bound to each new combination of them when they are called."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import te
from renorm.core.errors import InvalidInput, InvalidSchedule
from renorm.core.lru import Latest
from renorm.expr.nodes import OpenVar
from renorm.runtime.arrays import shape_of
from renorm.runtime.function import Entry, Function
from renorm.te.open import open_variables
from renorm.tir.nodes import Kernel

# How many combinations of extents are kept; the one not used for the longest time goes first.
COMBINATIONS = 64

Values = dict[OpenVar, int]
Argument = te.Tensor | OpenVar


class OpenProgram:
    """A schedule some of whose extents are open, with its arguments: tensors, and variables that come as numbers.

    Raises InvalidSchedule for variables that neither the shapes of the tensors nor the arguments tell.
    """

    def __init__(self, schedule: te.Schedule, args: Sequence[Argument], name: str):
        self.schedule, self.args, self.name = schedule, tuple(args), name
        self.tensors = [a for a in args if isinstance(a, te.Tensor)]
        self.variables = open_variables(schedule, args)
        self.extents = {d for t in self.tensors for d in t.shape if isinstance(d, OpenVar)}
        told = self.extents | {a for a in args if isinstance(a, OpenVar)}
        unknown = [v.name for v in self.variables if v not in told]
        if unknown:
            raise InvalidSchedule(
                f"{name}: {', '.join(unknown)} is the extent of no argument",
                [f"{t.name} {list(map(str, t.shape))}" for t in self.tensors],
                "give it among the arguments: build(s, [A, B, n]), and a number at its place in each call",
            )

    def values(self, given: Sequence[Any]) -> Values:
        """Return the variables where these are the arguments of a call. Raises InvalidInput that lists everything
        that does not fit."""
        if len(given) != len(self.args):
            names = ", ".join(a.name for a in self.args)
            raise InvalidInput(f"kernel {self.name} takes {len(self.args)} arguments, not {len(given)}", [names])
        found, problems = Values(), list[str]()
        for a, x in zip(self.args, given):
            if isinstance(a, OpenVar):
                if isinstance(x, bool) or not isinstance(x, (int, np.integer)):
                    problems.append(f"{a.name} is {type(x).__name__} {x!r}, expected an int")
                    continue
                told: list[tuple[Any, int]] = [(a, int(x))]
            else:
                try:
                    shape = shape_of(x)
                except InvalidInput as error:
                    problems.append(f"{a.name} is {error}")
                    continue
                if len(shape) != len(a.shape):
                    problems.append(f"{a.name} has shape {list(shape)}, expected {list(map(str, a.shape))}")
                    continue
                told = list(zip(a.shape, shape))
            for d, n in told:
                if isinstance(d, OpenVar) and found.setdefault(d, n) != n:
                    problems.append(f"{d.name} is {found[d]}, and {n} in {a.name}")
        if problems:
            raise InvalidInput(f"the arguments of {self.name} do not fit each other", problems)
        return found

    def specialized(self, values: Values) -> tuple[te.Schedule, list[te.Tensor]]:
        """Return the program for these values, and its tensors among the arguments."""
        return te.specialize(self.schedule, self.tensors, values)

    def __str__(self) -> str:
        """Return the arguments that it is called with, as text."""
        return ", ".join(
            f"{a.name} {a.dtype}[{', '.join(map(str, a.shape))}]" if isinstance(a, te.Tensor) else a.name
            for a in self.args
        )


@dataclass(frozen=True)
class OpenLoops:
    """The result of `lower` for an open program: str() is its loops, for all extents."""

    program: OpenProgram
    kernel: Kernel
    text: str

    def __str__(self) -> str:
        return self.text


class OpenFunction(Entry):
    """A function of arrays, and of the numbers among its arguments, whose extents are open. The tables of addresses and
    counts of the latest combinations of extents are kept. Calls are as those of a Function.
    """

    def __init__(self, program: OpenProgram, at: Callable[[Values], Function]):
        """at: gives the function for some values."""
        self.program, self._at = program, at
        self._made = Latest[tuple[int, ...], Function](f"{program.name} at an extent", COMBINATIONS)

    @property
    def entry_name(self) -> str:
        return self.program.name

    def specialized(self, values: Values) -> Function:
        """Return the function for these values."""
        key = tuple(values[v] for v in self.program.variables)
        return self._made.made(key, lambda: self._at(values))

    def __call__(self, *arguments: Any) -> None:
        function = self.specialized(self.program.values(arguments))
        function(*(x for a, x in zip(self.program.args, arguments) if isinstance(a, te.Tensor)))

    def _last(self) -> Function:
        if (found := self._made.last()) is None:
            raise InvalidInput(f"{self.entry_name} is not compiled before its first call", [str(self.program)])
        return found

    def get_source(self, fmt: str = "ll") -> str:
        """As a module's, of the combination used last."""
        return self._last().get_source(fmt)

    def export_library(self, file_name: str | os.PathLike[str]) -> None:
        """Write the only combination there is: a file has fixed extents."""
        if len(self._made) != 1:
            raise InvalidInput(
                f"{self.entry_name} has open extents and {len(self._made)} combinations, a file holds one",
                [str(self.program)],
                "write it after the first call, or build what te.specialize gives",
            )
        self._last().export_library(file_name)

    save = export_library
