"""The conformance cases of the onnx package through ONNX's own interface to backends, compiled and run.

conformance.txt has what fails, a pattern and a reason in each line: what begins to pass is an error as well.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.exhaustive import one_of
from tests.frontends.backend_cases import Case, collect, told

from renorm import onnx_backend
from renorm.errors import RenormError

CASES = {c.name: c for c in collect()}
REASONS = dict(
    line.split(": ", 1)
    for line in Path(__file__).with_name("conformance.txt").read_text().splitlines()
    if line and not line.startswith("#")
)
_REFUSED = (RenormError, AssertionError, TypeError, ValueError)  # what ONNX's types of no tensor end in, too


def reasons(name: str) -> list[str]:
    return [pattern for pattern in REASONS if re.fullmatch(pattern, name)]


def check(case: Case) -> None:
    rep = onnx_backend.prepare(case.model, threads=1)
    for inputs, expected in case.sets:
        results = rep.run(list(inputs))
        assert len(results) == len(expected)
        for ours, theirs in zip(results, expected):
            agree(ours, theirs, case, inputs)


def agree(ours: Any, theirs: Any, case: Case, inputs: list[Any]) -> None:
    if theirs is None or isinstance(theirs, list):  # an optional without a value, a sequence
        assert type(ours) is type(theirs)
        for one, other in zip(ours or (), theirs or (), strict=True):
            agree(one, other, case, inputs)
        return
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    a, b = (x.astype(np.float64)[told(case, inputs, theirs)] for x in (ours, theirs))
    np.testing.assert_allclose(a, b, rtol=case.rtol, atol=max(case.atol, 1e-6))


@pytest.mark.slow
@pytest.mark.parametrize("name", one_of(2, CASES))
def test_case(name: str) -> None:
    if not reasons(name):
        check(CASES[name])
        return
    with pytest.raises(_REFUSED):  # where it does not raise: take the case out of conformance.txt
        check(CASES[name])


def test_every_reason_is_needed() -> None:
    """Each pattern is that of a case, and no case has two."""
    used = [pattern for name in CASES for pattern in reasons(name)]
    assert set(REASONS) <= set(used)
    assert [name for name in CASES if len(reasons(name)) > 1] == []


def test_as_many_nodes_as_promised() -> None:
    """Of the cases of single nodes, of which ONNX Runtime passes 1,577 (conformance_groups.py)."""
    nodes = [name for name in CASES if CASES[name].kind == "node"]
    assert len(nodes) - sum(bool(reasons(name)) for name in nodes) >= 1805
