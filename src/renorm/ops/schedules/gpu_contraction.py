"""Sums of products as one matrix product per batch: which axes of the result are rows, columns and batch of it.

    y[n, m, v, u] = sum over c, j, i of x[n, c, v + j, u + i] * w[m, c, j, i]

is a product of rows m and columns (n, v, u), summed over k = (c, j, i): columns are axes on which the factor depends
that lies along the last axis of the result, rows are those of the other one, batch are those of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from renorm import te
from renorm.core.dims import is_static
from renorm.core.gpu import NARROW
from renorm.expr.nodes import Binary, Call, Cast, Const, Expr, Load, Reduce, Var, as_expr, const, if_then_else
from renorm.expr.rewrite import depends_on, loads, substitute, transform
from renorm.ops.schedules import structure
from renorm.te.tensor import source_of

BATCH, ROWS, COLUMNS = "batch", "rows", "columns"
CONVOLUTIONS = ("conv", "conv_transpose", "implicit_gemm")  # tags of sums whose axis 1 is cut into groups


@dataclass(frozen=True)
class Digit:
    """An axis of the result, or a digit of one: of channels in groups, the group is batch and the rest are rows."""

    axis: te.IterVar
    role: str
    extent: int


@dataclass(frozen=True)
class Contraction:
    """The product that a stage is. rows, columns: its factors; digits: of all its axes, in their order, the digits of
    one axis from the outermost on."""

    rows: Expr
    columns: Expr
    digits: tuple[Digit, ...]
    summed: tuple[te.IterVar, ...]

    def narrow(self) -> Contraction | None:
        """Return the same product of what memory holds, where that is widened to be multiplied, and of one dtype that
        tensor cores multiply; else None."""
        rows, columns = _narrow(self.rows), _narrow(self.columns)
        if rows is None or columns is None or rows.dtype != columns.dtype:
            return None
        return replace(self, rows=rows, columns=columns)

    def of(self, role: str) -> list[Digit]:
        """Return the digits of one role."""
        return [d for d in self.digits if d.role == role]

    def extent(self, role: str) -> int:
        """Return how many rows, columns or matrices there are."""
        return prod(d.extent for d in self.of(role))

    @property
    def depth(self) -> int:
        """Terms of a sum."""
        return prod(a.extent for a in self.summed)

    def place(self, values: Mapping[str, Expr], k: Expr | None = None) -> dict[Var, Expr]:
        """Return what the variables of the stage are for numbers of a matrix, row, column and term."""
        found: dict[Var, Expr] = {}
        for role, number in values.items():
            digits = self.of(role)
            for d, value in zip(digits, cut(number, [d.extent for d in digits]), strict=True):
                behind = self._behind(d)
                value = value * behind if behind > 1 else value
                found[d.axis.var] = found[d.axis.var] + value if d.axis.var in found else value
        if k is not None:
            values_of_k = cut(k, [a.extent for a in self.summed])
            found.update({a.var: v for a, v in zip(self.summed, values_of_k, strict=True)})
        return found

    def number(self, role: str, indices: Sequence[Expr]) -> Expr:
        """Return the number of the row, column or matrix of an element of the result."""
        total = as_expr(0)
        axes = list(dict.fromkeys(d.axis for d in self.digits))
        for d in self.of(role):
            value, behind = indices[axes.index(d.axis)], self._behind(d)
            value = value // behind if behind > 1 else value
            value = value % d.extent if behind * d.extent < d.axis.extent else value
            total = total * d.extent + value
        return total

    def _behind(self, digit: Digit) -> int:
        """Return what a digit counts in: how many values those after it in its axis have."""
        inner = [d for d in self.digits if d.axis is digit.axis]
        return prod(d.extent for d in inner[inner.index(digit) + 1 :])

    def element(self, role: str, values: Mapping[str, Expr], k: Expr) -> Expr:
        """Return the factor of that role for a matrix, its row or column, and a term."""
        return substitute(self.rows if role == ROWS else self.columns, self.place(values, k))

    def runs_along_terms(self, role: str) -> bool:
        """Return whether memory holds terms of a row or column side by side, rather than rows or columns."""
        factor = self.rows if role == ROWS else self.columns
        terms, own = ([a for a in axes if a.extent > 1] for axes in (self.summed, [d.axis for d in self.of(role)]))
        if not terms or (own and self._step(factor, own[-1]) == 1):
            return False
        return not own or self._step(factor, terms[-1]) == 1

    def is_plain(self, role: str) -> bool:
        """Return whether a factor is an element of an array, or a multiple of one, without conditions."""
        factor = self.rows if role == ROWS else self.columns
        while True:
            match factor:
                case Cast(a=a) | Binary(op="*", a=a, b=Const()):
                    factor = a
                case _:
                    break
        return isinstance(factor, Load) and isinstance(source_of(factor).op, te.PlaceholderOp)

    def padded(self, role: str) -> tuple[Expr, Load] | None:
        """Return a condition and an element of an array, where a factor is that element if the condition holds, else
        zero; None where it is no such thing."""
        factor = self.rows if role == ROWS else self.columns
        if isinstance(factor, Load) and isinstance(op := source_of(factor).op, te.ComputeOp):
            factor = substitute(op.body, {a.var: i for a, i in zip(op.axis, factor.indices, strict=True)})
        match factor:
            case Call(name="if_then_else", args=(condition, Load() as load, Const(value=0))):
                return (condition, load) if isinstance(source_of(load).op, te.PlaceholderOp) else None
            case _:
                return None

    def run(self, role: str) -> int:
        """Return a number that divides the length of each run of memory that a factor is read in; 1 where it is read
        in no runs that are known to be aligned."""
        factor = self.rows if role == ROWS else self.columns
        if not self.is_plain(role):
            return 1
        found = loads(factor)
        own = list(self.summed) if self.runs_along_terms(role) else [d.axis for d in self.of(role)]
        length, inside = 1, set[Var]()
        for axis in reversed([a for a in own if a.extent > 1]):  # the last ones that lie in memory as one
            if self._step(factor, axis) != length:
                break
            length *= axis.extent
            inside.add(axis.var)
        shape = source_of(found[0]).shape
        moving = [a.var for a in (*self.summed, *(d.axis for d in self.digits)) if a.extent > 1]
        for k, index in enumerate(found[0].indices):  # whatever else moves the address keeps it aligned
            for var in (v for v in moving if v not in inside and depends_on(index, v)):
                length = gcd(length, prod(shape[k + 1 :]) * (structure.coefficient(index, var) or 1))
        return length

    def _step(self, factor: Expr, axis: te.IterVar) -> int | None:
        """Return how far the address of a factor moves as an axis does; None where that is no constant."""
        found = loads(factor)
        if len(found) != 1:
            return None
        return _step_of(found[0], axis.var)


def _narrow(e: Expr) -> Expr | None:
    """What a factor is widened from, in stages too that do no more than that, or leave out padding; None where it is
    anything else."""
    match e:
        case Load(predicate=None) if isinstance(op := source_of(e).op, te.ComputeOp) and not isinstance(
            op.body, Reduce
        ):
            return _narrow(substitute(op.body, {a.var: i for a, i in zip(op.axis, e.indices, strict=True)}))
        case Cast(dtype="float32", a=a) if a.dtype in NARROW:
            return a
        case Call(name="if_then_else", args=(condition, value, Const(value=0))) if (a := _narrow(value)) is not None:
            return if_then_else(condition, a, const(0, a.dtype))
        case _:
            return None


def _step_of(load: Load, var: Var) -> int | None:
    shape, total = source_of(load).shape, 0
    for k, index in enumerate(load.indices):
        if depends_on(index, var):
            step = structure.coefficient(index, var)
            if step is None:
                return None
            total += step * prod(shape[k + 1 :])
    return total


def cut(number: Expr, extents: Sequence[int]) -> list[Expr]:
    """Return the digits of a number, of which all but the first that has several values are less than their extents."""
    found, places = list[Expr](), [i for i, extent in enumerate(extents) if extent > 1]
    for i in reversed(range(len(extents))):
        if i not in places:
            found.append(as_expr(0))
            continue
        found.append(number if i == places[0] else number % extents[i])
        number = number // extents[i]
    return found[::-1]


def contraction(main: te.Tensor) -> Contraction | None:
    """Return the product that a stage is; None where it is none, or extents are open, or there is nothing to do."""
    op = main.op
    if not isinstance(op, te.ComputeOp) or not isinstance(op.body, Reduce):
        return None
    body = op.body
    extents = [a.extent for a in (*op.axis, *op.reduce_axis)]
    if not is_static(extents) or 0 in extents or any(not _is_0(a.min) for a in op.reduce_axis):
        return None
    value = body.value
    is_product = isinstance(value, Binary) and value.op == "*"
    if body.combiner != "sum" or body.init is not None or not is_product:
        return None
    assert isinstance(value, Binary)
    a, b = value.a, value.b
    if body.condition is not None:  # terms that do not count are zero
        a, b = (if_then_else(body.condition, x, const(0, x.dtype)) for x in (a, b))
    summed = [k.var for k in op.reduce_axis]
    if not all(any(depends_on(x, k) for k in summed) for x in (a, b)):
        return None
    groups = int(op.attrs.get("groups", 1)) if op.tag in CONVOLUTIONS else 1
    # channels of a group are rows: of weights, which images have no say in. Else columns lie along the last axis
    last = next((x.var for x in reversed(op.axis) if x.extent > 1), None) if groups == 1 else op.axis[0].var
    if last is not None and depends_on(a, last) and not depends_on(b, last):
        a, b = b, a
    digits: list[Digit] = []
    for i, axis in enumerate(op.axis):
        sides = depends_on(a, axis.var), depends_on(b, axis.var)
        if all(sides) and groups > 1 and i == 1 and axis.extent % groups == 0:
            per = axis.extent // groups
            digits += [Digit(axis, BATCH, groups), Digit(axis, ROWS, per)]
        else:
            role = ROWS if sides == (True, False) else COLUMNS if sides == (False, True) else BATCH
            digits.append(Digit(axis, role, axis.extent))
    extents_of = {x.var: x.extent for x in (*op.axis, *op.reduce_axis)}
    return Contraction(_direct(a, extents_of), _direct(b, extents_of), tuple(digits), tuple(op.reduce_axis))


def _direct(e: Expr, extents: Mapping[Var, int]) -> Expr:
    """The same, read from where it lies in memory rather than through views: of a weight in one block k // 64 is 0."""

    def read(x: Expr) -> Expr | None:
        match x:
            case Load(predicate=None):
                op = source_of(x).op
                if not isinstance(op, te.ComputeOp) or not isinstance(op.body, Load):
                    return None
                values = {a.var: i for a, i in zip(op.axis, x.indices, strict=True)}
                return _direct(substitute(op.body, values), extents)
            case Binary(op="//" | "%" as op, a=Var() as var, b=Const(value=int(n))) if 0 < extents.get(var, n + 1) <= n:
                return var if op == "%" else as_expr(0)
            case _:
                return None

    return transform(e, read)


def _is_0(e: object) -> bool:
    return isinstance(e, int) and e == 0
