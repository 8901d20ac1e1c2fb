"""Units of a target: nodes that it runs whole are set aside before anything is unpacked or folded."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from renorm.graph.ir import Graph, Node
from renorm.graph.rewrite import Driver, Match, Rewrite, Variable
from renorm.passes.context import Context


@dataclass(frozen=True)
class Claim(Rewrite):
    """A pattern that a target runs as one unit: a function of pattern variables, written with the op builders."""

    written: Callable[..., Any]

    def pattern(self) -> Any:
        parameters = inspect.signature(self.written).parameters.values()
        return self.written(*(Variable(p.name, p.kind is p.VAR_POSITIONAL) for p in parameters))


@dataclass(frozen=True)
class ClaimUnits:
    """nodes -> nodes that no pass takes apart, for the ops and patterns in `Target.supports`

    An entry is the name of an op, or a function written with the op builders. Of patterns that overlap the larger one
    wins, whatever the order in which the target lists them. Nodes of one match become one kernel.
    """

    def run(self, graph: Graph, context: Context) -> None:
        target = context.target
        names = {s for s in target.supports if isinstance(s, str)}
        claims = sorted((Claim(s) for s in target.supports if callable(s)), key=lambda c: (-c.root.size(), c.root.name))
        driver = Driver(claims)
        claimed: set[Node] = set()
        for claim in claims:
            for node in graph.nodes:
                m = claim.matches(graph, node)
                if m is not None and not claimed & set(m.nodes) and driver.objection(claim, m) is None:
                    claimed |= set(m.nodes)
                    self._claim(m, context)
        for node in graph.nodes:
            if node.op.name in names:
                context.units.setdefault(node.name, f"target {target.kind} has {node.op.name} as a unit")

    def _claim(self, m: Match, context: Context) -> None:
        nodes = sorted(m.nodes, key=m.graph.nodes.index)
        context.claims.append(tuple(n.name for n in nodes))
        for n in nodes:
            context.units[n.name] = f"target {context.target.kind} runs {' + '.join(o.op.name for o in nodes)} as one"
