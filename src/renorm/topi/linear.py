"""Matrix products."""

from __future__ import annotations

from renorm import te
from renorm.core import dtypes
from renorm.core.errors import OperandError
from renorm.expr.extents import same_extent
from renorm.expr.nodes import Expr, cast, const, promote
from renorm.te.arguments import checked


@checked("topi.")
def matmul(a: te.Tensor, b: te.Tensor, transp_a: bool = False, transp_b: bool = False) -> te.Tensor:
    """a @ b as numpy.matmul: leading axes broadcast, and an operand of rank 1 counts as one row, or one column.

    transp_a, transp_b: its last two axes stand transposed. The dtype is that of a + b; 16-bit floats add as float32.
    """
    dtype = joint_dtype(a, b)
    return product(a, b, transp_a, transp_b, dtypes.compute_dtype(dtype)).astype(dtype)


def joint_dtype(a: te.Tensor, b: te.Tensor) -> str:
    """Return the dtype that a + b would have."""
    return promote(const(0, a.dtype), const(0, b.dtype))[0].dtype


def product(
    a: te.Tensor, b: te.Tensor, transp_a: bool = False, transp_b: bool = False, wide: str | None = None
) -> te.Tensor:
    """`matmul` in the dtype that is accumulated in: `wide`, or None: that of arithmetic on a's."""
    if not a.shape or not b.shape:
        raise OperandError(
            f"topi.matmul: {a.name} {list(a.shape)} times {b.name} {list(b.shape)}: no operand has rank 0"
        )
    rows, columns = len(a.shape) > 1, len(b.shape) > 1
    inner_a = a.shape[-2 if transp_a and rows else -1]
    inner_b = b.shape[-1 if transp_b or not columns else -2]
    if not same_extent(inner_a, inner_b):
        raise OperandError(
            f"cannot multiply {list(a.shape)} by {list(b.shape)}", [f"inner extents {inner_a} and {inner_b}"]
        )
    lead = te.tensor.broadcast_shape("topi.matmul", a.shape[:-2], b.shape[:-2])
    m = (a.shape[-1 if transp_a else -2],) if rows else ()
    n = (b.shape[-2 if transp_b else -1],) if columns else ()
    k = te.reduce_axis((0, inner_a), name="k")
    wide = wide or dtypes.compute_dtype(a.dtype)

    def operand(t: te.Tensor, lead_index: tuple[Expr, ...], last: tuple[Expr, ...]) -> Expr:
        own = t.shape[: len(t.shape) - len(last)]
        behind = lead_index[len(lead_index) - len(own) :]
        return cast(wide, t[(*(0 if same_extent(e, 1) else i for e, i in zip(own, behind)), *last)])

    def element(*index: Expr) -> Expr:
        batch, inner = index[: len(lead)], list(index[len(lead) :])
        i = (inner.pop(0),) if rows else ()
        j = (inner.pop(0),) if columns else ()
        left = operand(a, batch, (k.var, *i) if transp_a and rows else (*i, k.var))
        right = operand(b, batch, (*j, k.var) if transp_b or not columns else (k.var, *j))
        return te.sum(left * right, axis=k)

    return te.compute((*lead, *m, *n), element, name="T_matmul", tag="matmul")
