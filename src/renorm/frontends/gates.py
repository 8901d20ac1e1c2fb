"""Weights of recurrent layers whose gates stand in another order than in ONNX."""

from __future__ import annotations

from collections.abc import Sequence

from renorm import ops
from renorm.frontends.building import Building
from renorm.graph.ir import Value


def in_order(c: Building, x: Value, order: Sequence[int]) -> Value:
    """Return the rows of all gates, of which each has as many, in an order: by the places where gates are."""
    if list(order) == sorted(order):
        return x
    n = x.shape[0] // len(order)
    return ops.concat([c.sliced(x, 0, gate * n, (gate + 1) * n) for gate in order], axis=0)
