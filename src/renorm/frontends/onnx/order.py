"""Nodes of a graph in an order in which they can be computed: files need not keep one, and no runtime asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from renorm.frontends.onnx.messages import AttributeType, NodeProto, graphs


def topological(nodes: Sequence[NodeProto]) -> tuple[list[int], list[int]]:
    """Places of the nodes, each after those whose results it reads, in the order of the file where that allows it.
    Then those of nodes in a ring, each of which reads a result of the next one and the last of the first; nothing is
    in one as a rule. Nodes that read results of a ring are in neither.
    """
    maker: dict[str, int] = {}
    for place, node in enumerate(nodes):
        for name in node.output:
            if name:
                maker.setdefault(name, place)
    reads = [{maker[name] for name in _names_read(node) if name in maker} for node in nodes]
    if all(all(p < place for p in needed) for place, needed in enumerate(reads)):
        return list(range(len(nodes))), []
    readers: list[list[int]] = [[] for _ in nodes]
    for place, needed in enumerate(reads):
        for p in needed:
            readers[p].append(place)
    missing = [len(needed) for needed in reads]
    ready = [place for place, count in enumerate(missing) if not count]
    heapify(ready)
    found: list[int] = []
    while ready:
        place = heappop(ready)
        found.append(place)
        for reader in readers[place]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return found, _ring(reads, missing)


def _names_read(node: NodeProto) -> list[str]:
    """Names of the operands, and of what graphs nested in the node read from outside."""
    names = [*node.input]
    for attribute in node.attribute:
        if attribute.type in (AttributeType.GRAPH, AttributeType.GRAPHS):
            for g in (attribute.g,) if attribute.type == AttributeType.GRAPH else attribute.graphs:
                inner = graphs(g)
                made = {out for i in inner for n in i.node for out in n.output} | {
                    v.name for i in inner for v in i.input
                }
                read = [name for i in inner for n in i.node for name in n.input]
                names += [name for name in (*read, *(o.name for i in inner for o in i.output)) if name not in made]
    return names


def _ring(reads: Sequence[set[int]], missing: Sequence[int]) -> list[int]:
    """Of nodes that wait for others, a ring of those that wait for each other."""
    at = next((place for place, count in enumerate(missing) if count), None)
    path: dict[int, None] = {}
    while at is not None and at not in path:
        path[at] = None
        at = min(p for p in reads[at] if missing[p])
    passed = [*path]
    return [] if at is None else passed[passed.index(at) :]
