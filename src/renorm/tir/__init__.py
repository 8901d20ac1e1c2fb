"""Loop programs: grammar, text, verifier, interpreter, and one file per loop pass.

Scalar functions that programs of TVM 0.7 and 0.8 call as `tvm.tir.exp`, `tvm.tir.if_then_else`, are here under these
names too; te has them of tensors as well.
"""

from functools import partial
from typing import Any

from renorm.core.absent_names import missing
from renorm.expr.nodes import INTRINSICS, Expr, Var, as_expr, binary, call, const, if_then_else
from renorm.expr.nodes import all_of as all
from renorm.expr.nodes import any_of as any
from renorm.expr.nodes import maximum as max
from renorm.expr.nodes import minimum as min
from renorm.expr.nodes import select as Select
from renorm.tir import text as text  # makes str(kernel) and str(statement) print

__all__ = ["Select", "Var", "all", "any", "const", "if_then_else", "max", "min"]

_OPERATORS = {
    "div": "/", "truncdiv": "/", "floordiv": "//", "indexdiv": "//", "floormod": "%", "indexmod": "%", "power": "pow",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in INTRINSICS:
        return partial(call, name)
    if name in _OPERATORS:
        return partial(_apply, _OPERATORS[name])
    raise missing("tir", name)


def _apply(op: str, a: Any, b: Any) -> Expr:
    x = as_expr(a, like=b if isinstance(b, Expr) else None)
    return binary(op, x, as_expr(b, like=x))
