"""Inputs of the network that tensor cores multiply: copied once, rounded, where products pay for it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from renorm.graph.ir import Graph, Node, Value
from renorm.ops.identity import Identity
from renorm.passes.context import Context
from renorm.passes.mixed_precision import SMALL, factors

TIMES = 64  # products of an element, at least: a copy takes as long as some 50 of them in float32 (8 bytes, an H100)


@dataclass(frozen=True)
class CopyInputs:
    """product(x, w) -> product(identity(x), w), of an input x, which memory holds in fewer digits when it is copied"""

    def run(self, graph: Graph, context: Context) -> None:
        if context.held_dtype is None or not context.uses_tensor_cores:
            return
        copies: dict[Value, Value] = {}
        for node in [n for n in graph.nodes if not context.kept(n)]:
            for i, x in factors(node):
                if x.producer is None and not x.is_constant and _is_worth(node, i, x, context):
                    if x not in copies:
                        copies[x] = graph.apply(Identity(), [x], before=node, origin=node.origin)
                    node.replace_operand(x, copies[x])


def _is_worth(node: Node, index: int, x: Value, context: Context) -> bool:
    """Return whether products of each element are as many as a copy takes, and elements are not few."""
    count, axis = prod(context.typical(x.shape)), node.op.channel_axis(1, node.operand_types())
    other = node.inputs[1 - index] if index < 2 else None
    if count < SMALL or axis is None or other is None:
        return False
    weight = context.typical((x if index else other).shape)
    products = prod(context.typical(node.output.shape)) * prod(weight) // max(weight[axis], 1)
    return products >= TIMES * count
