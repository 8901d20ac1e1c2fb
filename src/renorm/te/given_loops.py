"""Stages whose loops are given: what sorts, compacts or follows links pulls no element by a formula of its index.

    def counted(loops, inputs, output):                     for (i, 0, n)
        (x,) = inputs                                         if (x[i] > 0)
        with loops.for_range(0, x.shape[0]) as i:               y[0] = y[0] + 1
            with loops.if_scope(x[i] > 0):
                output[0] = output[0] + 1

    T = te.extern((1,), [X], counted)

A body is called for every program that is made of it: at other extents (te.specialize), by the interpreter, and when it
is lowered, where arrays are those of the kernel. So it is to take extents from the shapes of its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from renorm.core import dtypes
from renorm.core.errors import InvalidExpression
from renorm.expr.nodes import Expr, ExprLike, Load, OpenVar, Var, as_expr, cast, const
from renorm.expr.rewrite import variables
from renorm.te.arguments import Extent, checked
from renorm.te.tensor import IterVar, Operation, Tensor, as_shape
from renorm.tir.nodes import (
    NOTHING,
    Allocate,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    Stmt,
    Store,
    constant,
    expressions,
    seq,
    walk,
)


class Array:
    """An array within a body: A[i, j] is an element, A[i, j] = value stores one. shape: ints, or open extents; strides:
    how many elements apart neighbours along each axis lie, None: row-major."""

    def __init__(self, loops: Loops, buffer: Buffer, shape: Sequence[Any], strides: Sequence[Any] | None = None):
        self.buffer, self.shape = buffer, tuple(shape)
        self._loops, self._strides = loops, row_major(shape) if strides is None else tuple(strides)

    @property
    def dtype(self) -> str:
        return self.buffer.dtype

    def __getitem__(self, indices: Any) -> Load:
        return Load(self.buffer, (self._position(indices),))

    def __setitem__(self, indices: Any, value: ExprLike) -> None:
        stored = cast(self.dtype, as_expr(value, like=const(0, self.dtype)))
        self._loops.emit(Store(self.buffer, self._position(indices), stored))

    def _position(self, indices: Any) -> Expr:
        given = indices if isinstance(indices, tuple) else (indices,)
        if len(given) != len(self.shape):
            raise InvalidExpression(
                f"{self.buffer.name} of shape {list(map(str, self.shape))} is indexed by {len(given)} numbers"
            )
        position: Expr | None = None
        for index, stride in zip(given, self._strides):
            e = as_expr(index)
            if not dtypes.is_int(e.dtype):
                raise InvalidExpression(f"{self.buffer.name}: the index {e} is {e.dtype}, not an integer")
            term = e if isinstance(stride, int) and stride == 1 else e * stride
            position = term if position is None else position + term
        return const(0) if position is None else position


def row_major(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Return how many elements apart neighbours along each axis of a whole array lie."""
    strides, stride = list[Any](), 1
    for extent in reversed(shape):
        strides.append(stride)
        stride = extent * stride
    return tuple(reversed(strides))


class Loops:
    """The statements of a body, in the order in which they are written down. round: the number of the independent round
    whose statements these are."""

    def __init__(self, name: str, number: Expr):
        self.round = number
        self._name, self._names = name, set[str]()
        self._blocks: list[list[Stmt | Callable[[Stmt], Stmt]]] = [[]]

    def emit(self, s: Stmt) -> None:
        """Write a statement down."""
        self._blocks[-1].append(s)

    @contextmanager
    def for_range(self, begin: ExprLike, end: ExprLike, name: str = "i", kind: str = "serial") -> Generator[Var]:
        """The statements within for each number of begin .. end - 1, none where that is empty. kind: "serial",
        "unrolled" or "vectorized", where rounds do not depend on each other."""
        var, start = Var(name), as_expr(begin)
        extent = as_expr(end) if isinstance(begin, int) and begin == 0 else as_expr(end - start)
        rounds = constant(extent)
        is_empty = rounds is not None and rounds <= 0
        with self._within(lambda body: NOTHING if is_empty else For(var, start, extent, kind, body)):
            yield var

    @contextmanager
    def if_scope(self, *conditions: Expr) -> Generator[None]:
        """The statements within where all of the conditions hold; each is only looked at where those before it do."""

        def guarded(body: Stmt) -> Stmt:
            for condition in reversed(conditions):
                body = If(condition, body)
            return body

        with self._within(guarded):
            yield

    def let(self, value: ExprLike, name: str = "value") -> Var:
        """Return a variable that has a value from here to the end of the block: an element that is read so is known to
        be the same wherever the variable stands, whatever is stored since."""
        e = as_expr(value)
        var = Var(name, e.dtype)
        self._blocks[-1].append(lambda body: Let(var, e, body))
        return var

    def allocate(self, shape: Sequence[Any], dtype: str, name: str = "held") -> Array:
        """Return an array of this round alone that lives from here to the end of the block. Its elements are not there
        until they are stored."""
        size: Any = 1
        for extent in shape:
            size = extent * size
        own = f"{self._name}.{name}" if name not in self._names else f"{self._name}.{name}{len(self._names)}"
        self._names.add(name)
        buffer = Buffer(own, dtypes.lookup(dtype).name, size if isinstance(size, Expr) else max(1, size), "local")
        self._blocks[-1].append(lambda body: Allocate(buffer, body))
        return Array(self, buffer, shape)

    def statement(self) -> Stmt:
        """Return all that was written down."""
        return _closed(self._blocks[0])

    @contextmanager
    def _within(self, around: Callable[[Stmt], Stmt]) -> Generator[None]:
        self._blocks.append([])
        yield
        self.emit(around(_closed(self._blocks.pop())))


def _closed(block: Sequence[Stmt | Callable[[Stmt], Stmt]]) -> Stmt:
    """Statements of a block; what is bound in it is bound up to its end."""
    after = list[Stmt]()
    for part in reversed(block):
        after = [part, *after] if isinstance(part, Stmt) else [part(seq(after))]
    return seq(after)


Body = Callable[[Loops, Sequence[Array], Array], None]


class ExternOp(Operation):
    """A tensor that given loops compute. axis: one, the rounds. open_variables: those of shapes and rounds."""

    def __init__(
        self, name: str, shape: Sequence[int], dtype: str, inputs: Sequence[Tensor], body: Body, rounds: Any, tag: str
    ):
        self.name, self.tag, self.attrs, self.body = name, tag, {}, body
        self.axis = (IterVar("round", rounds, "data"),)
        self.input_tensors = tuple(dict.fromkeys(inputs))
        self.tensor = Tensor(self, name, tuple(shape), dtype)
        self._inputs = tuple(inputs)
        extents: list[object] = [rounds, *(d for t in (*inputs, self.tensor) for d in t.shape)]
        self.open_variables = tuple(
            dict.fromkeys(v for d in extents if isinstance(d, Expr) for v in variables(d) if isinstance(v, OpenVar))
        )
        self._check(self.kernel())

    def statement(self, arrays: Callable[[Loops, Tensor], Array], number: Expr) -> Stmt:
        """Return the loops of a round; arrays: where each tensor lies."""
        loops = Loops(self.name, number)
        self.body(loops, [arrays(loops, t) for t in self._inputs], arrays(loops, self.tensor))
        return loops.statement()

    def kernel(self) -> Kernel:
        """Return the loops of all rounds by themselves, of row-major arrays: the inputs, then the result."""
        (axis,) = self.axis
        buffers = {t: Buffer(f"{t.name}.{i}", t.dtype, t.size) for i, t in enumerate(self.input_tensors)}
        buffers[self.tensor] = Buffer(self.name, self.tensor.dtype, self.tensor.size)
        stmt = self.statement(lambda loops, t: Array(loops, buffers[t], t.shape), axis.var)
        body = For(axis.var, const(0), as_expr(axis.extent), "serial", stmt)
        return Kernel(self.name, tuple(buffers.values()), body, frozenset((self.name,)))

    def copied(self, shape: Sequence[int], rounds: int, tensors: Mapping[Tensor, Tensor]) -> ExternOp:
        """The same loops over other arrays."""
        inputs = [tensors[t] for t in self._inputs]
        return ExternOp(self.name, shape, self.tensor.dtype, inputs, self.body, rounds, self.tag)

    def _check(self, kernel: Kernel) -> None:
        """Refuse extents that come from elsewhere, which no other program would have."""
        used = {v for s in walk(kernel.body) for e in expressions(s) for v in variables(e) if isinstance(v, OpenVar)}
        if strangers := used - set(self.open_variables):
            raise InvalidExpression(
                f"extern {self.name}: the body uses the extents {', '.join(sorted(v.name for v in strangers))}",
                [f"arrays have {', '.join(v.name for v in self.open_variables) or 'none'}"],
                do="take extents from the shapes of the arrays that the body is given",
            )


@checked("te.", InvalidExpression)
def extern(
    shape: Any,
    inputs: Sequence[Tensor],
    body: Callable[..., Any],
    name: str = "extern",
    dtype: str | None = None,
    rounds: Extent = 1,
    tag: str = "",
) -> Tensor:
    """The tensor of the given shape that the loops of `body` store: body(loops, inputs, output) writes them down with
    `loops` (te.given_loops.Loops); inputs and output are arrays (te.given_loops.Array).

    dtype: that of the first input, if none is given. rounds: how often the loops are run, independent of each other;
    `loops.round` is the number of the round. Of its loops schedules have that one only, to split, fuse, run in parallel
    or bind to threads. The whole array of each input is there before. Elements that nothing stores are undefined. Every
    access must be provably inside its array for all data: what is read and used as an index stands under a condition,
    or between te.min and te.max. Raises InvalidExpression for open extents of other tensors.
    """
    if dtype is None and not inputs:
        raise InvalidExpression(f"extern {name}: without inputs it needs a dtype")
    of = dtypes.lookup(inputs[0].dtype if dtype is None else dtype).name
    return ExternOp(name, as_shape(f"extern {name}", shape), of, inputs, body, rounds, tag).tensor
