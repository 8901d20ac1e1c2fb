"""What files say around attention, as smaller ops: heads in rows, which keys a query takes, and scores as a result.

Heads are axis 1 of four; positions are int64 values that broadcast to scores, so that extents may be open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm.core.dtypes import compute_dtype, numpy_dtype
from renorm.core.errors import OperandError
from renorm.ops.shared import builders
from renorm.ops.shared.reshaping import reshaped, reshaped_to

AFTER_SOFTCAP, AFTER_MASK, AFTER_SOFTMAX = 1, 2, 3  # of scores: which of them ONNX asks for; 0: none of these


def in_heads(x: Any, heads: int | None) -> Any:
    """Return [N, H, L, E] of [N, L, H * E]."""
    if not heads:
        raise OperandError(f"attention: {x.type} holds heads side by side, and nothing says how many")
    return builders.find("transpose")(reshaped(x, 0, 0, heads, -1), perm=(0, 2, 1, 3))


def side_by_side(x: Any) -> Any:
    """Return [N, L, H * E] of [N, H, L, E]."""
    return reshaped(builders.find("transpose")(x, perm=(0, 2, 1, 3)), 0, 0, -1)


def length(x: Any) -> Any:
    """Return how many rows a matrix of `x` has."""
    return builders.find("gather")(builders.find("shape")(x), np.asarray(x.rank - 2))


def row_numbers(x: Any) -> Any:
    """Return the numbers of the rows of `x`."""
    return builders.find("range")(np.asarray(0), length(x), np.asarray(1))


def standard_scale(q: Any) -> float:
    """Return the scale of scores where a file states none: 1 / sqrt(elements of a query)."""
    held = q.shape[-1]
    if not isinstance(held, int):
        raise OperandError(f"attention: queries hold {held} elements, of which the scale is made", do="give scale=")
    return 1 / math.sqrt(held) if held else 1.0


def all_of(*conditions: Any) -> Any:
    """Return where all conditions hold; those that are None always do."""
    given = [c for c in conditions if c is not None]
    for other in given[1:]:
        given[0] = builders.find("logical_and")(given[0], other)
    return given[0] if given else None


def per_batch(x: Any) -> Any:
    """Return [N, 1, 1, 1] of [N], int64."""
    wide = x if x.dtype == "int64" else builders.find("cast")(x, to="int64")
    return builders.find("unsqueeze")(wide, axes=[1, 2, 3])


def within(q: Any, k: Any, offset: Any = None, left: int = -1, right: int = -1) -> Any:
    """Return which keys are within `left` positions before a query's own and `right` after it; -1: however many. None
    where all are. offset: position of the first query, 0 if None."""
    find, found = builders.find, list[Any]()
    if left < 0 and right < 0:
        return None
    rows, keys = find("unsqueeze")(row_numbers(q), axes=[1]), row_numbers(k)
    rows = rows if offset is None else find("add")(rows, offset)
    if left >= 0:
        found.append(find("greater_or_equal")(keys, find("sub")(rows, np.asarray(left))))
    if right >= 0:
        found.append(find("less_or_equal")(keys, rows if right == 0 else find("add")(rows, np.asarray(right))))
    return all_of(*found)


def masked(mask: Any, taken: Any) -> Any:
    """Return a mask with those of another one, of truth values, besides."""
    if mask is None or taken is None:
        return taken if mask is None else mask
    if mask.dtype == "bool":
        return all_of(mask, taken)
    return builders.find("where")(taken, mask, np.asarray(-math.inf, numpy_dtype(mask.dtype)))


def filled_up(mask: Any, k: Any) -> Any:
    """Return a mask for all keys: those beyond its last column no query takes."""
    own, keys, find = mask.shape[-1], k.shape[-2], builders.find
    if own == keys or not isinstance(own, int) or (isinstance(keys, int) and own > keys):
        return mask
    more = find("unsqueeze")(find("sub")(length(k), np.asarray(own)), axes=[0])
    pads = find("concat")([np.zeros(2 * mask.rank - 1, np.int64), more], axis=0)
    outside = np.asarray(False if mask.dtype == "bool" else -math.inf, numpy_dtype(mask.dtype))
    return find("pad")(mask, pads, outside)


def scores(q: Any, k: Any, mask: Any, scale: float, softcap: float, stage: int) -> Any:
    """Return scores, each of a query and a key, as they are after `stage` (see the names above)."""
    find, dtype = builders.find, compute_dtype(q.dtype)

    def number(x: float) -> np.ndarray[Any, Any]:
        return np.asarray(x, numpy_dtype(dtype))

    def wide(x: Any) -> Any:
        return x if x.dtype == dtype else find("cast")(x, to=dtype)

    shape, keys = q.shape, find("transpose")(wide(k), perm=(0, 1, 3, 2))
    queries = find("mul")(wide(q), number(scale))
    is_grouped = k.shape[1] != shape[1]
    y = find("matmul")(reshaped(queries, 0, k.shape[1], -1, shape[3]) if is_grouped else queries, keys)
    y = reshaped_to(y, (*shape[:3], k.shape[2])) if is_grouped else y
    if softcap and stage >= AFTER_SOFTCAP:
        y = find("mul")(find("tanh")(find("div")(y, number(softcap))), number(softcap))
    if mask is not None and stage >= AFTER_MASK:
        added = find("where")(mask, number(0), number(-math.inf)) if mask.dtype == "bool" else wide(mask)
        y = find("add")(y, added)
        if stage >= AFTER_SOFTMAX:
            is_empty = find("equal")(find("reduce_max")(added, axes=(-1,)), number(-math.inf))
            return _as(q, find("where")(is_empty, number(0), find("softmax")(y, axis=-1)))
    return _as(q, find("softmax")(y, axis=-1) if stage >= AFTER_SOFTMAX else y)


def mixture(s: Any, v: Any, mask: Any, weight: float, hidden: float, nan_is_zero: bool, empty_is_zero: bool) -> Any:
    """Return values mixed by scores, which a mask changes: of numbers, weight times which are added, or of truth
    values, where those that it does not take are `hidden`. nan_is_zero, empty_is_zero: as Attention has them."""
    find = builders.find

    def number(x: float) -> np.ndarray[Any, Any]:
        return np.asarray(x, numpy_dtype(s.dtype))

    if mask is not None and mask.dtype == "bool":
        s = find("where")(mask, s, number(hidden))
    elif mask is not None:
        added = _as(s, mask)
        s = find("add")(s, added if weight == 1 else find("mul")(added, number(weight)))
    w = find("softmax")(s, axis=-1)
    if nan_is_zero:
        w = find("where")(find("isnan")(w), number(0), w)
    elif empty_is_zero and mask is not None:
        w = find("where")(find("equal")(find("reduce_max")(s, axes=(-1,)), number(-math.inf)), number(0), w)
    is_whole = v.shape[1] == s.shape[1]
    y = find("matmul")(w if is_whole else reshaped(w, 0, v.shape[1], -1, v.shape[2]), v)
    return y if is_whole else reshaped_to(y, (*s.shape[:3], v.shape[3]))


def _as(q: Any, y: Any) -> Any:
    return y if y.dtype == q.dtype else builders.find("cast")(y, to=q.dtype)


def joined(past: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """Return keys and values after those of earlier calls."""
    return [x if p is None else builders.find("concat")([p, x], axis=2) for p, x in zip(past, given)]
