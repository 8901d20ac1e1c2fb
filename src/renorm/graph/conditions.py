"""What a graph with open extents takes to be so of them."""

from __future__ import annotations

from dataclasses import dataclass

from renorm.core import conditions as algebra
from renorm.core.conditions import Condition, noted
from renorm.core.dims import symbols_of, take
from renorm.core.errors import OperandError
from renorm.graph.ir import Graph, knowledge
from renorm.graph.typical import TYPICAL, sizes_where

EQUAL = "equal"  # in Graph.metadata: what factors of extents are else where conditions hold
_MOST_ROUNDS = 8


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


@dataclass(frozen=True)
class Settled:
    """A graph with open extents whose conditions hold for all values of its symbols but for those that `conditions`
    lists, by the nodes that say so first. typical: values for which all hold."""

    graph: Graph
    conditions: dict[Condition, str]
    typical: dict[str, int]


def settled(graph: Graph) -> Settled:
    """Return a graph whose symbols are those that its conditions leave: equal ones are one, what must be a number is
    one, what must be a multiple says so, and ranges are narrow. Raises InvalidGraph where no values fulfil them all,
    OperandError where an extent does not follow from those of the inputs."""
    found = conditions_of(graph)
    for _ in range(_MOST_ROUNDS):  # what is known of extents lets inference say more
        order = list(dict.fromkeys(s for v in graph.inputs for d in v.shape for s in sorted(symbols_of(d))))
        values, left = algebra.settled(found, order)
        if not values:
            break
        nodes = {c.replaced(values): node for c, node in found.items()}
        graph = graph.copy(values)
        found = conditions_of(graph)
        for c in left:  # of ranges that inference does not know of
            found.setdefault(c, nodes.get(c, graph.inputs[0].name))
    given = {s for v in graph.inputs for d in v.shape for s in symbols_of(d)}
    for v in graph.values():
        if more := {s for d in v.shape for s in symbols_of(d)} - given:
            raise OperandError(
                f"{v!r} has extents that do not follow from those of the inputs: {', '.join(sorted(more))}",
                do="give the shapes (shapes=)",
            )
    typical = sizes_where(graph, found)
    graph.metadata |= {TYPICAL: typical, EQUAL: algebra.equal_factors(found)}
    return Settled(graph, found, typical)
