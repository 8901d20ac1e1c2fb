"""verify=True: a fault of any kind of pass is found, taken back, and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import renorm
from renorm import ops
from renorm.driver import compile as compiling
from renorm.errors import VerificationError
from renorm.graph import interpret, registry
from renorm.graph.ir import Graph, Value
from renorm.graph.layout import Layout
from renorm.graph.rewrite import Match, Rewrite
from renorm.ops.shared import winograd_weight
from renorm.passes import decompose, pipeline, statistics
from renorm.passes.common_subexpressions import ShareCommon
from renorm.passes.constants import FixStaticOperands, FoldConstants
from renorm.passes.context import Context
from renorm.passes.dead_code import RemoveDeadCode
from renorm.passes.fuse import Fuse
from renorm.passes.layouts import ChooseLayouts
from renorm.passes.pipeline import optimize
from renorm.passes.rewriting import ApplyRules

Break = Callable[[pytest.MonkeyPatch], None]


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def network(h: int = 16) -> Graph:
    """A part of it for every kind of pass: convolutions for Winograd and blocks, a norm of planes, a concat and a
    split to be placed, constants to be computed."""
    g = Graph("parts")
    x = g.input("x", "float32", (2, 16, h, h))
    y = ops.conv(x, normal(1, 32, 16, 3, 3), pads=[1] * 4, name="first")
    y = ops.relu(ops.batch_norm(y, *(np.abs(normal(i, 32)) for i in range(4)), name="norm"))
    y = ops.conv(y, normal(2, 32, 32, 3, 3), pads=[1] * 4, name="second")
    y = ops.relu(ops.group_norm(y, normal(7, 32), normal(8, 32), num_groups=8, name="planes"))
    a, b = ops.split(y, num_outputs=2, axis=1, name="halves")
    y = ops.concat([ops.exp(ops.tanh(b)), ops.sigmoid(a)], axis=1, name="joined")
    factor = ops.exp(g.constant(normal(3, 32, 1, 1)), name="computed")
    g.outputs = [ops.conv(ops.mul(y, factor), normal(4, 8, 32, 3, 3), name="last"), ops.global_average_pool(y)]
    return g


def reverted(report: Any) -> dict[str, str]:
    return {rule: reason for rule, _, reason in report.refusals if reason.startswith("reverted")}


def wrong_in_place(kind: type) -> Break:
    """The pass, and after it another op where there was a tanh."""

    def broken(monkeypatch: pytest.MonkeyPatch) -> None:
        right = kind.run

        def run(self: Any, graph: Graph, context: Context) -> None:
            right(self, graph, context)
            for node in graph.nodes:
                if node.op.name == "tanh":
                    node.op = registry.find("sigmoid")()

        monkeypatch.setattr(kind, "run", run)

    return broken


def wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    right = decompose.SplitToSlices.rewrite
    monkeypatch.setattr(decompose.SplitToSlices, "rewrite", lambda self, m: right(self, m)[::-1])


def wrong_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    right = winograd_weight.transformed_weight
    monkeypatch.setattr(winograd_weight, "transformed_weight", lambda w, *more: right(w * 1.01, *more))


def wrong_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    right = statistics._NormToTerms.normalized

    def normalized(self: Any, m: Match, *given: Any) -> Value:
        return ops.mul(right(self, m, *given), np.float32(0.99))

    monkeypatch.setattr(statistics._NormToTerms, "normalized", normalized)


def wrong_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Fuse.run

    def run(self: Any, graph: Graph, context: Context) -> None:
        right(self, graph, context)
        graph.groups.reverse()

    monkeypatch.setattr(Fuse, "run", run)


def wrong_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Any, graph: Graph, context: Context) -> None:
        graph.outputs[0].layout = Layout(1, 16)

    monkeypatch.setattr(ChooseLayouts, "run", run)


KINDS: list[tuple[str, Break]] = [
    ("FixStaticOperands", wrong_in_place(FixStaticOperands)),
    ("RemoveDeadCode", wrong_in_place(RemoveDeadCode)),
    ("FoldConstants", wrong_in_place(FoldConstants)),
    ("ShareCommon", wrong_in_place(ShareCommon)),
    ("Fuse", wrong_in_place(Fuse)),
    ("ChooseLayouts", wrong_in_place(ChooseLayouts)),
    ("SplitToSlices", wrong_rule),
    ("ConvToWinograd", wrong_weights),
    ("GroupNormToTerms", wrong_terms),
    ("Fuse", wrong_groups),
    ("ChooseLayouts", wrong_layout),
]


@pytest.mark.parametrize(("name", "fault"), KINDS, ids=[f"{name} {fault.__name__}" for name, fault in KINDS])
def test_a_fault_of_each_kind_of_pass_is_taken_back(name: str, fault: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    g = network(24 if name == "GroupNormToTerms" else 16)
    x = normal(5, 2, 16, *(int(str(d)) for d in g.inputs[0].shape[2:]))
    expected = interpret.run(g, [x])
    assert reverted(optimize(g.copy(), verify=True)[1]) == {}
    fault(monkeypatch)
    done, report = optimize(g, verify=True)
    assert {*reverted(report)} == {name}
    for ours, theirs in zip(interpret.run(done, [x]), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


def test_aliases_are_verified_by_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts of a concat lie where the other one should."""
    right = compiling.alias_values

    def alias_values(graph: Graph, target: Any) -> None:
        right(graph, target)
        parts = [v for n in graph.nodes for v in n.outputs if v.within and v.within.value.name == "joined_out"]
        assert len(parts) == 2
        parts[0].within, parts[1].within = parts[1].within, parts[0].within

    g, x = Graph("parts"), normal(5, 2, 16, 6, 6)
    y = g.input("x", "float32", x.shape)
    y = ops.concat([ops.exp(y), ops.sigmoid(y)], axis=1, name="joined")
    g.outputs = [ops.conv(y, normal(4, 8, 32, 3, 3)), ops.global_average_pool(y)]
    expected = interpret.run(g, [x])
    monkeypatch.setattr(compiling, "alias_values", alias_values)
    m = renorm.compile(g, verify=True)
    for ours, theirs in zip(m.run(x), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())
    (told,) = [r for r in m.report.refusals if "reverted" in r[2]]
    assert told[:2] == ("aliasing", "parts")
    assert "compiled, on random inputs output" in told[2]


def test_code_that_is_wrong_whatever_is_left_out_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph("wrong")
    x = g.input("x", "float32", (3, 4))
    g.outputs = [ops.relu(x, name="y")]
    expected = interpret.evaluate(g, [normal(1, 3, 4)])
    monkeypatch.setattr(
        "renorm.driver.verified.evaluate_on_random_inputs",
        lambda source: ({"x": normal(2, 3, 4)}, expected_of(source, expected)),
    )
    with pytest.raises(VerificationError, match="compiled, it gives other results than the interpreter"):
        renorm.compile(g, verify=True)


def test_an_accelerator_with_numbers_of_its_own_is_not_held_against_float64() -> None:
    g = Graph("on_tandem")
    y = ops.conv(g.input("x", "float32", (1, 8, 6, 6)), normal(1, 8, 8, 3, 3))
    g.outputs = [ops.relu(ops.batch_norm(y, *(np.abs(normal(i, 8)) for i in range(4))))]
    m = renorm.compile(g, target="tandem", verify=True)
    assert reverted(m.report) == {}
    assert [n.fate for n in m.report.norms] == ["unit"]


def expected_of(source: Graph, values: dict[Value, np.ndarray]) -> dict[Value, np.ndarray]:
    by_name = {v.name: a for v, a in values.items()}
    return {v: by_name[v.name] for v in source.values()}


def test_integers_are_compared_exactly_and_on_more_than_zero_and_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class SquareToSame(Rewrite):
        """x * x -> x"""

        def pattern(self, x: Any) -> Any:
            return ops.mul(x, x)

        def rewrite(self, m: Match) -> Value:
            return ops.identity(m.x)

    g = Graph()
    x = g.input("x", "int64", (4, 5))
    g.outputs = [ops.add(ops.mul(x, x), np.array(2**60, np.int64))]
    monkeypatch.setattr(pipeline, "MODEL", [(0, ApplyRules((SquareToSame(),)))])
    assert {*reverted(optimize(g, verify=True)[1])} == {"SquareToSame"}


def test_integers_may_be_indices() -> None:
    g = Graph()
    x = g.input("x", "int64", (4,))
    g.outputs = [ops.gather(g.constant(normal(1, 3, 5)), x)]
    assert reverted(optimize(g, verify=True)[1]) == {}
