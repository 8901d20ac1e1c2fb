"""Sums of products of integers as instructions that take neighbours make them (`core.dots`), in int32, all exact.

    quads   sum (x - z) * w  =  sum u * w  -  (z - least) * sum w,     u = x - least, from 0 to 255: bytes
    words   sum (x - z) * w                                            pairs of 16 bits, where bytes have no instruction

for z the zero point and `least` the least number of x's type. Where a window meets the border, u is z - least.
Neighbours are channels, in blocks; or taps of a row of a window, which is filled with zeros, where channels are few
or each is convolved by itself.
"""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar, Self

import numpy as np

from renorm import ops
from renorm.core.conversion import limits
from renorm.core.dims import is_static, static
from renorm.core.dots import QUADS, WORDS, Dot
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.graph.ir import Node, Value
from renorm.graph.rewrite import Match
from renorm.ops.byte_conv import ByteConv
from renorm.ops.byte_matmul import ByteMatmul
from renorm.ops.shared.window import Windowed
from renorm.ops.word_conv import WordConv
from renorm.ops.word_matmul import WordMatmul
from renorm.passes.algorithms import tiles
from renorm.passes.integer_products import Sums, centred, steps
from renorm.passes.quantization import FARTHEST, Array

FILLED = 64  # products of each element, at least, that are worth a copy with more channels, to whole blocks
SHORTEST = 3  # rows of windows that are worth filling
DEEPEST = 256  # taps of a channel by itself, whose sums floats hold: 255 * 255 each, up to 2^24
FEW_BYTES = 8 << 20  # of transformed weights, for which tiles of floats are worth having in place of integers


def sums_for(target: Target) -> type[DotSums] | None:
    """Return the sums that a machine makes by vector instructions for integers; None where it has none."""
    machine = target.machine_target
    dots = () if machine.is_gpu else Machine.of(machine).dots
    kind = ByteSums if QUADS in dots else WordSums if WORDS in dots else None
    return None if kind is None else kind.in_blocks(machine.lanes(4))


class DotSums(Sums):
    """Sums with constant integers. dot: the instruction; conv, matmul: ops that it makes; least, most: of weights;
    block: channels that lie side by side, and sums in a vector."""

    dot: ClassVar[Dot]
    conv: ClassVar[type[ByteConv]]
    matmul: ClassVar[type[ByteMatmul]]
    least: ClassVar[int]
    most: ClassVar[int]
    block: ClassVar[int]

    @classmethod
    def in_blocks(cls, block: int) -> type[Self]:
        """Return these sums where so many channels lie side by side."""
        made: Any = type(cls.__name__, (cls,), {"block": block})
        return made

    @classmethod
    def _takes_weight(cls, weight: Array, terms: int) -> bool:
        """Return whether a weight less its zero points is of numbers that the instruction takes, and int32 holds sums
        of so many terms."""
        if not weight.size or terms * FARTHEST * -cls.least >= 1 << 31:
            return False
        return cls.least <= weight.min() and weight.max() <= cls.most

    @classmethod
    def of_conv(
        cls, node: Node, w: Value | None, zero: Value | None, b: Value | None = None, rounds: bool = False
    ) -> Self | None:
        """Return those of a node whose channels, of data and of results, are blocks and vectors, or whose window has
        rows that are filled; else None."""
        weight, values = centred(w, zero, axis=0), node.op.values
        if weight is None or (b is not None and b.data is None):
            return None
        bias, (channels, depth, *window) = None if b is None else b.data, weight.shape
        rows, whole = depth * -(-window[-1] // cls.dot.count), -(-depth // cls.block) * cls.block
        are_few = depth < whole and rows <= whole // cls.dot.count * window[-1]
        if (values["group"] > 1 or are_few) and (found := cls._in_rows(node, weight)) is not None:
            return cls(*found, (), bias)
        missing = whole - depth
        is_worth = not missing or (missing < depth and channels * prod(window) >= FILLED)
        if channels < cls.block or values["group"] > 1 or not is_worth:
            return None
        weight = np.pad(weight, [(0, 0), (0, missing), *[(0, 0)] * len(window)])
        return cls(cls.conv(**values), weight, (), bias) if cls._takes_weight(weight, whole * prod(window)) else None

    @classmethod
    def _in_rows(cls, node: Node, weight: Array) -> tuple[ByteConv, Array] | None:
        """Return a convolution with rows of its window filled, which reach beyond the border there, and its weight;
        None where channels are no blocks, or rows too short."""
        op, x, (channels, depth, *window) = node.op, node.inputs[0], weight.shape
        if not isinstance(op, Windowed) or x is None or window[-1] < SHORTEST:
            return None
        missing, rank, group = -window[-1] % cls.dot.count, len(window), op.values["group"]
        taps = depth * prod(window[:-1]) * (window[-1] + missing)
        if channels < cls.block or not cls._takes_weight(weight, taps) or op.along("dilations", rank)[-1] > 1:
            return None
        if group > 1 and (group != channels or depth > 1 or channels % cls.block or taps > DEEPEST):
            return None
        around = op.explicit_pads(rank)
        if op.auto_pad.startswith("SAME"):
            if not is_static(x.shape):
                return None
            around = [(s.before, s.after) for s in op.spans(static(x.shape[2:]), window)]
        behind = [after for _, after in around]
        behind[-1] += missing
        own = {"pads": (*(before for before, _ in around), *behind), "auto_pad": "NOTSET", "kernel_shape": None}
        return cls.conv(**(op.values | own)), np.pad(weight, [*[(0, 0)] * (rank + 1), (0, missing)])

    @classmethod
    def of_matmul(
        cls, b: Value | None, zero: Value | None, is_turned: bool = False, rounds: bool = False
    ) -> Self | None:
        """Return those of a product with columns that are vectors; else None."""
        weight = centred(b, zero, axis=0 if is_turned else -1)
        if weight is None or weight.ndim != 2:
            return None
        depth, columns = (weight := weight.T if is_turned else weight).shape
        if columns < cls.block or depth % cls.dot.count or not cls._takes_weight(weight, depth):
            return None
        return cls(cls.matmul(), np.ascontiguousarray(weight), ())

    @classmethod
    def takes(cls, x: Value | None, zero: Value | None, is_padded: bool) -> bool:
        return super().takes(x, zero, is_padded) and x is not None and x.rank > 1

    def _total(self, m: Match, data: Value, outside: int, bias: Array | None) -> Value:
        """Return the sums of data as memory holds it, in int32."""
        weight = m.graph.constant(self.weight.astype(self.dot.weight), f"{m.root.name}.weight", m.root.origin)
        b = None if bias is None else m.graph.constant(bias.astype(np.int32), f"{m.root.name}.bias", m.root.origin)
        if not isinstance(self.op, ByteConv):
            total = self.op(data, weight)
            return total if b is None else ops.add(total, b)
        depth = self.weight.shape[1] * self.op.group
        op = self.op.with_attributes(outside=outside) if outside else self.op
        return op(data if data.shape[1] == depth else ops.blocked_numbers(data, channels=depth), weight, b)


class ByteSums(DotSums):
    """Sums of quads of bytes."""

    dot, conv, matmul = QUADS, ByteConv, ByteMatmul
    least, most = limits(QUADS.weight)

    @classmethod
    def takes(cls, x: Value | None, zero: Value | None, is_padded: bool) -> bool:
        return super().takes(x, zero, is_padded) and (not is_padded or zero is None or zero.data is not None)

    def made(self, m: Match, x: Value, zero: Value | None, to: str) -> Value:
        """Return the sums as `Sums.made` does. What has a zero point that is no constant is not padded (`takes`)."""
        least, is_conv = int(limits(x.dtype)[0]), isinstance(self.op, ByteConv)
        known = 0 if zero is None else None if zero.data is None else int(zero.data.reshape(-1)[0])
        column = self.weight.reshape(len(self.weight), -1).sum(axis=1) if is_conv else self.weight.sum(axis=0)
        bias = (0 if self.bias is None else self.bias.astype(np.int64)) - ((known or 0) - least) * column
        total = self._total(m, _counts(x, zero, known), 0 if known is None else known - least, bias)
        if known is None and zero is not None:
            weights = m.graph.constant(column.astype(np.int32), f"{m.root.name}.sums", m.root.origin)
            spread = ops.unsqueeze(weights, axes=range(1, x.rank - 1)) if is_conv else weights
            total = ops.sub(total, ops.mul(ops.reshape(ops.cast(zero, to="int32"), np.zeros(0, np.int64)), spread))
        return total if to == "int32" else ops.cast(total, to=to)


class WordSums(DotSums):
    """Sums of pairs of 16 bits. An instruction of 32 bytes makes twice as many products as one of float32 does, and
    another adds them: of channels that are convolved by themselves floats are faster, which need not be turned, and
    where sums may be rounded, Winograd's tiles, which need fewer products."""

    dot, conv, matmul = WORDS, WordConv, WordMatmul
    least, most = -FARTHEST, FARTHEST

    @classmethod
    def of_conv(
        cls, node: Node, w: Value | None, zero: Value | None, b: Value | None = None, rounds: bool = False
    ) -> Self | None:
        if node.op.values["group"] > 1 or (rounds and _has_tiles(node, w)):
            return None
        return super().of_conv(node, w, zero, b, rounds)

    def made(self, m: Match, x: Value, zero: Value | None, to: str) -> Value:
        """Return the sums as `Sums.made` does."""
        data = ops.cast(x if x.dtype == "float32" else steps(x, zero), to=WORDS.data)
        total = self._total(m, data, 0, self.bias)
        return total if to == "int32" else ops.cast(total, to=to)


def _has_tiles(node: Node, w: Value | None) -> bool:
    """Return whether Winograd's tiles are for a convolution, and make few bytes of its weights."""
    op = node.op
    if not isinstance(op, Windowed) or w is None or w.rank != 4 or not is_static(w.shape):
        return False
    results, depth, *window = static(w.shape)
    is_dense = {*op.along("strides", 2), *op.along("dilations", 2)} == {1}
    points = prod(n + 1 for n in window)  # of the least tiles
    return is_dense and bool(tiles(tuple(window), (1, 1))) and 4 * results * depth * points <= FEW_BYTES


def _counts(x: Value, zero: Value | None, known: int | None) -> Value:
    """Return x as bytes that count from the least number of its type."""
    if x.dtype == QUADS.data:
        return x
    least = int(limits(x.dtype)[0])
    if known is None:
        return ops.cast(ops.sub(ops.cast(x, to="float32"), np.float32(least)), to=QUADS.data)
    from_zero = steps(x, zero)
    return ops.cast(ops.add(from_zero, np.float32(known - least)) if known != least else from_zero, to=QUADS.data)
