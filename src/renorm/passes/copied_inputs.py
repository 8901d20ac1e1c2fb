"""Inputs of the network that tensor cores multiply, and views of them: copied once, rounded, where products pay for
it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from renorm.core.dims import is_static
from renorm.graph.ir import Graph, Node, Value
from renorm.ops.attention import Attention
from renorm.ops.conv_transpose import ConvTranspose
from renorm.ops.identity import Identity
from renorm.passes.context import Context
from renorm.passes.mixed_precision import SMALL, factors

TIMES = 64  # products of an element, at least: a copy takes as long as some 50 of them in float32 (8 bytes, an H100)


@dataclass(frozen=True)
class CopyInputs:
    """product(x, w) -> product(identity(x), w), x an input or a view of one: of a copy memory may hold fewer digits"""

    def run(self, graph: Graph, context: Context) -> None:
        if context.held_dtype is None or not context.uses_tensor_cores:
            return
        copies: dict[Value, Value] = {}
        claimed = {name for claim in context.claims for name in claim.nodes}
        for node in [n for n in graph.nodes if n.name not in claimed and not context.kept(n)]:
            read = [(i, x) for i, x in factors(node) if _lies_in_input(x)]
            for _, x in read if all(_is_worth(node, i, x, context) for i, x in read) else ():
                if x not in copies:
                    copies[x] = graph.apply(Identity(), [x], before=node, origin=node.origin)
                node.replace_operand(x, copies[x])


def _lies_in_input(v: Value) -> bool:
    """Return whether memory holds a value as an input of the network, or a part of one."""
    while (node := v.producer) is not None:
        is_fixed = all(is_static(u.shape) for u in (*node.inputs, *node.outputs) if u is not None)
        aliases = (node.op.aliases(node) or ()) if is_fixed else ()
        whole = next((a.whole for a in aliases if a.part is v), None)
        if whole is None:
            return False
        v = whole
    return not v.is_constant


def _is_worth(node: Node, index: int, x: Value, context: Context) -> bool:
    """Return whether products of each element are as many as a copy takes, and elements are not few."""
    count = prod(context.typical(x.shape))
    return count >= SMALL and _products(node, index, context) >= TIMES * count


def _products(node: Node, index: int, context: Context) -> int:
    """Return how many products have an element of an operand as a factor, of all elements together."""
    a, b, *_, y = (context.typical(v.shape) for v in (*node.inputs[:2], node.output) if v is not None)
    if isinstance(node.op, Attention):
        return prod(a) * b[-2] if index == 0 else prod(b) * a[-2]
    if isinstance(node.op, ConvTranspose):
        return prod(a) * prod(b[1:])
    axis = node.op.channel_axis(1, node.operand_types())
    if axis is not None:  # the other axes of a weight are summed over
        return prod(y) * (prod(b) // max(b[axis], 1))
    return prod(y) * a[-1]
