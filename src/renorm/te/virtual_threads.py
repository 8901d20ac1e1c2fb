"""Virtual threads: what each of several would do is done by one thread, statement by statement side by side.

    vthread (v, 0, 2) {               allocate L[2*n]
      allocate L[n]                   for (k, 0, 8) {
      for (k, 0, 8) {                   barrier
        barrier                         S = f(k)
        S = f(k)               ->       barrier
        barrier                         for (v, 0, 2) L[v*n ..] += S[v]
        L += S[v]                     }
      }
    }

What does not depend on v is done once: barriers, and what threads share. What each would have for itself, since it is
allocated inside of the loop over v, has an axis for v in front.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from renorm.core.errors import InvalidSchedule
from renorm.expr.nodes import Binary, Expr, Var, as_expr
from renorm.expr.rewrite import loads, variables
from renorm.te.bounds import Loop
from renorm.tir.nodes import (
    Allocate,
    Barrier,
    Buffer,
    For,
    Let,
    Stmt,
    Store,
    children,
    constant,
    expressions,
    rebuild,
    walk,
)
from renorm.tir.rewrite import fresh_copy, relocated


def side_by_side(s: Stmt, loops: Iterable[Loop]) -> Stmt:
    """Return loops in which those over virtual threads stand around single statements. Raises InvalidSchedule where
    some of these threads would reach a barrier, and others not."""
    virtual = {loop.var for loop in loops if loop.is_virtual}
    return _side_by_side(s, virtual) if virtual else s


def _side_by_side(s: Stmt, virtual: Collection[Var]) -> Stmt:
    if isinstance(s, For) and s.var in virtual:
        return _Threads(s, [x for x in walk(s) if isinstance(x, For) and x.var in virtual]).inside(s)
    return rebuild(s, [_side_by_side(c, virtual) for c in children(s)], expressions(s))


@dataclass
class _Threads:
    """The virtual threads of one nest, by their loops, outermost first."""

    nest: Stmt
    loops: Sequence[For]
    depends: dict[Any, set[Var]] = field(default_factory=dict["Any", set[Var]])  # of what a thread has for itself
    moved: dict[Any, Buffer] = field(default_factory=dict["Any", Buffer])

    def __post_init__(self) -> None:
        own = dict(self._allocated(self.nest, frozenset()))
        self.depends = {b: set[Var]() for b in own}
        before = -1
        while before < (before := sum(map(len, self.depends.values()))):  # what is stored depends on what was read
            for store, around in self._stores(self.nest, set()):
                if store.buffer in own:
                    self.depends[store.buffer] |= (around | self._needed(store)) & own[store.buffer]

    def _allocated(self, s: Stmt, around: frozenset[Var]) -> Iterator[tuple[Buffer, frozenset[Var]]]:
        """Yield the buffers that no block shares, each with the threads whose loops stand around where it is made.
        Those of loops inside share it: the stage that stores it has no two of them store one element."""
        if isinstance(s, Allocate) and not s.buffer.is_shared:
            yield s.buffer, around
        if isinstance(s, For) and s in self.loops:
            around |= {s.var}
        for c in children(s):
            yield from self._allocated(c, around)

    def _stores(self, s: Stmt, around: set[Var]) -> Iterator[tuple[Store, set[Var]]]:
        """Yield stores, each with the threads that conditions and loops around it depend on."""
        if isinstance(s, Store):
            yield s, around
        inside = around | self._used(expressions(s))
        for c in children(s):
            yield from self._stores(c, inside)

    def _used(self, values: Sequence[Expr]) -> set[Var]:
        """Return the threads that values differ between."""
        mine = {loop.var for loop in self.loops}
        found = {v for e in values for v in variables(e) if v in mine}
        return found.union(*(self.depends.get(x.source, ()) for e in values for x in loads(e)))

    def _needed(self, s: Stmt) -> set[Var]:
        """Return the threads that a statement, and all inside it, differs between."""
        found = set[Var]()
        for x in walk(s):
            found |= self._used(expressions(x)) | (self.depends.get(x.buffer, set()) if isinstance(x, Store) else set())
        return found

    def inside(self, s: Stmt) -> Stmt:
        """Return a statement for all threads."""
        if isinstance(s, For) and s in self.loops:
            return self.inside(s.body)
        if isinstance(s, Allocate):
            around = [x for x in self.loops if x.var in self.depends.get(s.buffer, ())]
            if not around:
                return Allocate(s.buffer, self.inside(s.body))
            size: Any = s.buffer.size
            for loop in around:
                rounds = constant(loop.extent)
                size = size * rounds if isinstance(size, int) and rounds else Binary("*", as_expr(size), loop.extent)
            self.moved[s.buffer] = replace(s.buffer, size=size)
            return Allocate(self.moved[s.buffer], self.inside(s.body))
        is_whole = isinstance(s, (Store, Let)) or (isinstance(s, For) and s.kind in ("vectorized", "tensorized"))
        if not is_whole and not self._used(expressions(s)):
            return rebuild(s, [self.inside(c) for c in children(s)], expressions(s))
        if any(isinstance(x, Barrier) for x in walk(s)):
            raise InvalidSchedule(
                "virtual threads differ in whether they reach a barrier", do="bind loops to them that split evenly"
            )
        needed, made = self._needed(s), relocated(s, self.moved, self._index)
        for loop in reversed(self.loops):
            if loop.var in needed:
                made = For(loop.var, loop.start, loop.extent, "unrolled", made)
        return fresh_copy(made)

    def _index(self, b: Buffer, index: Expr) -> Expr:
        """Return where an element of a buffer is for the threads of the loops around."""
        at: Expr | None = None
        for loop in self.loops:
            if loop.var in self.depends[b]:
                at = loop.var if at is None else Binary("+", Binary("*", at, loop.extent), loop.var)
        assert at is not None
        return Binary("+", Binary("*", at, as_expr(b.size)), index)
