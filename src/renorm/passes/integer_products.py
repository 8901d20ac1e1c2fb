"""Products of integers of 8 bits as products of floats, where these are exact.

A float32 holds every integer up to 2^24. Data less its zero point is at most 255 away from zero, so that sums of
products with constant weights are exact in whatever order they are made, if for each channel

    255 * (sum of |w - zero|) + |b| <= 2^24

which is looked at. Where it does not hold, what is summed over is cut into parts that it holds for, and their sums are
added as int32. What is exact has the speed of float32, its blocks of channels and tiles of registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from renorm import ops
from renorm.graph import registry
from renorm.graph.ir import Node, Value
from renorm.graph.op import OpDef
from renorm.graph.rewrite import Match, Plan, Rewrite, node_of
from renorm.ops.exact_conv import ExactConv
from renorm.ops.shared import quantization
from renorm.passes.quantization import FARTHEST, Array, integers

EXACT = 1 << 24
PARTS = 8  # of what is summed over; integers are multiplied rather than more
LANES = 16  # channels that parts are multiples of, where there are as many


def parts(magnitudes: Array, bias: Array | None = None) -> list[slice] | None:
    """Return in which parts of what is summed over sums are exact; None where they would be too many. magnitudes: by
    result channel and what is summed over, sums of absolute weights."""
    far = FARTHEST * np.concatenate([np.zeros_like(magnitudes[:, :1]), np.cumsum(magnitudes, axis=1)], axis=1)
    depth, beside = magnitudes.shape[1], 0 if bias is None else np.abs(bias.astype(np.int64)).max(initial=0)
    for count in range(1, min(PARTS, depth) + 1):
        length = -(-depth // count)
        ends = [*range(0, depth, length if length <= LANES else -(-length // LANES) * LANES), depth]
        if np.diff(far[:, ends], axis=1).max(initial=0) + (beside if count == 1 else 0) <= EXACT:
            return [slice(*ends) for ends in pairwise(ends)]
    return None


def steps(x: Value, zero: Value | None) -> Value:
    """Return data less its zero point, as float32."""
    is_nothing = zero is not None and zero.data is not None and not zero.data.any()
    return ops.dequantize_linear(x, np.float32(1), None if is_nothing else zero)


def centred(w: Value | None, zero: Value | None, axis: int) -> Array | None:
    """Return a constant weight less its zero points; None where it is none."""
    if w is None or w.data is None or w.dtype not in quantization.WEIGHTS or (zero is not None and zero.data is None):
        return None
    return quantization.centred_array(w.data, None if zero is None else zero.data, axis)


def constants(*values: Value | None) -> list[Array] | None:
    """Return the elements of scales and zero points as rows of float32; None where some are no constants."""
    found = [None if v is None or v.data is None else np.asarray(v.data, np.float32).reshape(-1) for v in values]
    given = [a for a in found if a is not None]
    return given if len(given) == len(found) else None


def added(sums: Sequence[Value], bias: Array | None) -> Value:
    """Return sums of several parts and a bias as int32."""
    total = ops.cast(sums[0], to="int32")
    for other in sums[1:]:
        total = ops.add(total, ops.cast(other, to="int32"))
    return total if bias is None else ops.add(total, bias)


@dataclass(frozen=True)
class Sums:
    """The sums of a convolution, or of a matrix product, with constant integers. bias: int32, one for each channel."""

    op: OpDef
    weight: Array
    parts: Sequence[slice]
    bias: Array | None = None

    @classmethod
    def of_conv(
        cls, node: Node, w: Value | None, zero: Value | None, b: Value | None = None, rounds: bool = False
    ) -> Self | None:
        """Return those of a node with a window; None where they are not exact. rounds: whether they need not be."""
        weight = centred(w, zero, axis=0)
        if weight is None or (b is not None and b.data is None) or 0 in weight.shape:
            return None
        bias = None if b is None else b.data
        magnitudes = np.abs(weight).reshape(*weight.shape[:2], -1).sum(axis=2)
        found = [slice(0, weight.shape[1])] if rounds else parts(magnitudes, bias)
        op = ExactConv(**node.op.values)
        return None if found is None or (len(found) > 1 and op.group > 1) else cls(op, weight, found, bias)

    @classmethod
    def of_matmul(
        cls, b: Value | None, zero: Value | None, is_turned: bool = False, rounds: bool = False
    ) -> Self | None:
        """Return those of a product with b, or its transpose; None where they are not exact. rounds: as in
        `of_conv`."""
        weight = centred(b, zero, axis=0 if is_turned else -1)
        if weight is None or weight.ndim != 2 or 0 in weight.shape:
            return None
        weight = np.ascontiguousarray(weight.T) if is_turned else weight
        found = [slice(0, len(weight))] if rounds else parts(np.abs(weight).T)
        return None if found is None else cls(registry.find("matmul")(), weight, found)

    @classmethod
    def takes(cls, x: Value | None, zero: Value | None, is_padded: bool) -> bool:
        """Return whether x, integers with a zero point, may be the data. is_padded: whether a window meets a
        border."""
        return x is not None and x.dtype in quantization.BYTES and is_one(zero)

    def made(self, m: Match, x: Value, zero: Value | None, to: str) -> Value:
        """Return the sums for x less its zero point, as float32 or int32. x: integers, or steps as float32."""
        data = x if x.dtype == "float32" else steps(x, zero)
        is_conv, found = isinstance(self.op, ExactConv), list[Value]()
        for part in self.parts:
            held = self.weight[:, part] if is_conv else self.weight[part]
            own = [m.graph.constant(held, f"{m.root.name}.weight", m.root.origin, dtype="float32")]
            if self.bias is not None and len(self.parts) == 1:
                own.append(m.graph.constant(self.bias, f"{m.root.name}.bias", m.root.origin, dtype="float32"))
            bounds = [np.array([n], np.int64) for n in (part.start, part.stop, 1 if is_conv else data.rank - 1)]
            found.append(self.op(data if len(self.parts) == 1 else ops.slice(data, *bounds), *own))
        if len(found) == 1:
            return found[0] if to == "float32" else ops.cast(found[0], to=to)
        bias = None if self.bias is None else self.bias.reshape(-1, *[1] * (self.weight.ndim - 2))
        total = added(found, bias)
        return total if to == "int32" else ops.cast(total, to=to)


@dataclass(frozen=True)
class OfSums(Rewrite):
    """Base of rules for products of integers. sums: what makes their sums."""

    sums: type[Sums] = Sums


class ConvIntegerAsSums(OfSums):
    """conv_integer(x, w, x_zero, w_zero) -> cast(conv(x - x_zero, w - w_zero))"""

    def pattern(self) -> Any:
        return node_of("conv_integer")

    def plan(self, m: Match) -> Plan | None:
        x, w, x_zero, w_zero = m.root.inputs
        sums = self.sums.of_conv(m.root, w, w_zero)
        if sums is None or x is None or not sums.takes(x, x_zero, is_padded(m.root)):
            return None
        return Plan(lambda m: sums.made(m, x, x_zero, "int32"))


class QlinearConvAsSums(OfSums):
    """qlinear_conv(x, w, b) -> integers(conv(x - x_zero, w - w_zero, b) * (x_scale * w_scale / y_scale))"""

    def pattern(self) -> Any:
        return node_of("qlinear_conv")

    def plan(self, m: Match) -> Plan | None:
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b = m.root.inputs
        sums = self.sums.of_conv(m.root, w, w_zero, b)
        found = constants(x_scale, w_scale, y_scale, y_zero)
        if sums is None or x is None or found is None or not sums.takes(x, x_zero, is_padded(m.root)):
            return None
        *scales, zero = found
        factor, dtype = quantization.joint(*scales), m.root.output.dtype
        factor = factor.reshape(-1, *[1] * (x.rank - 2)) if factor.size > 1 else factor.reshape(())
        return Plan(lambda m: integers(ops.mul(sums.made(m, x, x_zero, "float32"), factor), zero.reshape(()), dtype))


class MatmulIntegerAsSums(OfSums):
    """matmul_integer(a, b, a_zero, b_zero) -> cast(matmul(a - a_zero, b - b_zero))"""

    def pattern(self) -> Any:
        return node_of("matmul_integer")

    def plan(self, m: Match) -> Plan | None:
        a, b, a_zero, b_zero = m.root.inputs
        sums = self.sums.of_matmul(b, b_zero)
        if sums is None or a is None or not sums.takes(a, a_zero, False):
            return None
        return Plan(lambda m: sums.made(m, a, a_zero, "int32"))


class QlinearMatmulAsSums(OfSums):
    """qlinear_matmul(a, b) -> integers(matmul(a - a_zero, b - b_zero) * (a_scale * b_scale / y_scale))"""

    def pattern(self) -> Any:
        return node_of("qlinear_matmul")

    def plan(self, m: Match) -> Plan | None:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = m.root.inputs
        sums = self.sums.of_matmul(b, b_zero)
        found = constants(a_scale, b_scale, y_scale, y_zero)
        if sums is None or a is None or found is None or not (sums.takes(a, a_zero, False) and is_one(a_scale)):
            return None
        *scales, zero = found
        factor, dtype = quantization.joint(*scales), m.root.output.dtype
        factor = factor if factor.size > 1 else factor.reshape(())
        return Plan(lambda m: integers(ops.mul(sums.made(m, a, a_zero, "float32"), factor), zero.reshape(()), dtype))


def is_one(v: Value | None) -> bool:
    """Return whether a scale or zero point is one for all elements, or left out."""
    return v is None or quantization.is_single(v.shape)


def is_padded(node: Node) -> bool:
    """Return whether a window may lie across the border of its data."""
    pads, auto = node.op.values["pads"], node.op.values["auto_pad"]
    return auto.startswith("SAME") or (auto != "VALID" and any(pads or ()))


def rules(sums: type[Sums]) -> tuple[Rewrite, ...]:
    """Return the rules by which products of integers become such sums."""
    return tuple(
        rule(sums) for rule in (ConvIntegerAsSums, QlinearConvAsSums, MatmulIntegerAsSums, QlinearMatmulAsSums)
    )


RULES = rules(Sums)
