"""How an element of a tensor and an update become one: the reductions of scattering ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, maximum, minimum
from renorm.graph.types import Operand
from renorm.ops.shared.precision import wide

REDUCTIONS = ("none", "add", "mul", "min", "max")


def check_reduction(op: str, reduction: str, x: Operand) -> None:
    """Raise OperandError where elements of a dtype are not reduced so."""
    if x.dtype == "bool" and reduction != "none":
        raise OperandError(f"{op}({x}): reduction {reduction!r} is one of numbers only")


def updated(reduction: str, old: Expr, update: Expr) -> Expr:
    """Return what is stored for an element that was there and its update. NaN is passed on."""
    if reduction == "none":
        return update
    a, b = wide(old), wide(update)
    found = {"add": lambda: a + b, "mul": lambda: a * b, "min": lambda: minimum(a, b), "max": lambda: maximum(a, b)}
    return te.cast(old.dtype, found[reduction]())


def numpy_update(reduction: str, old: Any, update: Any) -> Any:
    """Return the same of NumPy's numbers."""
    named = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
    return update if reduction == "none" else named[reduction](old, update)
