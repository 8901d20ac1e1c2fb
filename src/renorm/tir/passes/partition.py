"""for (x, a, n) { if (x < b) s } -> for (x, a, b - a) s: loops are cut where their conditions change.

A condition inside a loop begins or ends to hold for all values of the loops within: at the ragged end of a split axis,
at the border of padding, between the parts of a concatenation. There the loop is cut in two. Conditions of `if`, of
predicates, of if_then_else and of select count alike; what a cut decides disappears, so the middle part carries no
condition. A parallel loop is not cut, for that would part its threads: it chooses between versions of its body, by its
variable x or, where loops were fused, by that of the inner one, x % n.
Where extents are open, so are the places of cuts: n // 8 is where the last tile of 8 becomes ragged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from renorm.core.spans import is_finite
from renorm.expr.bounds import Intervals, is_exact
from renorm.expr.linear import Linear, expression
from renorm.expr.nodes import Binary, Call, Const, Expr, Load, Not, OpenVar, Select, Var, all_of, cast
from renorm.expr.rewrite import key, loads, variables
from renorm.expr.rewrite import walk as walk_expr
from renorm.tir.nodes import For, If, Kernel, Stmt, Store, children, constant, expressions, rebuild, seq, walk
from renorm.tir.passes.simplify import is_nothing, simplify_stmt
from renorm.tir.rewrite import fresh_copy
from renorm.tir.scope import Scope, typical

GROWTH = 20_000  # expression nodes that all cuts of a kernel may add, unrolled copies counted
MOST_PARTS = 16  # of one loop
SMALL = 60  # expression nodes: what is larger, or has loops, takes long beside a condition around it
MOST_ADDRESSES = 8  # of rows, that stay in registers: a loop is not cut so that there are fewer


def partition(kernel: Kernel) -> Kernel:
    """The kernel with loops cut where their conditions change."""
    body = _Partition().visit(kernel.body, Scope.of(kernel))
    return kernel.with_body(body)


@dataclass
class _Partition:
    """left: expression nodes that cuts may still add."""

    left: int = GROWTH
    _asked: dict[Stmt, frozenset[Var]] = field(default_factory=dict[Stmt, "frozenset[Var]"])

    def visit(self, s: Stmt, scope: Scope) -> Stmt:
        if isinstance(s, For):
            if s.kind == "parallel":
                return For(s.var, s.start, s.extent, s.kind, self._versions(s, scope))
            ends = self._ends(s, s.var, s.extent, scope)
            if len(ends) > 2:
                return self._cut(s, ends, scope)
        return self._inside(s, scope)

    def _inside(self, s: Stmt, scope: Scope) -> Stmt:
        parts = [self.visit(c, inner) for c, inner in zip(children(s), scope.of_children(s), strict=True)]
        return rebuild(s, parts, expressions(s))

    def _cut(self, s: For, ends: Sequence[Expr], scope: Scope) -> Stmt:
        """The parts between neighbouring ends. Where extents are open, ends may be out of order: the loop is as it was
        for those."""
        intervals = scope.intervals()
        sizes = [Binary("-", high, low) for low, high in pairwise(ends)]
        ordered = [Binary(">=", e, Const(0, e.dtype)) for e in sizes if intervals.span(e)[0] < 0]
        known = scope.assuming(all_of(*ordered)) if ordered else scope
        cut = seq([self._part(s, low, high, known) for low, high in pairwise(ends)])
        return If(all_of(*ordered), cut, self._inside(fresh_copy(s), scope)) if ordered else cut

    def _part(self, s: For, low: Expr, high: Expr, scope: Scope) -> Stmt:
        var = Var(s.var.name, s.var.dtype)
        body = fresh_copy(s.body, {s.var: var})
        extent = scope.simplifier()(Binary("-", high, low))
        # decided conditions go away here, so that the loops within see what is left
        part = simplify_stmt(For(var, low, extent, s.kind, body), scope)
        # its own conditions are settled, those of loops within are not; one of these is in its place if it is short:
        # Winograd's transforms take 5 % longer where that is cut too, tiles of an instruction must be
        is_settled = isinstance(part, For) and (part.var is var or not _is_tensorized(part))
        return self._inside(part, scope) if is_settled else self.visit(part, scope)

    def _versions(self, s: For, scope: Scope) -> Stmt:
        """The body of a parallel loop, in versions for values of its variable x and of what conditions ask of x."""
        for x, extent in [(s.var, s.extent), *_asked_of_alone(s, scope)]:
            ends = self._ends(s, x, extent, scope)
            if len(ends) > 2:
                return self._choice(s, x, ends, scope)
        return self.visit(s.body, scope.inside(s))

    def _choice(self, s: For, x: Expr, ends: Sequence[Expr], scope: Scope) -> Stmt:
        """The version of the body that fits x: if (x < m) { first } else { ... }."""
        low, high, *others = ends
        if isinstance(x, Var):
            inside = scope.inside(s).within(x, low, high)
            body = self.visit(simplify_stmt(fresh_copy(s.body), inside), inside)
        else:
            inside = scope.assuming(all_of(Binary(">=", x, low), Binary("<", x, high)))
            own = simplify_stmt(fresh_copy(s.body), inside.inside(s))
            body = self._versions(For(s.var, s.start, s.extent, s.kind, own), inside)
        if not others:
            return body
        rest = self._choice(s, x, [high, *others], scope)
        return If(Binary("<", x, high), body, None if is_nothing(rest) else rest)

    def _ends(self, s: For, x: Expr, extent: Expr, scope: Scope) -> list[Expr]:
        """Where the pieces of a loop begin and end that it is cut into, by values of x; none where cutting does not
        pay."""
        if s.kind not in ("serial", "parallel", "tensorized") or constant(s.start) is None or not _is_known(s.extent):
            return []
        if s.var not in self._asked_of(s.body):
            return []
        intervals, simple = scope.intervals(), scope.simplifier()
        first = s.start if x is s.var else Const(0, x.dtype)
        end = simple(Binary("+", first, extent))
        found: dict[Hashable, Expr] = {}
        for c in _cuts(s, x, scope):
            cut = simple(cast(first.dtype, c))
            if _is_between(first, cut, end, intervals):
                found[key(cut)] = cut
        cuts = _apart(sorted(found.values(), key=typical), intervals)
        cost = len(cuts) * _size(s.body) if cuts else 0
        if not cuts or len(cuts) >= MOST_PARTS or cost > self.left:
            return []
        self.left -= cost
        return [first, *cuts, end]

    def _asked_of(self, s: Stmt) -> frozenset[Var]:
        """Return the variables that conditions in s speak of."""
        found = self._asked.get(s)
        if found is None:
            own = (v for e in _own_conditions(s) for v in variables(e))
            found = self._asked[s] = frozenset(own).union(*(self._asked_of(c) for c in children(s)))
        return found


def _is_between(first: Expr, cut: Expr, end: Expr, intervals: Intervals) -> bool:
    """Return whether a loop from `first` to `end` is worth cutting there: both parts may have rounds, and the cut is no
    farther than the end at typical extents. Taps of a window may end at the border of a plane as narrow as it, for
    which nobody needs code; a row that is whole at typical extents may be ragged at others."""
    from_first, to_end = (intervals.span(Binary("-", a, b)) for a, b in ((cut, first), (end, cut)))
    if from_first[1] <= 0 or to_end[1] <= 0 or from_first == (0, 0) or to_end == (0, 0):
        return False
    return isinstance(cut, Const) or typical(first) < typical(cut) <= typical(end)


def _apart(cuts: Sequence[Expr], intervals: Intervals) -> list[Expr]:
    """Return the places of cuts, in order, less open ones that come a round after another one at most: n//15 and
    (n + 2)//15. What lies between them goes with the ragged end behind."""
    kept: list[Expr] = []
    for cut in cuts:
        if kept and not (isinstance(cut, Const) or isinstance(kept[-1], Const)):
            low, high = intervals.span(Binary("-", cut, kept[-1]))
            if low >= -1 and high <= 1:
                if low < 0:
                    kept[-1] = cut
                continue
        kept.append(cut)
    return kept


def _is_known(extent: Expr) -> bool:
    """Return whether a loop ends at a number, or at open extents."""
    return all(isinstance(v, OpenVar) for v in variables(extent)) and not any(
        isinstance(x, Load) for x in walk_expr(extent)
    )


def _size(s: Stmt) -> int:
    """Nodes of the expressions in s, once for each copy that unrolling makes."""
    own = sum(1 for e in expressions(s) for _ in walk_expr(e))
    inner = sum(_size(c) for c in children(s))
    return own + inner * ((constant(s.extent) or 1) if isinstance(s, For) and s.kind == "unrolled" else 1)


def _asked_of_alone(loop: For, scope: Scope) -> list[tuple[Expr, Expr]]:
    """Return x % n and x // n of the loop's variable x, of which conditions in long sums speak, each with its extent.
    Elsewhere a condition costs less than one more version of all that is computed in the loop."""
    intervals, found = scope.inside(loop).intervals(), dict[Hashable, tuple[Expr, Expr]]()
    for s in _long_sums(loop.body):
        for e in (e for c in _own_conditions(s) for e in _comparisons(c)):
            for atom in intervals.difference(e.a, e.b).terms:
                low, high = intervals.span(atom)
                if (
                    isinstance(atom, Binary)
                    and set(variables(atom)) == {loop.var}
                    and low == 0
                    and is_finite((0, high))
                ):
                    found[key(atom)] = atom, Const(int(high) + 1, atom.dtype)
    return [*found.values()]


def _long_sums(s: Stmt, is_repeated: bool = False) -> Iterator[Stmt]:
    """Yield the statements in s that add to a register in every round of a loop, and the conditions around them."""
    match s:
        case Store(buffer=buffer, value=value):
            if is_repeated and buffer.scope in ("register", "tile") and any(x.source is buffer for x in loads(value)):
                yield s
        case If():
            found = [x for c in children(s) for x in _long_sums(c, is_repeated)]
            # no instruction of a matrix unit has a condition inside
            on_tiles = any(isinstance(x, Store) and x.buffer.scope == "tile" for x in walk(s.then))
            yield from [s, *found] if found and (on_tiles or _size(s.then) <= SMALL) else found
        case For(kind="serial" | "tensorized"):
            yield from _long_sums(s.body, True)
        case _:
            for c in children(s):
                yield from _long_sums(c, is_repeated)


def _cuts(loop: For, x: Expr, scope: Scope) -> Iterator[Expr]:
    """Values of x, the loop's variable or a remainder of it, from which on some condition always holds, or never. Open
    ones are left out where the condition costs little beside what depends on it."""
    intervals = Intervals(scope.inside(loop).throughout(loop.body))
    known = scope.intervals() if _is_tensorized(loop) else intervals
    inner = {s.var for s in walk(loop.body) if isinstance(s, For)}
    for condition, is_own, is_cheap in _conditions(loop.body):
        if is_own and loop.kind == "parallel":
            continue  # it stands right in the loop: choosing a version would be no cheaper
        for e in _comparisons(condition):
            for cut in _cuts_of(e, x, inner, intervals, known):
                if not is_cheap or not any(isinstance(v, OpenVar) for v in variables(cut)):
                    yield cut


def _is_tensorized(s: Stmt) -> bool:
    return any(isinstance(x, For) and x.kind == "tensorized" for x in walk(s))


def _own_conditions(s: Stmt) -> Iterator[Expr]:
    """Every condition in a statement itself."""
    if isinstance(s, If):
        yield s.condition
    if isinstance(s, Store) and s.predicate is not None:
        yield s.predicate
    for part in (x for e in expressions(s) for x in walk_expr(e)):
        match part:
            case Select(condition=condition) | Call(name="if_then_else", args=(condition, _, _)):
                yield condition
            case Load(predicate=Expr() as predicate):
                yield predicate
            case Binary(op="min") if part.is_open:
                yield part
            case _:
                pass


def _conditions(
    s: Stmt, is_own: bool = True, unrolled: Mapping[Var, int] | None = None, within: frozenset[Var] = frozenset()
) -> Iterator[tuple[Expr, bool, bool]]:
    """Every condition in s; whether it stands outside the loops within, and whether it costs little. unrolled,
    within: loops around, inside of the one that may be cut, that are unrolled, with their rounds, and others."""
    unrolled = unrolled or {}
    if isinstance(s, If):
        yield s.condition, is_own, _is_cheap(s, bool(within))
    if isinstance(s, Store) and s.predicate is not None:
        yield s.predicate, is_own, False
    for e in expressions(s):
        for part in walk_expr(e):
            match part:
                case Select(condition=condition) | Call(name="if_then_else", args=(condition, _, _)):
                    yield condition, is_own, False
                case Load(predicate=predicate, indices=indices):
                    if predicate is not None:
                        yield predicate, is_own, False
                    rows = [m for m in map(_row, (m for i in indices for m in walk_expr(i))) if m is not None]
                    for row in rows:
                        # rows of loops within are settled when these are cut
                        others = [r for r in rows if r is row or within.isdisjoint(variables(r))]
                        moving = {v for r in others for v in variables(r)}
                        addresses = prod(n for v, n in unrolled.items() if v in moving)
                        yield row, is_own, addresses <= MOST_ADDRESSES
                case _:
                    pass
    if isinstance(s, For):
        if s.kind == "unrolled":
            unrolled = {**unrolled, s.var: constant(s.extent) or 1}
        elif s.kind != "vectorized":
            within = within | {s.var}
    for c in children(s):
        yield from _conditions(c, is_own and not isinstance(s, For), unrolled, within)


def _is_cheap(s: If, is_repeated: bool) -> bool:
    """Return whether a condition costs little beside what it is asked for. is_repeated: whether a loop within asks it:
    beside a sum in registers a branch takes registers from it, and spills others."""
    inside = list(walk(s.then))
    loops = {c.kind for c in inside if isinstance(c, For)}
    if is_repeated and any(isinstance(c, Store) and c.buffer.scope == "register" for c in inside):
        return bool(loops - {"unrolled", "vectorized", "tensorized"})
    return bool(loops) or _size(s.then) > SMALL


def _row(e: Expr) -> Expr | None:
    """Return when min(x, n - 1), a row or the last one where x is beyond open extents (te.lower), is x."""
    if isinstance(e, Binary) and e.op == "min" and e.is_open:
        return Binary("<=", e.a, e.b)
    return None


def _comparisons(e: Expr) -> Iterator[Binary]:
    match e:
        case Binary(op=("&&" | "||"), a=a, b=b):
            yield from _comparisons(a)
            yield from _comparisons(b)
        case Not(a=a) | Call(name="likely", args=(a,)):
            yield from _comparisons(a)
        case Binary(op=op, a=a, b=b) if op in ("<", "<=", ">", ">=", "==", "!=") and is_exact(a) and is_exact(b):
            yield e
        case _:
            return


def _cuts_of(e: Binary, x: Expr, inner: set[Var], intervals: Intervals, known: Intervals) -> Iterator[Expr]:
    form = intervals.difference(e.a, e.b)
    for atom, coefficient in form.terms.items():
        low, high = known.span(atom)
        if low == high:  # a digit of the number of a parallel loop, in a version for one value of it
            form = form.without((atom,)).offset(coefficient * int(low))
    k, own = 0, next((atom for atom in form.terms if atom is x or key(atom) == key(x)), x)
    rest = form.without((own,))
    for atom, coefficient in form.terms.items():
        if atom is own:
            k = coefficient
        elif any(v not in inner and not isinstance(v, OpenVar) for v in variables(atom)):
            return  # a loop further out has a say: no one place is right for all its values
        elif any(isinstance(v, Load) for v in walk_expr(atom)):
            return  # or data
    if k == 0 or (ends := _ends_of(rest, intervals)) is None:
        return
    # k*x + rest < 0 and <= 0: where they begin or end to hold always, or never; a > b is not (a <= b)
    strict = e.op in ("<", ">=", "==", "!=")
    weak = e.op in ("<=", ">", "==", "!=")
    for bound in (*((0,) if strict else ()), *((1,) if weak else ())):
        for end in ends:  # k*x + r < 0 changes at this x
            yield _first_change(k, end.offset(-bound), x.dtype)


def _ends_of(form: Linear, intervals: Intervals) -> tuple[Linear, Linear] | None:
    """Least and greatest value of a form, as forms of open extents; None where there are none."""
    low, high = intervals.form_span(form)
    if is_finite((low, high)) and not intervals.is_open(form):
        return Linear({}, int(low)), Linear({}, int(high))
    least, most = intervals.least(form), intervals.greatest(form)
    return None if least is None or most is None else (least, most)


def _first_change(k: int, r: Linear, dtype: str) -> Expr:
    """The x from which on (k*x + r < 0) is the other way round than before it."""
    if k > 0:
        return _floor_divided((-r).offset(k - 1), k, dtype)  # k*x + r >= 0 from ceil(-r/k) on
    return _floor_divided(r.offset(-k), -k, dtype)  # k*x + r < 0 from floor(r/|k|) + 1 on


def _floor_divided(form: Linear, k: int, dtype: str) -> Expr:
    if form.number is not None:
        return Const(form.number // k, dtype)
    return Binary("//", expression(form, dtype), Const(k, dtype))
