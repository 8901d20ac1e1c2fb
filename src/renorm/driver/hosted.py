"""Modules for networks that are no one graph: the host runs loops and chooses branches, compiled pieces all else.

h, c = before(x)
while c: c, h = body(h, x)     as often as data say
y = after(h)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count as counting
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import format_shape
from renorm.core.errors import InvalidInput
from renorm.core.inputs import fixed_extents
from renorm.core.limits import Limits
from renorm.driver.module import CompiledModule, ExternalText, KernelText, SpecializingModule
from renorm.driver.pieces import Compiled, CompiledPiece
from renorm.driver.rounds import Run, Values
from renorm.driver.undecided import named_inputs
from renorm.frontends.outline import Choice, Outline, Piece, Typed, pieces
from renorm.graph.ir import Graph
from renorm.runtime.arrays import Slot, bind_out, handed_out, view_of
from renorm.runtime.module import Shapes
from renorm.runtime.program import TensorSpec
from renorm.runtime.report import KernelRecord, Report
from renorm.runtime.state import State

Array = np.ndarray[Any, Any]


class HostedModule(SpecializingModule):
    """A network that runs step by step. What comes before the first loop is compiled at once, other pieces when a call
    comes to them. Safe to call from several Python threads.

    obstacle: why it is no one graph. parts: the modules of each piece that are there, by its name. compiled: the module
    of a piece.
    """

    def __init__(self, outline: Outline, obstacle: str, compiled: Callable[[Typed], Compiled], limits: Limits):
        self.name, self.obstacle, self._outline, self._limits = outline.name, obstacle, outline, limits
        first = outline.first
        made = None if first is None else compiled(Typed(first, None))
        self._pieces = {id(p): CompiledPiece(p, compiled, made if p is first else None) for p in pieces(outline)}
        self._specs = tuple(TensorSpec(v.name, v.dtype, tuple(v.shape)) for v in outline.inputs)
        self._results: tuple[TensorSpec, ...] | None = None
        self._cancels, self._counted = 0, counting(1)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self._specs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """As they were in the last call. Raises InvalidInput before the first one."""
        if self._results is None:
            raise InvalidInput(f"{self.name} has no outputs yet", [self.obstacle], "call run")
        return self._results

    @property
    def parts(self) -> dict[str, tuple[Compiled, ...]]:
        return {p.piece.name: tuple(p.modules) for p in self._pieces.values()}

    @property
    def report(self) -> Report:
        """Of all pieces that are compiled by now: their kernels; the rest is that of the first one."""
        found = list[Report]()
        for module in self._modules():
            with suppress(InvalidInput):
                found.append(module.report)
        kernels = tuple(k for r in found for k in r.kernels)
        said = (f"{self._outline.name} runs in {len(self._pieces)} pieces: {self.obstacle.splitlines()[0]}",)
        return replace(found[0] if found else Report(), kernels=kernels, diagnoses=said)

    @property
    def state(self) -> State:
        return State((), ())

    @property
    def graph(self) -> Graph:
        raise InvalidInput(f"{self.name} is no one graph", [self.obstacle], "look at the modules in parts")

    def _modules(self) -> list[Compiled]:
        return [m for p in self._pieces.values() for m in p.modules]

    def run(
        self, /, *args: Any, out: Any = None, timeout: float | None = None, stream: int | None = None, **named: Any
    ) -> list[Any]:
        """As Module.run; where data end a loop `timeout` and `cancel` do as well. Compiling has no time limit.
        Raises LimitExceeded where results of rounds are more than limits allow."""
        values = self._bound(args, named)
        given = list(values.values())
        run = Run(self.name, self._pieces, self._limits, lambda: self._cancels, timeout)
        for step in self._outline.steps:
            if isinstance(step, Piece):
                values |= run.piece(step, values)
            elif isinstance(step, Choice):
                run.choice(step, values)
            else:
                run.rounds(step, values)
        results = list[Array]()
        for _, name in self._outline.outputs:
            value = values[name]
            is_held = any(value is other or np.may_share_memory(value, other) for other in (*given, *results))
            results.append(np.array(value, order="C") if is_held else value)
        specs = [
            TensorSpec(name, dtypes.from_numpy(a.dtype) or a.dtype.name, a.shape)
            for (name, _), a in zip(self._outline.outputs, results)
        ]
        self._results = tuple(specs)
        wanted = () if out is None else bind_out(self.name, [Slot(s) for s in specs], out)
        return handed_out(out, wanted, results)

    __call__ = run

    def _bound(self, args: Sequence[Any], named: Mapping[str, Any]) -> Values:
        """Return the inputs by name. Raises InvalidInput that lists what does not fit."""
        given = named_inputs(self.name, [s.name for s in self._specs], args, named)
        found, problems = Values(), list[str]()
        for spec in self._specs:
            array = view_of(given[spec.name]) if spec.name in given else "missing"
            if isinstance(array, str):
                what = array
            elif dtypes.from_numpy(array.dtype) == spec.dtype and array.ndim == len(spec.shape):
                found[spec.name] = array
                continue
            else:
                what = f"{array.dtype}{list(array.shape)}"
            problems.append(f"input {spec.name}: {what}, expected {spec.dtype}{format_shape(spec.shape)}")
        if problems:
            raise InvalidInput(f"{self.name}: the arrays given do not fit its inputs", problems)
        fixed_extents(self._specs, {n: a.shape for n, a in found.items()}, self.name)
        return found

    def specialized(self, /, **shapes: Any) -> CompiledModule:
        """Raise InvalidInput: shapes alone do not say what runs."""
        raise InvalidInput(f"{self.name} is no one program", [self.obstacle], "call run")

    def specialized_at(self, shapes: Shapes, elements: Shapes) -> CompiledModule:
        return self.specialized()

    def cancel(self) -> None:
        """As Module.cancel, between pieces as well."""
        self._cancels = next(self._counted)
        for module in self._modules():
            module.cancel()

    def kernel(self, name: str | KernelRecord) -> KernelText | ExternalText:
        """Return a kernel of the first piece that has one of that name."""
        for module in self._modules():
            with suppress(InvalidInput):
                return module.kernel(name)
        raise InvalidInput(f"{self.name}: no piece that is compiled by now has a kernel {str(name)!r}")

    def save(self, path: Any, key: Any = None) -> str:
        """Raise InvalidInput: an artifact is one program."""
        raise InvalidInput(f"{self.name}: an artifact holds one program", [self.obstacle])
