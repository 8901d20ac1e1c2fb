"""What a graph with open extents takes to be so of them."""

from __future__ import annotations

from renorm.core.conditions import Condition, noted
from renorm.core.dims import take
from renorm.graph.ir import Graph, knowledge


def conditions_of(graph: Graph) -> dict[Condition, str]:
    """Return what the inputs' extents must fulfil for the graph to have a result, beside the ranges of symbols, and the
    name of the node that says so first: what inference takes to be so, and that no extent is negative."""
    found: dict[Condition, str] = {}
    for node in graph.nodes:
        with noted() as conditions:
            for type in graph.infer(node):
                for extent in type.shape:
                    take(0, "<=", extent)
            node.op.known_result(*node.arranged(map(knowledge, node.inputs)))
        for condition in conditions:
            found.setdefault(condition, node.name)
    return found
