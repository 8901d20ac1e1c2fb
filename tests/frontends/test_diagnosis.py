"""What the doctor says of norms: each mistake is found, with its channels; well trained networks hear nothing."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from tests.frontends.models import DIGITS, SHARED

import renorm
from renorm import ops
from renorm.frontends import diagnosis
from renorm.frontends.diagnosis import Diagnosis, diagnose
from renorm.graph.ir import Graph

C = 8


def sound(seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters as training leaves them."""
    rng = np.random.default_rng(seed)
    made = {"scale": rng.uniform(0.2, 2, C), "bias": rng.standard_normal(C), "mean": rng.standard_normal(C)}
    return {n: v.astype(np.float32) for n, v in (made | {"var": rng.uniform(0.01, 3, C)}).items()}


def findings(parameters: dict[str, np.ndarray], **attributes: Any) -> list[Diagnosis]:
    g = Graph()
    x = g.input("x", "float32", (2, C, 3))
    g.outputs = [
        ops.batch_norm(x, *(parameters[n] for n in ("scale", "bias", "mean", "var")), name="norm", **attributes)
    ]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = [*diagnose(g)]
    assert bool(told) == any(d.is_grave for d in found)  # what is grave is warned of, other findings wait
    assert found == [*g.metadata.get(diagnosis.KEY, ())]
    assert all(d.node == "norm" and d.fix for d in found)
    return found


def at(name: str, values: Any, where: Any = slice(None), dtype: str = "float32") -> dict[str, np.ndarray]:
    made = {n: v.astype(dtype) for n, v in sound().items()}
    made[name][where] = values
    return made


MISTAKES: list[tuple[str, dict[str, np.ndarray], dict[str, Any], str]] = [
    ("negative variance", at("var", -0.5, 3), {}, "[3] = -0.5"),
    ("negative variance", at("var", np.nan, [1, 2]), {}, "in 2 of 8 channels"),
    ("zero variance without epsilon", at("var", 0, [5]), {"epsilon": 0.0}, "[5] = 0"),
    ("not finite", at("mean", np.inf, 2), {}, "mean 'const_2' (float32) is not finite in 1 of 8 channels ([2] = inf)"),
    ("not finite", at("var", np.inf, 2, "float16"), {}, "beyond float16's 65504"),
    ("not finite", at("scale", np.nan, 7), {}, "[7] = nan"),
    ("float16 overflow", at("var", 65504, 6, "float16"), {}, "[6] = 65504"),
    (
        "statistics never updated",
        sound() | {"mean": np.zeros(C, np.float32), "var": np.ones(C, np.float32)},
        {},
        "trained",
    ),
    ("dead scales", at("scale", 0, slice(0, 6)), {}, "in 6 of 8 channels"),
    ("huge scales", at("scale", -3000, 4), {}, "[4] = -3000"),
    (
        "huge factors",
        at("var", 0, 4) | {"mean": np.zeros(C, np.float32)},
        {"epsilon": 1e-14},
        "in 1 of 8 channels ([4]",
    ),
    ("variances below epsilon", at("var", 1e-6), {"epsilon": 1e-3}, "epsilon 0.001 in 8 of 8"),
    ("unusual epsilon", sound(), {"epsilon": 0.9}, "epsilon is 0.9"),
    ("flipped momentum", sound(), {"momentum": 0.1}, "momentum is 0.1"),
    ("training mode", sound(), {"training_mode": True}, "statistics of the batch"),
    ("means far above deviations", at("mean", 1e5, 3), {}, "channel 3 (mean 100000"),
]


@pytest.mark.parametrize(("kind", "parameters", "attributes", "part"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_found(
    kind: str, parameters: dict[str, np.ndarray], attributes: dict[str, Any], part: str
) -> None:
    (found,) = findings(parameters, **attributes)
    assert found.kind == kind
    assert part in found.problem
    is_wrong = kind in ("negative variance", "zero variance without epsilon", "not finite")
    assert found.is_grave == is_wrong


def test_a_norm_that_was_never_trained_is_told_from_one_whose_statistics_stood_still() -> None:
    new = {n: np.full(C, n in ("scale", "var"), np.float32) for n in ("scale", "bias", "mean", "var")}
    (found,) = findings(new)
    assert "and so are scale (1) and bias (0)" in found.problem
    assert findings(new, epsilon=0.0) == []  # how converters write a scale and a bias


@pytest.mark.parametrize(
    "parameters",
    [
        sound(),
        at("scale", 0, slice(0, 3)),  # dead channels, as weight decay leaves them
        at("var", 0, 2),
        at("var", 1e-30, slice(0, 6))
        | {"mean": np.array([0] * 6 + [0.5, -1], np.float32)},  # inputs that are always zero
        at("scale", -1.5, slice(0, 4)),
        at("mean", 40, 2),
        {n: v.astype(np.float16) for n, v in sound().items()},
    ],
)
def test_what_happens_in_healthy_networks_is_no_finding(parameters: dict[str, np.ndarray]) -> None:
    assert findings(parameters) == []
    assert findings(parameters, epsilon=1e-3, momentum=0.99) == []


@pytest.mark.parametrize(
    "path",
    [DIGITS / "model.onnx", *(p for s in ("onnx", "tflite") for p in sorted((SHARED / "models").glob(f"*.{s}")))],
    ids=lambda p: p.name,
)
def test_trained_networks_hear_nothing(path: Any) -> None:
    assert diagnosis.KEY not in renorm.read(path).metadata


@pytest.mark.slow  # torch is imported
def test_a_network_after_a_few_steps_of_training_hears_nothing_and_before_them_does() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    nn = torch.nn
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12), nn.ReLU()]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4))

    def found() -> tuple[Diagnosis, ...]:
        return diagnose(graph_of([m for m in network if isinstance(m, (nn.BatchNorm2d, nn.BatchNorm1d))]))

    assert {d.kind for d in found()} == {"statistics never updated"}
    assert len(found()) == 3
    optimizer = torch.optim.SGD(network.parameters(), 0.05)
    for _ in range(12):
        x = torch.randn(16, 3, 12, 12) * 0.3 + 0.4
        loss = nn.functional.cross_entropy(network(x), torch.randint(0, 4, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert found() == ()


def graph_of(norms: list[Any]) -> Graph:
    """A graph with torch's norms, each on an input of its own."""
    g = Graph()
    for i, m in enumerate(norms):
        c = m.num_features
        held = [v.detach().numpy() for v in (m.weight, m.bias, m.running_mean, m.running_var)]
        x = g.input(f"x{i}", "float32", (2, c))
        g.outputs.append(ops.batch_norm(x, *held, epsilon=m.eps, momentum=1 - m.momentum))
    return g


def test_other_norms_are_looked_at_too() -> None:
    g = Graph()
    x = g.input("x", "float32", (2, 4, 5))
    g.outputs = [
        ops.instance_norm(x, np.array([1, np.inf, 1, 1], np.float32), np.zeros(4, np.float32), name="a"),
        ops.layer_norm(x, np.zeros(5, np.float32), np.ones(5, np.float32), name="b"),
        ops.layer_norm(x, np.full(5, 0.7, np.float32), np.ones(5, np.float32), name="c"),
    ]
    with pytest.warns(RuntimeWarning, match="node 'a': scale"):
        found = diagnose(g)
    assert [(d.node, d.kind) for d in found] == [("a", "not finite"), ("b", "dead scales")]


def test_the_warning_is_short_where_there_is_much() -> None:
    g = Graph()
    x = g.input("x", "float32", (2, C))
    p = at("var", -1, 0)
    g.outputs = [ops.batch_norm(x, *(p[n] for n in ("scale", "bias", "mean", "var"))) for _ in range(11)]
    with pytest.warns(RuntimeWarning, match=r"and 3 more$"):
        assert len(diagnose(g)) == 11
