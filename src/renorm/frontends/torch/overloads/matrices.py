"""Overloads that take matrices apart: inverses, determinants, factors, systems of equations.

They are computed in float64, by elimination. Where PyTorch raises an error, of a matrix that has no inverse or is not
positive definite, elements are no numbers, or infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from renorm import ops
from renorm.core.shapes import broadcast
from renorm.frontends.torch.call import Call, power_of
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value


def _turned(x: Value) -> Value:
    return ops.transpose(x, perm=(*range(x.rank - 2), x.rank - 1, x.rank - 2))


def _with_info(f: Callable[..., Value]) -> Callable[..., Any]:
    """Return a reader of calls that also say whether they failed, which is not computed: who reads it is refused."""

    def read(c: Call, x: Value, *others: Any, **named: Any) -> Any:
        named.pop("check_errors", None)
        return [f(c, x, *others, **named), None]

    return read


# --- inverses, determinants -------------------------------------------------------------------------------------------


@reads("linalg_inv", "inverse")
def _inverse(c: Call, x: Value) -> Any:
    return ops.inverse(x)


reads("linalg_inv_ex")(_with_info(_inverse))


@reads("linalg_det", "det")
def _det(c: Call, x: Value) -> Any:
    return ops.det(x)


@reads("linalg_slogdet", "slogdet")
def _slogdet(c: Call, x: Value) -> Any:
    found = ops.log_det(x)
    return [c.reshaped(c.sliced(found, found.rank - 1, part, part + 1), x.shape[:-2]) for part in range(2)]


@reads("logdet")
def _logdet(c: Call, x: Value) -> Any:
    """Of a negative determinant no number."""
    sign, size = _slogdet(c, x)
    return ops.where(ops.less(sign, c.number(0, x.dtype)), c.number(math.nan, x.dtype), size)


@reads("linalg_matrix_power", "matrix_power")
def _matrix_power(c: Call, x: Value, n: int) -> Any:
    if n == 0:
        rows = c.positions(x.shape[-1])
        return c.expanded(c.cast(ops.equal(c.reshaped(rows, (x.shape[-1], 1)), rows), x.dtype), x.shape)
    return power_of(ops.matmul, ops.inverse(x) if n < 0 else x, abs(n))


# --- factors ----------------------------------------------------------------------------------------------------------


@reads("linalg_cholesky")
def _cholesky(c: Call, x: Value, *, upper: bool = False) -> Any:
    return _turned(ops.cholesky(_turned(x))) if upper else ops.cholesky(x)


@reads("cholesky")
def _cholesky_of_either(c: Call, x: Value, upper: bool = False) -> Any:
    return _cholesky(c, x, upper=upper)


@reads("linalg_cholesky_ex")
def _cholesky_ex(c: Call, x: Value, *, upper: bool = False, check_errors: bool = False) -> Any:
    """Return the factor, and of each matrix the first row whose minor is not positive definite, from 1 on, or 0."""
    found = _cholesky(c, x, upper=upper)
    if 0 in x.shape:
        return [found, c.filled(0, *c.type(1))]
    rows = c.positions(x.shape[-1])
    is_diagonal = ops.equal(c.reshaped(rows, (x.shape[-1], 1)), rows)
    lacking = c.cast(ops.logical_and(ops.isnan(found), is_diagonal), "int32")
    by_row = ops.reduce_max(lacking, axes=(x.rank - 1,), keepdims=False)
    first = c.cast(ops.arg_max(by_row, axis=x.rank - 2, keepdims=False), "int32")
    is_lacking = ops.reduce_max(by_row, axes=(x.rank - 2,), keepdims=False)
    return [found, ops.mul(is_lacking, ops.add(first, c.number(1, "int32")))]


def _product(c: Call, factor: Value, upper: bool) -> Value:
    """Return the matrix of a factor, in float64."""
    whole = ops.trilu(c.cast(factor, "float64"), upper=upper)
    return ops.matmul(_turned(whole), whole) if upper else ops.matmul(whole, _turned(whole))


@reads("cholesky_inverse")
def _cholesky_inverse(c: Call, factor: Value, upper: bool = False) -> Any:
    return c.cast(ops.inverse(_product(c, factor, upper)), factor.dtype)


@reads("cholesky_solve")
def _cholesky_solve(c: Call, b: Value, factor: Value, upper: bool = False) -> Any:
    return _solved(c, _product(c, factor, upper), b, left=True)


# --- systems of equations ---------------------------------------------------------------------------------------------


def _solved(c: Call, a: Value, b: Value, left: bool) -> Value:
    """Return x of a x = b, or of x a = b."""
    inverse, wide = ops.inverse(c.cast(a, "float64")), c.cast(b, "float64")
    return c.cast(ops.matmul(inverse, wide) if left else ops.matmul(wide, inverse), b.dtype)


@reads("linalg_solve")
def _solve(c: Call, a: Value, b: Value, *, left: bool = True) -> Any:
    """b holds vectors where it has an axis less than a, and as many rows."""
    is_vector = b.rank == 1 or (a.rank - 1 == b.rank and b.shape == a.shape[:-1])
    if not is_vector:
        return _solved(c, a, b, left)
    columns = c.reshaped(b, (*b.shape, 1))
    return c.reshaped(_solved(c, a, columns, left), (*broadcast(a.shape[:-2], b.shape[:-1]), b.shape[-1]))


reads("linalg_solve_ex")(_with_info(_solve))


@reads("linalg_solve_triangular")
def _solve_triangular(
    c: Call, a: Value, b: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """Of a matrix of which half is read, and no diagonal where that is of ones."""
    wide = ops.trilu(c.cast(a, "float64"), upper=upper)
    if unitriangular:
        rows = c.positions(a.shape[-1])
        is_diagonal = ops.equal(c.reshaped(rows, (a.shape[-1], 1)), rows)
        wide = ops.where(is_diagonal, c.number(1.0, "float64"), wide)
    return _solved(c, wide, b, left)


@reads("triangular_solve")
def _triangular_solve(
    c: Call, b: Value, a: Value, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    """Return x, and a copy of the matrix."""
    whole, is_upper = (_turned(a), not upper) if transpose else (a, upper)
    return [_solve_triangular(c, whole, b, upper=is_upper, unitriangular=unitriangular), c.expanded(a, c.type(1)[1])]
