"""Products of integers of 8 bits as products of bytes, where a machine has an instruction for them (`core.dots`).

It takes data that count from 0 and weights around 0, four at a time, and sums them in int32:

    sum (x - z) * w  =  sum u * w  -  (z - least) * sum w,     u = x - least, from 0 to 255

for z the zero point and `least` the least number of x's type. Where a window meets the border, u is z - least. Sums
are exact, whatever weights and biases are. Memory holds counts in a byte each (`held_integers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Self

import numpy as np

from renorm import ops
from renorm.core.conversion import limits
from renorm.core.dims import is_static, static
from renorm.core.dots import QUADS
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.graph.ir import Graph, Group, Node, Value
from renorm.graph.op import BROADCAST
from renorm.graph.rewrite import Match
from renorm.ops.byte_conv import ByteConv
from renorm.ops.byte_matmul import ByteMatmul
from renorm.ops.exact_conv import ExactConv
from renorm.ops.shared.window import Windowed
from renorm.passes.context import Context
from renorm.passes.integer_products import Sums, centred, rules, steps
from renorm.passes.layouts import Regions, layout_of_blocks
from renorm.passes.quantization import Array, steps_of
from renorm.passes.quantized_products import PRODUCTS, ProductOfIntegers
from renorm.passes.rewriting import ApplyRules

_OF_BYTES = ("byte_conv", "byte_matmul")
_PRODUCTS = (*_OF_BYTES, "exact_conv")
TERMS = 1 << 16  # of a sum that int32 holds, each at most 255 * 128
FILLED = 64  # products of each element, at least, that are worth a copy with more channels, to whole blocks
SHORTEST = 3  # rows of windows that are worth filling to quads
DEEPEST = 512  # taps of one channel, whose sums floats hold: 255 * 128 each, up to 2^24
BLOCK = 16  # channels that lie side by side, and sums in a vector


@dataclass(frozen=True)
class MultiplyBytes:
    """sum (x - z) * w  ->  sum u * w - (z - least) * sum w, on machines with an instruction for bytes"""

    def run(self, graph: Graph, context: Context) -> None:
        if multiplies_bytes(context.target):
            quantized = (ProductOfIntegers(name, ByteSums) for name in PRODUCTS)
            ApplyRules((*rules(ByteSums), *quantized)).run(graph, context)


@dataclass(frozen=True)
class KeepBlocks:
    """byte_conv(u, w) -> byte_conv(blocked_bytes(u), w), where u will not lie in blocks of channels: neighbours along
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
            if node.op.values["group"] == 1 and static(w.shape[1:2])[0] % BLOCK:
                continue  # quads are of rows
            if isinstance(node.op, ByteConv) and node.op.group > 1:
                with graph.at(node, node.origin):
                    graph.replace(node.output, _in_floats(node.op, u, w, node.inputs[2]))
                continue
            if u not in copies:
                with graph.at(node, node.origin):
                    copies[u] = ops.blocked_bytes(u, channels=static(w.shape[1:2])[0])
            node.replace_operand(u, copies[u])


def _in_floats(op: ByteConv, u: Value, w: Value, b: Value | None) -> Value:
    """Return the sums of a byte_conv as floats make them, exactly (`DEEPEST`)."""
    values = {name: value for name, value in op.values.items() if name != "outside"}
    weight = np.asarray(w.data, np.float32)
    sums = ExactConv(**values)(ops.sub(ops.cast(u, to="float32"), np.float32(op.outside)), weight)
    rest = op.outside * weight.sum(axis=tuple(range(1, weight.ndim)))
    spread = [len(weight), *[1] * (u.rank - 2)]
    total = ops.add(ops.cast(sums, to="int32"), rest.astype(np.int32).reshape(spread))
    return total if b is None else ops.add(total, ops.reshape(b, spread))


@dataclass(frozen=True)
class ReadBytes:
    """f(steps) -> f(u - zero) beside products that read u = cast(steps + zero) in bytes, so that memory holds one of
    both; u = cast(clip(v) + zero) -> cast(v + zero), which cuts, too"""

    def run(self, graph: Graph, context: Context) -> None:
        read = (n.inputs[0] for n in graph.nodes if n.op.name in _OF_BYTES)
        for counts in dict.fromkeys(v for v in read if v is not None):
            found, cast = steps_of(counts), counts.producer
            if found is None or cast is None or found[1].ndim or graph.is_output(found[0]):
                continue
            steps, zero = found
            made = cast if cast.inputs[0] is steps else cast.inputs[0] and cast.inputs[0].producer
            for reader in [u for u in steps.readers if u is not made]:
                with graph.at(reader, reader.origin):
                    v = ops.cast(counts, to="float32")
                    v = ops.sub(v, zero) if zero.any() else v
                reader.replace_operand(steps, v)
            if made is not None and (clip := steps.producer) is not None and clip.op.name == "clip" and clip.inputs[0]:
                made.replace_operand(steps, clip.inputs[0])
        graph.sort()


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
    while (node := v.producer) is not None and node.op.name not in _PRODUCTS:
        if node.op.fusion_of(node.operand_types()) > BROADCAST or not node.inputs or node.inputs[0] is None:
            return False
        v = node.inputs[0]
    return node is not None


def multiplies_bytes(target: Target) -> bool:
    """Return whether a machine multiplies bytes by vector instructions."""
    machine = target.machine_target
    return not machine.is_gpu and QUADS in Machine.of(machine).dots


class ByteSums(Sums):
    """Sums with constant integers of 8 bits, whose data are counts."""

    @classmethod
    def of_conv(
        cls, node: Node, w: Value | None, zero: Value | None, b: Value | None = None, rounds: bool = False
    ) -> Self | None:
        """Return those of a node whose channels, of data and of results, are blocks and vectors; else None."""
        weight, values = centred(w, zero, axis=0), node.op.values
        if weight is None or not _is_of_bytes(weight) or (b is not None and b.data is None):
            return None
        bias, (channels, depth, *window) = None if b is None else b.data, weight.shape
        rows, whole = depth * -(-window[-1] // QUADS.count), -(-depth // BLOCK) * BLOCK
        if values["group"] > 1 or (depth < whole and rows <= whole // QUADS.count * window[-1]):
            if (found := _in_rows(node, weight)) is not None:
                return cls(*found, (), bias)
        missing = whole - depth
        is_worth = not missing or (missing < depth and channels * prod(window) >= FILLED)
        if channels < BLOCK or values["group"] > 1 or not is_worth or whole * prod(window) >= TERMS:
            return None
        weight = np.pad(weight, [(0, 0), (0, missing), *[(0, 0)] * len(window)])
        return cls(ByteConv(**values), weight, (), bias)

    @classmethod
    def of_matmul(
        cls, b: Value | None, zero: Value | None, is_turned: bool = False, rounds: bool = False
    ) -> Self | None:
        """Return those of a product with columns that are vectors; else None."""
        weight = centred(b, zero, axis=0 if is_turned else -1)
        if weight is None or weight.ndim != 2 or not _is_of_bytes(weight):
            return None
        depth, columns = (weight := weight.T if is_turned else weight).shape
        if columns < BLOCK or depth % QUADS.count or depth >= TERMS:
            return None
        return cls(ByteMatmul(), np.ascontiguousarray(weight), ())

    @classmethod
    def takes(cls, x: Value | None, zero: Value | None, is_padded: bool) -> bool:
        is_known = zero is None or zero.data is not None
        return super().takes(x, zero, is_padded) and (is_known or not is_padded) and x is not None and x.rank > 1

    def made(self, m: Match, x: Value, zero: Value | None, to: str) -> Value:
        """Return the sums as `Sums.made` does. What has a zero point that is no constant is not padded (`takes`)."""
        least, is_conv = int(limits(x.dtype)[0]), isinstance(self.op, ByteConv)
        known = 0 if zero is None else None if zero.data is None else int(zero.data.reshape(-1)[0])
        column = self.weight.reshape(len(self.weight), -1).sum(axis=1) if is_conv else self.weight.sum(axis=0)
        bias = (0 if self.bias is None else self.bias.astype(np.int64)) - ((known or 0) - least) * column
        w, b, weights = (
            m.graph.constant(a.astype(dtype), f"{m.root.name}.{name}", m.root.origin, dtype=dtype)
            for a, name, dtype in ((self.weight, "weight", "int8"), (bias, "bias", "int32"), (column, "sums", "int32"))
        )
        if is_conv:
            op = self.op if known is None else self.op.with_attributes(outside=known - least)
            counts, depth = _counts(x, zero, known), self.weight.shape[1] * self.op.values["group"]
            total = op(counts if counts.shape[1] == depth else ops.blocked_bytes(counts, channels=depth), w, b)
        else:
            total = ops.add(self.op(_counts(x, zero, known), w), b)
        if known is None and zero is not None:
            spread = ops.unsqueeze(weights, axes=range(1, x.rank - 1)) if is_conv else weights
            total = ops.sub(total, ops.mul(ops.reshape(ops.cast(zero, to="int32"), np.zeros(0, np.int64)), spread))
        return total if to == "int32" else ops.cast(total, to=to)


def _in_rows(node: Node, weight: Array) -> tuple[ByteConv, Array] | None:
    """Return a convolution with rows of its window filled to quads, which reach beyond the border where they are
    filled, and its weight; None where channels are no blocks, or rows too short."""
    op, x, (channels, depth, *window) = node.op, node.inputs[0], weight.shape
    if not isinstance(op, Windowed) or x is None or window[-1] < SHORTEST:
        return None
    missing, rank, group = -window[-1] % QUADS.count, len(window), op.values["group"]
    taps = depth * prod(window) // window[-1] * (window[-1] + missing)
    if channels < BLOCK or taps >= TERMS or op.along("dilations", rank)[-1] > 1:
        return None
    if group > 1 and (group != channels or depth > 1 or channels % BLOCK or taps > DEEPEST):
        return None
    around = op.explicit_pads(rank)
    if op.auto_pad.startswith("SAME"):
        if not is_static(x.shape):
            return None
        around = [(s.before, s.after) for s in op.spans(static(x.shape[2:]), window)]
    behind = [after for _, after in around]
    behind[-1] += missing
    own = {"pads": (*(before for before, _ in around), *behind), "auto_pad": "NOTSET", "kernel_shape": None}
    return ByteConv(**(op.values | own)), np.pad(weight, [*[(0, 0)] * (rank + 1), (0, missing)])


def _counts(x: Value, zero: Value | None, known: int | None) -> Value:
    """Return x as bytes that count from the least number of its type."""
    if x.dtype == QUADS.data:
        return x
    least = int(limits(x.dtype)[0])
    if known is None:
        return ops.cast(ops.sub(ops.cast(x, to="float32"), np.float32(least)), to=QUADS.data)
    from_zero = steps(x, zero)
    return ops.cast(ops.add(from_zero, np.float32(known - least)) if known != least else from_zero, to=QUADS.data)


def _is_of_bytes(weight: Array) -> bool:
    """Return whether a weight less its zero points is of integers of 8 bits, and of some."""
    low, high = limits(QUADS.weight)
    return bool(weight.size) and low <= weight.min() and weight.max() <= high
