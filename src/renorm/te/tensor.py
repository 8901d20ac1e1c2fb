"""Tensors and the operations that define them: what is computed, not how.

    T ::= placeholder                      PlaceholderOp: an argument of the kernel
        | T[axis, ...] = e                 ComputeOp: one scalar expression of expr.nodes for every element
    e ::= ... | T[e, ...] | sum(e, axis)   a Reduce stands at the root of a body, nowhere else

Extents are Python ints; a shape may be () and an extent may be 0. Operations are immutable: a schedule that rewrites a
body (cache_read, cache_write, rfactor) makes a new ComputeOp that defines the same Tensor within that schedule only.
Operators on tensors broadcast as NumPy does and define new tensors (`X - Mean` is a ComputeOp named T_subtract).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from typing import cast as cast_type

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import InternalError, InvalidExpression
from renorm.expr.extents import same_extent
from renorm.expr.nodes import (
    ARITHMETIC,
    COMBINERS,
    Const,
    Expr,
    Load,
    OpenVar,
    Reduce,
    Var,
    as_expr,
    binary,
    cast,
    const,
    infix,
    refuse_whole_quotient,
)
from renorm.expr.operators import Operators
from renorm.expr.rewrite import DEEPEST, children, levels, variables
from renorm.te import tag as tags
from renorm.te.arguments import Extent, checked
from renorm.te.window import Window


class Range(NamedTuple):
    """The integers min .. min + extent - 1."""

    min: int
    extent: int


class IterVar(Operators):
    """An axis of a compute, or of a schedule's loops; stands for its variable in expressions.

    kind: "data" (an axis of the result), "reduce", or "thread".
    thread: for kind "thread", the GPU axis, as "threadIdx.x".
    extent: 0 for a thread axis that takes the extent of what is bound to it. Of an axis made by split or fuse it is
        the extent at the full shape; a stage under compute_at covers a smaller region, known when it is lowered.
    """

    __slots__ = ("extent", "kind", "min", "thread", "var")

    def __init__(self, name: str, extent: int, kind: str, minimum: int = 0, thread: str = ""):
        self.var, self.extent, self.kind, self.min, self.thread = Var(name), extent, kind, minimum, thread

    @property
    def name(self) -> str:
        return self.var.name

    @property
    def dom(self) -> Range:
        return Range(self.min, self.extent)

    def as_expr(self) -> Expr:
        return self.var

    def __repr__(self) -> str:
        return f"<{self.kind} axis {self.name} [{self.min}, {self.min + self.extent})>"

    def _infix(self, op: str, a: Any, b: Any) -> Any:
        return infix(op, *(x.var if isinstance(x, IterVar) else x for x in (a, b)))

    def __neg__(self) -> Expr:
        return -self.var

    def __eq__(self, other: Any) -> Any:
        """Of two axes whether they are the same one, as collections need it; else a comparison of values."""
        return self is other if isinstance(other, IterVar) else self.var == other

    def __ne__(self, other: Any) -> Any:
        return self is not other if isinstance(other, IterVar) else self.var != other

    def __hash__(self) -> int:
        return id(self)

    def equal(self, other: Any) -> Expr:
        """Return whether the values are equal, also of two axes, as an expression."""
        return self.var.equal(other)

    def astype(self, dtype: str) -> Expr:
        return cast(dtype, self.var)


class Operation:
    """The definition of a tensor. Each operation has one result, `output(0)`."""

    tensor: Tensor
    name: str
    tag: str
    attrs: Mapping[str, Any]
    axis: tuple[IterVar, ...] = ()
    reduce_axis: tuple[IterVar, ...] = ()
    input_tensors: tuple[Tensor, ...] = ()

    def output(self, index: int) -> Tensor:
        if index != 0:
            raise InvalidExpression(f"operation {self.name} has one output, not an output {index}")
        return self.tensor

    @property
    def num_outputs(self) -> int:
        return 1

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class PlaceholderOp(Operation):
    """A tensor given from outside. window: where it lies; None: alone and row-major."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str, window: Window | None = None):
        self.name, self.tag, self.attrs, self.window = name, "", {}, window
        self.tensor = Tensor(self, name, shape, dtype)


class ComputeOp(Operation):
    """tensor[axis...] = body, for all values of the axes.

    input_tensors, open_variables: each once, in order of first appearance in the body.
    tensor: given when a schedule redefines an existing tensor, otherwise made here.
    """

    def __init__(
        self,
        name: str,
        axis: Sequence[IterVar],
        body: Expr,
        tag: str = "",
        attrs: Mapping[str, Any] | None = None,
        tensor: Tensor | None = None,
    ):
        self.name, self.tag, self.attrs = name, tag, dict(attrs or {})
        self.axis, self.body = tuple(axis), body
        self.reduce_axis = tuple(body.axes) if isinstance(body, Reduce) else ()
        self.input_tensors, self.open_variables = _check_body(name, self.axis, self.reduce_axis, body)
        shape = tuple(a.extent for a in self.axis)
        self.tensor = tensor or Tensor(self, name, shape, body.dtype)

    def with_body(self, body: Expr) -> ComputeOp:
        """The same tensor and axes by another formula."""
        return ComputeOp(self.name, self.axis, body, self.tag, self.attrs, self.tensor)


_OF_NUMBERS = (ARITHMETIC | COMBINERS.keys()) - {"min", "max"}  # operators and reductions


def _check_body(
    name: str, axis: tuple[IterVar, ...], reduce_axis: tuple[IterVar, ...], body: Expr
) -> tuple[tuple[Tensor, ...], tuple[OpenVar, ...]]:
    """Tensors that a body reads, and open variables in it; raises InvalidExpression for a nested reduction or an axis
    that is not in scope."""
    scope = {a.var for a in axis} | {a.var for a in reduce_axis}
    read: dict[Tensor, None] = {}
    strangers: dict[str, None] = {}
    unknown: dict[OpenVar, None] = {}
    seen: set[int] = set()
    stack: list[Expr] = [body]
    while stack:
        e = stack.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        if e.dtype == "bool" and (op := getattr(e, "op", getattr(e, "combiner", ""))) in _OF_NUMBERS:
            raise InvalidExpression(f"compute {name}: {op} of bool, in {e}", do="cast it to int32 first")
        if isinstance(e, Var):
            if isinstance(e, OpenVar):
                unknown[e] = None
            elif e not in scope:
                strangers[e.name] = None
        elif isinstance(e, Load):
            if isinstance(e.source, Tensor):
                read[e.source] = None
        elif isinstance(e, Reduce) and e is not body:
            raise InvalidExpression(
                f"compute {name}: a {e.combiner} stands inside another expression",
                [f"the body is {body}"],
                do="give the reduction a te.compute of its own and read its result",
            )
        stack.extend(reversed(children(e)))
    if len(seen) > DEEPEST and levels(body) > DEEPEST:
        raise InvalidExpression(
            f"compute {name}: its expression has {levels(body)} levels, operations within each other",
            [f"at most: {DEEPEST}; what is computed inline counts where it is read"],
            do="give parts of it a te.compute of their own, and do not inline all of these",
        )
    if strangers:
        known = [a.name for a in axis] + [f"{a.name} (reduced)" for a in reduce_axis]
        raise InvalidExpression(
            f"compute {name}: the body uses {', '.join(strangers)}, which is not an axis of it",
            [f"axes: {', '.join(known) or 'none'}"],
            do="reduce over it with te.sum(..., axis=...), or index with the arguments of the function",
        )
    return tuple(read), tuple(unknown)


class Tensor(Operators):
    """A multi-dimensional array that an operation defines. shape: Python ints; before te.specialize also expressions of
    open variables, which count as ints. Compared by identity.

    T[i, j] (or T(i, j)) is one element, a scalar expression. A tensor of shape () stands for its one element.
    """

    __slots__ = ("dtype", "name", "op", "shape")
    __tensor_operand__ = True  # expr.nodes leaves `expression * T` to T

    def __init__(self, op: Operation, name: str, shape: tuple[int, ...], dtype: str):
        self.op, self.name, self.shape, self.dtype = op, name, shape, dtypes.lookup(dtype).name

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __getitem__(self, indices: Any) -> Any:
        given = indices if isinstance(indices, tuple) else (indices,)
        if 0 < len(given) < len(self.shape):
            return Row(self, given)
        if len(given) != len(self.shape):
            raise InvalidExpression(
                f"tensor {self.name} has {_count(len(self.shape), 'axis', 'axes')} but is indexed by {len(given)}",
                [f"shape {self.shape}"],
            )
        exprs: list[Expr] = []
        for position, index in enumerate(given):
            if isinstance(index, slice) or index is Ellipsis:
                raise InvalidExpression(
                    f"tensor {self.name}: an index selects one element, not a slice", do="use topi.strided_slice"
                )
            e = as_expr(index)
            if not dtypes.is_int(e.dtype):
                raise InvalidExpression(f"tensor {self.name}: index {position} is {e.dtype}, not an integer: {e}")
            exprs.append(e)
        return Load(self, exprs)

    def __call__(self, *indices: Any) -> Load:
        return self[indices]

    def __iter__(self) -> Any:
        raise InvalidExpression(f"tensor {self.name} cannot be iterated over", do="index it inside te.compute")

    def as_expr(self) -> Expr:
        if self.shape:
            raise InvalidExpression(
                f"tensor {self.name} of shape {self.shape} stands where one element is needed", do="index it"
            )
        return Load(self, ())

    def astype(self, dtype: str) -> Tensor:
        """Every element converted; the tensor itself where it has that dtype."""
        return (
            self
            if self.dtype == dtypes.lookup(dtype).name
            else elementwise(lambda x: cast(dtype, x), self, name="T_cast")
        )

    def __repr__(self) -> str:
        return f"Tensor(name={self.name}, shape={self.shape}, dtype={self.dtype})"

    def _infix(self, op: str, a: Any, b: Any) -> Any:
        if op == "/":
            refuse_whole_quotient(*((x if isinstance(x, Tensor) else as_expr(x)).dtype for x in (a, b)))
        return arithmetic(op, a, b)

    def __neg__(self) -> Tensor:
        return elementwise(lambda x: -x, self, name="T_negative")


class Row(Operators):
    """A tensor with some of its first indices: A[i] of A[i][j]. It is no value; indexing it with the rest is one."""

    __slots__ = ("_indices", "_tensor")

    def __init__(self, tensor: Tensor, indices: tuple[Any, ...]):
        self._tensor, self._indices = tensor, indices

    def __getitem__(self, indices: Any) -> Any:
        return self._tensor[(*self._indices, *(indices if isinstance(indices, tuple) else (indices,)))]

    def as_expr(self, *_: Any) -> Expr:
        t = self._tensor
        raise InvalidExpression(
            f"tensor {t.name} has {_count(len(t.shape), 'axis', 'axes')} but is indexed by {len(self._indices)}",
            [f"shape {t.shape}"],
        )

    _infix = __neg__ = equal = astype = __iter__ = as_expr


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def as_shape(what: str, shape: Any) -> tuple[int, ...]:
    """Extents as Python ints, or as expressions of open variables. Raises InvalidExpression for what is negative, or
    uses other variables."""
    dims: list[Any] = list(shape) if isinstance(shape, (tuple, list)) else [shape]
    extents: list[int] = []
    for d in dims:
        d = d.value if isinstance(d, Const) else d
        d = int(d) if isinstance(d, float) and d.is_integer() else d
        if isinstance(d, Expr) and dtypes.is_int(d.dtype) and all(isinstance(v, OpenVar) for v in variables(d)):
            d = _canonical(d)
            if not isinstance(d, Const):
                extents.append(cast_type(int, d))
                continue
            d = int(d.value)
        if isinstance(d, bool) or not isinstance(d, (int, np.integer)) or d < 0:
            raise InvalidExpression(f"{what}: {d!r} is not an extent", [f"shape {shape}"], do="use ints from 0 up")
        extents.append(int(d))
    return tuple(extents)


def _canonical(extent: Expr) -> Expr:
    """An open extent in the one form that equal ones have."""
    if isinstance(extent, OpenVar):
        return extent
    from renorm.expr.simplify import simplify  # a program whose extents are known is spared its rules

    return simplify(extent)


def compute_over(
    shape: Sequence[int],
    names: Sequence[str],
    f: Callable[..., Any],
    name: str,
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
) -> Tensor:
    """The tensor whose elements are f(*axis variables); the axes have the given names."""
    axis = [IterVar(n, extent, "data") for n, extent in zip(names, shape, strict=True)]
    return ComputeOp(name, axis, as_expr(f(*(a.var for a in axis))), tag, attrs).tensor


@checked("te.", InvalidExpression)
def broadcast_shape(what: str, *shapes: Sequence[Extent]) -> tuple[int, ...]:
    """The shape that operands of these shapes broadcast to, by NumPy's rules."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Any] = [1] * rank
    for shape in shapes:
        for position, extent in enumerate(shape, start=rank - len(shape)):
            if same_extent(extent, 1):
                continue
            if not same_extent(result[position], 1) and not same_extent(result[position], extent):
                raise InvalidExpression(
                    f"{what}: shapes {' and '.join(str(tuple(s)) for s in shapes)} do not broadcast",
                    [f"axis {position} of the result: extent {result[position]} beside {extent}"],
                )
            result[position] = extent
    return tuple(result)


def element_of(t: Tensor, indices: Sequence[Expr], shape: Sequence[int]) -> Load:
    """The element of `t` that broadcasting pairs with the element at `indices` of a result of this shape."""
    rank = len(t.shape)
    aligned = zip(t.shape, indices[len(indices) - rank :], shape[len(shape) - rank :], strict=True)
    return Load(t, [i if same_extent(extent, to) else const(0) for extent, i, to in aligned])


@checked("te.", InvalidExpression)
def broadcast(f: Callable[..., Expr], *operands: Any, name: str, tag: str | None = None, prefix: str = "ax") -> Tensor:
    """f of the elements of its operands, which broadcast against each other; axes are called ax0, ax1, ...

    operands: tensors, scalar expressions, or Python numbers, which take the dtype of the first tensor where it can hold
    them. tag: by default elementwise for one tensor beside scalars, broadcast for several tensors.
    """
    tensors = [t for t in operands if isinstance(t, Tensor)]
    if not tensors:
        raise InvalidExpression(f"{name}: there is no tensor among {', '.join(map(repr, operands)) or 'no operands'}")
    shape = broadcast_shape(name, *(t.shape for t in tensors))
    if tag is None:
        tag = tags.ELEMWISE if len(tensors) == 1 else tags.BROADCAST

    def element(*indices: Expr) -> Expr:
        loads = {id(t): element_of(t, indices, shape) for t in tensors}
        like = loads[id(tensors[0])]
        return f(*(loads[id(x)] if isinstance(x, Tensor) else as_expr(x, like=like) for x in operands))

    return compute_over(shape, [f"{prefix}{i}" for i in range(len(shape))], element, name, tag)


@checked("te.", InvalidExpression)
def elementwise(f: Callable[..., Expr], t: Tensor, name: str = "compute", prefix: str = "i") -> Tensor:
    """f of every element of `t`; axes are called i0, i1, ..."""
    return broadcast(f, t, name=name, tag=tags.ELEMWISE, prefix=prefix)


NAMES = {
    "+": "T_add", "-": "T_subtract", "*": "T_multiply", "/": "T_divide", "//": "T_floor_divide", "%": "T_mod",
    "pow": "T_power", "min": "T_minimum", "max": "T_maximum", "==": "T_equal", "!=": "T_not_equal", "<": "T_less",
    "<=": "T_less_equal", ">": "T_greater", ">=": "T_greater_equal", "&&": "T_logical_and", "||": "T_logical_or",
}  # fmt: skip


def arithmetic(op: str, a: Any, b: Any) -> Any:
    """a op b, where at least one is a Tensor.

    A 0-d tensor beside a scalar expression is that one element, so that it can be used inside te.compute; everything
    else gives a tensor.
    """
    a, b = (x.var if isinstance(x, IterVar) else x for x in (a, b))
    for operand, other in ((a, b), (b, a)):
        if (
            isinstance(operand, Tensor)
            and not operand.shape
            and isinstance(other, Expr)
            and not isinstance(other, Const)
        ):
            return scalar_arithmetic(op, as_expr(a), as_expr(b))
        if not isinstance(operand, (Tensor, Expr, int, float, np.generic)) and not hasattr(operand, "as_expr"):
            raise InvalidExpression(
                f"{type(operand).__name__} {operand!r} does not combine with {other!r}",
                do="use tensors, expressions and numbers; arrays are given to the built function",
            )
    return broadcast(lambda x, y: scalar_arithmetic(op, x, y), a, b, name=NAMES[op])


# up to this, x ** n is written out as multiplications; code generators multiply for greater exponents, too
_WRITTEN_OUT = 8


def scalar_arithmetic(op: str, a: Expr, b: Expr) -> Expr:
    """a op b of scalars, where a small constant integer power is written out as multiplications."""
    if op == "pow" and dtypes.is_float(b.dtype) and not dtypes.is_float(a.dtype):
        a = cast(b.dtype, a)
    n = _whole(b) if op == "pow" else None
    if n is not None:
        if 1 <= n <= _WRITTEN_OUT:
            return _product(a, n)
        if n < 0 and not dtypes.is_float(a.dtype):
            raise InvalidExpression(f"{a} to the power of {n} is no integer", do="cast what it is of to a float")
        if -_WRITTEN_OUT <= n < 0:
            return binary("/", const(1, a.dtype), _product(a, -n))
    return binary(op, a, b)


def _whole(e: Expr) -> int | None:
    """The integer that a constant of any dtype is, or None."""
    return int(e.value) if isinstance(e, Const) and math.isfinite(e.value) and e.value == int(e.value) else None


def _product(x: Expr, n: int) -> Expr:
    """x * x * ... (n times), by squaring."""
    if n == 1:
        return x
    half = _product(x, n // 2)
    square = half * half
    return square * x if n % 2 else square


def source_of(e: Load) -> Tensor:
    """The tensor that a load of a compute's body reads."""
    if not isinstance(e.source, Tensor):
        raise InternalError(f"a compute reads {e.source.name}, which is no tensor")
    return e.source


def producers_first(outputs: Iterable[Operation]) -> list[Operation]:
    """All operations that the outputs depend on, each after its inputs; without recursion, programs may be deep."""
    order: dict[Operation, None] = {}
    opened: set[Operation] = set()
    stack: list[Operation] = list(reversed(list(outputs)))
    while stack:
        op = stack[-1]
        if op in order or op in opened:
            stack.pop()
            order[op] = None
            continue
        opened.add(op)
        stack.extend(t.op for t in reversed(op.input_tensors) if t.op not in opened)
    return list(order)


def check_reduce_axes(ops: Iterable[Operation]) -> None:
    """Raise InvalidExpression where two computes share a reduce axis."""
    owner: dict[IterVar, str] = {}
    for op in ops:
        for axis in op.reduce_axis:
            if axis in owner:
                raise InvalidExpression(
                    f"the reduce axis {axis.name} is reduced over by {owner[axis]} and by {op.name}",
                    do="make one te.reduce_axis for each compute",
                )
            owner[axis] = op.name
