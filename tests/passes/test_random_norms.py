"""Random graphs of linear ops and norms, beside float64: none wrong, none unsupported, every norm folded that can be.

`scripts/fuzz_folds` asks the same of thousands."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm.frontends import read
from renorm.passes.sensitivity import Sensitivity

pytest.importorskip("torch", reason="PyTorch is not installed")
from tests.passes.folding.cases import Case, drawn, numbered, smallest
from tests.passes.folding.check import Found, check, compare
from tests.passes.folding.network import Network, conv

CONV: dict[str, Any] = {"pads": [0] * 4, "strides": [1, 1], "dilations": [1, 1], "group": 1}


SENSITIVE = 0.06  # of all cases, at most, are judged by their own sensitivity; 13 of 2200 were


def hold(case: Case, compiles: bool = False) -> bool:
    """Whether it was judged by its own sensitivity. Fails with the smallest case that has one of the same problems."""
    found = check(case, compiles)
    if found.problems:
        kinds = set(found.problems)
        least = smallest(case, lambda c: not kinds.isdisjoint(check(c, compiles).problems))
        raise AssertionError(f"{check(least, compiles).problems}\n{least}")
    return found.sensitive


@pytest.mark.parametrize("fifty", range(4))
def test_cases_by_number(fifty: int) -> None:
    """Every fifth is compiled too."""
    seeds = range(50 * fifty, 50 * fifty + 50)
    excused = [seed for seed in seeds if hold(numbered(seed), compiles=seed % 5 == 0)]
    assert len(excused) <= SENSITIVE * len(seeds)


def test_cases_by_hypothesis() -> None:
    excused = list[bool]()

    @settings(deadline=None, max_examples=60)
    @given(st.randoms(use_true_random=False))
    def holds(rng: Random) -> None:
        case = drawn(rng)
        excused.append(hold(case, compiles=case.seed % 5 == 0))

    holds()
    assert sum(excused) <= SENSITIVE * len(excused) + 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_compiled_cases(seed: int) -> None:
    hold(numbered(seed), compiles=True)


def test_not_a_number_and_infinities_come_out_where_pytorch_has_them() -> None:
    """Three elements of each input. Denormal factors may vanish where two of them fold, see docs/semantics.md."""
    for seed in range(40):
        case = replace(numbered(seed), special=True)
        if not any(said.get("scale") == "denormal" for _, said in case.steps):
            hold(case, compiles=seed % 5 == 0)


def test_an_infinite_sensitivity_excuses_nothing() -> None:
    """Values overflow float16 on the way when they are rounded: a wrong result is wrong all the same."""
    net = Network("float16", 17, 0)
    x = net.input("x", (1, 4, 3, 3))
    w = net.constant("w", 1e4 * np.abs(np.random.default_rng(1).standard_normal((4, 4, 3, 3))))
    large = net.apply("Conv", [x, w], conv(net.values[x], net.values[w], None, CONV), **CONV)
    small = net.constant("small", np.float64(1e-4))
    net.also(net.apply("Mul", [large, small], net.values[large] * net.values[small]))
    source = read(net.model())
    moved = Sensitivity.of(source, net.inputs).movements(0)(16)
    assert np.isinf(moved).any()
    for found, wrong in ((net.expected(), False), ([np.zeros_like(y) for y in net.expected()], True)):
        judged = Found()
        compare(net, source, found, judged)
        assert ("wrong" in judged.problems) == wrong


def test_a_case_is_its_text() -> None:
    for seed in range(20):
        case = numbered(seed)
        assert Case.parse(str(case)) == case


def test_a_wrong_network_is_found_and_made_smaller() -> None:
    """What would be blamed if dilated convolutions were wrong."""

    def fails(case: Case) -> bool:
        case.build()
        return any(kind == "convolve" and max(said["dilations"]) > 1 for kind, said in case.steps)

    case = next(c for c in map(numbered, range(100)) if fails(c) and len(c.steps) > 2)
    least = smallest(case, fails)
    (step,) = least.steps
    assert fails(least)
    assert step[1]["kernel"] == [1, 1, 1]
    assert max(least.shape) == 1
