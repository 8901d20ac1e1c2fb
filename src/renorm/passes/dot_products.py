"""Products of integers of 8 bits by instructions that take neighbours (`dot_sums`), and what memory holds for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from renorm import ops
from renorm.core.dims import static
from renorm.core.dots import QUADS, WORDS
from renorm.graph.ir import Graph, Group, Value
from renorm.graph.op import BROADCAST
from renorm.ops.byte_conv import ByteConv
from renorm.ops.byte_matmul import ByteMatmul
from renorm.ops.exact_conv import ExactConv
from renorm.passes.context import Context
from renorm.passes.dot_sums import sums_for
from renorm.passes.integer_products import rules
from renorm.passes.layouts import Regions, layout_of_blocks
from renorm.passes.quantization import Array, steps_of
from renorm.passes.quantized_products import PRODUCTS, ProductOfIntegers
from renorm.passes.rewriting import ApplyRules

_OF_NEIGHBOURS = (ByteConv, ByteMatmul)
_PRODUCTS = (*_OF_NEIGHBOURS, ExactConv)


@dataclass(frozen=True)
class SumNeighbours:
    """sum (x - z) * w  ->  sums of neighbours in int32, on machines with vector instructions for these"""

    def run(self, graph: Graph, context: Context) -> None:
        if (sums := sums_for(context.target)) is not None:
            quantized = (ProductOfIntegers(name, sums) for name in PRODUCTS)
            ApplyRules((*rules(sums), *quantized)).run(graph, context)


@dataclass(frozen=True)
class KeepBlocks:
    """byte_conv(u, w) -> byte_conv(blocked_numbers(u), w), where u will not lie in blocks of channels: neighbours along
    them would be far from each other; depthwise byte_conv(u, w, b) -> cast(exact_conv(u - outside, w)) + b + outside *
    sum w there, whose vectors run over pixels"""

    def run(self, graph: Graph, context: Context) -> None:
        layout = layout_of_blocks(context)
        convs = [n for n in graph.nodes if isinstance(n.op, ByteConv)]
        if layout is None or not convs:
            return
        regions = Regions(graph, [Group("", [n]) for n in graph.nodes], context, layout)
        copies = dict[Value, Value]()
        for node in convs:
            u, w = node.inputs[:2]
            if u is None or w is None or not w.is_constant or regions.is_blocked(u):
                continue
            if node.op.values["group"] == 1 and static(w.shape[1:2])[0] % layout.lanes:
                continue  # neighbours are taps of a row
            if isinstance(node.op, ByteConv) and node.op.group > 1:
                with graph.at(node, node.origin):
                    graph.replace(node.output, _in_floats(node.op, u, w, node.inputs[2]))
                continue
            if u not in copies:
                with graph.at(node, node.origin):
                    copies[u] = ops.blocked_numbers(u, channels=static(w.shape[1:2])[0])
            node.replace_operand(u, copies[u])


def _in_floats(op: ByteConv, u: Value, w: Value, b: Value | None) -> Value:
    """Return the sums of a byte_conv as floats make them, exactly (`dot_sums.DEEPEST`)."""
    values = {name: value for name, value in op.values.items() if name != "outside"}
    weight = np.asarray(w.data, np.float32)
    sums = ExactConv(**values)(ops.sub(ops.cast(u, to="float32"), np.float32(op.outside)), weight)
    total, spread = ops.cast(sums, to="int32"), [len(weight), *[1] * (u.rank - 2)]
    if op.outside:
        rest = op.outside * weight.sum(axis=tuple(range(1, weight.ndim)))
        total = ops.add(total, rest.astype(np.int32).reshape(spread))
    return total if b is None else ops.add(total, ops.reshape(b, spread))


@dataclass(frozen=True)
class ReadHeld:
    """f(steps) -> f(u - zero) beside products that read u = cast(steps + zero), so that memory holds one of both;
    u = cast(clip(v) + zero) -> cast(v + zero) for bytes, which cuts, too"""

    def run(self, graph: Graph, context: Context) -> None:
        read = (n.inputs[0] for n in graph.nodes if isinstance(n.op, _OF_NEIGHBOURS))
        for counts in dict.fromkeys(v for v in read if v is not None):
            found, cast = _steps_of(counts), counts.producer
            if found is None or cast is None or found[1].ndim or graph.is_output(found[0]):
                continue
            steps, zero = found
            made = cast if cast.inputs[0] is steps else cast.inputs[0] and cast.inputs[0].producer
            for reader in [u for u in steps.readers if u is not made]:
                with graph.at(reader, reader.origin):
                    v = ops.cast(counts, to="float32")
                    v = ops.sub(v, zero) if zero.any() else v
                reader.replace_operand(steps, v)
            clip = steps.producer if counts.dtype == QUADS.data else None
            if made is not None and clip is not None and clip.op.name == "clip" and clip.inputs[0]:
                made.replace_operand(steps, clip.inputs[0])
        graph.sort()


def _steps_of(held: Value) -> tuple[Value, Array] | None:
    """Return the steps that products read as they hold them, and what was added to these; None where that is not
    known."""
    if held.dtype != WORDS.data:
        return steps_of(held)
    steps = held.producer.inputs[0] if held.producer is not None and held.producer.op.name == "cast" else None
    return (steps, np.zeros((), np.float32)) if steps is not None and steps.dtype == "float32" else None


@dataclass(frozen=True)
class ScaleByReciprocals:
    """round(x / scale) -> round(x * (1 / scale)) behind products of integers, unless precision is "exact", and
    round(x * factor / scale) -> round(x * (factor / scale)), as integer kernels of other runtimes have it

    A step is another one where x / scale is within 3e-5 of the middle between two. Zen 4 divides 16 numbers in ten
    cycles, in which it multiplies as many ten times."""

    def run(self, graph: Graph, context: Context) -> None:
        if context.precision == "exact":
            return
        for node in [n for n in graph.nodes if n.op.name == "div"]:
            x, scale = node.inputs
            by = None if scale is None else scale.data
            if x is None or by is None or by.size > 1 or x.dtype != "float32" or not 1e-30 < by.reshape(()) < 1e30:
                continue
            if all(u.op.name == "round" for u in node.output.readers) and _is_behind_product(x):
                with graph.at(node, node.origin):
                    of, factor = _factored(x)
                    graph.replace(node.output, ops.mul(of, (factor / by.astype(factor.dtype)).astype(np.float32)))


def _factored(v: Value) -> tuple[Value, Array]:
    """Return what a value is a constant factor of, and that factor; the value and 1 where others read it, too."""
    node = v.producer
    if node is not None and node.op.name == "mul" and len(v.readers) == 1:
        of, factor = node.inputs
        if of is not None and factor is not None and factor.data is not None and factor.dtype == "float32":
            return of, factor.data
    return v, np.ones((), np.float64)


def _is_behind_product(v: Value) -> bool:
    """Return whether an elementwise chain leads from a product of integers to a value."""
    while (node := v.producer) is not None and not isinstance(node.op, _PRODUCTS):
        if node.op.fusion_of(node.operand_types()) > BROADCAST or not node.inputs or node.inputs[0] is None:
            return False
        v = node.inputs[0]
    return node is not None
