"""Random graphs of linear ops and norms, beside float64: none wrong, none unsupported, every norm folded that can be.

`scripts/fuzz_folds` asks the same of thousands."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.passes.folding.cases import Case, drawn, numbered, smallest
from tests.passes.folding.check import check


def hold(case: Case, compiles: bool = False) -> None:
    """Fails with the smallest case that has one of the same problems."""
    found = check(case, compiles)
    if found.problems:
        kinds = set(found.problems)
        least = smallest(case, lambda c: not kinds.isdisjoint(check(c, compiles).problems))
        raise AssertionError(f"{check(least, compiles).problems}\n{least}")


@pytest.mark.parametrize("tens", range(20))
def test_cases_by_number(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        hold(numbered(seed))


@settings(deadline=None, max_examples=60)
@given(st.randoms(use_true_random=False))
def test_cases_by_hypothesis(rng: Random) -> None:
    hold(drawn(rng))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1012))
def test_compiled_cases(seed: int) -> None:
    hold(numbered(seed), compiles=True)


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
