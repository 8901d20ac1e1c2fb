"""Expressions that are deeper than walks may go: an error that says so, whoever made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import renorm
from renorm import te, topi
from renorm.errors import InvalidExpression, InvalidSchedule
from renorm.expr.rewrite import DEEPEST


def in_a_row(n: int, step: Callable[[Any], Any]) -> list[Any]:
    a = te.placeholder((8,), "float32", "A")

    def body(i: Any) -> Any:
        e = a[i]
        for _ in range(n):
            e = step(e)
        return e

    return [a, te.compute((8,), body, name="B")]


@pytest.mark.parametrize("step", [lambda e: e + 1.5, te.tanh, lambda e: te.if_then_else(e > 0, e, 1.0)])
def test_an_expression_of_ten_thousand_steps_is_refused(step: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidExpression, match=rf"compute B: its expression has \d+ levels.*\n.*{DEEPEST}"):
        in_a_row(10_000, step)


def test_the_deepest_expression_is_built() -> None:
    a, b = in_a_row(DEEPEST - 8, lambda e: e + 1.0)
    x = np.arange(8, dtype=np.float32)
    y = renorm.nd.array(np.zeros(8, np.float32))
    renorm.build(te.create_schedule(b.op), [a, b])(renorm.nd.array(x), y)
    assert np.array_equal(y.numpy(), x + DEEPEST - 8)


def test_inlined_stages_count_where_they_are_read() -> None:
    a = te.placeholder((8,), "float32", "A")
    stages = [a]
    for i in range(DEEPEST + 10):
        stages.append(te.compute((8,), lambda k, x=stages[-1]: x[k] + 1.0, name=f"B{i}"))
    s = te.create_schedule(stages[-1].op)
    for stage in stages[1:-1]:
        s[stage].compute_inline()
    with pytest.raises(InvalidSchedule, match=r"levels\n.*at most"):
        renorm.build(s, [a, stages[-1]])


def test_stages_of_one_kernel_have_an_end() -> None:
    x = a = te.placeholder((8,), "float32", "A")
    for _ in range(1000):
        x = topi.nn.relu(x)
    with pytest.raises(InvalidSchedule, match=r"1000 stages.*\n.*at most"):
        renorm.build(te.create_schedule(x.op), [a, x])
