"""vectorized (x, a, n) { A[i(x)] = e(x) } -> A[ramp(i(a), k, n)] = e(ramp(a, 1, n)).

Statements run for all lanes before the next one starts. Conditions that differ between lanes become predicates of loads
and stores, buffers allocated inside get one element per lane. A loop stays serial where that would not be the same:
lanes that meet in memory, a reduction that each round does anew, extents that differ between lanes, a barrier, a
vectorized loop inside (the inner one wins), or an extent that is unknown. A loop longer than LANES is cut in pieces; a
vectorized reduction raises InvalidSchedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from renorm.core.errors import InvalidSchedule
from renorm.expr.linear import INDEX_TYPES, Linear, expression, linear, one_of_each
from renorm.expr.nodes import Binary, Broadcast, Call, Cast, Const, Expr, Load, Not, Ramp, Select, Var
from renorm.expr.rewrite import children as parts_of
from renorm.expr.rewrite import key, substitute
from renorm.expr.rewrite import rebuild as rebuild_expr
from renorm.expr.rewrite import walk as walk_expr
from renorm.tir.nodes import (
    NOTHING,
    Allocate,
    Barrier,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    Prefetch,
    Produce,
    Seq,
    Stmt,
    Store,
    children,
    constant,
    expressions,
    rebuild,
    seq,
    walk,
)
from renorm.tir.rewrite import fresh_copy, replace
from renorm.tir.scope import Scope

LANES = 64  # longest vector: four registers
REGISTER = 16  # floats in the widest registers; vectors are best a multiple of it, or of a power of two below


class _StaysSerial(Exception):
    """The loop at hand is not to be vectorized; the reason is for whoever debugs this pass."""


def vectorize(kernel: Kernel) -> Kernel:
    """The kernel without vectorized loops."""
    bound = [s.var for s in walk(kernel.body) if isinstance(s, (For, Let))]
    # of loops inside one that becomes vectors is asked outside of them: there a variable has one range
    body = kernel.body if len(set(bound)) == len(bound) else fresh_copy(kernel.body)
    return kernel.with_body(_visit(body, Scope.of(kernel)))


def _visit(s: Stmt, scope: Scope) -> Stmt:
    parts = [_visit(c, inner) for c, inner in zip(children(s), scope.of_children(s), strict=True)]
    s = rebuild(s, parts, expressions(s))
    return _loop(s, scope) if isinstance(s, For) and s.kind == "vectorized" else s


def _loop(s: For, scope: Scope) -> Stmt:
    serial = For(s.var, s.start, s.extent, "serial", s.body)
    extent = constant(s.extent)
    if extent is None or extent < 2:
        return serial
    if extent > LANES:
        return _cut(s, extent, scope)
    try:
        return _Vectorizing(s, extent, scope).stmt(s.body, None)
    except _StaysSerial:
        return serial


def _cut(s: For, extent: int, scope: Scope) -> Stmt:
    """for (x, a, m*n) as for (y, 0, m) { vectorized (x', 0, n) }, n a divisor that fills registers."""
    divisors = [n for n in range(1, LANES + 1) if extent % n == 0]
    lanes = max(divisors, key=lambda n: (gcd(n, REGISTER), n))
    if lanes < 4:
        return For(s.var, s.start, s.extent, "serial", s.body)
    outer, inner = Var(f"{s.var.name}.outer", s.var.dtype), Var(f"{s.var.name}.inner", s.var.dtype)
    position = Binary("+", s.start, Binary("+", Binary("*", outer, Const(lanes, outer.dtype)), inner))
    zero = Const(0, s.var.dtype)
    short = For(inner, zero, Const(lanes, inner.dtype), "vectorized", replace(s.body, s.var, position))
    count = Const(extent // lanes, outer.dtype)
    scope = scope.inside(For(outer, zero, count, "serial", short))
    return For(outer, zero, count, "serial", _loop(short, scope))


class _Vectorizing:
    """Turns the body of one loop into vectors of n lanes."""

    def __init__(self, loop: For, n: int, scope: Scope):
        self._x, self._start, self._n = loop.var, loop.start, n
        self._after = scope.simplifier()
        self._inner = scope.inside(loop)
        self._simple = self._inner.simplifier()
        self._unmasked = Scope(self._inner.throughout(loop.body), written=scope.written).intervals()
        self._depends: dict[Expr, bool] = {}
        self._widened: dict[Var, Var] = {}  # Let variables that differ between lanes
        self._private: dict[Buffer, Buffer] = {}  # buffers allocated inside -> one element per lane
        self._check(loop.body)

    # ---- is it allowed

    def _check(self, body: Stmt) -> None:
        for s in walk(body):
            if isinstance(s, Barrier) or any(x.lanes > 1 for e in expressions(s) for x in walk_expr(e)):
                raise _StaysSerial("a barrier or vectors inside")
        for s in walk(body):
            if isinstance(s, Allocate):
                b = s.buffer
                self._private[b] = Buffer(b.name, b.dtype, b.size * self._n, b.scope)
        for s in walk(body):
            if isinstance(s, Let) and self._varies(s.value):
                self._widened[s.var] = Var(s.var.name, s.var.dtype, self._n)
                self._depends.clear()
        for s in walk(body):
            if isinstance(s, For) and (self._varies(s.start) or self._varies(s.extent)):
                raise _StaysSerial("the rounds of a loop inside differ between lanes")
        stores = [s for s in walk(body) if isinstance(s, Store)]
        for buffer in dict.fromkeys(s.buffer for s in stores if s.buffer not in self._private):
            self._check_lanes_apart(buffer, body, [s for s in stores if s.buffer is buffer])

    def _check_lanes_apart(self, buffer: Buffer, body: Stmt, stores: list[Store]) -> None:
        """No lane may touch what another lane stores."""
        for s in stores:
            if not self._varies(s.index):
                mine = key(s.index)
                updates = any(x.source is buffer and key(x.indices[0]) == mine for x in _loads_of(s.value))
                if updates and self._varies(s.value):
                    raise InvalidSchedule(
                        f"axis {self._x.name} is vectorized, but all its rounds update {buffer.name}[{s.index}]",
                        do="vectorize a data axis, or split the reduction with rfactor",
                    )
                if updates or self._varies(s.value) or (s.predicate is not None and self._varies(s.predicate)):
                    raise _StaysSerial(f"the last round decides {buffer.name}[{s.index}]")
        loaded = [x.indices[0] for s in walk(body) for e in expressions(s) for x in _loads_of(e) if x.source is buffer]
        intern = one_of_each()
        forms = [linear(self._simple(i), intern) for i in (*(s.index for s in stores), *loaded)]
        strides = {self._stride(f) for f in forms}
        if strides == {0}:
            return  # every lane stores the same
        stride = abs(strides.pop() or 0) if len(strides) == 1 else 0
        if stride == 0:
            raise _StaysSerial(f"{buffer.name} is accessed with different strides")
        # index = stride*x + multiples of stride*n + what is common to all accesses + small, with |small| < stride
        local = {s.var for s in walk(body) if isinstance(s, (For, Let))}
        common: Linear | None = None
        low = high = None
        for form in forms:
            differing = {a: k for a, k in form.terms.items() if a is not self._x and k % (stride * self._n)}
            changing = [a for a in differing if any(v in local or isinstance(v, Load) for v in walk_expr(a))]
            small = Linear({a: differing.pop(a) for a in changing}, form.constant)
            outside = Linear(differing)
            if common is not None and outside.key() != common.key():
                raise _StaysSerial(f"accesses to {buffer.name} differ by an unknown distance")
            common = outside
            least, most = self._unmasked.form_span(small)
            low = least if low is None else min(low, least)
            high = most if high is None else max(high, most)
        if low is None or high is None or not high - low < stride:
            raise _StaysSerial(f"lanes may meet in {buffer.name}")

    def _stride(self, form: Linear) -> int | None:
        """The coefficient of x; None where x occurs in another way."""
        k = 0
        for atom, coefficient in form.terms.items():
            if atom is self._x:
                k = coefficient
            elif self._varies(atom):
                return None
        return k

    def _varies(self, e: Expr) -> bool:
        """Return whether the lanes of e differ (or may)."""
        found = self._depends.get(e)
        if found is None:
            if isinstance(e, Var):
                found = e is self._x or e in self._widened
            else:
                is_private = isinstance(e, Load) and e.source in self._private
                found = is_private or any(self._varies(x) for x in parts_of(e))
            self._depends[e] = found
        return found

    # ---- statements; mask: the lanes that run, None for all

    def stmt(self, s: Stmt, mask: Expr | None) -> Stmt:
        match s:
            case Seq(stmts=stmts):
                return seq([self.stmt(x, mask) for x in stmts])
            case Produce(name=name, body=body):
                return Produce(name, self.stmt(body, mask))
            case For():
                return For(s.var, s.start, s.extent, s.kind, self.stmt(s.body, mask))
            case Allocate(buffer=buffer, body=body):
                return Allocate(self._private[buffer], self.stmt(body, mask))
            case Let():
                if s.var in self._widened:
                    return Let(self._widened[s.var], self._vector(s.value, mask), self.stmt(s.body, mask))
                return Let(s.var, self._scalar(s.value, mask), self.stmt(s.body, mask))
            case If():
                return self._branch(s, mask)
            case Store():
                return self._store(s, mask)
            case Prefetch():  # of the first lane's line, which is mostly that of all
                index = substitute(s.index, {self._x: self._start})
                return NOTHING if self._varies(index) else Prefetch(s.buffer, index)
            case _:
                raise _StaysSerial(f"{type(s).__name__} inside")

    def _branch(self, s: If, mask: Expr | None) -> Stmt:
        if not self._varies(s.condition):
            otherwise = None if s.otherwise is None else self.stmt(s.otherwise, mask)
            return If(self._scalar(s.condition, mask), self.stmt(s.then, mask), otherwise)
        condition = self._vector(s.condition, mask)
        then = self.stmt(s.then, self._both(mask, condition))
        if s.otherwise is None:
            return then
        return seq([then, self.stmt(s.otherwise, self._both(mask, self._after.node(Not(condition))))])

    def _store(self, s: Store, mask: Expr | None) -> Stmt:
        if s.predicate is not None:
            mask = self._both(mask, self._vector(s.predicate, mask))
        if s.buffer not in self._private and not self._varies(s.index):
            if mask is not None:
                raise _StaysSerial("some lanes store one element")
            return Store(s.buffer, s.index, self._scalar(s.value, mask), None, s.nontemporal)
        buffer = self._private.get(s.buffer, s.buffer)
        position = self._position(s.buffer, s.index, mask)
        return Store(buffer, position, self._vector(s.value, mask), mask, s.nontemporal)

    def _both(self, a: Expr | None, b: Expr) -> Expr:
        return b if a is None else self._after.node(Binary("&&", a, b))

    # ---- expressions

    def _scalar(self, e: Expr, mask: Expr | None) -> Expr:
        """An expression that is the same in all lanes. Where no lane may run, its loads must be safe."""
        if mask is not None and not all(self._is_inside(x) for x in _loads_of(e)):
            raise _StaysSerial("a scalar load under a condition")
        return e

    def _vector(self, e: Expr, mask: Expr | None) -> Expr:
        """The value of e in every lane."""
        if e.dtype in INDEX_TYPES or not self._varies(e):
            e = self._simple(e)  # linear in x where it can be
        if not self._varies(e):
            if mask is None or all(self._is_inside(x) for x in _loads_of(e)):
                return Broadcast(e, self._n)
        elif e.dtype in INDEX_TYPES:
            form = linear(e)
            stride = self._stride(form)
            if stride is not None:
                return self._ramp(form, stride, e.dtype)
        return self._after.node(self._node(e, mask))

    def _ramp(self, form: Linear, stride: int, dtype: str) -> Expr:
        base = Binary("+", expression(form.without((self._x,)), dtype), Binary("*", self._start, Const(stride, dtype)))
        return Ramp(self._after(base), Const(stride, dtype), self._n)

    def _node(self, e: Expr, mask: Expr | None) -> Expr:
        match e:
            case Var():
                if e is self._x:
                    return Ramp(self._start, Const(1, e.dtype), self._n)
                return self._widened[e] if e in self._widened else Broadcast(e, self._n)
            case Const():
                return Broadcast(e, self._n)
            case Call(name="if_then_else", args=(condition, then, otherwise)):
                if not self._varies(condition):
                    chosen = self._vector(then, mask), self._vector(otherwise, mask)
                    return Call("if_then_else", (self._scalar(condition, mask), *chosen))
                where = self._vector(condition, mask)
                elsewhere = self._both(mask, self._after.node(Not(where)))
                return Select(where, self._vector(then, self._both(mask, where)), self._vector(otherwise, elsewhere))
            case Binary() | Not() | Cast() | Select() | Call():
                return rebuild_expr(e, tuple(self._vector(part, mask) for part in parts_of(e)))
            case Load(source=source, indices=indices, predicate=predicate):
                if predicate is not None:
                    mask = self._both(mask, self._vector(predicate, mask))
                assert isinstance(source, Buffer)
                index = self._position(source, indices[0], mask)
                return Load(self._private.get(source, source), (index,), None if self._is_inside(e) else mask)
            case _:
                raise _StaysSerial(f"{type(e).__name__} inside")

    def _position(self, buffer: Buffer, index: Expr, mask: Expr | None) -> Expr:
        """Return where the lanes find their elements."""
        if buffer not in self._private:
            return self._vector(index, mask)
        lanes = Const(self._n, index.dtype)
        if not self._varies(index):
            return Ramp(self._after(Binary("*", index, lanes)), Const(1, index.dtype), self._n)
        own = Ramp(Const(0, index.dtype), Const(1, index.dtype), self._n)
        return Binary("+", Binary("*", self._vector(index, mask), Broadcast(lanes, self._n)), own)

    def _is_inside(self, e: Load) -> bool:
        """Return whether the access stays inside its buffer in every lane and round, whatever the conditions around it
        say."""
        if not isinstance(e.source, Buffer) or e.predicate is not None:
            return False
        return self._unmasked.is_within(e.indices[0], e.source.size)


def _loads_of(e: Expr) -> Iterator[Load]:
    return (x for x in walk_expr(e) if isinstance(x, Load))
