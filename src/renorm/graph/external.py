"""Groups that a target's own code generator compiles: nodes of a graph as a graph of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from renorm.graph.ir import External, Graph, Group, Node, Value


@dataclass(frozen=True)
class Standalone:
    """graph: the nodes alone. Its inputs are what they read and is no constant, in order of appearance; its outputs are
    the results of the last one. Names are those of the whole graph. reads: for each input, a node that reads it and
    which of its operands it is (`Node.inputs`)."""

    graph: Graph
    reads: tuple[tuple[str, int], ...]


def standalone(nodes: Sequence[Node], name: str) -> Standalone:
    """Nodes, in order, of whose results only those of the last one are read by others."""
    graph, env, reads = Graph(name), dict[Value, Value](), list[tuple[str, int]]()
    inside = {v for n in nodes for v in n.outputs}
    for n in nodes:
        for i, v in enumerate(n.inputs):
            if v is None or v in env or v in inside:
                continue
            if v.is_constant:
                graph.adopt_constant(v, env)
            else:
                env[v] = graph.input(v.name, v.dtype, v.shape)
                env[v].known = v.known
                reads.append((n.name, i))
    graph.reserve(v.name for n in nodes for v in n.outputs)
    for n in nodes:
        graph.adopt(n, env)
    graph.outputs = [env[v] for v in nodes[-1].outputs]
    return Standalone(graph, tuple(reads))


def external_values(group: Group, external: External) -> tuple[list[Value], list[Value]]:
    """Return the values that the code of a group reads, in the order of its standalone graph's inputs, and that it
    writes."""
    by_name = {n.name: n for n in group.nodes}
    reads = [by_name[name].inputs[i] for name, i in external.reads]
    return [v for v in reads if v is not None], group.nodes[-1].outputs
