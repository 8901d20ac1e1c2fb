"""Knowledge at a place in a loop program: bounds of variables, and conditions that hold there."""

from __future__ import annotations

from dataclasses import dataclass, field

from renorm.core.lazy import cached_property
from renorm.core.spans import is_finite
from renorm.expr.bounds import End, Intervals
from renorm.expr.nodes import Binary, Const, Expr, Load, Not, OpenVar, Var
from renorm.expr.rewrite import conjuncts, same, substitute, variables
from renorm.expr.rewrite import walk as walk_expr
from renorm.expr.simplify import Simplifier, simplify
from renorm.tir.nodes import Buffer, For, If, Kernel, Let, Stmt, Store, children, constant, walk


@dataclass(frozen=True)
class Scope:
    """bounds: inclusive; numbers, or expressions where a loop ends at open extents. facts: conditions that hold.
    written: buffers that the program stores to, whose elements may change while a fact about them is still remembered;
    such facts are not taken in."""

    bounds: dict[Var, tuple[End, End]] = field(default_factory=dict[Var, "tuple[End, End]"])
    facts: tuple[Expr, ...] = ()
    written: frozenset[Buffer] = frozenset()

    @staticmethod
    def of(program: Kernel | Stmt) -> Scope:
        """The scope at the root of a program."""
        body, facts = (program.body, program.facts) if isinstance(program, Kernel) else (program, ())
        return Scope(facts=facts, written=frozenset(s.buffer for s in walk(body) if isinstance(s, Store)))

    def inside(self, loop: For) -> Scope:
        """In the body of a loop; its iterations reach from the least start to the greatest end. Ends stay forms where
        open extents stand in them, also those that have a greatest value: what is a buffer's size is no number."""
        intervals = self.intervals()
        low, _ = intervals.span(loop.start)
        last = Binary("+", loop.start, loop.extent)
        _, high = intervals.span(last)
        form = intervals.form(last)
        is_tied = not intervals.is_open(form) and intervals.is_tied(form)
        if is_finite((low, high)) and not (is_tied or intervals.is_open(form)):
            return self.with_bounds(loop.var, low, high - 1)
        found = self.within(loop.var, loop.start, last)
        # memory says where it begins or ends
        if is_tied or any(type(v) is Var and v not in self.bounds for v in variables(last)):
            ends = (Binary(">=", loop.var, loop.start), Binary("<", loop.var, last))
            found = found.under((*filter(self._lasts, ends), *self.facts))  # in front: they lead to what others say
        return found

    def within(self, var: Var, first: Expr, end: Expr) -> Scope:
        """Where a variable is between two expressions, the second one excluded."""
        low, high = constant(first), constant(end)
        last = Binary("-", end, Const(1, end.dtype)) if high is None else high - 1
        return self._bounded(var, first if low is None else low, last)

    def binding(self, let: Let) -> Scope:
        """In the body of a Let."""
        return self.with_bounds(let.var, *self.intervals().span(let.value))

    def throughout(self, body: Stmt) -> dict[Var, tuple[End, End]]:
        """Bounds that hold wherever a variable is bound, here and in `body`."""
        found: dict[Var, tuple[End, End] | None] = dict(self.bounds)

        def visit(s: Stmt, scope: Scope) -> None:
            if isinstance(s, (For, Let)):
                scope = scope.inside(s) if isinstance(s, For) else scope.binding(s)
                own = scope.bounds.get(s.var)
                known = found.get(s.var, own)  # of a loop that a pass has copied
                found[s.var] = own and known and _either(own, known)
            for c in children(s):
                visit(c, scope)

        visit(body, Scope(self.bounds))
        return {v: b for v, b in found.items() if b}

    def of_children(self, s: Stmt) -> list[Scope]:
        """The scope at each child of a statement, in their order."""
        match s:
            case For():
                return [self.inside(s)]
            case Let():
                return [self.binding(s)]
            case If():
                return [self.assuming(s.condition, holds) for holds in (True, False)[: len(children(s))]]
            case _:
                return [self] * len(children(s))

    def with_bounds(self, var: Var, low: float, high: float) -> Scope:
        if is_finite((low, high)):
            return self._bounded(var, int(low), int(max(low, high)))
        return Scope({v: b for v, b in self.bounds.items() if v is not var}, self.facts, self.written)

    def _bounded(self, var: Var, low: End, high: End) -> Scope:
        found, ends = Scope({**self.bounds, var: (low, high)}, self.facts, self.written), (low, high)
        if self.facts:
            found.__dict__["_plain"] = self._plain._bounded(var, low, high)
        else:  # there at once, so that all scopes within share them
            self.simplifier()
            self.intervals()
        # what is known here holds there: facts are taken in once, which takes long where extents are open
        for name in ("_simplifier", "_intervals"):
            own: Simplifier | Intervals | None = self.__dict__.get(name)
            if own is not None and own.takes(var, ends):
                found.__dict__[name] = own
        if "is_reached" in self.__dict__:
            found.__dict__["is_reached"] = self.is_reached
        return found

    def assuming(self, condition: Expr, holds: bool = True) -> Scope:
        """Return where the condition holds, or where it does not."""
        new = tuple(c for c in conjuncts(condition if holds else Not(condition)) if self._lasts(c))
        return self.under((*self.facts, *new)) if new else self

    def under(self, facts: tuple[Expr, ...]) -> Scope:
        """Return the same place where these are the facts."""
        found = Scope(self.bounds, facts, self.written)
        if facts:
            found.__dict__["_plain"] = self._plain
        return found

    def _lasts(self, condition: Expr) -> bool:
        return not any(isinstance(x, Load) and x.source in self.written for x in walk_expr(condition))

    @cached_property
    def is_reached(self) -> bool:
        """Return False where bounds alone contradict a condition, or others of the same variables the last one."""
        intervals = self._plain.intervals()
        if any(intervals.span(f) == (0, 0) for f in self.facts):
            return False
        *others, last = self.facts or (None,)
        if last is None or not any(set(variables(f)) == set(variables(last)) for f in others):
            return True
        return self._plain.under(tuple(others)).intervals().span(last) != (0, 0)

    def simplifier(self) -> Simplifier:
        return self._simplifier

    def intervals(self) -> Intervals:
        return self._intervals

    @cached_property
    def _simplifier(self) -> Simplifier:
        return Simplifier(None, self.facts, self._plain._simplifier) if self.facts else Simplifier(dict(self.bounds))

    @cached_property
    def _intervals(self) -> Intervals:
        return Intervals(None, self.facts, None, self._plain._intervals) if self.facts else Intervals(dict(self.bounds))

    @cached_property
    def _plain(self) -> Scope:
        """The scope without its facts: what bounds alone say is found there, once for all conditions."""
        return Scope(self.bounds, (), self.written) if self.facts else self


def _either(a: tuple[End, End], b: tuple[End, End]) -> tuple[End, End] | None:
    """Bounds that hold where either pair does; None where open ends differ."""
    found: list[End] = []
    for x, y, choose in ((a[0], b[0], min), (a[1], b[1], max)):
        if isinstance(x, Expr) or isinstance(y, Expr):
            if not (isinstance(x, Expr) and isinstance(y, Expr) and same(x, y)):
                return None
            found.append(x)
        else:
            found.append(choose(x, y))
    return found[0], found[1]


def typical(extent: Expr) -> int:
    """Return a value of an expression of open extents, where these have typical ones: for estimates."""
    known = constant(extent)
    if known is not None:
        return known
    values: dict[Var, Expr] = {}
    for v in variables(extent):
        if isinstance(v, OpenVar):
            values[v] = Const(v.typical if v.definition is None else typical(v.definition), v.dtype)
    found = constant(simplify(substitute(extent, values)))
    return 1 if found is None else found
