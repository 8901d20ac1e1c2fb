"""Raising: norms that an exporter has written in pieces become one op each.

norm_patterns.py      reads means, moments and roots off nodes
raise_slice_norms.py  layer, instance, group (of one group) and RMS norm
raise_group_norm.py   group norm: a norm between two reshapes
raise_batch_norm.py   batch norm in inference
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from renorm.graph.ir import Graph
from renorm.graph.rewrite import Rewrite, merged_origin
from renorm.passes import raise_batch_norm, raise_group_norm, raise_slice_norms, simplify
from renorm.passes.context import Context
from renorm.passes.rewriting import ApplyRules
from renorm.runtime.report import NearNorm


@dataclass(frozen=True)
class RaiseNorms:
    """nodes -> norm, for all kinds of norms; where the graph goes into a file, only those that its format has"""

    def run(self, graph: Graph, context: Context) -> None:
        source = {n.name: n.op.name for n in graph.nodes if n.op.is_normalization}
        position = {name: i for i, name in enumerate(source)}
        groups = raise_group_norm.RULES if context.admits("group_norm") else ()
        whole = (*raise_slice_norms.rules(context.admits), *groups, *simplify.RULES)
        for rules in (whole, raise_batch_norm.RULES):  # what scales a norm belongs to that, and is no batch norm
            ApplyRules(rules).run(graph, context)
        context.near_norms = [*_near_norms(graph, (*whole, *raise_batch_norm.RULES), context)]
        for node in (n for n in graph.nodes if n.op.is_normalization):
            before = sorted(position.keys() & set(node.origin), key=position.__getitem__)
            if not before:
                context.raised[node.name] = tuple(node.origin)
                node.origin = (node.name,)  # from here on it is a norm like those of the source
            elif node.op.name not in (source[name] for name in before):
                context.raised[before[0]] = tuple(node.origin)


def _near_norms(graph: Graph, rules: Sequence[Rewrite], context: Context) -> Iterator[NearNorm]:
    """Yield what stayed though a rule took it for a norm."""
    for node in graph.nodes:
        for rule in rules:
            refused = context.log.refused.get((rule.name, node.name))
            if refused is None or not isinstance(
                rule, raise_slice_norms.RaiseStandard | raise_batch_norm.RaiseBatchNorm
            ):
                continue
            pieces = sorted(rule.pieces(node), key=graph.position_of)
            if pieces:
                yield NearNorm(node.name, rule.kind(node), refused.reason, tuple(merged_origin(pieces)))
