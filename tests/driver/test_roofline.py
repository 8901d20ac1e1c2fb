"""The kernels that measure a machine compute what they say: otherwise their speed says nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

from renorm.driver import roofline


def test_what_is_measured_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    built = list[Any]()
    original = roofline.build

    def build(*args: Any, **options: Any) -> Any:
        built.append(original(*args, **options))
        return built[-1]

    monkeypatch.setattr(roofline, "build", build)
    monkeypatch.setattr(roofline, "_COPIED", 16 * 1001)
    monkeypatch.setattr(roofline, "_SECONDS", 0.001)
    monkeypatch.setattr(roofline, "_TIMES", 3)
    found = roofline.measure.__wrapped__(2)
    assert found.flops > 0
    assert found.bytes > 0
    product, copy = built
    shapes = [tuple(p.shape) for p in product._module.inputs]
    a, b = (RNG.standard_normal(shape).astype(np.float32) for shape in shapes)
    c = np.zeros(product._module.outputs[0].shape, np.float32)
    product(a, b, c)
    np.testing.assert_allclose(c, np.broadcast_to(3 * (a.astype(np.float64).T @ b), c.shape), rtol=1e-4, atol=1e-4)
    x, y = RNG.standard_normal(16 * 1001).astype(np.float32), np.zeros(16 * 1001, np.float32)
    copy(x, y)
    np.testing.assert_array_equal(x, y)
