"""Plans are decisions: to make one changes nothing, and to make it again gives the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.passes.networks import networks
from tests.passes.test_paths import BEHIND, IN_FRONT, built
from tests.passes.test_raising import NEAR, layered, network, spelled

from renorm import ops
from renorm.graph import rewrite
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.rewrite import Match, Plan, Refusal, Rewrite
from renorm.passes.pipeline import optimize


def state(graph: Graph, m: Match | None = None) -> Any:
    """All of a graph, and of a match, that a plan could change."""
    readers = [(v, [*v.readers], v.origin) for v in graph.values()]
    matched = None if m is None else ({**m.bound}, [*m.nodes])
    return str(graph), [*graph.nodes], [*graph.constants.values()], readers, matched


def summary(decision: Plan | Refusal | None) -> Any:
    if decision is None or isinstance(decision, Refusal):
        return decision and (decision.reason, [*decision.about])
    nodes = None if decision.nodes is None else [*decision.nodes]
    return nodes, [*decision.about], [*decision.beside]


@pytest.fixture(name="decisions")
def watched(monkeypatch: pytest.MonkeyPatch) -> Counter[type]:
    """Have every plan of every rule made twice, and compared; count what was decided."""
    seen = Counter[type]()

    def decide(self: Rewrite, graph: Graph, node: Node) -> tuple[Match, Plan | Refusal] | None:
        for m in self.matches(graph, node):
            before = state(graph, m)
            first = self.plan(m)
            assert state(graph, m) == before, f"{self.name} changes something while it decides"
            assert summary(self.plan(m)) == summary(first), f"{self.name} decides otherwise when it is asked again"
            seen[type(first)] += 1
            if first is not None:
                return m, first
        return None

    monkeypatch.setattr(rewrite.Rewrite, "decide", decide)
    return seen


def raised() -> Iterator[tuple[str, Graph]]:
    yield "layer norm", network(layered())
    for name, (said, _) in NEAR.items():
        yield name, network(lambda x, said=said: spelled(x, **said))


GRAPHS: dict[str, Callable[[], Graph]] = {
    **{f"after {n}": lambda make=make: built(make) for n, make in BEHIND.items()},
    **{f"before {n}": lambda make=make: built(make) for n, make in IN_FRONT.items()},
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_plan_of_a_fold_has_no_effects(name: str, decisions: Counter[type]) -> None:
    optimize(GRAPHS[name](), level=2)
    assert decisions[Plan]


def test_a_plan_that_raises_a_norm_has_no_effects(decisions: Counter[type]) -> None:
    for _, graph in raised():
        optimize(graph, level=2)
    assert decisions[Plan]
    assert decisions[Refusal]


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(networks())
def test_plans_on_random_networks_have_no_effects(
    decisions: Counter[type], drawn: tuple[Graph, list[np.ndarray]]
) -> None:
    optimize(drawn[0], level=3)


def test_the_check_itself_finds_an_effect(decisions: Counter[type]) -> None:
    class Writes(Rewrite):
        """neg(x) -> neg(x)"""

        def pattern(self, x: Any) -> Any:
            return ops.neg(x)

        def plan(self, m: Match) -> None:
            m.bound["extra"] = m.x

    g = Graph()
    x: Value = g.input("x", "float32", (2,))
    g.outputs = [ops.neg(x)]
    with pytest.raises(AssertionError, match="Writes changes something"):
        rewrite.Driver([Writes()]).run(g)
