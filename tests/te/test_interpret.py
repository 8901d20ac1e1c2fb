"""The meaning of tensor programs: the interpreter against ops' references, against loops, and what it refuses."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import renorm.ops  # noqa: F401 (fills the registry)
from renorm import te
from renorm.core.errors import InvalidExpression
from renorm.graph import registry
from renorm.te import interpret, text


def one_node() -> Any:
    """The module that makes a graph of an op's sample."""
    path = Path(__file__).parents[1] / "ops" / "one_node.py"
    spec = importlib.util.spec_from_file_location("one_node", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OneNode = one_node().OneNode
OPS = [op for op in registry.all_ops() if op.__module__.startswith("renorm.ops")]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_compute_means_the_reference(op: Any) -> None:
    for sample in op.samples:
        case = OneNode(op, sample)
        given, outs = case.tensors()
        arrays = {given[v]: a for v, a in zip(case.graph.inputs, case.arrays)}
        case.agrees(interpret.run(outs, arrays), case.reference())


def test_reductions_with_conditions_and_start_values() -> None:
    a = te.placeholder((3, 5), name="A")
    k = te.reduce_axis((1, 5), name="k")
    row = te.compute((3,), lambda i: te.sum(a[i, k], axis=k, where=k > 2), name="row")
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    (result,) = interpret.run([row], {a: x})
    np.testing.assert_array_equal(result, x[:, 3:].sum(axis=1))
    assert result.dtype == np.float32


def test_sides_that_are_not_taken_may_read_outside() -> None:
    a = te.placeholder((4,), name="A")
    shifted = te.compute((4,), lambda i: te.if_then_else(i > 0, a[i - 1], 7.0), name="shifted")
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(interpret.run([shifted], {a: x})[0], [7, 0, 1, 2])
    bad = te.compute((4,), lambda i: a[i + 1], name="bad")
    with pytest.raises(InvalidExpression, match=r"compute bad: .* reads outside A, axis 0"):
        interpret.run([bad], {a: x})


def test_placeholders_are_checked() -> None:
    a = te.placeholder((4,), name="A")
    b = te.compute((4,), lambda i: a[i] + 1.0, name="B")
    with pytest.raises(InvalidExpression, match="placeholder A: nothing was given"):
        interpret.run([b], {})
    with pytest.raises(InvalidExpression, match=r"shape \(5,\) was given, expected shape \(4,\)"):
        interpret.run([b], {a: np.zeros(5, np.float32)})


def test_text_shows_producers_first() -> None:
    a, b = te.placeholder((3, 4), name="A"), te.placeholder((4,), name="B")
    total = a + b
    k = te.reduce_axis((0, 4), name="k")
    row = te.compute((3,), lambda i: te.sum(total[i, k], axis=k), name="row")
    assert text.show([row, total]).splitlines() == [
        "A: f32[3, 4]",
        "B: f32[4]",
        "T_add: f32[3, 4]   (ax0, ax1) = (A[ax0, ax1] + B[ax1])",
        "row: f32[3]   (i) = sum(k < 4) T_add[i, k]",
    ]


def test_bits_that_are_set() -> None:
    a = te.placeholder((4,), "int16", name="a")
    y = te.compute((4,), lambda i: te.popcount(a[i]), name="y")
    (found,) = interpret.run([y], {a: np.array([0, 1, -1, 258], np.int16)})
    assert found.tolist() == [0, 1, 16, 2]
