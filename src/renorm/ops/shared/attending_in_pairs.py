"""Attention whose products a matrix unit computes: everything that is multiplied is rounded, sums are float32.

    keys, in panels of 32: [pairs of elements][keys][2]        values, in panels: [pairs of keys][elements][2]
    powers = exp(scale * queries . keys + mask - most), rounded; of keys beyond the last, which fill a panel up, 0
    y = sum of powers * values / total                         total: of powers as they are rounded

Rows of tables are queries, so that a row of powers is what values are multiplied by as it lies in memory. Since the
total is one of rounded powers, weights add up to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from renorm import te
from renorm.ops.shared.attending import Weighing, served_by
from renorm.ops.shared.precision import wide
from renorm.ops.shared.tags import DOTS, KEYS, MIXED, POWERS, QUERIES, VALUES
from renorm.te import tag

PANEL = 32  # keys, and mostly elements of values, side by side: columns of two registers
LEAST = 16  # queries, keys, and elements of each, that fill a register
FEWEST_KEYS, FEWEST_ELEMENTS = 48, 32  # of a key, below which vectors are as fast, as measured on Sapphire Rapids
MOST = 1 << 13  # keys, of whose powers and scores for a block of queries a second-level cache holds half or more


def suits(q: Sequence[Any], k: Sequence[Any], v: Sequence[Any]) -> bool:
    """Return whether operands of these shapes fill registers of a matrix unit."""
    sizes = (*q, *k, *v)
    if not all(isinstance(n, int) for n in sizes):
        return False
    return min(*q[-2:], *k[-2:], v[-1]) >= LEAST and 0 not in sizes and q[-1] % 2 == 0 and k[-2] <= MOST


def pays(q: Sequence[Any], k: Sequence[Any], v: Sequence[Any]) -> bool:
    """Return whether products of these shapes save more than copies, and sums along rows, cost."""
    return suits(q, k, v) and k[-2] >= FEWEST_KEYS and q[-1] >= FEWEST_ELEMENTS


def _filled(extent: int, panel: int) -> int:
    return -(-extent // panel) * panel


def attended_in_pairs(q: te.Tensor, k: te.Tensor, v: te.Tensor, weighing: Weighing) -> te.Tensor:
    """Return the mixture of values for each query, where operands of products are rounded to `multiplied_as`; the
    formula is that of ops.attention."""
    dtype = weighing.multiplied_as
    assert dtype is not None
    *lead, rows, held = q.shape
    keys, width = k.shape[-2], v.shape[-1]
    columns = PANEL if _filled(width, LEAST) % PANEL == 0 else LEAST
    all_keys, all_columns = _filled(keys, PANEL), _filled(width, columns)
    served = [served_by(whole, part) for whole, part in zip(lead, k.shape)]

    def key(b: Any) -> list[Any]:
        return [index(i) for index, i in zip(served, b)]

    def of_keys(*index: Any) -> Any:
        *b, panel, pair, lane, part = index
        j = panel * PANEL + lane
        return _within(k[(*b, j, pair * 2 + part)].astype(dtype), (j, keys, all_keys))

    def of_values(*index: Any) -> Any:
        *b, panel, pair, lane, part = index
        j, e = pair * 2 + part, panel * columns + lane
        return _within(v[(*b, j, e)].astype(dtype), (j, keys, all_keys), (e, width, all_columns))

    queries = te.compute(q.shape, lambda *i: q[i].astype(dtype), name="queries", tag=QUERIES)
    in_pairs = (*k.shape[:-2], all_keys // PANEL, held // 2, PANEL, 2)
    packed_keys = te.compute(in_pairs, of_keys, name="keys", tag=KEYS)
    in_pairs = (*v.shape[:-2], all_columns // columns, all_keys // 2, columns, 2)
    attrs: dict[str, Any] = {"is_ragged": width < all_columns}
    packed_values = te.compute(in_pairs, of_values, name="values", tag=VALUES, attrs=attrs)

    d, j, k1, k2 = (te.reduce_axis((0, n), name=name) for n, name in ((held, "d"), (keys, "j"), *[(all_keys, "j")] * 2))

    def dot(*index: Any) -> Any:
        *b, i, at = index
        held_key = packed_keys[(*key(b), at // PANEL, d // 2, at % PANEL, d % 2)]
        return te.sum(wide(queries[(*b, i, d)]) * wide(held_key), axis=d)

    dots = te.compute((*lead, rows, all_keys), dot, name="dots", tag=DOTS)

    def score(*index: Any) -> Any:
        return weighing.score(dots[index] * weighing.scale, index)

    per_query = (*lead, rows)
    most = te.compute(per_query, lambda *i: te.max(score(*i, j), axis=j), name="most", tag=tag.COMM_REDUCE)
    most = weighing.greatest(most)
    powers = te.compute(
        dots.shape,
        lambda *i: _within(weighing.power(score(*i) - most[i[:-1]]), (i[-1], keys, all_keys)).astype(dtype),
        name="powers",
        tag=POWERS,
    )
    total = te.compute(per_query, lambda *i: te.sum(wide(powers[(*i, k1)]), axis=k1), name="total", tag=tag.COMM_REDUCE)
    inverse = weighing.inverse(total)

    def mix(*index: Any) -> Any:
        *b, i, e = index
        value = packed_values[(*key(b), e // columns, k2 // 2, e % columns, k2 % 2)]
        return te.sum(wide(powers[(*b, i, k2)]) * wide(value), axis=k2)

    attrs = {"is_few": False, "width": width, "in_pairs": True, "columns": columns}
    mixed = te.compute((*per_query, all_columns), mix, name="mixed", tag=MIXED, attrs=attrs)
    return te.compute(
        (*per_query, width),
        lambda *i: weighing.mixture(mixed[i], inverse[i[:-1]], q.dtype),
        name="attention",
        tag=tag.BROADCAST,
    )


def _within(e: Any, *axes: tuple[Any, int, int]) -> Any:
    """`e` where indices are below their limits, else 0; axes: (index, limit, extent)."""
    for i, limit, extent in axes:
        if limit < extent:
            e = te.if_then_else(i < limit, e, te.const(0.0, e.dtype))
    return e
