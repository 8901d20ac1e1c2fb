"""Merge masks, and apply them: bool[batch, time] beside a tensor, true where a time step counts."""

from __future__ import annotations

from collections.abc import Sequence

from renorm import ops
from renorm.frontends.keras.call import Call, Tensor
from renorm.graph.ir import Graph, Value


def merged(graph: Graph, tensors: Sequence[Tensor]) -> Value | None:
    """Return the mask of what is made of tensors element by element: steps that count in one of them. None where one
    of them has no mask."""
    found = [t.mask for t in tensors]
    held = [m for m in found if m is not None]
    if not held or len(held) < len(found):
        return None
    whole = held[0]
    for mask in held[1:]:
        whole = whole if mask is whole else ops.logical_or(whole, mask)
    return whole


def where_masked(c: Call, x: Value, mask: Value, other: int = 0) -> Value:
    """Return x, [batch, time, ...], with another number at steps that do not count."""
    spread = c.reshaped(mask, (*mask.shape, *[1] * (x.rank - mask.rank)))
    return ops.where(spread, x, c.scalar(other, x.dtype))
