"""Raising: norms that an exporter has written in pieces become one op each.

pieces.py        reads means, moments and roots off nodes
raise_slices.py  layer, instance, group (of one group) and RMS norm
grouped.py       group norm: a norm between two reshapes
raise_batch.py   batch norm in inference
"""

from __future__ import annotations

from renorm.core.dataclass import dataclass
from renorm.graph.ir import Graph
from renorm.graph.rewrite import Driver
from renorm.passes import grouped, raise_batch, raise_slices, simplify
from renorm.passes.context import Context


@dataclass(frozen=True)
class RaiseNorms:
    """nodes -> norm, for all kinds of norms; where the graph goes into a file, only those that its format has"""

    def run(self, graph: Graph, context: Context) -> None:
        source = {n.name: n.op.name for n in graph.nodes if n.op.is_normalization}
        groups = grouped.RULES if context.admits("group_norm") else ()
        whole = (*raise_slices.rules(context.admits), *groups, *simplify.RULES)
        for rules in (whole, raise_batch.RULES):  # what scales a norm belongs to that, and is no batch norm
            Driver(rules, context.kept, context.probe, context.log).run(graph)
        for node in (n for n in graph.nodes if n.op.is_normalization):
            before = [name for name in source if name in node.origin]
            if not before:
                context.raised[node.name] = node.origin
                node.origin = (node.name,)  # from here on it is a norm like those of the source
            elif node.op.name not in (source[name] for name in before):
                context.raised[before[0]] = node.origin
