"""What a scope says holds there, whatever its neighbours, with which it shares what it found, were asked before."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expr.expressions import BOUNDS, VARIABLES, conditions, indices, value

from renorm.expr.nodes import Const, Expr, Var
from renorm.expr.rewrite import variables
from renorm.tir.scope import Scope


def _values(scope: Scope, draw: st.DrawFn) -> dict[Var, int] | None:
    """Return values within the bounds that fulfil the facts, or None where none were found."""
    for _ in range(5):
        ends: dict[Any, tuple[Any, Any]] = {v: scope.bounds.get(v, BOUNDS[v]) for v in VARIABLES}
        env = {v: draw(st.integers(*pair)) for v, pair in ends.items()}
        if all(value(fact, env) for fact in scope.facts):
            return env
    return None


def _child(scope: Scope, draw: st.DrawFn) -> Scope:
    """Return a scope in a loop, over a part of what its variable may be, or under a condition."""
    unbound = [v for v in VARIABLES if v not in scope.bounds]
    if unbound and draw(st.booleans()):
        v = draw(st.sampled_from(unbound))
        low = draw(st.integers(*BOUNDS[v]))
        return scope.with_bounds(v, low, draw(st.integers(low, BOUNDS[v][1])))
    return scope.assuming(draw(conditions), draw(st.booleans()))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_neighbours_share_nothing_that_is_untrue(data: Any) -> None:
    """Loops beside each other bind one variable to different ranges, under conditions that differ."""
    scopes, asked = [Scope()], list[Expr]()
    for _ in range(data.draw(st.integers(2, 8))):
        scopes.append(_child(data.draw(st.sampled_from(scopes)), data.draw))
        asked.append(data.draw(indices | conditions))
        scope, e = data.draw(st.sampled_from(scopes)), data.draw(st.sampled_from(asked))
        bound = {v for s in scopes for v in s.bounds}
        asks_elsewhere = any(v in bound and v not in scope.bounds for x in (e, *scope.facts) for v in variables(x))
        env = None if asks_elsewhere else _values(scope, data.draw)
        if env is None:
            continue
        exact, found = int(value(e, env)), scope.simplifier()(e)
        low, high = scope.intervals().span(e)
        assert low <= exact <= high, f"{e} = {exact}, not in [{low}, {high}]"
        assert scope.is_reached
        assert int(value(found, env)) == exact, f"{e} became {found}"
        within = scope.intervals().is_within(e, 7) if e.dtype != "bool" else None
        assert not within or 0 <= exact < 7, f"{e} = {exact} is no index of 7 elements"


def test_a_variable_may_have_another_range_beside() -> None:
    x, root = VARIABLES[0], Scope()
    near, far = root.with_bounds(x, 0, 3), root.with_bounds(x, 10, 400)
    assert near.intervals().span(x) == (0, 3)
    assert far.intervals().span(x) == (10, 400)
    assert isinstance(near.simplifier()(x < 4), Const)
    assert not isinstance(far.simplifier()(x < 40), Const)
    under = far.assuming(x < 40)
    assert isinstance(under.simplifier()(x < 41), Const)
    assert not isinstance(far.simplifier()(x < 41), Const)
    assert isinstance(root.with_bounds(x, 10, 40).assuming(x < 40).simplifier()(x < 40), Const)
