"""Convolutions over two axes by tiles with fewer products (filtering.py), as a tensor program.

    y = b + A^T M A,   M = sum over channels of U * V,   U = G w G^T,   V = B^T d B        of each tile d of x

Left and right matrices are those of the rows and of the columns of a tile. Weights come as they are and are transformed
where they are used: a transformed weight would take up to four times the memory.

Tiles of a plane may be one row (joined): what is summed in registers then ends once in a plane, however narrow that is,
and not in each of its rows. So are those of open extents where a kernel transforms weights, all tiles before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.expr.extents import same_extent
from renorm.expr.nodes import Expr
from renorm.ops.shared.filtering import Array, Filter
from renorm.ops.shared.precision import add_channels
from renorm.ops.shared.window import pad
from renorm.te.open_dims import larger

BLOCK = 16  # channels side by side in what is transformed: a cache line of float32, whole vectors of any CPU


def tiled(
    x: te.Tensor,
    w: te.Tensor,
    b: te.Tensor | None,
    filters: tuple[Filter, Filter],
    shape: Sequence[int],
    result_axis: int,
    is_joined: bool = False,
) -> te.Tensor:
    """The convolution of x. w: U[P, C, K], or a weight that has result channels on axis result_axis; shape: of y."""
    down, across = filters
    (batch, channels), (results, height, width) = x.shape[:2], shape[1:]
    rows, columns = ((n + f.results - 1) // f.results for n, f in ((height, down), (width, across)))
    before, behind = list[int](), list[int]()
    for f, count, extent in zip(filters, (rows, columns), x.shape[2:], strict=True):
        before.append(max(0, -f.start))
        behind.append(larger(0, (count - 1) * f.step + f.start + f.elements - extent))
    data = pad(x, before, behind)
    open_extents = sum(isinstance(n, Expr) for n in (rows, columns))
    is_row = is_joined or (len(w.shape) == 4 and open_extents > 0)
    lines, length = (1, rows * columns) if is_row else (rows, columns)
    top, left = (f.start + n for f, n in zip(filters, before, strict=True))

    def data_row(i: Any, s: Any, p: Any, q: Any, e: Any, block: Any, lane: Any) -> Any:
        c = block * BLOCK + lane
        p, q = (q // columns, q % columns) if is_row else (p, q)
        at = [data[s, c, down.step * p + top + k, across.step * q + left + e] for k in range(down.elements)]
        return pick(i, products(down.b, [_within(c, channels, d) for d in at]))

    n, m, blocks = down.products, across.products, -(-channels // BLOCK)
    rows_of = te.compute(
        (n, batch, lines, length, across.elements, blocks, BLOCK), data_row, name="rows", tag="winograd_rows"
    )

    def transformed(i: Any, j: Any, block: Any, s: Any, p: Any, q: Any, lane: Any) -> Any:
        return pick(j, products(across.b, [rows_of[i, s, p, q, k, block, lane] for k in range(across.elements)]))

    v = te.compute((n, m, blocks, batch, lines, length, BLOCK), transformed, name="transformed", tag="winograd_input")

    u = w if len(w.shape) == 3 else _weights(w, filters, result_axis)

    def weight(i: Any, j: Any, c: Any, k: Any) -> Any:
        return w[i * m + j, c, k] if u is w else u[k // BLOCK, i, j, c, k % BLOCK]

    ic = te.reduce_axis((0, channels), name="ic")
    product = te.compute(
        (n, m, batch, lines, length, results),
        lambda i, j, s, p, q, k: te.sum(v[i, j, ic // BLOCK, s, p, q, ic % BLOCK] * weight(i, j, ic, k), axis=ic),
        name="products",
        tag="winograd_products",
    )

    def row_back(i: Any, j: Any, s: Any, p: Any, q: Any, k: Any) -> Any:
        return pick(i, products(down.a, [product[l, j, s, p, q, k] for l in range(n)]))

    sums = te.compute((down.results, m, batch, lines, length, results), row_back, name="sums", tag="winograd_sums")

    def result(s: Any, k: Any, h: Any, w: Any) -> Any:
        p, q = h // down.results, w // across.results
        at = h % down.results, s, *((0, p * columns + q) if is_row else (p, q)), k
        return pick(w % across.results, products(across.a, [sums[at[0], l, *at[1:]] for l in range(m)]))

    attrs = {"tile": (down.results, across.results), "joined": max(1, open_extents) if is_row else 0}
    y = te.compute(shape, result, name="winograd", tag="winograd", attrs=attrs)
    return add_channels(y, b)


def _weights(w: te.Tensor, filters: tuple[Filter, Filter], result_axis: int) -> te.Tensor:
    """U in blocks of result channels: what the kernel makes of a weight."""
    down, across = filters
    results, channels = w.shape[result_axis], w.shape[1 - result_axis]

    def row(i: Any, j: Any, block: Any, c: Any, lane: Any) -> Any:
        k = block * BLOCK + lane
        taps = [w[(k, c, t, j) if result_axis == 0 else (c, k, t, j)] for t in range(w.shape[2])]
        return pick(i, products(down.g, [_within(k, results, tap) for tap in taps]))

    blocks = -(-results // BLOCK)
    shape = (down.products, w.shape[3], blocks, channels, BLOCK)
    rows = te.compute(shape, row, name="weight_rows", tag="winograd_weight_rows")

    def column(block: Any, i: Any, j: Any, c: Any, lane: Any) -> Any:
        return pick(j, products(across.g, [rows[i, t, block, c, lane] for t in range(w.shape[3])]))

    shape = (blocks, down.products, across.products, channels, BLOCK)
    return te.compute(shape, column, name="weights", tag="winograd_weights")


def _within(index: Any, extent: int, value: Any) -> Any:
    """Zero for what fills up the last block."""
    return (
        value if same_extent(extent % BLOCK, 0) else te.if_then_else(index < extent, value, te.const(0.0, value.dtype))
    )


def products(matrix: Array, terms: Sequence[Any]) -> list[Any]:
    """The scalar expressions matrix @ terms, with common sums shared.

    Points come with their negatives, so that two columns (of A^T) or two rows (of B^T, G) differ only in signs: x + y
    and x - y of two such terms, or of the two parts of a row, serve all that differ in them. No term has a coefficient
    0.
    """
    matrix, terms = matrix.copy(), list(terms)
    for j, k in _mirrored(matrix.T).items():
        a, b, same = terms[j], terms[k], matrix[:, j] == matrix[:, k]
        terms[j], terms[k] = a + b, a - b
        matrix[:, k] = np.where(same, 0.0, matrix[:, j])
        matrix[:, j] = np.where(same, matrix[:, j], 0.0)
    twins = _mirrored(matrix)
    found: dict[int, Any] = {}
    for i, row in enumerate(matrix):
        if i in twins:
            other = matrix[twins[i]]
            even, odd = np.where(row == other, row, 0.0), np.where(row == other, 0.0, row)
            factor = float(odd[np.flatnonzero(odd)[-1]])  # multiplied where the sum is added, as one operation
            a, b = _sum(even, terms), _sum(odd / factor, terms) * _number(factor, terms)
            found[i], found[twins[i]] = a + b, a - b
        elif i not in found:
            found[i] = _sum(row, terms)
    return [found[i] for i in range(len(matrix))]


def _mirrored(rows: Array) -> dict[int, int]:
    """Pairs of rows that differ only in signs, in some of them and not in all; no row stands in two."""
    found: dict[int, int] = {}
    for i, a in enumerate(rows):
        for k in range(i + 1, len(rows)):
            b, used = rows[k], a != 0
            paired = {i, k} & {*found, *found.values()}
            if not paired and (np.abs(a) == np.abs(b)).all() and (a == b)[used].any() and (a != b)[used].any():
                found[i] = k
    return found


def _number(value: float, terms: Sequence[Any]) -> Any:
    return te.const(value, terms[0].dtype)


def _sum(row: Array, terms: Sequence[Any]) -> Any:
    """The sum of coefficient * term; it begins with a term of coefficient 1 where there is one."""
    used = sorted((int(k) for k in np.flatnonzero(row)), key=lambda k: (row[k] != 1, row[k] < 0))
    total: Any = None
    for k in used:
        size = abs(float(row[k]))
        term = terms[k] if size == 1 else terms[k] * _number(size, terms)
        if total is None:
            total = term if row[k] > 0 else _number(0.0, terms) - term
        else:
            total = total + term if row[k] > 0 else total - term
    return total


def pick(index: Any, values: Sequence[Any]) -> Any:
    """values[index]; of an index that a schedule unrolls, the one expression is left."""
    chosen = values[-1]
    for k in reversed(range(len(values) - 1)):
        chosen = te.select(index == k, values[k], chosen)
    return chosen
