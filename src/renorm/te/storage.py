"""Storage reuse: a buffer whose last reader has run gives its memory to a later one.

Within the buffers allocated at one place, taken in the order in which they are first stored:

- in place: B[i] = f(A[i], ...) takes A's memory, where that statement is the last to use A, is all that stores B in its
  place, and reads A only at the very index that it stores; so every element is read before it is overwritten, once;
- otherwise memory that is free: the least that is large enough, else the largest, which grows. Of buffers whose size
  is open, one of the same size.

Parameters of the kernel take no part: they are neither scratch, nor do they move. Only memory of scope "global" is
shared: registers and locals are the code generator's business, and shared memory would need further barriers. Small
buffers inside a loop keep to themselves too: each can become registers, which one that two tenants see in vectors of
different lengths cannot.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from renorm.expr.extents import same_extent
from renorm.expr.nodes import Expr, Load
from renorm.expr.rewrite import children, same, transform
from renorm.tir.nodes import Allocate, Buffer, For, Prefetch, Seq, Stmt, Store, expressions
from renorm.tir.nodes import children as parts
from renorm.tir.nodes import transform as transform_stmt


def reuse(s: Stmt, given: Container[Buffer] = ()) -> Stmt:
    """`s` with fewer or smaller allocations, and the same results. given: what loops store that are no
    schedule's, which may come to an element twice."""
    moved: dict[Buffer, _Memory] = {}
    for buffers, statements in _places(s):
        if len(buffers) > 1:
            moved.update(_assign(buffers, statements, given))
    if not any(memory.is_moved for memory in moved.values()):
        return s
    return _rewrite(s, {buffer: memory.buffer() for buffer, memory in moved.items()})


@dataclass(eq=False)
class _Memory:
    """Memory that one or several buffers live in. first: the buffer it is named after."""

    first: Buffer
    size: int | Expr
    tenants: list[Buffer] = field(default_factory=list[Buffer])
    _made: Buffer | None = None

    @property
    def is_moved(self) -> bool:
        return len(self.tenants) > 1

    def buffer(self) -> Buffer:
        if _holds(self.first.size, self.size):
            return self.first
        if self._made is None:
            self._made = Buffer(self.first.name, self.first.dtype, self.size, self.first.scope)
        return self._made


SMALL = 4096  # bytes; a few dozen vector registers


def _places(s: Stmt) -> Iterator[tuple[list[Buffer], tuple[Stmt, ...]]]:
    """Each place with the buffers allocated there that may share, and the statements that run one after the other in
    it."""
    stack = [(s, False)]
    while stack:
        x, in_loop = stack.pop()
        if isinstance(x, Allocate):
            buffers: list[Buffer] = []
            while isinstance(x, Allocate):
                size_in_bytes = x.buffer.nbytes
                is_small = size_in_bytes is not None and size_in_bytes <= SMALL
                if x.buffer.scope == "global" and not (in_loop and is_small):
                    buffers.append(x.buffer)
                x = x.body
            statements = x.stmts if isinstance(x, Seq) else (x,)
            yield buffers, statements
        stack.extend((part, in_loop or isinstance(x, For)) for part in parts(x))


@dataclass
class _Use:
    """One statement's accesses to a buffer. stores: all of them; loads: how many, of distinct nodes per store."""

    stores: list[Store] = field(default_factory=list[Store])
    loads: list[tuple[Load, Store | None]] = field(default_factory=list["tuple[Load, Store | None]"])


def _uses(s: Stmt) -> dict[Buffer, _Use]:
    found: dict[Buffer, _Use] = {}
    stack = [s]
    while stack:
        x = stack.pop()
        if isinstance(x, Store):
            found.setdefault(x.buffer, _Use()).stores.append(x)
        for e in expressions(x):
            for load in _loads(e):
                if isinstance(load.source, Buffer):
                    found.setdefault(load.source, _Use()).loads.append((load, x if isinstance(x, Store) else None))
        stack.extend(parts(x))
    return found


def _loads(e: Expr) -> Iterator[Load]:
    seen: set[int] = set()
    stack = [e]
    while stack:
        x = stack.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, Load):
            yield x
        stack.extend(children(x))


def _assign(buffers: Sequence[Buffer], statements: Sequence[Stmt], given: Container[Buffer]) -> dict[Buffer, _Memory]:
    """The memory of each buffer of one place."""
    uses = [_uses(x) for x in statements]
    mine = set(buffers)
    last = {buffer: i for i, found in enumerate(uses) for buffer in found if buffer in mine}
    assigned: dict[Buffer, _Memory] = {}
    free: list[_Memory] = []
    for i, found in enumerate(uses):
        for buffer in (b for b in buffers if b in found and b not in assigned):
            memory = None if buffer in given else _in_place(buffer, found, assigned, last, i)
            memory = memory or _best_fit(buffer, free)
            if memory is None:
                memory = _Memory(buffer, buffer.size)
            elif memory in free:
                free.remove(memory)
            if not _holds(memory.size, buffer.size):
                memory.size = buffer.size
            memory.tenants.append(buffer)
            assigned[buffer] = memory
        for buffer in found:
            # the memory is free unless a later tenant has taken it in place
            if buffer in mine and last[buffer] == i and assigned[buffer].tenants[-1] is buffer:
                free.append(assigned[buffer])
    return assigned


def _in_place(
    buffer: Buffer,
    found: Mapping[Buffer, _Use],
    assigned: Mapping[Buffer, _Memory],
    last: Mapping[Buffer, int],
    now: int,
) -> _Memory | None:
    """The memory of a buffer that dies in this statement, element by element as `buffer` is stored."""
    use = found[buffer]
    if len(use.stores) != 1 or use.loads:
        return None
    store = use.stores[0]
    for other, other_use in found.items():
        memory = assigned.get(other)
        if memory is None or last[other] != now or memory.tenants[-1] is not other or other_use.stores:
            continue
        if other.dtype != buffer.dtype or not _holds(memory.size, buffer.size):
            continue
        if all(at is store and same(load.indices[0], store.index) for load, at in other_use.loads):
            return memory
    return None


def _best_fit(buffer: Buffer, free: Sequence[_Memory]) -> _Memory | None:
    fitting = [m for m in free if m.first.dtype == buffer.dtype]
    if isinstance(buffer.size, Expr):
        return next((m for m in fitting if _holds(m.size, buffer.size)), None)
    known = [(m.size, m) for m in fitting if not isinstance(m.size, Expr)]
    large = [(size, m) for size, m in known if size >= buffer.size]
    if large:
        return min(large, key=lambda found: found[0])[1]
    return max(known, key=lambda found: found[0], default=(0, None))[1]


def _holds(size: int | Expr, other: int | Expr) -> bool:
    """Return whether memory of the first size holds what has the other; open ones are to be equal."""
    if isinstance(size, Expr) or isinstance(other, Expr):
        return same_extent(size, other)
    return size >= other


def _rewrite(s: Stmt, moved: Mapping[Buffer, Buffer]) -> Stmt:
    done: dict[int, tuple[Expr, Expr]] = {}

    def on_load(e: Expr) -> Expr | None:
        if (
            isinstance(e, Load)
            and isinstance(e.source, Buffer)
            and (new := moved.get(e.source, e.source)) is not e.source
        ):
            return Load(new, e.indices, e.predicate)
        return None

    def on_expr(e: Expr) -> Expr:
        if id(e) not in done:
            done[id(e)] = (e, transform(e, on_load))
        return done[id(e)][1]

    def on_stmt(x: Stmt) -> Stmt | None:
        if isinstance(x, (Store, Prefetch)) and x.buffer in moved:
            return replace(x, buffer=moved[x.buffer])
        if isinstance(x, Allocate) and x.buffer in moved:
            new = moved[x.buffer]
            is_first = new.name == x.buffer.name  # names of buffers are unique
            return Allocate(new, x.body) if is_first else x.body
        return None

    return transform_stmt(s, on_stmt, on_expr)
