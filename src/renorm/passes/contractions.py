"""Contractions: a sum of products of two operands is a matrix product, once their axes stand in its order."""

from __future__ import annotations

from renorm import ops
from renorm.core.dims import Dim, size
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Plan, Rewrite, node_of
from renorm.ops.einsum import Axes, Einsum
from renorm.ops.shared.reshaping import reshaped_to


class EinsumToMatmul(Rewrite):
    """einsum(a, b) -> transpose(reshape(matmul(reshape(transpose(a)), reshape(transpose(b))))), where every axis is of
    both operands, or of one and the result"""

    def pattern(self) -> object:
        return node_of("einsum")

    def plan(self, m: Match) -> Plan | None:
        xs = [v for v in m.root.inputs if v is not None]
        if len(xs) != 2:
            return None
        (a, b), result = _axes(m, xs)
        extents = [dict(zip(axes, x.shape)) for axes, x in zip((a, b), xs)]
        alike = all(extents[0][n] == extents[1][n] for n in a if n in b)
        distinct = len(set(a)) == len(a) and len(set(b)) == len(b)
        is_product = distinct and alike and all(n in result or (n in a and n in b) for n in (*a, *b))
        return Plan(self.rewrite) if is_product else None

    def rewrite(self, m: Match) -> Value:
        xs = [v for v in m.root.inputs if v is not None]
        (a, b), result = _axes(m, xs)
        own = next((n for n in result if (n in a) != (n in b)), None)
        if own in b:  # the operand whose axes come first in the result gives the rows
            xs, a, b = xs[::-1], b, a
        extents = {n: e for axes, x in zip((a, b), xs) for n, e in zip(axes, x.shape)}
        batch = [n for n in result if n in a and n in b]
        summed = [n for n in a if n in b and n not in result]
        rows, columns = ([n for n in result if n in mine and n not in other] for mine, other in ((a, b), (b, a)))
        y = ops.matmul(
            _matrix(xs[0], a, (*([n] for n in batch), rows, summed), extents),
            _matrix(xs[1], b, (*([n] for n in batch), summed, columns), extents),
        )
        order = [*batch, *rows, *columns]
        y = _reshaped(y, [extents[n] for n in order])
        return ops.transpose(y, perm=tuple(order.index(n) for n in result)) if order != result else y


def _axes(m: Match, xs: list[Value]) -> tuple[list[Axes], Axes]:
    op = m.root.op
    assert isinstance(op, Einsum)
    return op.axes([x.rank for x in xs])


def _matrix(x: Value, axes: Axes, parts: tuple[Axes, ...], extents: dict[str, Dim]) -> Value:
    """`x` with each part of its axes as one."""
    order = [n for part in parts for n in part]
    turned = ops.transpose(x, perm=tuple(axes.index(n) for n in order)) if order != axes else x
    return _reshaped(turned, [size(extents[n] for n in part) for part in parts])


def _reshaped(x: Value, shape: list[Dim]) -> Value:
    return x if list(x.shape) == shape else reshaped_to(x, tuple(shape))


RULES: tuple[Rewrite, ...] = (EinsumToMatmul(),)
