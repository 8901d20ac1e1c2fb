"""No kernel that a build keeps spills in hot loops: convolutions and products of many forms on three kinds of CPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

import renorm
from renorm.graph.ir import Graph, Value

CPUS = [
    "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4",
    "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell",
    "llvm -mtriple=aarch64-linux-gnu",
]
KERNELS = [(1, 1), (3, 3), (5, 5), (1, 7), (7, 1)]
BLOCK = 16  # elements of the largest vector


def forms() -> Iterator[tuple[int, int, int, tuple[int, int], dict[str, object]]]:
    """Channels, extent, result channels, kernel and attributes."""
    for kernel, extent in product(KERNELS, (7, 14)):
        yield 64, extent, 64, kernel, {}
    for kernel in KERNELS:
        yield 64, 28, 32, kernel, {"strides": (2, 2)}
    for kernel in KERNELS[1:]:
        yield 32, 17, 64, kernel, {"dilations": (2, 2)}
    for channels, kernel in product((3, 20, 24, 40, 58, 100), ((1, 1), (3, 3))):
        yield channels, 28, channels, kernel, {}
        yield 64, 28, channels, kernel, {}
    for channels, groups, stride in ((128, 32, 1), (256, 32, 1), (256, 32, 2), (512, 32, 1), (40, 2, 1), (96, 96, 2)):
        yield channels, 28, channels, (3, 3), {"group": groups, "strides": (stride, stride)}


def network() -> Graph:
    """Each form between two small convolutions, so that it reads and writes blocks of channels where it can; and matrix
    products."""
    rng, g, outputs = np.random.default_rng(0), Graph("forms"), list[Value]()

    def conv(x: Value, *shape: int, **attributes: object) -> Value:
        w, b = (rng.standard_normal(s).astype(np.float32) for s in (shape, shape[:1]))
        return renorm.ops.relu(renorm.ops.conv(x, w, b, **attributes))

    for i, (channels, extent, results, kernel, attributes) in enumerate(forms()):
        has_blocks = channels % BLOCK == results % BLOCK == 0
        x = g.input(f"x{i}", "float32", (1, BLOCK if has_blocks else channels, extent, extent))
        dilation = 2 if "dilations" in attributes else 1
        pads = tuple(k // 2 * dilation for k in kernel) * 2
        x = conv(x, channels, BLOCK, 1, 1) if has_blocks else x
        y = conv(x, results, channels // int(str(attributes.get("group", 1))), *kernel, pads=pads, **attributes)
        outputs.append(conv(y, BLOCK, results, 1, 1) if has_blocks else y)
    for i, (rows, depth, columns) in enumerate(product((1, 8, 197), (100, 192), (100, 192))):
        w = rng.standard_normal((depth, columns)).astype(np.float32)
        outputs.append(renorm.ops.gemm(g.input(f"a{i}", "float32", (rows, depth)), w))
    g.outputs = outputs
    return g


@pytest.mark.slow
@pytest.mark.parametrize("cpu", CPUS)
def test_nothing_is_kept_that_spills(cpu: str) -> None:
    report = renorm.compile(network(), target=cpu, precision="exact").report
    assert len(report.kernels) > 60
    assert not [str(k) for k in report.kernels if k.spills]
