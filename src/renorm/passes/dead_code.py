"""Dead code: nodes and constants that no output depends on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from renorm.graph.ir import Graph, Node
from renorm.passes.context import Context


@dataclass(frozen=True)
class RemoveDeadCode:
    """A node none of whose results reaches an output -> nothing; a constant that nobody reads -> nothing."""

    def run(self, graph: Graph, context: Context) -> None:
        discard_dead(graph)


def discard_dead(graph: Graph, wanted: Iterable[Node] = ()) -> None:
    """Takes out all that neither an output nor one of the nodes that are `wanted` depends on."""
    live: set[Node] = set()
    waiting = [*wanted, *(v.producer for v in graph.outputs if v.producer)]
    while waiting:
        node = waiting.pop()
        if node not in live:
            live.add(node)
            waiting += [v.producer for v in node.inputs if v is not None and v.producer]
    dead = [n for n in graph.nodes if n not in live]
    if dead:
        graph.discard(dead)
    graph.discard_constants()
