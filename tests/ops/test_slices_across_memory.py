"""Normalizations whose slices lie across memory: vectors of neighbouring slices, each passed over while in cache."""

from __future__ import annotations

import numpy as np
import pytest
from tests.frontends.models import model

import renorm


def softmax(shape: tuple[int, ...], axis: int, op: str = "Softmax") -> renorm.driver.module.CompiledModule:
    extents = ", ".join(map(str, shape))
    body = f"norm (float[{extents}] x) => (float[{extents}] y) {{ y = {op} <axis = {axis}> (x) }}"
    return renorm.compile(model(body))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_softmax_is_one_nest_in_which_each_exponential_is_computed_once(axis: int) -> None:
    loops = softmax((3, 21, 13, 65), axis).kernel("softmax").loops
    assert loops.count("exp(") == 1
    assert loops.count("parallel") == 1
    assert 'storage_scope = "global"' not in loops


SHAPES = [(7, 16), (7, 5), (3, 1, 9), (2, 300, 33), (1, 4, 1, 5), (4, 1), (300, 40), (2, 5, 70, 3)]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_axis(shape: tuple[int, ...], op: str) -> None:
    x = np.random.default_rng(0).normal(0, 3, shape).astype(np.float32)
    for axis in range(len(shape)):
        powers = np.exp(x.astype(np.float64))
        share = powers / powers.sum(axis=axis, keepdims=True)
        expected = np.log(share) if op == "LogSoftmax" else share
        np.testing.assert_allclose(softmax(shape, axis, op).run(x)[0], expected, rtol=1e-5, atol=1e-6)
