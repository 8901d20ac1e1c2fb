"""Modules for networks that are no one graph: the host runs loops and chooses branches, compiled pieces all else.

What can be told of the types between pieces is, and they are compiled for these at once; others when a call comes to
them, for the types that it brings.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from renorm.core.errors import InvalidInput, LimitExceeded, OutOfMemory, RenormError
from renorm.core.limits import Limits
from renorm.driver.foretold import Foretold
from renorm.driver.module import CompiledModule, ExternalText, KernelText, SpecializingModule
from renorm.driver.pieces import Compiled, CompiledPiece
from renorm.frontends.outline import Outline, Typed
from renorm.graph.ir import Graph
from renorm.runtime import threads as teams
from renorm.runtime.artifact import Encoded
from renorm.runtime.module import Shapes
from renorm.runtime.openmp import ParallelRegion
from renorm.runtime.piecewise import PiecewiseModule
from renorm.runtime.report import KernelRecord
from renorm.runtime.signing import Key


class HostedModule(PiecewiseModule, SpecializingModule):
    """A network that runs step by step, compiled in this process. compiled: the module of a piece."""

    def __init__(
        self,
        outline: Outline,
        compiled: Callable[[Typed], Compiled],
        threads: int | ParallelRegion | None,
        limits: Limits,
    ):
        made = [CompiledPiece(piece, compiled, limits) for piece in outline.pieces]
        outputs = None
        if outline.first is not None:
            start = made[outline.first]
            start.first = compiled(Typed(start.piece, None))
            with suppress(InvalidInput):  # of one that elements decide about nothing is known
                outputs = start.first.outputs
        told = Foretold.of(outline, limits, outputs)
        for number, types in told.types.items():
            try:
                made[number].first = compiled(Typed(outline.pieces[number], types))
            except (LimitExceeded, OutOfMemory):
                raise
            except RenormError:  # what a call brings may say more
                continue
        plan = replace(outline.plan, results=told.outputs or ())
        PiecewiseModule.__init__(self, plan, made, teams.resolve(threads), limits)

    @property
    def graph(self) -> Graph:
        raise InvalidInput(f"{self.name} is no one graph", [self.obstacle], "look at the modules in parts")

    def specialized(self, /, **shapes: Any) -> CompiledModule:
        """Raise InvalidInput: shapes alone do not say what runs."""
        raise InvalidInput(f"{self.name} is no one program", [self.obstacle], "call run")

    def specialized_at(self, shapes: Shapes, elements: Shapes) -> CompiledModule:
        return self.specialized()

    def kernel(self, name: str | KernelRecord) -> KernelText | ExternalText:
        """Return a kernel of the first piece that has one of that name."""
        for module in self._modules():
            with suppress(InvalidInput):
                return module.kernel(name)
        raise InvalidInput(f"{self.name}: no piece that is compiled by now has a kernel {str(name)!r}")

    def encoded(self, key: Key | None = None) -> Encoded:
        """Return the artifact that `save` writes: of each piece the modules that there are. Raises InvalidInput where
        one that a call may come to has none yet."""
        if lacking := [p.name for p, r in zip(self.plan.parts, self._runners) if p.outputs and not r.modules]:
            facts = [f"{name}: its types are not known before a call comes to it" for name in lacking]
            raise InvalidInput(f"{self.name} is not compiled as a whole", facts, "call run before")
        return super().encoded(key)
