"""Walking expressions: children, rebuilding, substitution, structural keys. The one place that knows every node's
parts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping

from renorm.expr.nodes import Binary, Broadcast, Call, Cast, Const, Expr, Load, Not, Ramp, Reduce, Select, Var

# levels that an expression may have: with each, walks go five calls of Python deeper, of the thousand that there are
DEEPEST = 128


def children(e: Expr) -> tuple[Expr, ...]:
    if isinstance(e, Binary):  # first, since most nodes are
        return (e.a, e.b)
    match e:
        case Const() | Var():
            return ()
        case Not() | Cast():
            return (e.a,)
        case Select():
            return (e.condition, e.then, e.otherwise)
        case Call():
            return e.args
        case Load():
            return e.indices if e.predicate is None else (*e.indices, e.predicate)
        case Reduce():
            return tuple(x for x in (e.value, e.condition, e.init) if x is not None)
        case Ramp():
            return (e.base, e.stride)
        case Broadcast():
            return (e.value,)
        case _:
            raise TypeError(f"not an expression node: {type(e).__name__}")


def rebuild(e: Expr, parts: tuple[Expr, ...]) -> Expr:
    """`e` with its children replaced, in the order of `children`; `e` itself where nothing changed."""
    old = children(e)
    if all(x is y for x, y in zip(old, parts, strict=True)):
        return e
    match e:
        case Binary():
            return Binary(e.op, *parts)
        case Not():
            return Not(parts[0])
        case Cast():
            return Cast(e.dtype, parts[0])
        case Select():
            return Select(*parts)
        case Call():
            return Call(e.name, parts)
        case Load():
            return Load(e.source, parts) if e.predicate is None else Load(e.source, parts[:-1], parts[-1])
        case Reduce():
            rest = list(parts[1:])
            condition = rest.pop(0) if e.condition is not None else None
            init = rest.pop(0) if e.init is not None else None
            return Reduce(e.combiner, parts[0], e.axes, condition, init)
        case Ramp():
            return Ramp(parts[0], parts[1], e.lanes)
        case Broadcast():
            return Broadcast(parts[0], e.lanes)
        case _:
            return e


def transform(e: Expr, f: Callable[[Expr], Expr | None]) -> Expr:
    """`e` rewritten from the leaves up: `f` sees each node with its children done, and returns a new node or None."""
    done: dict[int, Expr] = {}

    def visit(x: Expr) -> Expr:
        if id(x) in done:
            return done[id(x)]
        y = rebuild(x, tuple(visit(c) for c in children(x)))
        z = f(y)
        done[id(x)] = y if z is None else z
        return done[id(x)]

    return visit(e)


def substitute(e: Expr, values: Mapping[Var, Expr]) -> Expr:
    """`e` with variables (by identity) replaced."""
    return transform(e, lambda x: values.get(x) if isinstance(x, Var) else None) if values else e


def walk(e: Expr) -> Iterator[Expr]:
    """Every node, parents before children; a node shared by two parents comes twice."""
    stack = [e]
    while stack:
        x = stack.pop()
        yield x
        stack.extend(reversed(children(x)))


def levels(e: Expr) -> int:
    """Return how many nodes stand within each other at most."""
    found: dict[int, int] = {}
    stack = [e]
    while stack:
        x = stack[-1]
        parts = children(x)
        missing = [c for c in parts if id(c) not in found]
        if missing:
            stack += missing
        else:
            found[id(stack.pop())] = 1 + max((found[id(c)] for c in parts), default=0)
    return found[id(e)]


def conjuncts(condition: Expr) -> Iterator[Expr]:
    """The conditions that must all hold for `condition` to hold."""
    match condition:
        case Binary(op="&&", a=a, b=b):
            yield from conjuncts(a)
            yield from conjuncts(b)
        case Not(a=Binary(op="||", a=a, b=b)):
            yield from conjuncts(Not(a))
            yield from conjuncts(Not(b))
        case Call(name="likely", args=(a,)):
            yield from conjuncts(a)
        case Not(a=Call(name="likely", args=(a,))):
            yield from conjuncts(Not(a))
        case _:
            yield condition


def variables(e: Expr) -> list[Var]:
    """Free variables, each once, in order of first appearance."""
    return list(dict.fromkeys(x for x in walk(e) if isinstance(x, Var)))


def without_lanes(e: Expr) -> Expr:
    """Return the scalar that stands in all lanes, or `e` where lanes may differ."""
    while type(e) is Broadcast:
        e = e.value
    return e


def depends_on(e: Expr, x: Var) -> bool:
    return any(part is x for part in walk(e))


def loads(e: Expr) -> list[Load]:
    return [x for x in walk(e) if isinstance(x, Load)]


def key(e: Expr, of: Callable[[Expr], Hashable] | None = None) -> Hashable:
    """Equal for structurally equal expressions; variables and sources count by identity. of: what is equal for equal
    children, where it is known: their ids where each is one object."""
    part = of or key
    match e:
        case Var():
            return ("var", id(e))
        case Const():
            # repr keeps -0.0 apart from 0.0 and makes NaN equal to itself
            return ("const", e.dtype, repr(e.value))
        case Binary():
            return (e.op, part(e.a), part(e.b))
        case Load():
            return ("load", id(e.source), tuple(part(c) for c in children(e)), e.predicate is None)
        case Call():
            return ("call", e.name, tuple(part(a) for a in e.args))
        case Reduce():
            return ("reduce", e.combiner, tuple(id(a) for a in e.axes), tuple(part(c) for c in children(e)))
        case _:
            return (type(e).__name__, e.dtype, e.lanes, tuple(part(c) for c in children(e)))


def same(a: Expr, b: Expr) -> bool:
    """Structural equality."""
    return a is b or key(a) == key(b)
