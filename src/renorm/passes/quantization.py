"""Quantized tensors towards kernels: integers that stand for numbers are computed with as floats, in steps from zero.

    quantize(x)    becomes   cast(steps + zero),  steps = clip(round(x / scale), least - zero, greatest - zero)
    dequantize     becomes   steps * scale        where it reads such integers

so that kernels write and read steps, which are floats as any other, in blocks of channels, and integers are made where
somebody reads those. A NaN stays one in steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.conversion import limits
from renorm.graph.ir import Node, Value
from renorm.graph.rewrite import Match, Plan, Rewrite, node_of
from renorm.ops.shared import quantization

Array = np.ndarray[Any, Any]

FARTHEST = 255  # integers of 8 bits from their zero point
MOST = 64  # values that a search for those goes through
# Ops whose results are elements of their first operand, of floats as of integers
PICKS = ("max_pool", "reshape", "flatten", "transpose", "slice", "squeeze", "unsqueeze", "depth_to_space")


def integers(number: Value, zero: Array, dtype: str) -> Value:
    """Return what stands for numbers, counted in steps."""
    low, high = (np.asarray(end - zero, np.float32) for end in limits(dtype))
    zero = np.asarray(zero, np.float32)
    steps = ops.round(number)
    steps = ops.clip(steps, low, high) if not zero.ndim else ops.min(ops.max(steps, low), high)
    return placed(steps, zero, dtype)


def placed(steps: Value, zero: Array, dtype: str) -> Value:
    """Return the integers that lie so many steps from zero points."""
    return ops.cast(ops.add(steps, zero) if zero.any() else steps, to=dtype)


def steps_of(v: Value) -> tuple[Value, Array] | None:
    """Return the steps that quantized integers were made of, and their zero points; None where these are not known."""
    cast = v.producer
    if cast is None or cast.op.name != "cast" or v.dtype not in quantization.QUANTIZED:
        return None
    steps, zero = cast.inputs[0], np.zeros((), np.float32)
    if steps is not None and steps.producer is not None and steps.producer.op.name == "add":
        steps, held = steps.producer.inputs
        if held is None or held.data is None:
            return None
        zero = held.data
    if steps is None or steps.dtype != "float32" or not _is_within(steps, zero, v.dtype):
        return None
    return steps, zero


def picked_from(v: Value) -> list[Value]:
    """Return the values whose elements a value has, as its producers say; none where these are many."""
    found, waiting = list[Value](), [v]
    for _ in range(MOST):
        if not waiting:
            return found
        node = (v := waiting.pop()).producer
        if node is None or node.op.name not in (*PICKS, "concat"):
            found.append(v)
        else:
            waiting += [x for x in (node.inputs if node.op.name == "concat" else node.inputs[:1]) if x is not None]
    return []


def _is_within(steps: Value, zero: Array, dtype: str) -> bool:
    """Return whether a value is of what is rounded, and cut to what integers of a dtype are with that zero point."""
    wanted = [np.asarray(end - zero, np.float32) for end in limits(dtype)]
    cuts = [_cut(v) for v in ([steps] if zero.ndim else picked_from(steps))]  # picks may turn channels
    return bool(cuts) and all(
        found is not None and all(np.array_equal(b, w) for b, w in zip(found, wanted)) for found in cuts
    )


def _cut(v: Value) -> list[Array] | None:
    """Return between which bounds a value is rounded numbers; None for other values."""
    node = v.producer
    if node is None or node.op.name not in ("clip", "min"):
        return None
    inner, *bounds = node.inputs
    if node.op.name == "min":
        below = inner.producer if inner is not None else None
        if below is None or below.op.name != "max":
            return None
        inner, bounds = below.inputs[0], [*below.inputs[1:], *bounds]
    rounding = inner.producer if inner is not None else None
    found = [b.data for b in bounds if b is not None and b.data is not None]
    is_whole = rounding is not None and rounding.op.name == "round" and len(found) == len(bounds) == 2
    return found if is_whole else None


def are_whole(v: Value, most: int) -> bool:
    """Return whether a value is steps of quantized data, none of them more than `most` from zero."""
    return bool(found := picked_from(v)) and all(_is_whole(x, most) for x in found)


def are_counts(v: Value) -> bool:
    """Return whether a value is steps of quantized data from 0 to 255, which bytes hold."""
    found = [_cut(x) for x in picked_from(v)]
    return bool(found) and all(b is not None and b[0].min() >= 0 and b[1].max() <= FARTHEST for b in found)


def _is_whole(v: Value, most: int) -> bool:
    node = v.producer
    if node is not None and node.op.name == "dequantize_linear":
        x, scale, _ = node.inputs
        is_one = scale is not None and scale.data is not None and bool(np.all(scale.data == 1))
        return is_one and x is not None and x.dtype in quantization.BYTES
    bounds = _cut(v)
    return bounds is not None and all(whole(b, most) for b in bounds)


def whole(a: Array, most: int) -> bool:
    """Return whether all elements are integers, none of them more than `most` from zero."""
    return bool(np.all((np.rint(a) == a) & (np.abs(a) <= most)))


def parameter(v: Value | None, rank: int, axis: int) -> Array | None:
    """Return a scale or zero point as a float32 array that broadcasts to a value of a rank, 0 where it is left out;
    None where it is no constant."""
    if v is None:
        return np.zeros((), np.float32)
    return None if v.data is None else np.asarray(quantization.parameters(v.data, [1] * rank, axis), np.float32)


def parameters_of(node: Node) -> tuple[Array, Array] | None:
    """Return scale and zero point of a node that quantizes or dequantizes; None where they are no constants, or differ
    from block to block."""
    x, scale, zero = node.inputs
    assert x is not None
    found = [parameter(v, x.rank, node.op.values["axis"]) for v in (scale, zero)]
    if node.op.values["block_size"] or found[0] is None or found[1] is None:
        return None
    return found[0], found[1]


class QuantizeInSteps(Rewrite):
    """quantize_linear(x, scale, zero) -> cast(clip(round(x / scale), least - zero, greatest - zero) + zero)"""

    def pattern(self, x: Any) -> Any:
        return node_of("quantize_linear", x)

    def plan(self, m: Match) -> Plan | None:
        is_float32 = m.x.dtype in ("float32", "int32") and m.root.op.values["precision"] == "float32"
        is_integer = m.root.output.dtype in quantization.QUANTIZED
        return Plan(self.rewrite) if is_float32 and is_integer and parameters_of(m.root) is not None else None

    def rewrite(self, m: Match) -> Value:
        found = parameters_of(m.root)
        assert found is not None
        scale, zero = found
        x = m.x if m.x.dtype == "float32" else ops.cast(m.x, to="float32")
        return integers(ops.div(x, scale), zero, m.root.output.dtype)


class DequantizeSteps(Rewrite):
    """dequantize_linear(cast(steps + zero), scale, zero) -> steps * scale"""

    def pattern(self, x: Any) -> Any:
        return node_of("dequantize_linear", x)

    def plan(self, m: Match) -> Plan | None:
        found, of = parameters_of(m.root), steps_of(m.x)
        if found is None or of is None or m.root.output.dtype != "float32":
            return None
        return Plan(self.rewrite) if np.array_equal(found[1], of[1]) else None

    def rewrite(self, m: Match) -> Value:
        found, of = parameters_of(m.root), steps_of(m.x)
        assert found is not None
        assert of is not None
        scale, steps = found[0], of[0]
        return steps if not scale.ndim and scale == 1 else ops.mul(steps, scale)


@dataclass(frozen=True)
class StepsPast(Rewrite):
    """f(cast(steps + zero)) -> cast(f(steps) + zero), where results of f are elements of its operand"""

    op: str

    def pattern(self, x: Any) -> Any:
        return node_of(self.op, x)

    def plan(self, m: Match) -> Plan | None:
        found = steps_of(m.x)
        if found is None or found[1].ndim:
            return None
        steps, zero = found
        return Plan(lambda m: placed(m.root.op(steps, *m.root.operands[1:]), zero, m.x.dtype))


class JoinedSteps(Rewrite):
    """concat(cast(steps + zero), ..) -> cast(concat(steps, ..) + zero), where all have one zero point"""

    def pattern(self) -> Any:
        return node_of("concat")

    def plan(self, m: Match) -> Plan | None:
        parts = [None if v is None else steps_of(v) for v in m.root.inputs]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts) or any(z.ndim or z != found[0][1] for _, z in found):
            return None
        joined, dtype = [x for x, _ in found], m.root.output.dtype
        return Plan(lambda m: placed(m.root.op(joined), found[0][1], dtype))


RULES: tuple[Rewrite, ...] = (QuantizeInSteps(), DequantizeSteps(), *map(StepsPast, PICKS), JoinedSteps())
