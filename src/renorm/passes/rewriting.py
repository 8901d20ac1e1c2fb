"""The pass that applies rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from renorm.graph.ir import Graph
from renorm.graph.rewrite import Driver, Rewrite
from renorm.passes.context import Context


@dataclass(frozen=True)
class ApplyRules:
    """Rewrites to a fixpoint by all of `rules` together; the first docstring line of each rule states what it does."""

    rules: Sequence[Rewrite]

    def run(self, graph: Graph, context: Context) -> None:
        rules = [r for r in self.rules if not r.brings or context.admits(r.brings)]
        Driver(rules, context.kept, context.probe, context.log).run(graph)
