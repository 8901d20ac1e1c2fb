"""Regions of a graph of calls: those that read each other's results, and can run one region after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import fx


def regions(
    calls: fx.GraphModule,
    may: Callable[[fx.Node], bool],
    is_single: Callable[[fx.Node], bool],
    waits: Callable[[fx.Node], bool] = lambda node: False,
) -> list[list[fx.Node]]:
    """Return regions of calls that `may` be in one, each in the order of the graph. is_single: of which a region has
    one at most. waits: what joins no region of
    what it reads, but that of its first reader.

    A call joins the regions of what it reads, where no way leads out of what they are then and back into it. Calls that
    only stand beside each other are in no region together, which would make one of them wait for what others read.
    """
    places = {n: i for i, n in enumerate(calls.graph.nodes)}
    region_of = dict[fx.Node, list[fx.Node]]()
    for node in calls.graph.nodes:
        if not may(node):
            continue
        own = region_of[node] = [node]
        for read in () if waits(node) else node.all_input_nodes:
            other = region_of.get(read, own)
            if other is own or (any(map(is_single, other)) and any(map(is_single, own))):
                continue
            if _returns([*other, *own], region_of, places, places[node]):
                continue
            own = sorted([*other, *own], key=places.__getitem__)
            region_of |= dict.fromkeys(own, own)
    found = {id(r): r for r in region_of.values()}
    return list(found.values())


def _returns(
    inside: Iterable[fx.Node], region_of: dict[fx.Node, list[fx.Node]], places: dict[fx.Node, int], last: int
) -> bool:
    """Return whether a way leads out of these calls and back, through others up to a place, and whole regions."""
    own = set(inside)
    waiting, seen = [u for n in own for u in n.users if u not in own], set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in seen or places[node] > last:
            continue
        reached = region_of.get(node, [node])
        seen.update(reached)
        users = [u for n in reached for u in n.users]
        if any(u in own for u in users):
            return True
        waiting += users
    return False
