"""Gradients of batch norms with target="cuda" that compute on the way what they read: CUDA C of them, run on the CPU,
against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler

import renorm
from renorm import ops
from renorm.core.dims import static
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.ops.batch_norm_gradient import BatchNormGradient

pytestmark = needs_compiler
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def host() -> Any:
    host_device.register()
    return host_device.host()


def graph(shape: tuple[int, ...], residual: bool, is_made: bool) -> Graph:
    """is_made: the ReLU's result is computed of x again, not given."""
    g, channels = Graph("gradient"), np.array([shape[1], *[1] * (len(shape) - 2)])
    dy, x = (g.input(name, "float32", shape) for name in ("dy", "x"))
    scale, mean, invstd = (g.input(name, "float32", (shape[1],)) for name in ("scale", "mean", "invstd"))

    def around(v: Value) -> Value:
        return ops.reshape(v, channels)

    y = ops.relu(ops.mul(ops.sub(x, around(mean)), around(scale))) if is_made else g.input("y", "float32", shape)
    plus = g.input("plus", "float32", shape) if residual else None
    g.outputs = list(g.apply(BatchNormGradient(residual=residual), [dy, x, scale, mean, invstd, None, y, plus]))
    return g


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (600, 16), (33, 70), (4, 8, 20)], ids=str)
@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
@pytest.mark.parametrize("is_made", [False, True], ids=["given", "made"])
@pytest.mark.parametrize("target", ["cuda -arch=host", "llvm"])
def test_gradients(shape: tuple[int, ...], residual: bool, is_made: bool, target: str) -> None:
    source = graph(shape, residual, is_made)
    arrays = [RNG.normal(size=static(v.shape)).astype(np.float32) for v in source.inputs]
    wanted = interpret.run(source, arrays)
    module: Any = renorm.compile(source, target=target)
    assert len(module.report.kernels) == 1
    for found, exact in zip(module.run(*arrays), wanted, strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5 * float(np.abs(exact).max()))
