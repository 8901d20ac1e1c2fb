"""Any convolution, transposed one or matrix product, in any tile of a GPU, is what the CPU computes of it."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler
from tests.ops import test_gpu_products, test_gpu_warps

import renorm
from renorm.core.dims import static
from renorm.graph.ir import Graph
from renorm.ops.schedules import gpu_few, gpu_products, gpu_stages

pytestmark = needs_compiler
FEW = st.integers(1, 3)
OF_THREADS, OF_WARPS = (
    st.sampled_from([t for t in tiles.values() if t is not None])
    for tiles in (test_gpu_products.TILES, test_gpu_warps.TILES)
)


@st.composite
def products(draw: st.DrawFn) -> tuple[Graph, np.ndarray[Any, Any]]:
    """Draw a graph and the values of its input."""
    g, rng = Graph("product"), np.random.default_rng(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from(["float16", "float32"]))
    kind = draw(st.sampled_from(["conv", "conv_transpose", "matmul"]))

    def array(*shape: int) -> np.ndarray[Any, Any]:
        return rng.integers(-2, 3, size=shape).astype(dtype)  # sums of which are exact

    if kind == "matmul":
        batch, m, n, k = draw(st.tuples(FEW, *[st.integers(1, 70)] * 3))
        x = g.input("x", dtype, (batch, m, k))
        y = renorm.ops.matmul(x, array(draw(st.sampled_from([1, batch])), k, n))
    else:
        rank, groups = draw(st.sampled_from([1, 2, 2, 3])), draw(st.sampled_from([1, 1, 2, 3]))
        channels, results = (groups * draw(st.integers(1, 30)) for _ in "io")

        def along(least: int, most: int, times: int = 1) -> tuple[int, ...]:
            return draw(st.tuples(*[st.integers(least, most)] * (rank * times)))

        kernel, dilations = along(1, 3), along(1, 2)
        whole = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
        extents = [e + w - 1 for e, w in zip(along(1, 9), whole)]
        x = g.input("x", dtype, (draw(FEW), channels, *extents))
        pads = along(0, 1, 2)
        if kind == "conv_transpose":  # a result has pixels left
            pads = tuple(min(p, 1 if w > 2 else 0) for p, w in zip(pads, whole * 2))
        options: dict[str, Any] = {"group": groups, "strides": along(1, 2), "dilations": dilations, "pads": pads}
        of_group = (results, channels // groups) if kind == "conv" else (channels, results // groups)
        y = getattr(renorm.ops, kind)(x, array(*of_group, *kernel), **options)
    g.outputs = [renorm.ops.relu(y)]
    return g, array(*static(x.shape))


@settings(deadline=None)
@given(product=products(), threads=OF_THREADS, warps=OF_WARPS, level=st.sampled_from([0, 3]), few=st.integers(0, 8))
def test_any_product(
    product: tuple[Graph, np.ndarray[Any, Any]], threads: Any, warps: Any, level: int, few: int
) -> None:
    host_device.register()
    g, values = product
    with (
        mock.patch.object(gpu_stages, "LEAST_WORK", 0),
        mock.patch.object(gpu_few, "FEW", few),
        mock.patch.object(gpu_products, "choose", return_value=threads),
        mock.patch.object(gpu_products, "choose_of_warps", return_value=warps),
    ):
        m = renorm.compile(g, target="cuda -arch=host", opt_level=level)
    text = "".join(m.kernel(k).source for k in m.report.kernels)
    event("on tensor cores" if "renorm_mma" in text else "in tiles" if "__shared__" in text else "alone")
    np.testing.assert_array_equal(m.run(values)[0], renorm.compile(g, target="llvm").run(values)[0])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("level", [0, 3])
def test_groups_of_one_pixel(level: int, dtype: str) -> None:
    """Channels lie along the last axis that has several: those of a group are still of weights, not of images."""
    host_device.register()
    g, rng = Graph("groups"), np.random.default_rng(4)
    weight, values = (rng.integers(-2, 3, size=shape).astype(dtype) for shape in ((48, 16, 3, 3), (3, 32, 3, 3)))
    g.outputs = [renorm.ops.relu(renorm.ops.conv(g.input("x", dtype, (3, 32, 3, 3)), weight, group=2))]
    m = renorm.compile(g, target="cuda -arch=host", opt_level=level)
    np.testing.assert_array_equal(m.run(values)[0], renorm.compile(g, target="llvm").run(values)[0])
