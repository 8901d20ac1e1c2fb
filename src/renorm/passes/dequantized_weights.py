"""Weights of integers that take factors per channel: the integers stay, the factors go into the scales of the node that
dequantizes them.

    f(x; (w - zero) * scale, b) * k + shift  ->  f(x; (w - zero) * (scale * k), b * k + shift)

One scale per tensor becomes one per channel. Scales stay above zero: where a factor is below, w - zero is negated,
which is exact where the dtype has the integers; where it is 0, w becomes zero, and the scale stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.conversion import limits
from renorm.core.dims import static
from renorm.graph.deferred import Deferred, survives
from renorm.graph.ir import Node, Value
from renorm.graph.rewrite import Match
from renorm.ops.shared import quantization
from renorm.passes.affine import exact

Array = np.ndarray[Any, Any]


def integers_of(weight: Value | None) -> Node | None:
    """Return the node that dequantizes constant integers, each of them by one scale for all or for its channel; None
    for other values."""
    node = weight.producer if weight is not None else None
    if node is None or node.op.name != "dequantize_linear" or node.op.values["block_size"]:
        return None
    w = node.inputs[0]
    is_constant = all(v is None or v.is_constant for v in node.inputs)
    return node if is_constant and w is not None and w.dtype in quantization.WEIGHTS else None


def rounded_before(node: Node) -> str | None:
    """Return why a node takes no map where it dequantizes data; None for other nodes."""
    x = node.inputs[0] if node.op.name == "dequantize_linear" else None
    if x is None or x.is_constant:
        return None
    return (
        f"what it reads is rounded to steps of {x.dtype} before (node {node.name!r}), and in front of that rounding it "
        "would not give the same"
    )


def spread_scales(node: Node, axis: int) -> Array | None:
    """Return the scales of what a node dequantizes, in its shape; None where they run along another axis."""
    w, scale, _ = node.inputs
    assert w is not None
    assert scale is not None
    shape, held = static(w.shape), exact(scale)
    if held.size > 1 and node.op.values["axis"] % len(shape) != axis:
        return None
    return np.broadcast_to(quantization.parameters(held, shape, axis), shape)


@dataclass(frozen=True)
class Dequantized:
    """What `node` dequantizes with other scales, one for each index along an axis, and perhaps other integers."""

    node: Node
    axis: int
    integers: Array
    scales: Array

    @classmethod
    def of(cls, node: Node, axis: int, products: Array | Deferred) -> Dequantized | str:
        """Return that, or why there is none. products: of factors and `spread_scales`."""
        w, scale, zero = node.inputs
        assert w is not None
        assert w.data is not None
        assert scale is not None
        asked, held = (
            np.moveaxis(a, axis, 0).reshape(a.shape[axis], -1)
            for a in (products.exact() if isinstance(products, Deferred) else products, spread_scales(node, axis))
            if a is not None
        )
        if not asked.size or (asked != asked[:, :1]).any():
            return f"the factors of weight {w.name!r} are not one for each index along its axis {axis}"
        factors = asked[:, 0]
        sizes = np.abs(factors[factors != 0])
        lost = [s for s in sizes if not survives(s, scale.dtype)]
        if lost:
            return f"scales of weight {w.name!r} are lost in {scale.dtype}: {lost[0]:.3g}"
        spread = [-1 if a == axis else 1 for a in range(w.rank)]
        zeros = 0 if zero is None else quantization.parameters(zero.data, static(w.shape), axis).astype(np.int64)
        sign = np.sign(factors).astype(np.int64).reshape(spread)
        turned = zeros + (w.data.astype(np.int64) - zeros) * sign
        low, high = limits(w.dtype)
        outside = (turned < low) | (turned > high)
        if outside.any():
            return (
                f"a factor below zero would negate {w.data[outside][0]} in weight {w.name!r}, "
                f"and {w.dtype} has no {turned[outside][0]}"
            )
        return cls(node, axis, turned.astype(w.data.dtype), np.where(factors == 0, held[:, 0], np.abs(factors)))

    def __call__(self, m: Match) -> Value:
        """Make it."""
        w, scale, zero = self.node.inputs
        assert w is not None
        assert w.data is not None
        assert scale is not None
        whole = w if np.array_equal(self.integers, w.data) else m.graph.constant(self.integers, w.name, m.origin)
        factors = m.graph.constant(self.scales, scale.name, m.origin, dtype=scale.dtype)
        if zero is not None and zero.data is not None and zero.shape != factors.shape:
            zero = m.graph.constant(np.broadcast_to(zero.data.reshape(()), self.scales.shape), zero.name, m.origin)
        op = self.node.op.with_attributes(axis=self.axis)
        origin = (*m.origin, *self.node.origin)
        return m.graph.apply(op, [whole, factors, zero], name=self.node.name, before=m.root, origin=origin)
