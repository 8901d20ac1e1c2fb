"""From scalar expressions over tensors to scalar expressions over buffers, for given values of the axes.

Indices and conditions over integers go through te.loop_algebra, so they come out simplified; what always or
never holds is folded. Values are rebuilt as they stand: floats are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from renorm.core import dtypes
from renorm.core.spans import Span, either, span_of
from renorm.expr.linear import INDEX_TYPES, Linear
from renorm.expr.nodes import Binary, Call, Cast, Const, Expr, Load, OpenVar, Select, Var, cast, holds, integer_limits
from renorm.expr.rewrite import children, key, rebuild
from renorm.te.loop_algebra import LoopAlgebra, OpaqueValue
from renorm.te.tensor import ComputeOp, Tensor, source_of


class Translation:
    """The expressions of one nest, where its axes have the values `env`.

    inlined: computes without an array; a read of one is translated as its body, where its axes have the values of the
    indices. All reads of one element share one translation: inlining neither repeats work nor makes expressions grow.
    load: makes the read of a buffer from the read of any other tensor.
    """

    def __init__(
        self,
        algebra: LoopAlgebra,
        env: Mapping[Var, Linear],
        inlined: Mapping[Tensor, ComputeOp],
        load: Callable[[Load, Translation], Expr],
        outer: Translation | None = None,
    ):
        self.algebra, self.env, self._inlined, self._load = algebra, env, inlined, load
        self.outermost: Translation = outer.outermost if outer else self
        self._entered: dict[object, Translation] = {}  # of the outermost: translations of inlined bodies, by element
        # keys are ids of expressions, which the bodies of the schedule keep alive
        self._values: dict[int, Expr] = {}
        self._indices: dict[int, tuple[Linear, ...]] = {}
        self._fixed: dict[int, bool] = {}

    def indices(self, e: Load) -> tuple[Linear, ...]:
        """The indices of a load as linear forms."""
        found = self._indices.get(id(e))
        if found is None:
            found = self._indices[id(e)] = tuple(self.linear(i) for i in e.indices)
        return found

    def enter(self, e: Load) -> tuple[Translation, Expr] | None:
        """The body that a load of an inlined compute stands for, with its translation; None for other loads."""
        op = self._inlined.get(source_of(e))
        if op is None:
            return None
        indices = self.indices(e)
        element = (op, tuple(i.key() for i in indices))
        found = self.outermost._entered.get(element)
        if found is None:
            env = {a.var: i for a, i in zip(op.axis, indices, strict=True)}
            found = Translation(self.algebra, env, self._inlined, self._load, self)
            self.outermost._entered[element] = found
        return found, op.body

    def nodes(self, *roots: Expr) -> Iterator[tuple[Expr, Translation]]:
        """Every node once, with its translation, parents first, through inlined computes."""
        seen: set[tuple[int, int]] = set()
        stack: list[tuple[Expr, Translation]] = [(root, self) for root in reversed(roots)]
        while stack:
            e, terms = stack.pop()
            if (id(e), id(terms)) in seen:
                continue
            seen.add((id(e), id(terms)))
            yield e, terms
            stack.extend((c, terms) for c in reversed(children(e)))
            entered = terms.enter(e) if isinstance(e, Load) else None
            if entered:
                stack.append((entered[1], entered[0]))

    def linear(self, e: Expr) -> Linear:
        return self.algebra.linear(e, self.env, self._opaque)

    def decide(self, e: Expr) -> bool | None:
        return self.algebra.decide(e, self.env, self._opaque)

    def variables(self, e: Expr) -> frozenset[Var]:
        """Loop variables that a value of the body depends on."""
        free = self.algebra.free
        return frozenset().union(*(free(terms.env[x]) for x, terms in self.nodes(e) if type(x) is Var))

    def _opaque(self, e: Expr) -> Linear:
        entered = self.enter(e) if isinstance(e, Load) else None
        if entered:
            return entered[0].linear(entered[1])
        fixed = self._reads_nothing(e)
        opaque = OpaqueValue(lambda: self._rebuild(e), self.variables(e) if fixed else None)
        return self.algebra.opaque(e, opaque, self._bounds(e), (id(self), key(e)))

    def _bounds(self, e: Expr) -> Span:
        match e:
            case Select(then=a, otherwise=b) | Call(name="if_then_else", args=(_, a, b)):
                return either(*(self.algebra.form_span(self.linear(x)) for x in (a, b)))
            case Binary(op="*", a=a, b=b) if e.dtype in INDEX_TYPES:
                return span_of("*", *(self.algebra.form_span(self.linear(x)) for x in (a, b)))
            case Cast(a=a) if not dtypes.is_float(a.dtype) and holds(e.dtype, *integer_limits(a.dtype)):
                return integer_limits(a.dtype)
            case _:
                return integer_limits(e.dtype)

    def _reads_nothing(self, e: Expr) -> bool:
        found = self._fixed.get(id(e))
        if found is None:
            if isinstance(e, Load):
                entered = self.enter(e)
                found = entered is not None and entered[0]._reads_nothing(entered[1])
            else:
                found = all(self._reads_nothing(c) for c in children(e))
            self._fixed[id(e)] = found
        return found

    def value(self, e: Expr) -> Expr:
        """The expression over buffers that has the value of `e`; without recursion, chains of computes may be long."""
        stack: list[tuple[Translation, Expr]] = [(self, e)]
        while stack:
            terms, x = stack[-1]
            if id(x) in terms._values:
                stack.pop()
                continue
            pending = [(t, y) for t, y in terms._parts(x) if id(y) not in t._values]
            if pending:
                stack.extend(pending)
            else:
                terms._values[id(x)] = terms._translate(x)
        return self._values[id(e)]

    def _parts(self, e: Expr) -> Sequence[tuple[Translation, Expr]]:
        """The expressions whose values the value of `e` is made of."""
        if isinstance(e, Load):
            entered = self.enter(e)
            return [entered] if entered else []
        if isinstance(e, Binary) and e.dtype in INDEX_TYPES and self._reads_nothing(e):
            return []
        chosen = self._chosen(e)
        if chosen is not None:
            return [(self, chosen)]
        return [(self, c) for c in children(e)]

    def _translate(self, e: Expr) -> Expr:
        """The value of `e`, when those of its parts are known."""
        if isinstance(e, Const):
            return e
        if isinstance(e, Load):
            entered = self.enter(e)
            return entered[0].value(entered[1]) if entered else self._load(e, self)
        if isinstance(e, OpenVar):
            return e
        if isinstance(e, Var):
            return cast(e.dtype, self.algebra.value(self.env[e]))
        if isinstance(e, Binary) and e.dtype in INDEX_TYPES and self._reads_nothing(e):
            return cast(e.dtype, self.algebra.value(self.linear(e)))
        chosen = self._chosen(e)
        if chosen is not None:
            return self.value(chosen)
        known = self._known(e) if e.dtype == "bool" else None
        if known is not None:
            return Const(known, "bool")
        undivided = self._undivided(e)
        return self._rebuild(e) if undivided is None else undivided

    def _undivided(self, e: Expr) -> Expr | None:
        """A comparison of positions along parts of a fused axis as one of positions along that axis, and one of
        positions inside blocks as one of blocks; None for what is no such comparison."""
        if not isinstance(e, Binary) or e.op not in ("<", "<=", ">", ">=") or not self._reads_nothing(e):
            return None
        if e.a.dtype not in INDEX_TYPES:
            return None
        difference = self.linear(e.a) - self.linear(e.b)
        parts = difference.offset(-difference.constant)
        least = -difference.constant + (e.op in ("<=", ">"))
        form, bound = self.algebra.without_division(parts, Linear({}, least))
        if form is parts:
            return None
        index = self.algebra.value(form)
        return Binary("<" if e.op in ("<", "<=") else ">=", index, self.algebra.end(bound, index.dtype))

    def _chosen(self, e: Expr) -> Expr | None:
        """The part that `e` always equals: a branch of a decided condition, or a condition beside one that holds."""
        match e:
            case Select() | Call(name="if_then_else"):
                condition, then, otherwise = children(e)
                known = self._known(condition)
                return None if known is None else then if known else otherwise
            case Binary(op="&&" | "||", a=a, b=b):
                neutral = e.op == "&&"
                return b if self._known(a) is neutral else a if self._known(b) is neutral else None
            case _:
                return None

    def _rebuild(self, e: Expr) -> Expr:
        if isinstance(e, Load):
            return self.value(e)
        return rebuild(e, tuple(self.value(c) for c in children(e)))

    def _known(self, e: Expr) -> bool | None:
        return self.decide(e) if self._reads_nothing(e) else None
