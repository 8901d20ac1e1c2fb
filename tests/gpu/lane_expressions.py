"""Expressions of loops, evaluated for many threads at once: lanes, some of which may be masked out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.gpu import lane_arithmetic as arithmetic

from renorm.core import dtypes
from renorm.core.errors import InvalidLoops
from renorm.expr import rewrite
from renorm.expr.bounds import reads
from renorm.expr.linear import INDEX_TYPES
from renorm.expr.nodes import ARITHMETIC, Binary, Call, Cast, Const, Expr, Load, Not, Select, Var


class LaneExpressions:
    """Values of variables, and of expressions of them: one for all lanes, or an array with one for each. What a lane
    holds that is masked out means nothing."""

    def __init__(self, name: str):
        self._name = name
        self._values: dict[Var, Any] = {}
        self._mask: np.ndarray[Any, Any] | None = None  # lanes that run, None for all
        self._fixed_vars: set[Var] = set()  # that keep their value
        self._fixed: dict[int, Any] = {}  # values of expressions of these alone
        self._is_fixed: dict[int, bool] = {}

    def _load(self, e: Load) -> Any:
        """Return what the lanes that run read."""
        raise NotImplementedError

    def _under(self, condition: Any, action: Callable[[], Any]) -> Any:
        """Do something in the lanes where a condition holds, if there are any."""
        before = self._mask
        if isinstance(condition, np.ndarray):
            mask = condition if before is None else condition & before
            if not mask.any():
                return None
            self._mask = None if mask.all() else mask
        elif not condition:
            return None
        try:
            return action()
        finally:
            self._mask = before

    def _index(self, e: Expr) -> Any:
        """Return an expression whose integer arithmetic never wraps."""
        return self._expr(e, True)

    def _value(self, e: Expr) -> Any:
        return self._expr(e, False)

    def _expr(self, e: Expr, exact: bool) -> Any:
        # by identity: all of them are of one kernel, which holds them
        if id(e) not in self._is_fixed:
            every = list(rewrite.walk(e)) if isinstance(e, (Binary, Not, Cast)) else []
            no_access = all(isinstance(x, (Binary, Not, Cast, Const, Var)) for x in every)
            self._is_fixed[id(e)] = (
                bool(every) and no_access and all(v in self._fixed_vars for v in rewrite.variables(e))
            )
        if not self._is_fixed[id(e)]:
            return self._made(e, exact)
        if id(e) not in self._fixed:
            self._fixed[id(e)] = self._made(e, exact)
        return self._fixed[id(e)]

    def _made(self, e: Expr, exact: bool) -> Any:
        match e:
            case Const():
                return arithmetic.constant(e.value, e.dtype)
            case Var():
                return self._values[e]
            case Binary(op=op, a=a, b=b):
                wraps = op in ARITHMETIC and not exact and dtypes.is_int(e.dtype)
                wraps = wraps and (e.dtype not in INDEX_TYPES or reads(e))
                return arithmetic.binary(op, self._expr(a, exact), self._expr(b, exact), a.dtype, wraps)
            case Not(a=a):
                return np.logical_not(self._expr(a, exact))
            case Select():
                condition = self._expr(e.condition, exact)
                then, otherwise = self._expr(e.then, exact), self._expr(e.otherwise, exact)
                return self._chosen(condition, then, otherwise, e.dtype)
            case Cast(a=a):
                return arithmetic.cast(self._expr(a, exact), a.dtype, e.dtype)
            case Call(name="if_then_else", args=(c, then, otherwise)):
                condition = self._value(c)
                chosen = self._under(condition, lambda: self._expr(then, exact))
                other = self._under(np.logical_not(condition), lambda: self._expr(otherwise, exact))
                if chosen is None or other is None:
                    return arithmetic.constant(0, e.dtype) if chosen is other else chosen if other is None else other
                return self._chosen(condition, chosen, other, e.dtype)
            case Call(name=name, args=args):
                return arithmetic.call(name, args[0].dtype, [self._expr(a, exact) for a in args])
            case Load():
                if e.predicate is None:
                    return self._load(e)
                zero, wanted = arithmetic.constant(0, e.dtype), self._value(e.predicate)
                found = self._under(wanted, lambda: self._load(e))
                return zero if found is None else self._chosen(wanted, found, zero, e.dtype)
            case _:
                raise InvalidLoops(f"kernel {self._name}: {type(e).__name__} does not belong in loops: {e}")

    def _chosen(self, condition: Any, then: Any, otherwise: Any, dtype: str) -> Any:
        if not isinstance(condition, np.ndarray):
            return then if condition else otherwise
        return np.where(condition, then, otherwise).astype(arithmetic.carrier(dtype), copy=False)
