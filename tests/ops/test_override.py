"""Overrides: known from the first call on, and refused where they could never take effect."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import renorm
from renorm import ops
from renorm.core.errors import InvalidTarget, UserCodeError
from renorm.graph import registry
from renorm.graph.ir import Graph
from renorm.graph.op import OPAQUE
from renorm.ops.schedules import structure


def test_an_override_may_be_the_first_call_of_a_process() -> None:
    code = "import renorm; renorm.override('relu', target='llvm', schedule=print)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_target_with_options_is_refused() -> None:
    with pytest.raises(InvalidTarget, match="no kind of target"):
        renorm.override("relu", target="llvm -mcpu=haswell", schedule=print)


@pytest.mark.parametrize("kind", ["my-npu", "my_npu"])
def test_a_registered_target_has_overrides(kind: str) -> None:
    target = renorm.Target(kind=kind, base="llvm")
    renorm.register_target(target)
    for given in (kind, target):
        renorm.override("relu", target=given, fusion=OPAQUE)
        assert registry.overridden("relu", target).fusion is OPAQUE
        renorm.override("relu", target=given)
        assert registry.overridden("relu", target).fusion is None


def test_what_is_no_function_is_refused() -> None:
    given: Any = "reduction"
    with pytest.raises(UserCodeError, match="schedule of relu is 'reduction', which is no function"):
        renorm.override("relu", target="llvm", schedule=given)


@pytest.mark.parametrize(("shape", "axis"), [((3, 100), 1), ((100, 3), 0)])
def test_running_sums_of_a_long_axis_are_a_loop(shape: tuple[int, int], axis: int) -> None:
    """Results that are made of the same data are side by side where they are few."""
    g = Graph("sums")
    g.outputs = [ops.cum_sum(g.input("x", "float32", shape), np.array(axis))]
    m = renorm.compile(g)
    unrolled = re.findall(r"unrolled \(\S+ 0, (\d+)\)", str(m.kernel("cum_sum").loops))
    assert all(int(extent) <= structure.MOST_TERMS for extent in unrolled)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose(m.run(x)[0], np.cumsum(x.astype(np.float64), axis), atol=1e-4)
