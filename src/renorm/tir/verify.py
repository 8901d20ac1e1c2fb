"""The verifier: a kernel that passes touches no memory outside its buffers, whatever its data.

verify(kernel, target) checks, and reports all at once,
- names: every variable and buffer is bound where it is used, and bound once;
- types: operands, conditions, stores and their lanes agree;
- accesses: every index is proved to lie in its buffer, from the bounds of loops, the conditions and predicates that
  guard it, or, where these do not suffice, by trying every value of a small domain;
- parameters: only outputs are stored to;
- barriers: all threads of a block reach the same ones;
- for a GPU: every stage is bound to blocks or threads, and a block has at most MOST_THREADS threads, and the bytes of
  shared memory that core.gpu says.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import inf

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import InvalidLoops
from renorm.core.gpu import facts
from renorm.core.spans import Span, is_finite, is_within
from renorm.core.target import Target
from renorm.expr import mixed_radix
from renorm.expr.bounds import is_exact, never_wraps, reads
from renorm.expr.nodes import Binary, Broadcast, Call, Expr, Load, Not, Ramp, Select, Var
from renorm.expr.rewrite import children as parts_of
from renorm.expr.rewrite import conjuncts, key, transform, variables
from renorm.expr.rewrite import rebuild as rebuild_expr
from renorm.expr.rewrite import walk as walk_expr
from renorm.tir.arithmetic import UFUNCS
from renorm.tir.nodes import Allocate, Buffer, For, If, Kernel, Let, Prefetch, Stmt, Store, children, expressions
from renorm.tir.scope import Scope
from renorm.tir.verify_gpu import barrier_problems, gpu_problems
from renorm.tir.verify_types import type_problems

# how many combinations of values are tried where intervals prove nothing: a transposed convolution of volumes has
# eight variables and 600,000
MOST_POINTS = 1 << 21
MOST_CHOICES = 4  # in one index, whose ways are looked at one by one: each doubles them


def verify(kernel: Kernel, target: Target | None = None, to_first: bool = False) -> None:
    """Raises InvalidLoops that lists every problem of the kernel; target: also what a GPU asks for. to_first: it is
    only asked whether there is one: what fails takes longest to prove."""
    checker = _Checker(kernel, to_first)
    checker.kernel()
    problems = [*checker.problems, *barrier_problems(kernel.body)]
    if target is not None and target.is_gpu:
        problems += gpu_problems(kernel, facts(target.arch))
    if problems:
        many = len(set(problems))
        raise InvalidLoops(
            f"kernel {kernel.name}: {many} problem{'s' if many > 1 else ''} in its loops",
            list(dict.fromkeys(problems)),
        )


class _Checker:
    def __init__(self, kernel: Kernel, to_first: bool):
        self._kernel, self._to_first = kernel, to_first
        self.problems: list[str] = []
        self._bound: set[int] = set()
        self._vectors: dict[Var, Expr] = {}  # values of vector Lets that memory cannot change
        self._root = Scope.of(kernel)
        self._written = self._root.written

    def kernel(self) -> None:
        params = self._kernel.params
        names = [p.name for p in params]
        self._extents()
        for p in params:
            if isinstance(p.size, Expr):
                self._names(p.size)
            if id(p) in self._bound or names.count(p.name) > 1:
                self.problems.append(f"two parameters are called {p.name}")
            self._bound.add(id(p))
        for name in sorted(self._kernel.outputs - set(names)):
            self.problems.append(f"the output {name} is not a parameter")
        for f in self._kernel.facts:
            self._names(f)
        self._stmt(self._kernel.body, self._root)

    def _extents(self) -> None:
        for v in self._kernel.extents:
            if v.definition is not None:
                self._names(v.definition)
            self._bound.add(id(v))

    def _bind(self, x: Var | Buffer) -> None:
        if id(x) in self._bound:
            self.problems.append(f"{x.name} is bound inside a place where it is bound already")
        self._bound.add(id(x))

    def _stmt(self, s: Stmt, scope: Scope) -> None:
        if self.problems and self._to_first:
            return
        for problem in type_problems(s):
            self.problems.append(problem)
        for e in expressions(s):
            self._names(e)
        match s:
            case For():
                self._accesses(s.start, scope)
                self._accesses(s.extent, scope)
                inner = scope.inside(s)
                self._bind(s.var)
                self._stmt(s.body, inner)
                self._bound.discard(id(s.var))
            case Let():
                self._accesses(s.value, scope)
                inner = scope.binding(s)
                if s.value.lanes == 1 and is_exact(s.value):
                    inner = inner.assuming(Binary("==", s.var, s.value))
                elif not any(isinstance(x, Load) and x.source in self._written for x in walk_expr(s.value)):
                    self._vectors[s.var] = s.value
                self._bind(s.var)
                self._stmt(s.body, inner)
                self._bound.discard(id(s.var))
            case If():
                self._accesses(s.condition, scope)
                self._stmt(s.then, scope.assuming(s.condition))
                if s.otherwise is not None:
                    self._stmt(s.otherwise, scope.assuming(s.condition, holds=False))
            case Allocate():
                self._bind(s.buffer)
                if isinstance(s.buffer.size, Expr):
                    self._names(s.buffer.size)
                elif s.buffer.size <= 0:
                    self.problems.append(f"{s.buffer.name} has {s.buffer.size} elements")
                self._stmt(s.body, scope)
                self._bound.discard(id(s.buffer))
            case Store():
                self._store(s, scope)
            case Prefetch():
                if id(s.buffer) not in self._bound:
                    self.problems.append(f"{s.buffer.name} is prefetched where nothing allocates it")
                self._accesses(s.index, scope)
            case _:
                for c in children(s):
                    self._stmt(c, scope)

    def _store(self, s: Store, scope: Scope) -> None:
        if id(s.buffer) not in self._bound:
            self.problems.append(f"{s.buffer.name} is stored to where nothing allocates it")
        if s.buffer in self._kernel.params and s.buffer.name not in self._kernel.outputs:
            self.problems.append(f"{s.buffer.name} is stored to, but it is not an output")
        if s.nontemporal and s.buffer not in self._kernel.params:
            self.problems.append(f"{s.buffer.name} is stored to past the caches, but it does not outlive the kernel")
        if s.predicate is not None:
            self._accesses(s.predicate, scope)
        self._accesses(s.index, scope)
        self._accesses(s.value, scope)
        self._inside(s.buffer, s.index, s.predicate, scope, "store to")

    def _names(self, e: Expr) -> None:
        for x in walk_expr(e):
            if isinstance(x, Var) and id(x) not in self._bound:
                self.problems.append(f"{x.name} is used where nothing binds it, in {e}")
            elif isinstance(x, Load) and id(x.source) not in self._bound:
                self.problems.append(f"{x.source.name} is read where nothing allocates it, in {e}")

    def _accesses(self, e: Expr, scope: Scope) -> None:
        """Checks the loads in e, each under the conditions that guard it."""
        match e:
            case Call(name="if_then_else", args=(condition, then, otherwise)) if condition.lanes == 1:
                self._accesses(condition, scope)
                self._accesses(then, _and_in_expression(scope, condition))
                self._accesses(otherwise, _and_in_expression(scope, Not(condition)))
                return
            case Load():
                if isinstance(e.source, Buffer):
                    self._inside(e.source, e.indices[0], e.predicate, scope, "read of")
            case _:
                pass
        for part in parts_of(e):
            self._accesses(part, scope)

    # ---- is an access inside its buffer?

    def _inside(self, buffer: Buffer, index: Expr, predicate: Expr | None, scope: Scope, what: str) -> None:
        if not scope.is_reached:
            return
        guarded = scope
        if index.lanes > 1 or (predicate is not None and predicate.lanes > 1):
            lane = Var("lane")
            guarded = guarded.with_bounds(lane, 0, index.lanes - 1)
            index = _lane(index, lane, self._vectors)
            predicate = None if predicate is None else _lane(predicate, lane, self._vectors)
        if predicate is not None:
            guarded = _and_in_expression(guarded, predicate)
        if not guarded.is_reached or guarded.intervals().is_within(index, buffer.size):
            return
        simple = guarded.simplifier()(index)
        if guarded.intervals().is_within(simple, buffer.size):
            return
        problem = _problem(buffer, simple, guarded, what)
        choices = list(dict.fromkeys(filter(_is_choice, walk_expr(simple)))) if problem else []
        if 0 < len(choices) <= MOST_CHOICES:  # each way by itself, where the condition says more of it
            condition, *ways = parts_of(choices[-1])  # which has none within
            cases = list(zip(ways, (condition, Not(condition)), strict=True))
            if all(never_wraps(way, fact) for way, fact in cases):
                choice = key(choices[-1])  # which conditions may have, too
                for way, fact in cases:
                    given = (simple, *guarded.facts)
                    chosen, *known = (transform(e, lambda x, way=way: way if key(x) == choice else None) for e in given)
                    self._inside(buffer, chosen, None, _and_in_expression(guarded.under((*known,)), fact), what)
                return
        if problem:
            self.problems.append(problem)


def _is_choice(e: Expr) -> bool:
    return isinstance(e, Select) or (isinstance(e, Call) and e.name == "if_then_else")


def _problem(buffer: Buffer, index: Expr, scope: Scope, what: str) -> str | None:
    """Return what is said of an index that bounds alone do not prove to be inside; None where the rest does."""
    if isinstance(buffer.size, Expr):
        if mixed_radix.is_within(index, buffer.size, scope.bounds, scope.facts):
            return None
        return _outside(buffer, index, scope.intervals().span(index), scope, what, False)
    span = mixed_radix.interval(index, scope.bounds, scope.facts)
    if is_within(span, buffer.size):
        return None
    tried, widened = _without_data(index, scope)
    reached = _extremes(tried, widened)
    if reached is not None and (reached[0] > reached[1] or is_within(reached, buffer.size)):
        return None
    return _outside(buffer, index, reached or span, scope, what, reached is not None and widened is scope)


def _and_in_expression(scope: Scope, condition: Expr) -> Scope:
    """Within one expression no store comes between a condition and what it guards, so every condition counts."""
    return scope.under((*scope.facts, *conjuncts(condition)))


def _lane(e: Expr, lane: Var, known: Mapping[Var, Expr]) -> Expr:
    """The element of a vector expression in a lane; known: values of vector variables."""

    def visit(x: Expr) -> Expr:
        if x.lanes == 1:
            return x
        match x:
            case Ramp(base=base, stride=stride):
                return Binary("+", base, Binary("*", stride, lane))
            case Broadcast(value=value):
                return value
            case Var():
                return visit(known[x]) if x in known else Var(x.name, x.dtype)
            case Load(source=source, indices=indices):
                return Load(source, [visit(i) for i in indices])
            case _:
                return rebuild_expr(x, tuple(visit(c) for c in parts_of(x)))

    return visit(e)


def _without_data(e: Expr, scope: Scope) -> tuple[Expr, Scope]:
    """The index with a variable in the place of each part that memory decides: a number within the part's bounds,
    whatever the data; so a gather's clamped row is tried like the index of a loop.
    """
    bounds, made = dict(scope.bounds), dict[Hashable, Var]()

    def is_of_one(x: Binary) -> bool:  # min(data, 9 - data) is less than either; a clamp has one part of data
        return x.op in ("min", "max") and all(reads(c) and is_finite(scope.intervals().span(c)) for c in parts_of(x))

    def visit(x: Expr) -> Expr:
        if isinstance(x, Binary) and (x.op in ("+", "-", "*", "//", "%") or is_of_one(x)):
            return rebuild_expr(x, tuple(visit(c) for c in parts_of(x)))
        if not reads(x) or not is_finite(span := scope.intervals().span(x)):
            return x
        data = made.setdefault(key(x), Var("data", x.dtype))
        bounds[data] = int(span[0]), int(span[1])
        return data

    index = visit(e)
    return (index, Scope(bounds, scope.facts, scope.written)) if len(bounds) > len(scope.bounds) else (e, scope)


def _extremes(e: Expr, scope: Scope) -> tuple[int, int] | None:
    """Least and greatest value, by trying all values of variables that satisfy the facts; None where that is too much.

    Least above greatest means that no values satisfy the facts: the access never happens.
    """
    facts = [f for f in scope.facts if not any(isinstance(x, Load) for x in walk_expr(f))]
    axes = list(variables(e))
    relevant: list[Expr] = []
    grown = True
    while grown:  # facts that share variables with the index, directly or through others
        grown = False
        for f in facts:
            if all(f is not r for r in relevant) and any(v is a for v in variables(f) for a in axes):
                relevant.append(f)
                axes += [v for v in variables(f) if all(v is not a for a in axes)]
                grown = True
    points, ranges = 1, list[range]()
    for v in axes:
        low, high = scope.bounds.get(v, (None, None))
        if not isinstance(low, int) or not isinstance(high, int):
            return None
        ranges.append(range(low, high + 1))
        points *= max(0, high + 1 - low)
        if points > MOST_POINTS:
            return None
    if not points:
        return 1, 0
    values = dict(zip(axes, np.meshgrid(*ranges, indexing="ij", sparse=True), strict=True))
    try:
        possible = np.ones([len(r) for r in ranges], bool)
        for f in relevant:
            possible &= _evaluate(f, values)
        reached = np.broadcast_to(_evaluate(e, values), possible.shape)[possible]
    except NotImplementedError:
        return None
    return (int(reached.min()), int(reached.max())) if reached.size else (1, 0)


def _evaluate(e: Expr, values: dict[Var, np.ndarray]) -> np.ndarray:
    """Index arithmetic over arrays of values."""
    if isinstance(e, Var):
        return values[e]
    if dtypes.is_float(e.dtype):
        raise NotImplementedError
    from_parts = [_evaluate(c, values) for c in parts_of(e)]
    match e:
        case Binary(op=op) if op not in ("/", "//", "%", "pow") or (op in ("//", "%") and np.all(from_parts[1] > 0)):
            return UFUNCS[op](*from_parts)
        case Not():
            return np.logical_not(from_parts[0])
        case Select() | Call(name="if_then_else"):
            return np.where(*from_parts)
        case Call(name="likely"):
            return from_parts[0]
        case _ if not from_parts and (value := getattr(e, "value", None)) is not None:
            return np.asarray(value)
        case _:
            raise NotImplementedError


def _outside(buffer: Buffer, index: Expr, reached: Span, scope: Scope, what: str, certain: bool) -> str:
    low, high = ("?" if x in (inf, -inf) else str(x) for x in reached)
    known = [
        f"{v.name} in [{scope.bounds[v][0]!s}, {scope.bounds[v][1]!s}]" for v in variables(index) if v in scope.bounds
    ]
    known += [str(f) for f in scope.facts if any(v is w for v in variables(f) for w in variables(index))]
    verdict = "is" if certain else "may be"
    reads_data = any(isinstance(x, Load) for x in walk_expr(index))
    hint = "; an index that is read from memory must be clamped" if reads_data else ""
    given = f", with {', '.join(known)}" if known else ""
    return f"{what} {buffer.name}[{index}] {verdict} outside its {buffer.size} elements: [{low}, {high}]{given}{hint}"
