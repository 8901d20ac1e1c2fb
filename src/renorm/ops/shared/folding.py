"""How factors and shifts per channel become part of an op's constants: the arithmetic of `OpDef.fold_after`.

Arrays come and go in float64, weights in the dtype they are stored in or as a Deferred. k, shift: one number per
channel of the result, or None where there is nothing to multiply or add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from renorm.graph.channels import ChannelMap
from renorm.graph.deferred import Deferred
from renorm.graph.op import OpDef
from renorm.ops.shared.window import Span

Array = Any


def is_known(operand: Any) -> bool:
    """Return whether an operand of `fold_after` is a constant."""
    return isinstance(operand, (np.ndarray, Deferred))


def scaled_product(
    op: OpDef, operands: Sequence[Any], axis: int, k: Array, shift: Array, weight_times: Callable[[Array, Array], Array]
) -> Any:
    """y * k + shift for y = product(x, w) + b with channels on axis 1: (op, [x, w * k, b * k + shift]), or why not."""
    x, w, b = operands
    if axis != 1:
        return f"the factors run along axis {axis} of the result of {op.name}, not along its channels"
    if k is not None and not is_known(w):
        return f"the weight of {op.name} is not a constant"
    if b is not None and not is_known(b):
        return f"the bias of {op.name} is not a constant"
    return op, [x, w if k is None else weight_times(w, k), scaled_bias(b, k, shift)]


def scaled_affine(
    op: OpDef, operands: Sequence[Any], axis: int, channels: int, k: Array, shift: Array, at: int = 1
) -> Any:
    """y * k + shift for a normalization y = x' * scale + bias, whose scale and bias are operands `at` and at + 1 and
    run along axis `channels`: (op, operands with scale * k and bias * k + shift), or why not."""
    scale, bias = operands[at], operands[at + 1]
    if axis != channels:
        return f"the factors run along axis {axis} of the result of {op.name}, its scale and bias along axis {channels}"
    if not is_known(scale) or not (bias is None or is_known(bias)):
        return f"scale and bias of {op.name} are not constants"
    changed = list(operands)
    changed[at], changed[at + 1] = scale if k is None else scale * k, scaled_bias(bias, k, shift)
    return op, changed


def scaled_bias(b: Array, k: Array | None, shift: Array) -> Array:
    """b * k + shift; `b` itself, or None, where nothing changes it."""
    if b is None:
        return shift
    b = b if k is None else b * k
    return b if shift is None else b + shift


def in_float64(w: Any) -> Array:
    """A weight's elements as numbers to compute with."""
    return w.exact() if isinstance(w, Deferred) else np.asarray(w, np.float64)


ALONG = "the map in front runs along axis {}, not along the channels that are summed"


def unabsorbed(op: OpDef, m: ChannelMap, w: Any, b: Any) -> str | None:
    """Return why a convolution cannot take a map in front of it; None where it can."""
    if m.axis != 1:
        return ALONG.format(m.axis)
    for what, held in (("weight", w), ("bias", b)):
        if held is not None and not is_known(held):
            return f"the {what} of {op.name} is not a constant"
    return None


def with_bias(rest: Array, b: Array | None) -> Array:
    """Return what is added to a result [N, M, ..], with a bias per channel."""
    return rest if b is None else rest + b.reshape(-1, *[1] * (rest.ndim - 2))


def border(taps: Array, hits: Sequence[Array]) -> Array:
    """Return what a constant 1 in front of a window gives at each position, channel by channel: [1, M, *positions].

    taps: [M, *K], the window's weights; hits: for each axis, [K, positions], 1 where a tap reads an element and 0 where
    it reads padding.
    """
    found = taps
    for seen in hits:  # the axis of taps goes, that of positions comes last
        found = np.tensordot(found, seen, axes=([1], [0]))
    return found[None]


def window_hits(span: Span, count: int) -> Array:
    """[K, count]: whether a tap of a window reads an element, by position."""
    at = np.arange(count) * span.stride - span.before + np.arange(span.kernel)[:, None] * span.dilation
    return ((at >= 0) & (at < span.extent)).astype(np.float64)


def transposed_border(taps: Array, spans: Sequence[Span], counts: Sequence[int]) -> Array:
    """As `border`, for a transposed window, whose taps bring an element of x to several of y."""
    return border(taps, [_transposed_hits(span, count) for span, count in zip(spans, counts, strict=True)])


def _transposed_hits(span: Span, count: int) -> Array:
    """[K, count]: whether a tap of a transposed window brings an element to a position of the result."""
    at = np.arange(count) + span.before - np.arange(span.kernel)[:, None] * span.dilation
    return ((at % span.stride == 0) & (at >= 0) & (at < span.extent * span.stride)).astype(np.float64)
