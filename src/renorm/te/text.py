"""Tensor programs as text: one line per tensor, producers first.

X: f32[3, 4]
T_add: f32[3, 4]   (ax0, ax1) = (X[ax0, ax1] + Y[ax1])
C: f32[3, 5]       (i, j) = sum(r < 4) (A[i, r]*B[r, j])
D: i32[3]          extern(X)
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm.core import dtypes
from renorm.expr.nodes import Reduce
from renorm.te.given_loops import ExternOp
from renorm.te.tensor import ComputeOp, Tensor, producers_first


def show(outs: Sequence[Tensor]) -> str:
    """The program that computes `outs`."""
    return "\n".join(_line(op.tensor) for op in producers_first(t.op for t in outs))


def _line(t: Tensor) -> str:
    head = f"{t.name}: {dtypes.short(t.dtype)}[{', '.join(map(str, t.shape))}]"
    if isinstance(t.op, ExternOp):
        return f"{head}   extern({', '.join(x.name for x in t.op.input_tensors)})"
    if not isinstance(t.op, ComputeOp):
        return head
    body = t.op.body
    if isinstance(body, Reduce):
        axes = ", ".join(f"{a.name} < {a.min + (a.extent or 0)}" for a in t.op.reduce_axis)
        where = "" if body.condition is None else f" where {body.condition}"
        formula = f"{body.combiner}({axes}){where} {body.value}"
    else:
        formula = str(body)
    return f"{head}   ({', '.join(a.name for a in t.op.axis)}) = {formula}"
