"""The meaning of a tensor program, by NumPy and without a schedule: the oracle of lowering.

Floats are computed in float64 and rounded to the dtype of a tensor when that tensor is complete; integers are exact
in 64 bits. Every element is computed at once: an axis is an array along its own dimension, a load is an indexed array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.conversion import converted
from renorm.core.errors import InvalidExpression
from renorm.expr.nodes import Binary, Call, Cast, Const, Expr, Load, Not, Reduce, Select, Var, identity_element
from renorm.te.given_loops import ExternOp
from renorm.te.tensor import ComputeOp, IterVar, Tensor, producers_first
from renorm.tir import interpret as loops
from renorm.tir.arithmetic import FUNCTIONS, UFUNCS

Array = np.ndarray[Any, Any]


def _shifted(shift: Callable[[Array, Array], Array], beyond: Callable[[Array], Array]) -> Callable[..., Array]:
    """Return a shift of integers. beyond: what one by a negative number, or by all bits, gives."""

    def shifted(a: Array, b: Array) -> Array:
        inside = (b >= 0) & (b < 8 * a.dtype.itemsize)
        return np.where(inside, shift(a, np.where(inside, b, 0)), beyond(a))

    return shifted


_CALLS = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "abs": np.abs, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "floor": np.floor, "ceil": np.ceil,
    "trunc": np.trunc, "round": np.rint, "sign": np.sign, "isnan": np.isnan, "isinf": np.isinf, "fmod": np.fmod,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "likely": lambda x: x,
    "fma": lambda a, b, c: a * b + c, "erf": np.vectorize(math.erf, otypes=[float]),
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "shift_left": _shifted(np.left_shift, np.zeros_like),
    "shift_right": _shifted(np.right_shift, lambda a: np.minimum(np.sign(a), 0)),
}  # fmt: skip
_REDUCE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def run(outs: Sequence[Tensor], arrays: Mapping[Tensor, Array]) -> list[Array]:
    """The arrays of `outs`. arrays: one for every placeholder, of its shape.

    Raises InvalidExpression where a placeholder is missing, or an element outside a tensor is read.
    """
    done: dict[Tensor, Array] = {}
    for t in [op.tensor for op in producers_first(t.op for t in outs)]:
        if isinstance(t.op, ComputeOp):
            with np.errstate(all="ignore"):
                done[t] = _Element(t, done).result()
            continue
        if isinstance(t.op, ExternOp):
            done[t] = _given(t.op, done)
            continue
        if t not in arrays or tuple(np.shape(arrays[t])) != t.shape:
            given = "nothing" if t not in arrays else f"shape {np.shape(arrays[t])}"
            raise InvalidExpression(f"placeholder {t.name}: {given} was given, expected shape {t.shape}")
        done[t] = _widen(np.asarray(arrays[t]), t.dtype)
    return [converted(done[t], t.dtype) for t in outs]


def _given(op: ExternOp, done: Mapping[Tensor, Array]) -> Array:
    """Return what given loops store; a number where they store nothing, as kernels leave one."""
    arrays = [np.ascontiguousarray(converted(done[t], t.dtype)) for t in op.input_tensors]
    result = np.zeros(op.tensor.shape, dtypes.numpy_dtype(op.tensor.dtype))
    if result.size:  # what is empty has no loops in a kernel either
        loops.run(op.kernel(), [*arrays, result])
    return _widen(result, op.tensor.dtype)


def _widen(a: Array, dtype: str) -> Array:
    """Elements of `dtype` in the type that they are computed in."""
    kind = dtypes.lookup(dtype).kind
    return a.astype({"float": np.float64, "bool": np.bool_, "uint": np.uint64}.get(kind, np.int64))


def _rounded(a: Array, dtype: str) -> Array:
    """`a` as if it had been stored as `dtype`."""
    return _widen(converted(a, dtype), dtype)


class _Element:
    """All elements of one tensor at once."""

    def __init__(self, t: Tensor, done: Mapping[Tensor, Array]):
        assert isinstance(t.op, ComputeOp)
        self._t, self._op, self._done = t, t.op, done
        axes: list[IterVar] = [*t.op.axis, *t.op.reduce_axis]
        self._shape = tuple(a.extent or 0 for a in axes)
        self._at = {
            a.var: (np.arange(a.extent or 0) + a.min).reshape([-1 if i == own else 1 for i in range(len(axes))])
            for own, a in enumerate(axes)
        }
        self._alive: list[Array] = []  # conditions under which the expression at hand is needed

    def result(self) -> Array:
        body = self._op.body
        if not isinstance(body, Reduce):
            return _rounded(np.broadcast_to(self._value(body), self._shape), self._t.dtype)
        combine = _REDUCE[body.combiner]
        start = identity = identity_element(body.combiner, body.dtype).value
        if body.condition is not None:
            condition = self._value(body.condition)
            self._alive.append(condition)
            terms = np.where(condition, self._value(body.value), identity)
            self._alive.pop()
        else:
            terms = self._value(body.value)
        terms = np.broadcast_to(terms, self._shape)
        if body.init is not None:
            start = self._value(body.init)
        reduced = tuple(range(len(self._op.axis), len(self._shape)))
        total = combine.reduce(terms, axis=reduced, initial=identity) if reduced else terms
        return _rounded(np.asarray(combine(total, start)), self._t.dtype)

    def _value(self, e: Expr) -> Array:
        match e:
            case Var():
                return self._at[e]
            case Const():
                return _widen(np.asarray(e.value), e.dtype)
            case Load():
                return self._load(e)
            case Binary():
                a, b = self._value(e.a), self._value(e.b)
                if e.op == "/":
                    return a / b if dtypes.is_float(e.dtype) else _truncated(a, b)
                return np.asarray(UFUNCS[e.op](a, b))
            case Not():
                return np.logical_not(self._value(e.a))
            case Cast():
                return _rounded(self._value(e.a), e.dtype)
            case Select():
                return np.where(self._value(e.condition), self._value(e.then), self._value(e.otherwise))
            case Call(name="if_then_else"):
                condition = self._value(e.args[0])
                return np.where(condition, self._if(condition, e.args[1]), self._if(~condition, e.args[2]))
            case Call(name="popcount", args=(a,)):
                count = np.vectorize(FUNCTIONS[f"_popcount_{a.dtype}"], otypes=[np.int64])
                return np.asarray(count(self._value(a).astype(object)))
            case Call(name="bitcast", args=(a,)):
                return np.asarray(self._value(a)).astype(a.dtype).view(e.dtype)
            case Call():
                return np.asarray(_CALLS[e.name](*(self._value(a) for a in e.args)))
            case _:
                raise InvalidExpression(f"compute {self._t.name}: {e} has no meaning outside loops")

    def _if(self, condition: Array, e: Expr) -> Array:
        self._alive.append(condition)
        value = self._value(e)
        self._alive.pop()
        return value

    def _load(self, e: Load) -> Array:
        assert isinstance(e.source, Tensor)
        indices: list[Array] = []
        needed = np.asarray(True)
        for condition in self._alive:
            needed = needed & condition
        for axis, (index, extent) in enumerate(zip(e.indices, e.source.shape)):
            at = self._value(index)
            outside = ((at < 0) | (at >= extent)) & needed
            if np.broadcast_to(outside, np.broadcast_shapes(outside.shape, self._shape)).any():
                raise InvalidExpression(
                    f"compute {self._t.name}: {e} reads outside {e.source.name}, axis {axis} of shape {e.source.shape}"
                )
            indices.append(np.clip(at, 0, max(extent - 1, 0)))
        source = self._done[e.source]
        if not source.size:  # nothing is there, and nothing of it is needed
            return np.zeros((), source.dtype)
        return np.asarray(source[tuple(indices)])


def _truncated(a: Array, b: Array) -> Array:
    """Integer division toward zero; division by zero gives 0 here and is nobody's to rely on."""
    safe = np.where(b == 0, 1, b)
    return np.sign(a) * np.sign(safe) * (np.abs(a) // np.abs(safe))
