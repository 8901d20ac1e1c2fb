"""Scales and shifts per channel, read off nodes: norms in inference, and arithmetic with constants.

    batch_norm(x) = x * k + shift,  k = scale / sqrt(var + epsilon), shift = bias - mean * k
    x * c, x / c, x + c, x - c, c - x                                 c one number per channel, however it broadcasts

All of it in float64, from constants as they were before an earlier fold rounded them (`Value.exact`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import format_shape
from renorm.graph.channels import MOST, ChannelMap
from renorm.graph.deferred import Deferred
from renorm.graph.ir import Node, Value

Array = np.ndarray[Any, Any]

FAR = 1024.0  # mean / standard deviation beyond which x * k + shift loses more than three of seven digits
FROM_BATCH = "its statistics come from the batch (training_mode = 1)"


def given(weight: Value) -> Array | Deferred:
    """A constant's elements before the rounding of an earlier fold: as they were read, in float64, or not computed
    yet."""
    assert weight.elements is not None
    return weight.elements if weight.deferred or weight.exact is None else weight.exact


def exact(value: Value) -> Array:
    """A constant's elements in float64, before the rounding of an earlier fold."""
    found = value.exact
    if found is None:
        assert value.data is not None
        found = value.data.astype(np.float64)
    return found


def normalization(node: Node) -> ChannelMap | str:
    """Return what a batch norm in inference does to each channel, or why that is not known."""
    parameters = [v for v in node.inputs[1:] if v is not None]
    if getattr(node.op, "training_mode", False):
        return FROM_BATCH
    for parameter, v in zip(node.op.parsed.operands[1:], parameters):
        if not v.is_constant:
            return f"its {parameter.name} {v.name!r} is not a constant"
    scale, bias, mean, var = (exact(v) for v in parameters)
    with np.errstate(all="ignore"):
        k = scale / np.sqrt(var + node.op.values["epsilon"])
        return ChannelMap(1, k, bias - mean * k)


def per_channel(c: Value, y: Value, result: Value) -> tuple[int, Array] | str:
    """The axis of y along which a constant runs that is combined with it, and its elements; or why it is not per
    channel."""
    if result.shape != y.shape or c.rank > y.rank:
        return f"constant {c.name!r} broadcasts the result from {format_shape(y.shape)} to {format_shape(result.shape)}"
    spread = [1] * (y.rank - c.rank) + [int(str(d)) for d in c.shape]
    axes = [a for a, extent in enumerate(spread) if extent != 1]
    if len(axes) > 1:
        return f"constant {c.name!r} is {format_shape(c.shape)}, which is not per channel"
    # for a constant of one number
    free = [a for a in (1, *range(y.rank)) if a < y.rank and isinstance(d := y.shape[a], int) and d <= MOST]
    axis = axes[0] if axes else free[0] if free else y.rank - 1
    extent = y.shape[axis] if y.rank else 1
    if not isinstance(extent, int):
        return f"the number of channels of {y.name!r} is not known: {extent}"
    if extent > MOST:
        return f"{y.name!r} has {extent} channels, and maps go through {MOST} at most"
    return axis, np.broadcast_to(exact(c).reshape(-1), (extent,))


def scaling(node: Node) -> tuple[Value, ChannelMap] | None:
    """The operand that a node scales and shifts by constants, and the map; None where that is not all it does."""
    if node.op.name == "batch_norm":
        found = normalization(node)
        x = node.inputs[0]
        return None if isinstance(found, str) or x is None else (x, found)
    if node.op.name not in ARITHMETIC or not dtypes.is_float(node.output.dtype):
        return None
    a, b = node.inputs
    assert a is not None
    assert b is not None
    for x, c, turned in ((a, b, False), (b, a, True)):
        if c.is_constant and not x.is_constant and (not turned or node.op.name != "div"):
            found = per_channel(c, x, node.output)
            return None if isinstance(found, str) else (x, ARITHMETIC[node.op.name](*found, turned))
    return None


def _divided(axis: int, c: Array, turned: bool) -> ChannelMap:
    with np.errstate(all="ignore"):
        return ChannelMap(axis, 1 / c, None)


ARITHMETIC: dict[str, Callable[[int, Array, bool], ChannelMap]] = {
    "add": lambda axis, c, turned: ChannelMap(axis, None, c),
    "div": _divided,
    "mul": lambda axis, c, turned: ChannelMap(axis, c, None),
    "sub": lambda axis, c, turned: ChannelMap(axis, -np.ones_like(c) if turned else None, c if turned else -c),
}


def together(first: ChannelMap, second: ChannelMap, x: Value) -> ChannelMap | None:
    """Return two maps of x, one after the other, as one; None where they run along different axes."""
    seconds = second.along(x.shape)
    return next((a.then(b) for a in first.along(x.shape) for b in seconds if a.axis == b.axis), None)


def mapped(constant: Value, m: ChannelMap) -> Array:
    """Return a constant's elements times k plus shift, in float64; a map of a single number is not spread. The axis of
    the map may count from the end, and stand before the first one of the constant."""
    inner = constant.rank - 1 - m.axis if m.axis >= 0 else -1 - m.axis  # axes after that of the channels
    k, shift = (
        None if v is None else v[0] if v.size and (v == v[0]).all() else v.reshape(-1, *[1] * inner)
        for v in (m.k, m.shift)
    )
    held = exact(constant)
    held = held if k is None else held * k
    return held if shift is None else held + shift
