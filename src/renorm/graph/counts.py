"""Counts: extents that data decide, as inputs of a graph which are what as many of its outputs are. What a program
holds and updates (its state) stands behind them, among inputs and outputs alike.

graph (x: f32[N], c.read: i64[1] = [c.0])
  c: i64[1] = reduce_sum(greater(x, 0))         output, hidden
  y: f32[c.0] = slice(x, 0, c.read)

Who runs the graph runs what counts come from, reads them, and runs the rest, which makes no difference between them and
what a caller gives. renorm.graph.counting cuts a graph so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.dims import Symbol, extents_among, symbols_of
from renorm.core.inputs import given_extents
from renorm.graph import interpret
from renorm.graph.groups import Group
from renorm.graph.ir import Graph, Value

COUNTS = "counts"  # in Graph.metadata: Counts


@dataclass(frozen=True)
class Counts:
    """`number` inputs of a graph are what as many outputs are, the first of which is output `first`. states: how many
    inputs stand behind them, which are state."""

    first: int = 0
    number: int = 0
    states: int = 0


def counts_of(graph: Graph) -> Counts:
    """Return which inputs are counts."""
    return graph.metadata.get(COUNTS, Counts())


def given_inputs(graph: Graph) -> list[Value]:
    """Return the inputs in front of counts."""
    counts = counts_of(graph)
    return graph.inputs[: len(graph.inputs) - counts.number - counts.states]


def counts_read(graph: Graph) -> dict[Value, Value]:
    """Return the inputs that are counts, each with the output that it is."""
    counts, begin = counts_of(graph), len(given_inputs(graph))
    made = graph.outputs[counts.first : counts.first + counts.number]
    return dict(zip(graph.inputs[begin : begin + counts.number], made))


def counted_symbols(graph: Graph) -> set[Symbol]:
    """Return the symbols that only counts tell."""
    told = {s for v in given_inputs(graph) for d in given_extents(v) for s in symbols_of(d)}
    return {s for v in graph.inputs for d in given_extents(v) for s in symbols_of(d)} - told


def follow_from_extents(graph: Graph) -> bool:
    """Return whether no element has a say in the counts: they are known where the extents of inputs are."""
    counts = counts_read(graph)
    extents = {v for node in graph.nodes if node.op.name in ("shape", "size") for v in node.outputs}
    known = extents.union(counts)
    read = {v for node in interpret.ancestors([*counts.values()], known) for v in node.inputs if v is not None}
    return known.issuperset(v for v in read if v.producer is None and not v.is_constant)


def stages(graph: Graph) -> tuple[int, ...]:
    """Sort the groups of a graph so that none comes before another one that waits for fewer counts. Return for each
    count how many launches come before it is there."""
    if not (counts := counts_read(graph)):
        return ()
    own = counted_symbols(graph)
    level, of_group = dict[Value | Symbol, int](), [-1] * len(graph.groups)
    is_settled = False
    while not is_settled:
        is_settled = True
        for i, group in enumerate(graph.groups):
            at = max((level.get(x, 0) for x in _needed(group, own)), default=0)
            if at > of_group[i]:
                of_group[i], is_settled = at, False
                level |= {v: at for n in group.nodes for v in n.outputs}
        for v, count in counts.items():
            at = level.get(count, 0) + 1
            for x in (v, *(s for d in v.deciding for s in symbols_of(d) if s in own)):
                level[x] = max(level.get(x, 0), at)
    order = sorted(range(len(of_group)), key=of_group.__getitem__)
    graph.groups = [graph.groups[i] for i in order]
    launched = [of_group[i] for i, group in zip(order, graph.groups) if not group.is_aliased]
    return tuple(sum(at < level[v] for at in launched) for v in counts)


def late_symbols(graph: Graph, ready: Sequence[int]) -> dict[Symbol, int]:
    """Return the symbols that only counts tell, each with how many launches come before it is known. ready: of each
    count."""
    found, own = dict[Symbol, int](), counted_symbols(graph)
    for v, end in zip(counts_read(graph), ready):
        for s in {s for d in v.deciding for s in symbols_of(d)} & own:
            found[s] = max(found.get(s, 0), end)
    return found


def _needed(group: Group, counted: set[Symbol]) -> Iterator[Value | Symbol]:
    """Yield what a group reads, and the counts in its extents."""
    for node in group.nodes:
        for v in (*node.inputs, *node.outputs):
            if v is None:
                continue
            yield v
            known = () if v.known is None else extents_among(v.known.flat)
            for d in (*v.shape, *known):
                yield from symbols_of(d) & counted


def counted(graph: Graph, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays for all inputs of a graph whose other extents are fixed: those that are given, and the counts that
    follow from them."""
    read = {count: v for v, count in counts_read(graph).items()}
    held = [v for v in graph.inputs if v not in read.values()]
    env: dict[Value, Any] = {v: interpret.widen(np.asarray(given[v.name])) for v in held}
    missing = set(read)
    for node in graph.nodes:
        if not missing:
            break
        interpret.compute([node], env)
        for v in missing.intersection(node.outputs):
            env[read[v]] = env[v]
            missing.remove(v)
    return {**given, **{v.name: env[v] for v in read.values()}}
