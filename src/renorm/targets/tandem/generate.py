"""From a group of nodes to a launch of Tandem: its numbers, and its program.

    for each block of channels of the result                  loadp, and loadw where the block's weights fit
        for each image, for each box of its result
            for each block of channels of the input           loadw where they do not fit, loadx, conv
            norm, store

The blocks and boxes are those, of all that fit the buffers, of the fewest cycles, and of those the ones that move the
fewest bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np

from renorm.core.dims import static
from renorm.graph.ir import Graph, Node
from renorm.ops.conv import Conv as ConvOp
from renorm.ops.shared.window import Span
from renorm.targets.tandem import machine, numbers
from renorm.targets.tandem.instructions import (
    Conv,
    Instruction,
    LoadP,
    LoadW,
    LoadX,
    Norm,
    Program,
    Range,
    Scan,
    Shape,
    Store,
)
from renorm.targets.tandem.launch import TandemCode

Array = np.ndarray[Any, Any]


def codegen(group: Graph) -> TandemCode | str:
    """Return the launch that runs conv, conv + relu, conv + batch_norm or conv + batch_norm + relu, or why it
    cannot."""
    nodes = {n.op.name: n for n in group.nodes}
    conv, norm = nodes["conv"], nodes.get("batch_norm")
    reason = _objection(group, conv, norm)
    if reason:
        return reason
    weight, bias = _data(conv, 1), _data(conv, 2)
    k, t = _scale_and_shift(norm, bias if bias is not None else np.zeros(len(weight)))
    integers, exponents = numbers.weights(weight)
    with np.errstate(over="ignore"):
        parameters = np.stack([np.ldexp(k, exponents), t]).astype(np.float32)
    if not np.isfinite(parameters).all():
        return "a scale or a shift of the norm is no finite number of float32"
    largest = prod(weight.shape[1:]) * numbers.LARGEST**2 * np.abs(parameters[0].astype(np.float64)).max(initial=0)
    if largest > np.finfo(np.float32).max:
        return f"a sum times its scale may be {largest:.1e}, beyond float32"
    layer = Layer.of(conv)
    tiles = layer.tiles()
    if tiles is None:
        return f"one window of {list(layer.kernel)} over {layer.summed} channels does not fit the buffers"
    instructions = (Scan(), *layer.instructions(tiles, "relu" in nodes))
    return TandemCode(Program(layer.input, layer.weights, layer.output, instructions), integers, parameters)


def _objection(group: Graph, conv: Node, norm: Node | None) -> str | None:
    x, y = conv.inputs[0], conv.output
    if x is None or x.rank != 4:
        return "tandem convolves images: only convolutions of two dimensions"
    if {v.dtype for n in group.nodes for v in n.inputs if v is not None} != {"float32"}:
        return "memory of tandem holds float32"
    if x.is_constant or any(v is not None and not v.is_constant for v in (*conv.inputs[1:], *_parameters(norm))):
        return "weights and parameters of tandem are constants, its input is not"
    if norm is not None and norm.op.values["training_mode"]:
        return "the norm takes its statistics from the batch, tandem has them as constants"
    if 0 in (*static(x.shape), *static(y.shape)):
        return "there is nothing to compute"
    if any(not np.isfinite(v.data).all() for v in group.constants.values() if v.data is not None):
        return "a constant holds NaN or infinity"
    products = prod(np.shape(_data(conv, 1))[1:])
    if products >= machine.PRODUCTS:
        return f"a sum of {products} products may overflow 48 bits"
    return None


def _parameters(norm: Node | None) -> Sequence[Any]:
    return norm.inputs[1:] if norm is not None else ()


def _data(node: Node, operand: int) -> Any:
    v = node.inputs[operand]
    return None if v is None else v.data


def _scale_and_shift(norm: Node | None, bias: Array) -> tuple[Array, Array]:
    """k and t with y = k * (sum of products) + t, in float64."""
    b = bias.astype(np.float64)
    if norm is None:
        return np.ones_like(b), b
    scale, beta, mean, var = (_data(norm, i).astype(np.float64) for i in range(1, 5))
    with np.errstate(all="ignore"):
        k = scale / np.sqrt(var + norm.op.values["epsilon"])
        return k, (b - mean) * k + beta


@dataclass(frozen=True)
class Tiles:
    """channels: of the result in one block; summed: of (a group of) the input in one block; rows, columns: of a box."""

    channels: int
    summed: int
    rows: int
    columns: int


@dataclass(frozen=True)
class Layer:
    """A convolution as Tandem sees it: shapes in memory, windows along both axes."""

    input: Shape
    weights: Shape
    output: Shape
    spans: tuple[Span, Span]
    groups: int

    @staticmethod
    def of(conv: Node) -> Layer:
        op = conv.op
        assert isinstance(op, ConvOp)
        x, w = (static(v.shape) for v in conv.inputs[:2] if v is not None)
        spans = op.spans(x[2:], w[2:])
        return Layer(_four(x), _four(w), _four(static(conv.output.shape)), (spans[0], spans[1]), op.values["group"])

    @property
    def kernel(self) -> tuple[int, int]:
        return self.weights[2:]

    @property
    def summed(self) -> int:
        """Channels of one group of the input."""
        return self.weights[1]

    @property
    def strides(self) -> tuple[int, int]:
        return self.spans[0].stride, self.spans[1].stride

    # --- which tiles --------------------------------------------------------------------------------------------------

    def tiles(self) -> Tiles | None:
        """Return those that fit the buffers and take the fewest cycles, or of equal ones the fewest bytes."""
        fitting = (Tiles(*t) for t in self._candidates())
        return min(fitting, key=self._cost, default=None)

    def _cost(self, t: Tiles) -> tuple[int, int, int]:
        """Cycles of the slower of convolution and memory, bytes, and how many boxes there are."""
        moved, blocks = self._bytes(t), ceil(self.output[1] / t.channels)
        boxes = ceil(self.output[2] / t.rows) * ceil(self.output[3] / t.columns)
        return max(self._convolution(t), moved // machine.BUS), moved, blocks * boxes

    def _convolution(self, t: Tiles) -> int:
        """Cycles of the convolution engine."""
        channels = _steps(self.output[1] // self.groups, t.channels)
        summed = _steps(self.summed, t.summed)
        points = self.output[0] * self.output[2] * self.output[3]
        return self.groups * channels * summed * prod(self.kernel) * points

    def _candidates(self) -> Iterator[tuple[int, int, int, int]]:
        one = self.output[1] // self.groups  # channels of the result in one group
        blocks = [one * n for n in _sizes(self.groups)] if self.groups > 1 else list(_sizes(self.output[1]))
        sums = [self.summed] if self.groups > 1 else list(_sizes(self.summed))
        for channels in blocks:
            for summed in sums:
                if channels > machine.CHANNELS or channels * summed * prod(self.kernel) > machine.WEIGHTS:
                    continue
                read = summed * (channels // one if self.groups > 1 else 1)
                for columns in _sizes(self.output[3]):
                    rows = self._rows(channels, read, columns)
                    if rows:
                        yield channels, summed, rows, columns

    def _rows(self, channels: int, read: int, columns: int) -> int:
        """Return the most rows of a box that fit, cut so that boxes are about equal; 0 where none does."""
        of_input = machine.INPUT // (read * self._reach(1, columns))
        span = self.spans[0]
        by_input = (of_input - span.reach) // span.stride + 1 if of_input >= span.reach else 0
        most = min(self.output[2], machine.SUMS // (channels * columns), by_input)
        return ceil(self.output[2] / ceil(self.output[2] / most)) if most > 0 else 0

    def _reach(self, axis: int, count: int) -> int:
        """Elements of the input that `count` results along an axis read."""
        return self.spans[axis].stride * (count - 1) + self.spans[axis].reach

    def _bytes(self, t: Tiles) -> int:
        """About what a choice of tiles moves; padding is counted as if it were read."""
        blocks = ceil(self.output[1] / t.channels)
        boxes = self.output[0] * ceil(self.output[2] / t.rows) * ceil(self.output[3] / t.columns)
        box = self._reach(0, t.rows) * self._reach(1, t.columns)
        channels = self.input[1] if self.groups == 1 else self.input[1] / blocks
        repeats = boxes if t.summed < self.summed else 1
        return int(blocks * boxes * channels * box * 4 + 2 * prod(self.weights) * repeats)

    # --- what they do -------------------------------------------------------------------------------------------------

    def instructions(self, t: Tiles, relu: bool) -> Iterator[Instruction]:
        for m in _ranges(self.output[1], t.channels):
            yield LoadP(m)
            sums = list(_ranges(self.summed, t.summed))
            if len(sums) == 1:
                yield LoadW(m, sums[0])
            for n in range(self.output[0]):
                for h in _ranges(self.output[2], t.rows):
                    for w in _ranges(self.output[3], t.columns):
                        yield from self._box(m, sums, n, h, w)
                        yield Norm(relu)
                        yield Store(n, m, h, w)

    def _box(self, m: Range, sums: Sequence[Range], n: int, h: Range, w: Range) -> Iterator[Instruction]:
        """Return the instructions for the sums of one box of the result."""
        one = self.output[1] // self.groups
        groups = (m[1] - m[0]) // one if self.groups > 1 else 1
        first = m[0] // one * self.summed if self.groups > 1 else 0
        rows, columns = (self._read(axis, r) for axis, r in enumerate((h, w)))
        dilations = self.spans[0].dilation, self.spans[1].dilation
        for c in sums:
            if len(sums) > 1:
                yield LoadW(m, c)
            read = (first, first + groups * self.summed) if self.groups > 1 else c
            yield LoadX(n, read, rows, columns)
            yield Conv(h[1] - h[0], w[1] - w[0], self.strides, dilations, groups, c is sums[0])

    def _read(self, axis: int, r: Range) -> Range:
        """Elements of the input, padding included, that results along an axis read."""
        begin = r[0] * self.spans[axis].stride - self.spans[axis].before
        return begin, begin + self._reach(axis, r[1] - r[0])


def _sizes(extent: int) -> list[int]:
    """Sizes of blocks to try: all, and powers of two."""
    return [extent, *(1 << i for i in range(extent.bit_length()) if 1 << i < extent)]


def _steps(extent: int, size: int) -> int:
    """In how many parts the array of the convolution engine takes channels that come in blocks of a size."""
    whole, rest = divmod(extent, size)
    return whole * ceil(size / machine.ARRAY) + ceil(rest / machine.ARRAY)


def _ranges(extent: int, size: int) -> Iterator[Range]:
    for begin in range(0, extent, size):
        yield begin, min(begin + size, extent)


def _four(shape: Sequence[int]) -> Shape:
    a, b, c, d = shape
    return a, b, c, d
