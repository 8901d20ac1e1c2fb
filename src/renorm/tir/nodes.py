"""The loop IR: what a schedule lowers to and what code generators read.

    kernel ::= kernel name[n(1), m(1, 64), p(3) = n + 2](A: f32[n*m], ...) { s }
    s ::= for (x, e, e) { s }        For: start and extent; kind serial, parallel, vectorized, unrolled,
                                     tensorized, or a GPU axis
        | A[e] = e                   Store, to a flat index; may carry a predicate; may be nontemporal
        | prefetch A[e]              Prefetch: a hint that the line of this element is read soon
        | let x = e { s }            Let
        | if (e) { s } else { s }    If
        | allocate A[f32 * n] { s }  Allocate: scope global, shared, staged, local, register, tile
        | barrier(shared)            Barrier: of all threads of a block
        | produce A { s }            Produce: a marker for readers, no meaning
        | s ; s                      Seq

Tensorized loops are nested and mean what serial ones do: that the target may run them as one instruction on matrices
is all that they say. Buffers of scope tile are its accumulators, which no other loops touch. What is stored to shared
memory of scope staged is there behind the next barrier, for whoever stored it too: copies may be on their way until
then.

Buffers are flat: one index, in elements. A parameter's extent is in its Buffer; who calls a kernel gives at least
that much. Open extents are numbers that who calls it gives, within their bounds (n is 1 or more, m up to 64), or that
others define. Parallel loops have independent iterations. Kinds of GPU axes are `blockIdx.{x,y,z}` and
`threadIdx.{x,y,z}`: a For of such a kind is run by that many blocks or threads, and nested Fors of one kind with
equal extent are one axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from renorm.core import dtypes
from renorm.core.errors import InvalidLoops
from renorm.expr.nodes import Const, Expr, OpenVar, Var

STAGED = "staged"
PRIVATE = ("local", "register", "tile")  # of what is each thread's own
SCOPES = ("global", "shared", STAGED, *PRIVATE)
BLOCK_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
THREAD_AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
VIRTUAL = "vthread"  # of schedules: lowering makes loops of them (te.virtual_threads)
KINDS = ("serial", "parallel", "vectorized", "unrolled", "tensorized", *BLOCK_AXES, *THREAD_AXES)


@dataclass(frozen=True, eq=False)
class Buffer:
    """Flat memory. size: elements, an expression of the kernel's open extents where they have a say; compared by
    identity."""

    name: str
    dtype: str
    size: int | Expr
    scope: str = "global"

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise InvalidLoops(f"buffer {self.name}: {self.scope!r} is not a scope", [f"known: {', '.join(SCOPES)}"])

    @property
    def is_shared(self) -> bool:
        """Return whether it is a block's."""
        return self.scope in ("shared", STAGED)

    @property
    def nbytes(self) -> int | None:
        """Return its bytes, None where its size is open."""
        return None if isinstance(self.size, Expr) else self.size * dtypes.itemsize(self.dtype)


@dataclass(frozen=True, eq=False)
class Stmt:
    """Base of statements."""

    def __str__(self) -> str:
        return _printer(self)


_printer: Callable[[Any], str] = object.__repr__  # set by tir.text


def set_printer(printer: Callable[[Any], str]) -> None:
    """Called once, by tir.text: str(statement) and str(kernel) print through it."""
    global _printer
    _printer = printer


@dataclass(frozen=True, eq=False)
class For(Stmt):
    var: Var
    start: Expr
    extent: Expr
    kind: str
    body: Stmt

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidLoops(f"loop {self.var.name}: {self.kind!r} is not a kind", [f"known: {', '.join(KINDS)}"])


@dataclass(frozen=True, eq=False)
class Store(Stmt):
    """buffer[index] = value; lanes of index and value agree; lanes where predicate is false are not written.

    nontemporal: what is stored is not read again soon, so it may go past the caches. A hint without meaning for values;
    only for memory that outlives the kernel.
    """

    buffer: Buffer
    index: Expr
    value: Expr
    predicate: Expr | None = None
    nontemporal: bool = False


@dataclass(frozen=True, eq=False)
class Prefetch(Stmt):
    """The cache line of buffer[index] is read soon. A hint without meaning for values: it is no access, never faults,
    and its index may lie anywhere."""

    buffer: Buffer
    index: Expr


@dataclass(frozen=True, eq=False)
class Let(Stmt):
    var: Var
    value: Expr
    body: Stmt


@dataclass(frozen=True, eq=False)
class If(Stmt):
    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None


@dataclass(frozen=True, eq=False)
class Allocate(Stmt):
    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, eq=False)
class Barrier(Stmt):
    scope: str = "shared"


@dataclass(frozen=True, eq=False)
class Produce(Stmt):
    name: str
    body: Stmt


@dataclass(frozen=True, eq=False)
class Seq(Stmt):
    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False)
class Kernel:
    """A loop program. params: buffers that the caller passes, in order. outputs: names of the parameters it writes.
    extents: open ones, given by the caller or defined by those before them. facts: conditions on these, which the
    caller sees to. attrs: "weights" has the names of parameters that are constants of a network."""

    name: str
    params: tuple[Buffer, ...]
    body: Stmt
    outputs: frozenset[str] = frozenset()
    attrs: dict[str, Any] = field(default_factory=dict[str, Any])
    extents: tuple[OpenVar, ...] = ()
    facts: tuple[Expr, ...] = ()

    @property
    def given(self) -> tuple[OpenVar, ...]:
        """The extents that the caller gives."""
        return tuple(v for v in self.extents if v.definition is None)

    def with_body(self, body: Stmt) -> Kernel:
        return replace(self, body=body)

    def __str__(self) -> str:
        return _printer(self)


def seq(stmts: Sequence[Stmt]) -> Stmt:
    """Statements one after the other; nested sequences flatten."""
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(s.stmts if isinstance(s, Seq) else (s,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


NOTHING = Seq(())


def children(s: Stmt) -> tuple[Stmt, ...]:
    match s:
        case For() | Let() | Allocate() | Produce():
            return (s.body,)
        case If():
            return (s.then,) if s.otherwise is None else (s.then, s.otherwise)
        case Seq():
            return s.stmts
        case _:
            return ()


def expressions(s: Stmt) -> tuple[Expr, ...]:
    """Expressions that stand in this statement itself, not in its children."""
    match s:
        case For():
            return (s.start, s.extent)
        case Store():
            return (s.index, s.value) if s.predicate is None else (s.index, s.value, s.predicate)
        case Prefetch():
            return (s.index,)
        case Let():
            return (s.value,)
        case If():
            return (s.condition,)
        case _:
            return ()


def walk(s: Stmt) -> Iterator[Stmt]:
    """Every statement, parents first, in program order."""
    yield s
    for c in children(s):
        yield from walk(c)


def rebuild(s: Stmt, parts: Sequence[Stmt], exprs: Sequence[Expr]) -> Stmt:
    """`s` with children and expressions replaced, in the order of `children` and `expressions`."""
    same = all(a is b for a, b in zip(children(s), parts, strict=True))
    if same and all(a is b for a, b in zip(expressions(s), exprs, strict=True)):
        return s
    match s:
        case For():
            return For(s.var, exprs[0], exprs[1], s.kind, parts[0])
        case Store():
            predicate = exprs[2] if s.predicate is not None else None
            return replace(s, index=exprs[0], value=exprs[1], predicate=predicate)
        case Prefetch():
            return Prefetch(s.buffer, exprs[0])
        case Let():
            return Let(s.var, exprs[0], parts[0])
        case If():
            return If(exprs[0], parts[0], parts[1] if s.otherwise is not None else None)
        case Allocate():
            return Allocate(s.buffer, parts[0])
        case Produce():
            return Produce(s.name, parts[0])
        case Seq():
            return seq(parts)
        case _:
            return s


def transform(
    s: Stmt, on_stmt: Callable[[Stmt], Stmt | None] | None = None, on_expr: Callable[[Expr], Expr] | None = None
) -> Stmt:
    """`s` rewritten from the leaves up; `on_expr` sees each whole expression of a statement before `on_stmt` sees
    that.
    """
    parts = [transform(c, on_stmt, on_expr) for c in children(s)]
    exprs = [on_expr(e) if on_expr else e for e in expressions(s)]
    new = rebuild(s, parts, exprs)
    changed = on_stmt(new) if on_stmt else None
    return new if changed is None else changed


def constant(e: Expr) -> int | None:
    """The integer that `e` is, or None."""
    return int(e.value) if isinstance(e, Const) else None
