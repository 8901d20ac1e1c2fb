"""Steps of quantized tensors as memory holds them: a bfloat16 is every integer up to 256, so that they and constant
weights of 8 bits are held in it as they are, whatever the precision, where a machine multiplies pairs of it.

A sum is of float32, and as exact as before (`integer_products`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from renorm.graph.ir import Graph, Node, Value
from renorm.graph.layout import Layout
from renorm.passes.context import Context
from renorm.passes.mixed_precision import candidates, lying_together, round_weights, weights
from renorm.passes.quantization import are_counts, are_whole, whole

HELD = "bfloat16"
LARGEST = 256
BYTE = "uint8"


@dataclass(frozen=True)
class HoldIntegers:
    """v: f32 -> v: f32 as bf16, where v is integers that bfloat16 has, and products of pairs read it"""

    def run(self, graph: Graph, context: Context) -> None:
        if not graph.groups or not context.multiplies_pairs:
            return
        found = False
        for together in lying_together(graph, candidates(graph)):
            products = [u for v in together for u in v.readers if _is_product(u, v)]
            if not products or not all(_is_held_as_it_is(graph, v) for v in together):
                continue
            is_lanewise = all(u.op.values.get("group", 1) > 1 for u in products)
            dtype = BYTE if is_lanewise and all(are_counts(v) for v in together) else HELD
            for v in together:
                found = found or v.held_dtype != dtype
                v.layout = replace(v.layout or Layout(), dtype=dtype)
        if found:
            round_weights(graph)


def _is_product(node: Node, data: Value) -> bool:
    return node.op.name in ("exact_conv", "matmul") and node.inputs[0] is data and bool(weights(node))


def _is_held_as_it_is(graph: Graph, v: Value) -> bool:
    """Return whether a value, and the weights that it is multiplied with, are integers of few bits."""
    if v.producer is None or graph.is_output(v) or not is_of_steps(v):  # before weights are looked at
        return False
    others = (u.inputs[i] for u in v.readers if u.inputs[0] is v for i in weights(u))
    return all(w is not None and w.data is not None and whole(w.data, LARGEST) for w in others)


def is_of_steps(v: Value) -> bool:
    """Return whether a value is steps from a zero point that bfloat16 has, as its producers say."""
    return are_whole(v, LARGEST)
