"""Constant weights stored as the inner kernel reads them: [O, ...] -> [ceil(O / v), ..., v], v output channels side
by side.

An op says which axis of a weight carries output channels (`OpDef.channel_axis`). The array is packed once at compile
time; the op's compute sees a view of the original shape, an injective stage that is always inlined, so packing
changes no op. Rows that fill up the last block are zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.expr.nodes import Expr


def packed_shape(shape: tuple[int, ...], axis: int, lanes: int) -> tuple[int, ...]:
    """Shape in memory of a weight of `shape` whose `axis` is cut into blocks of `lanes`."""
    return (-(-shape[axis] // lanes), *shape[:axis], *shape[axis + 1 :], lanes)


def pack(data: np.ndarray[Any, Any], axis: int, lanes: int) -> np.ndarray[Any, Any]:
    """The packed array, C-contiguous."""
    blocks = -(-data.shape[axis] // lanes)
    moved = np.moveaxis(data, axis, -1)
    rest = moved.shape[:-1]
    full = np.zeros((*rest, blocks * lanes), data.dtype)
    full[..., : moved.shape[-1]] = moved
    return np.ascontiguousarray(np.moveaxis(full.reshape(*rest, blocks, lanes), -2, 0))


def unpacked(packed: te.Tensor, shape: tuple[int, ...], axis: int) -> te.Tensor:
    """The view of a packed tensor in its original shape: W[.., o, ..] = P[o // v, .., o % v]."""
    lanes = packed.shape[-1]

    def element(*index: Any) -> Expr:
        o = index[axis]
        rest = [i for a, i in enumerate(index) if a != axis]
        return packed[(o // lanes, *rest, o % lanes)]

    return te.compute(shape, element, name=f"{packed.name}_view", tag="packed_view")
