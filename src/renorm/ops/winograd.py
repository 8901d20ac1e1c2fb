"""Minimal filtering F(m, 3) (Winograd, Toom and Cook): m results of a filter of 3 taps from n = m + 2 products.

    y = A^T [(G g) * (B^T d)]        d: n inputs, g: 3 taps, y[i] = sum over k of d[i + k] * g[k]

The matrices come from n - 1 points and infinity: a product of polynomials is fixed by its values there. The points
decide about the error. For F(4, 3) these are 0, +-3/4, +-3/2: small powers, all of them exact in binary, and about a
third of the error of 0, +-1, +-2 (Barabasz et al., Error Analysis and Improving the Accuracy of Winograd Convolution).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from renorm import te

Array = np.ndarray[Any, Any]

TAPS = 3
POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.75, -0.75, 1.5, -1.5)}  # by m; every point beside its negative


@cache
def matrices(m: int) -> tuple[Array, Array, Array]:
    """(A^T [m, n], G [n, 3], B^T [n, n]) of F(m, 3) in float64."""
    points = POINTS[m]
    n = m + TAPS - 1
    a, g, b = np.zeros((m, n)), np.zeros((n, TAPS)), np.zeros((n, n))
    for j, p in enumerate(points):
        others = [q for q in points if q != p]
        a[:, j] = [p**i for i in range(m)]
        g[j] = np.array([p**k for k in range(TAPS)]) / np.prod([p - q for q in others])
        b[j, : n - 1] = _coefficients(others)
    a[m - 1, n - 1] = g[n - 1, TAPS - 1] = 1.0
    b[n - 1] = _coefficients(points)
    return a, g, b


def _coefficients(roots: Sequence[float]) -> Array:
    """Coefficients of the product of (x - root), lowest power first."""
    found = np.array([1.0])
    for root in roots:
        found = np.convolve(found, [-root, 1.0])
    return found


def products(matrix: Array, terms: Sequence[Any]) -> list[Any]:
    """The scalar expressions matrix @ terms, with common sums shared.

    Points come with their negatives, so that two columns (of A^T) or two rows (of B^T) differ only in signs: x + y and
    x - y of two such terms, or of the two parts of a row, serve all that differ in them. No term has a coefficient 0.
    """
    matrix, terms = matrix.copy(), list(terms)
    for j, k in _mirrored(matrix.T):
        a, b, same = terms[j], terms[k], matrix[:, j] == matrix[:, k]
        terms[j], terms[k] = a + b, a - b
        matrix[:, k] = np.where(same, 0.0, matrix[:, j])
        matrix[:, j] = np.where(same, matrix[:, j], 0.0)
    twins = dict(_mirrored(matrix))
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


def _mirrored(rows: Array) -> list[tuple[int, int]]:
    """Pairs of rows that differ only in signs, in some of them and not in all."""
    found: list[tuple[int, int]] = []
    for i, a in enumerate(rows):
        for k in range(i + 1, len(rows)):
            b, used = rows[k], a != 0
            if (np.abs(a) == np.abs(b)).all() and (a == b)[used].any() and (a != b)[used].any():
                found.append((i, k))
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
