"""Minimal filtering along one axis (Winograd, Toom and Cook): a tile of results from fewer products than taps ask for.

    y = A^T [(G g) * (B^T d)]        d: elements of x, g: taps, one product for each row of G and of B^T

F(m, r), m results of a filter of r taps, needs n = m + r - 1 products: the matrices come from n - 1 points and
infinity, because a product of polynomials is fixed by its values there. A stride s cuts taps, and a transposed
convolution cuts results, into s phases; each is a filter of its own, and the matrices of an axis hold those of its
phases side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Finite points by their number. They decide about the error: small powers, exact in binary; a point beside its negative
# shares sums with it. 0, +-3/4, +-3/2 give a third of the error of 0, +-1, +-2 (Barabasz et al., Error Analysis and
# Improving the Accuracy of Winograd Convolution).
POINTS: dict[int, tuple[float, ...]] = {
    1: (0.0,),
    2: (0.0, 1.0),
    3: (0.0, 1.0, -1.0),
    4: (0.0, 1.0, -1.0, 0.5),
    5: (0.0, 0.75, -0.75, 1.5, -1.5),
    6: (0.0, 1.0, -1.0, 0.5, -0.5, 2.0),
    7: (0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0),
}


@dataclass(frozen=True, eq=False)
class Filter:
    """One axis. Tile p gives a.shape[0] results from the b.shape[1] elements of x from p * step + start on.

    a: A^T [results, products]. g: G [products, taps]. b: B^T [products, elements].
    """

    a: Array
    g: Array
    b: Array
    step: int
    start: int

    @property
    def results(self) -> int:
        return int(self.a.shape[0])

    @property
    def products(self) -> int:
        return int(self.a.shape[1])

    @property
    def elements(self) -> int:
        return int(self.b.shape[1])


@cache
def convolution(m: int, taps: int, stride: int, before: int) -> Filter:
    """m results of y[o] = sum over k of x[o * stride + k - before] * g[k]. Needs taps >= stride."""
    phases = [range(f, taps, stride) for f in range(stride)]
    parts = [minimal(m, len(own)) for own in phases]
    g, b = np.zeros((0, taps)), np.zeros((0, stride * (m - 1) + taps))
    for f, (own, (_, gf, bf)) in enumerate(zip(phases, parts, strict=True)):
        g = np.vstack([g, _spread(gf, taps, list(own))])
        b = np.vstack([b, _spread(bf, b.shape[1], [f + stride * k for k in range(bf.shape[1])])])
    return Filter(np.hstack([a for a, _, _ in parts]), g, b, stride * m, -before)


@cache
def transposed(m: int, taps: int, stride: int, before: int) -> Filter:
    """m results of each phase of y[i * stride + k - before] += x[i] * g[k]. Needs taps >= stride."""
    own = [range((f + before) % stride, taps, stride)[::-1] for f in range(stride)]
    starts = [(f + before) // stride - len(k) + 1 for f, k in enumerate(own)]
    parts = [minimal(m, len(k)) for k in own]
    count = max(s + p[2].shape[1] for s, p in zip(starts, parts, strict=True)) - min(starts)
    products = sum(p[0].shape[1] for p in parts)
    a, at = np.zeros((stride * m, products)), 0
    g, b = np.zeros((products, taps)), np.zeros((products, count))
    for f, (start, (af, gf, bf)) in enumerate(zip(starts, parts, strict=True)):
        rows = slice(at, at + len(gf))
        a[f::stride, rows] = af
        g[rows] = _spread(gf, taps, list(own[f]))
        b[rows] = _spread(bf, count, [start - min(starts) + k for k in range(bf.shape[1])])
        at += len(gf)
    return Filter(a, g, b, m, min(starts))


def minimal(m: int, r: int) -> tuple[Array, Array, Array]:
    """(A^T [m, n], G [n, r], B^T [n, n]) of F(m, r) in float64."""
    n = m + r - 1
    if m == 1:
        return np.ones((1, n)), np.eye(n), np.eye(n)
    if r == 1:
        return np.eye(n), np.ones((n, 1)), np.eye(n)
    points = POINTS[n - 1]
    a, g, b = np.zeros((m, n)), np.zeros((n, r)), np.zeros((n, n))
    for j, p in enumerate(points):
        others = [q for q in points if q != p]
        a[:, j] = [p**i for i in range(m)]
        g[j] = np.array([p**k for k in range(r)]) / np.prod([p - q for q in others])
        b[j, : n - 1] = _coefficients(others)
    a[m - 1, n - 1] = g[n - 1, r - 1] = 1.0
    b[n - 1] = _coefficients(points)
    return a, g, b


def _coefficients(roots: Sequence[float]) -> Array:
    """Coefficients of the product of (x - root), lowest power first."""
    found = np.array([1.0])
    for root in roots:
        found = np.convolve(found, [-root, 1.0])
    return found


def _spread(matrix: Array, width: int, columns: list[int]) -> Array:
    """Columns of a matrix in their places among `width`."""
    wide = np.zeros((len(matrix), width))
    wide[:, columns] = matrix
    return wide


def has_points(m: int, taps: int, stride: int) -> bool:
    """Return whether there are filters of m results of an axis: every phase has taps, and points are known for it."""
    if m < 1 or taps < stride:
        return False
    most = -(-taps // stride)
    return m == 1 or most == 1 or m + most - 2 in POINTS


def points(m: int, taps: int, stride: int) -> int:
    """Finite points that decide about the error of an axis: 0 where products are those of the definition."""
    most = -(-taps // stride)
    return 0 if m == 1 or most == 1 else m + most - 2
