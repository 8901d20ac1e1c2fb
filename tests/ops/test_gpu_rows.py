"""Schedules of reductions and normalizations on GPUs: results against NumPy in float64, launches, and resources."""

from __future__ import annotations

import re
import shutil
from math import prod
from typing import Any

import numpy as np
import pytest
from tests.gpu import host_device
from tests.ops.one_node import OneNode

from renorm import te
from renorm.codegen.cuda import nvrtc, source
from renorm.core.gpu import facts
from renorm.graph import registry
from renorm.graph.op import Sample
from renorm.graph.types import bf16, f16, f32, f64
from renorm.ops.schedules import gpu_rows
from renorm.targets import find
from renorm.tir import interpret
from renorm.tir.nodes import Kernel

CUDA = find("cuda -arch=sm_90")
OPS = {op.name: op for op in registry.all_ops()}
ROWS = (1, 3, 31, 33, 300, 1000)
BATCH: dict[str, Any] = {"epsilon": 1e-5, "momentum_multiplies": "batch", "corrected": True}


def one_node(name: str, *operands: Any, **attributes: Any) -> OneNode:
    return OneNode(OPS[name], Sample(*operands, **attributes))


def kernel(case: OneNode) -> Kernel:
    given, outs = case.tensors()
    s = te.create_schedule([t.op for t in outs])
    gpu_rows.schedule(s, outs, CUDA)
    return te.lower(s, [*given.values(), *outs], name=case.op.name)


def launches(case: OneNode, on_threads: bool = False) -> int:
    """How many launches a node takes, whose results are those of NumPy; on_threads: also as compiled CUDA C."""
    made = kernel(case)
    case.agrees(case.run(made), case.reference())
    if on_threads and shutil.which("g++"):
        case.agrees(case.run(made, host_device.run), case.reference())
    return len(source.generate(made, CUDA).launches)


def batch_norm(x: Any, channels: int) -> OneNode:
    return one_node("batch_norm_training", x, *[f32[channels]] * 4, None, None, None, **BATCH)


@pytest.mark.parametrize("count", [1, 2, 37])
@pytest.mark.parametrize("row", ROWS)
def test_rows_are_normalized_in_one_launch(row: int, count: int) -> None:
    for case in (
        one_node("layer_norm", f32[count, row], f32[row], f32[row]),
        one_node("rms_norm", f32[count, row], f32[row]),
        one_node("softmax", f32[count, row]),
        one_node("instance_norm", f32[2, count, row], f32[count], f32[count]),
    ):
        assert launches(case) == 1 or row == 1


@pytest.mark.parametrize("row", ROWS)
def test_columns_are_normalized_in_one_launch(row: int) -> None:
    for case in (
        one_node("softmax", f32[2, row, 5], axis=1),
        one_node("softmax", f32[row, 70], axis=0),
        one_node("log_softmax", f32[2, row, 3, 2], axis=1),
    ):
        assert launches(case) == 1 or row == 1


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("combiner", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_l2"])
def test_reductions_are_one_launch(combiner: str, row: int) -> None:
    for shape, axes in (
        ((5, row), (1,)),
        ((row, 5), (0,)),
        ((2, row, 3), (1,)),
        ((3, row, 2), (0, 2)),
        ((row,), None),
        ((300, row), (1,)) if row < 100 else ((row, 300), (0,)),
    ):
        assert launches(one_node(combiner, f32[shape], axes=axes)) == 1


@pytest.mark.parametrize(
    ("case", "most"),
    [
        (one_node("group_norm", f32[2, 12, 7, 9], f32[12], f32[12], num_groups=3), 1),
        (one_node("group_norm", f32[2, 12, 32, 8], f32[12], f32[12], num_groups=4), 1),
        (one_node("group_norm", f32[300, 12, 5], f32[12], f32[12], num_groups=6), 1),
        (one_node("group_norm", f32[3, 12], f32[12], f32[12], num_groups=3), 1),
        (one_node("layer_norm", f32[3, 4, 5, 6], f32[4, 5, 6], f32[4, 5, 6], axis=1), 1),
        (one_node("layer_norm", f16[7, 300], f16[300], f16[300]), 1),
        (one_node("rms_norm", bf16[5, 123], bf16[123]), 1),
        (one_node("softmax", f64[3, 65]), 1),
        (one_node("softmax", f32[0, 7]), 0),
        (one_node("reduce_sum", f32[3, 0, 2], axes=(1,)), 1),
        (batch_norm(f32[5, 67, 12, 11], 67), 4),
        (batch_norm(f16[130, 7], 7), 4),
    ],
)
def test_other_slices(case: OneNode, most: int) -> None:
    assert launches(case, on_threads=True) <= most


def test_rows_of_a_batch_are_normalized_on_threads() -> None:
    assert launches(one_node("layer_norm", f32[70, 99], f32[99], f32[99]), on_threads=True) == 1
    assert launches(one_node("softmax", f32[3, 130, 33], axis=1), on_threads=True) == 1
    assert launches(one_node("reduce_mean", f32[300, 49], axes=(1,)), on_threads=True) == 1


@pytest.mark.parametrize(
    "case",
    [
        one_node("layer_norm", f32[300, 784], f32[784], f32[784]),  # the last block has fewer rows than others
        one_node("layer_norm", f32[290, 770], f32[770], f32[770]),
        one_node("layer_norm", f16[600, 96], f16[96], f16[96]),
        one_node("softmax", f32[70, 5, 197]),
        one_node("instance_norm", f32[9, 64, 8, 16], f32[64], f32[64]),
        one_node("group_norm", f32[9, 66, 8, 16], f32[66], f32[66], num_groups=33),
    ],
)
def test_rows_are_copied_into_shared_memory(case: OneNode) -> None:
    text = source.generate(kernel(case), CUDA).source
    assert "x_shared[" in text
    assert text.count("*)(x_shared") >= 2 or case.arrays[0].shape[-1] % 4
    assert launches(case, on_threads=True) == 1


@pytest.mark.parametrize(
    "case",
    [
        one_node("instance_norm", f32[40, 16, 14, 14], f32[16], f32[16]),  # rounds end beyond a slice
        one_node("layer_norm", f32[3, 40000], f32[40000], f32[40000]),  # too long
        one_node("softmax", f32[300, 64], axis=0),  # columns
    ],
)
def test_other_rows_are_read_again(case: OneNode) -> None:
    assert "x_shared[" not in source.generate(kernel(case), CUDA).source
    assert launches(case, on_threads=True) == 1


def test_long_sums_beside_each_other_are_runs_of_memory() -> None:
    drawn = Sample(f32[2, 64, 3, 5], *[f32[64]] * 4, None, None, None, **BATCH)
    given, outs = OneNode(OPS["batch_norm_training"], drawn, {2: 64, 3: 112, 5: 112}).tensors()
    assert next(iter(given.values())).shape == (64, 64, 112, 112)
    s = te.create_schedule([t.op for t in outs])
    gpu_rows.schedule(s, outs, CUDA)
    generated = source.generate(te.lower(s, [*given.values(), *outs]), CUDA)
    sums = generated.launches[0]
    assert prod(sums.grid) >= gpu_rows.SPREAD * facts(CUDA.arch).units
    assert not re.search(r"\bif \(", generated.source.split(sums.name)[1].split("__syncthreads")[0])


@pytest.mark.parametrize(
    "case",
    [
        one_node("reduce_sum", f32[150001], axes=(0,)),
        one_node("reduce_mean", f32[2, 70001], axes=(1,)),
        one_node("reduce_max", f32[70001, 3], axes=(0,)),
    ],
)
def test_few_long_reductions_are_cut_into_pieces(case: OneNode) -> None:
    generated = source.generate(kernel(case), CUDA)
    assert len(generated.launches) == 2
    assert generated.launches[0].grid[0] > 8
    assert launches(case) == 2


@pytest.mark.parametrize(
    "case",
    [
        one_node("instance_norm", f32[1, 3, 200, 201], f32[3], f32[3]),
        one_node("softmax", f32[1, 70001]),
        batch_norm(f32[5, 3, 60, 61], 3),
    ],
)
def test_few_long_slices_are_shared_out(case: OneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_rows, "LONG_SLICE", 1000)
    generated = source.generate(kernel(case), CUDA)
    elements = max(generated.launches, key=lambda x: prod(x.grid))
    assert prod(elements.grid) * prod(elements.block) >= 10000
    assert launches(case) <= 9


def test_nan_propagates_from_its_row_alone() -> None:
    case = one_node("reduce_max", f32[5, 300], axes=(1,), keepdims=False)
    case.arrays[0][2, 299] = np.nan
    (result,) = case.run(kernel(case))
    assert np.isnan(result).tolist() == [False, False, True, False, False]


def test_elements_after_a_reduction_are_in_its_launch() -> None:
    x, b = te.placeholder((37, 70), name="x"), te.placeholder((37,), name="b")
    k = te.reduce_axis((0, 70), name="k")
    total = te.compute((37,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="total")
    out = te.compute((37,), lambda i: te.sqrt(total[i]) + b[i], name="out")
    s = te.create_schedule(out.op)
    gpu_rows.schedule(s, [out], CUDA)
    made = te.lower(s, [x, b, out])
    assert len(source.generate(made, CUDA).launches) == 1
    rng = np.random.default_rng(3)
    a, c, y = rng.normal(size=(37, 70)).astype("f4"), rng.normal(size=37).astype("f4"), np.zeros(37, "f4")
    interpret.run(made, [a, c, y])
    np.testing.assert_allclose(y, np.sqrt(np.square(a.astype("f8")).sum(1)) + c, rtol=1e-6)


def test_a_result_that_is_normalized_is_a_launch_before() -> None:
    x, r = (te.placeholder((6, 40), name=name) for name in "xr")
    both = te.compute(x.shape, lambda *i: x[i] + r[i], name="both")
    k = te.reduce_axis((0, 40), name="k")
    most = te.compute((6,), lambda i: te.max(both[i, k], axis=k), name="most")
    out = te.compute(x.shape, lambda i, j: both[i, j] - most[i], name="out")
    s = te.create_schedule([both.op, out.op])
    gpu_rows.schedule(s, [both, out], CUDA)
    made = te.lower(s, [x, r, both, out])
    assert len(source.generate(made, CUDA).launches) == 2
    a, b = np.random.default_rng(4).integers(-9, 9, size=(2, 6, 40)).astype("f4")
    first, second = np.zeros_like(a), np.zeros_like(a)
    interpret.run(made, [a, b, first, second])
    np.testing.assert_array_equal(first, a + b)
    np.testing.assert_array_equal(second, a + b - (a + b).max(1, keepdims=True))


@pytest.mark.skipif(not nvrtc.identity(), reason="NVRTC is not installed")
@pytest.mark.parametrize(
    ("case", "grid", "block"),
    [
        (one_node("layer_norm", f32[4096, 768], f32[768], f32[768]), (512, 1, 1), (32, 8, 1)),
        (one_node("layer_norm", f16[512, 4096], f16[4096], f16[4096]), (512, 1, 1), (256, 1, 1)),
        (one_node("group_norm", f32[4, 256, 32, 32], f32[256], f32[256], num_groups=32), (128, 1, 1), (1024, 1, 1)),
        (one_node("softmax", f32[12, 128, 128]), (384, 1, 1), (16, 4, 1)),
        (one_node("reduce_mean", f32[32, 2048, 7, 7], axes=(2, 3)), (2048, 1, 1), (8, 32, 1)),
    ],
)
def test_nothing_is_spilled(case: OneNode, grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    generated = source.generate(kernel(case), CUDA)
    assert [(x.grid, x.block) for x in generated.launches] == [(grid, block)]
    for found in nvrtc.resources(generated.source, "sm_90"):
        assert (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0)
