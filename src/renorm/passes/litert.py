"""Quantized operators of TensorFlow Lite files as LiteRT computes them, where it does not round the real result once.

    quantize(f(dequantize(x), ..))    becomes   integers f'(x, ..), counted in steps from zero points

LiteRT takes ratios of scales as fractions of 15 or 31 bits, shifts what these make, and rounds both times; XNNPACK,
which it runs by default, has ways of its own. float32 is exact for products of 24 bits; longer ones are of halves, or
float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import ops
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.rewrite import Match, Plan, Rewrite, node_of
from renorm.ops.shared.quantization import BYTES
from renorm.passes.context import Context
from renorm.passes.rewriting import ApplyRules

SOURCE = "tflite"  # in Graph.metadata: the file that a graph was read from
WIDE = ("int16",)
LOW = 11  # bits of a number of 21, of which each half times integers of 9 bits is exact in float32


@dataclass(frozen=True)
class Steps:
    """A quantized tensor, as a node dequantizes or quantizes it. scale, zero: of all elements."""

    node: Node
    scale: float
    zero: int
    dtype: str

    @property
    def counted(self) -> Value:
        whole, _, zero = self.node.inputs
        return ops.dequantize_linear(whole, np.float32(1), zero)


Make = Callable[[Node, Sequence[Steps], Steps], Value]
"""Gives the steps of a result, of a node, the tensors that it reads, and the one that its result becomes."""


def _steps(node: Node | None, dtype: str) -> Steps | None:
    """Return what a node dequantizes, or quantizes, where one scale is for all, and a number to divide by."""
    by, zero = (None, None) if node is None else node.inputs[1:]
    if node is None or by is None or by.data is None or by.data.size != 1:
        return None
    if zero is not None and (zero.data is None or zero.data.size != 1):
        return None
    if not 0 < (scale := float(by.data.item())) < math.inf:
        return None
    return Steps(node, scale, 0 if zero is None or zero.data is None else int(zero.data.item()), dtype)


def _read(v: Value | None, dtype: str) -> Steps | None:
    """Return the quantized tensor that a value stands for."""
    node = None if v is None else v.producer
    if node is None or node.op.name != "dequantize_linear" or node.output.dtype != "float32":
        return None
    whole = node.inputs[0]
    return None if whole is None or whole.is_constant or whole.dtype != dtype else _steps(node, dtype)


# --- operators --------------------------------------------------------------------------------------------------------


def _bits(given: Sequence[Steps], out: Steps) -> int:
    """Return how far scales beside that of a sum are shifted, so that the greatest has 21 bits."""
    return 21 - math.frexp(max(x.scale for x in given) / out.scale)[1]


def _sum(node: Node, given: Sequence[Steps], out: Steps) -> Value:
    """XNNPACK adds products with numbers of 21 bits; halves are rounded upwards."""
    shift = _bits(given, out)
    by = [int(np.rint(np.float32(x.scale) / np.float32(out.scale) * 2.0**shift)) for x in given]
    if node.op.name == "sub":
        by[1] = -by[1]
    data = [x.counted for x in given]
    fine, coarse = (
        ops.add(*(_mul(v, int(k)) for v, k in zip(data, parts))) for parts in zip(*(_halves(k) for k in by))
    )
    carry = ops.floor(_mul(fine, 2.0**-LOW))
    half = np.float32(2.0 ** (shift - 1 - LOW))
    return ops.floor(_mul(ops.add(ops.add(coarse, carry), half), 2.0 ** (LOW - shift)))


def _halves(by: int) -> tuple[int, int]:
    """Return the lower bits of a number, and the others."""
    return by & ((1 << LOW) - 1), by >> LOW


def _square(node: Node, given: Sequence[Steps], out: Steps) -> Value:
    """Of a difference: operands are counted in 64ths of twice the larger step, and rounded to these."""
    wide = 2 * max(x.scale for x in given)
    d = ops.sub(*(_times(_mul(x.counted, 128), x.scale / wide) for x in given))
    return _times(ops.mul(d, d), (wide / 128) ** 2 / out.scale)


def _leaky_relu(node: Node, given: Sequence[Steps], out: Steps) -> Value:
    """XNNPACK multiplies by 256ths."""
    q, ratio = given[0].counted, np.float32(given[0].scale) / np.float32(out.scale)
    rise, fall = (np.float32(np.rint(256 * np.float32(by) * ratio) / 256) for by in (1, node.op.values["alpha"]))
    return _near(ops.mul(q, ops.where(ops.less(q, np.float32(0)), fall, rise)))


def _hard_swish(node: Node, given: Sequence[Steps], out: Steps) -> Value:
    """x is counted in 128ths of a step, x + 3 in 32768ths of 6, and their product in 32768ths of what is rounded."""
    (first, shift), (second, bits) = (_short(given[0].scale / 128 / by) for by in (out.scale, 3 / 32768))
    q = _mul(given[0].counted, 128)
    gate = _near(_mul(_cut(_mul(q, 2.0 ** (bits - 1))) if bits > 0 else q, second))
    gate = _cut(_mul(gate, 2)) if bits > 0 else _away(_mul(gate, 2.0**bits))
    gate = ops.floor(_mul(ops.add(gate, np.float32(32768)), 0.5))
    size, high = ops.abs(_near(_mul(q, first))), ops.floor(_mul(gate, 2.0**-7))
    low = ops.sub(gate, _mul(high, 2.0**7))
    carry = ops.floor(_mul(ops.mul(size, low), 2.0**-7))
    whole = ops.floor(_mul(ops.add(ops.mul(size, high), carry), 2.0**-8))  # size * gate / 2^15, of 30 bits
    return ops.mul(ops.sign(q), _near(_mul(whole, 2.0**shift)))


def _product(node: Node, given: Sequence[Steps], out: Steps) -> Value:
    """Sums are scaled as integers."""
    first, second = given
    return _times(ops.matmul(first.counted, second.counted), first.scale * second.scale / out.scale)


def _activation(node: Node, given: Sequence[Steps], out: Steps) -> Value:
    """Integers are scaled before they are cut."""
    y = _mul(_times(given[0].counted, given[0].scale / out.scale), out.scale)
    return _mul(node.op(y, *node.operands[1:]) if node.op.name == "clip" else ops.relu(y), 1 / out.scale)


def _resized(node: Node, given: Sequence[Steps], out: Steps) -> Value:
    """Halves, as means of two integers are, are rounded upwards."""
    return _near(node.op(given[0].counted, *node.operands[1:]))


def _averaged(node: Node, given: Sequence[Steps], out: Steps) -> Value:
    """Halves are rounded away from zero; of 8 bits the file's reader has it so."""
    return _away(node.op(given[0].counted))


def _mean(node: Node, given: Sequence[Steps], out: Steps) -> Value:
    """XNNPACK rounds integers, with their zero point, to even. Of 16 bits a sum is scaled, by a number that is divided
    by how many they are."""
    x, y, by = given[0], node.op(given[0].counted, *node.operands[1:]), given[0].scale / out.scale
    if x.dtype in BYTES:
        return ops.sub(ops.round(ops.add(_mul(y, by), np.float32(out.zero))), np.float32(out.zero))
    whole, means = (_size(v) for v in (x.node.output, node.output))
    count = whole // means
    shift = min(math.frexp(by)[1] - count.bit_length() + 1, 0)
    return _times(_mul(y, count), by / count, shift)


def _size(v: Value) -> int:
    """Return the number of elements, 0 where it is not known."""
    return math.prod(d if isinstance(d, int) else 0 for d in v.shape)


def _is_known(node: Node, given: Sequence[Steps], out: Steps) -> bool:
    """Return whether LiteRT's arithmetic is another than that of the definition, and has its numbers."""
    x, kind = given[0], node.op.name
    if kind in ("add", "sub"):
        return LOW < _bits(given, out) < 31
    if kind in ("relu", "clip"):
        return x.scale != out.scale
    if kind == "reduce_mean":
        return x.dtype in BYTES or (_size(x.node.output) > 0 and _size(node.output) > 0)
    return kind not in ("resize", "average_pool") or (
        x.scale == out.scale and node.op.values.get("mode", "linear") == "linear"
    )


_OF: dict[str, tuple[int, Collection[str], Make]] = {
    # op: how many of its first operands are data, of which dtypes, how it is made
    "add": (2, BYTES, _sum),
    "sub": (2, BYTES, _sum),
    "leaky_relu": (1, BYTES, _leaky_relu),
    "hard_swish": (1, BYTES, _hard_swish),
    "matmul": (2, BYTES, _product),
    "relu": (1, BYTES, _activation),
    "clip": (1, BYTES, _activation),
    "resize": (1, BYTES, _resized),
    "average_pool": (1, WIDE, _averaged),
    "reduce_mean": (1, (*BYTES, *WIDE), _mean),
}


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _times(x: Value, by: float, shift: int | None = None) -> Value:
    """Return integers times a number that is a fraction of 31 bits, shifted to the right by -shift bits: both are
    rounded."""
    fraction, exponent = math.frexp(by)
    shift = min(exponent, 0) if shift is None else shift
    y = _near(_mul(ops.cast(x, to="float64"), math.ldexp(math.floor(fraction * 2**31 + 0.5), exponent - shift - 31)))
    return ops.cast(_away(_mul(y, 2.0**shift)) if shift else y, to="float32")


def _short(by: float) -> tuple[float, int]:
    """Return a fraction of 15 bits and an exponent of 2."""
    fraction, exponent = math.frexp(by)
    return min(math.floor(fraction * 32768 + 0.5), 32767) / 32768, exponent


def _near(x: Value) -> Value:
    """Return the nearest integers, halves upwards."""
    return ops.floor(ops.add(x, np.asarray(0.5, x.dtype)))


def _away(x: Value) -> Value:
    """Return the nearest integers, halves away from zero."""
    return ops.mul(ops.sign(x), _near(ops.abs(x)))


def _cut(x: Value) -> Value:
    return ops.clip(x, np.float32(-32768), np.float32(32767))


def _mul(x: Value, by: float) -> Value:
    return ops.mul(x, np.asarray(by, x.dtype))


# --- the pass ---------------------------------------------------------------------------------------------------------


class OfIntegers(Rewrite):
    """quantize(f(dequantize(x), ..)) -> quantize(f'(x - zero, ..), 1), in steps"""

    shares = True

    def pattern(self) -> Any:
        return node_of("quantize_linear")

    def plan(self, m: Match) -> Plan | None:
        found = _found(m.root)
        return None if found is None else Plan(lambda m: self._made(m.root, *found))

    @staticmethod
    def _made(root: Node, make: Make, node: Node, given: Sequence[Steps], out: Steps) -> Value:
        return ops.quantize_linear(make(node, given, out), np.float32(1), root.inputs[2])


def _found(root: Node) -> tuple[Make, Node, Sequence[Steps], Steps] | None:
    """Return how the operator is made whose result a node quantizes, and of what; None for others."""
    y, dtype = root.inputs[0], root.output.dtype
    node, out = None if y is None else y.producer, _steps(root, dtype)
    if node is None or out is None:
        return None
    count, dtypes, make = _OF.get(node.op.name, (0, BYTES, _square))
    data, first = node.inputs[:count], node.inputs[0] if node.inputs else None
    if node.op.name == "mul" and first is not None and first is node.inputs[1]:
        data = first.producer.inputs if first.producer is not None and first.producer.op.name == "sub" else ()
    given = [x for v in data if (x := _read(v, dtype)) is not None]
    if dtype not in dtypes or not given or len(given) < len(data) or not _is_known(node, given, out):
        return None
    return make, node, given, out


@dataclass(frozen=True)
class FollowLiteRT:
    """quantize(f(dequantize(x), ..)) -> integers, as LiteRT has them, in graphs of its files"""

    def run(self, graph: Graph, context: Context) -> None:
        if SOURCE in graph.metadata:
            ApplyRules((OfIntegers(),)).run(graph, context)
