"""Schedules of elements and windows on GPUs: results against NumPy, launches, vectors, and resources."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.gpu import host_device
from tests.random_numbers import RNG

from renorm import te
from renorm.codegen.cuda import nvrtc, source
from renorm.core.dtypes import numpy_dtype
from renorm.graph import registry
from renorm.ops.schedules import cuda, gpu_elements, gpu_rows
from renorm.targets import find
from renorm.tir import interpret
from renorm.tir.nodes import For, Kernel, walk

CUDA = find("cuda -arch=sm_90")
OPS = {op.name: op for op in registry.all_ops()}


def lowered(args: Sequence[te.Tensor], outs: Sequence[te.Tensor], schedule: Any = gpu_elements.schedule) -> Kernel:
    s = te.create_schedule([t.op for t in outs])
    schedule(s, outs, CUDA)
    return te.lower(s, [*args, *outs])


def results(kernel: Kernel, arrays: Sequence[Any], outs: Sequence[te.Tensor]) -> list[Any]:
    """What a kernel computes: interpreted, and as compiled CUDA C where there is a compiler."""
    made = [np.full(t.shape, 77).astype(numpy_dtype(t.dtype)) for t in outs]
    interpret.run(kernel, [*arrays, *made])
    if shutil.which("g++"):
        others = [np.full(t.shape, 78).astype(numpy_dtype(t.dtype)) for t in outs]
        host_device.run(kernel, [*arrays, *others])
        for a, b in zip(made, others):
            np.testing.assert_allclose(a.astype("f8"), b.astype("f8"), rtol=1e-5)
    return made


def vectors(kernel: Kernel) -> list[int]:
    return [int(str(x.extent)) for x in walk(kernel.body) if isinstance(x, For) and x.kind == "vectorized"]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 5, 7, 11), "float32"),
        ((1,), "float32"),
        ((), "float32"),
        ((257,), "float16"),
        ((4, 33), "bfloat16"),
        ((2, 9), "int32"),
        ((3, 0), "float32"),
    ],
)
def test_elements_and_broadcasts(shape: tuple[int, ...], dtype: str) -> None:
    x, b = te.placeholder(shape, dtype, name="x"), te.placeholder(shape[-1:], dtype, name="b")
    half = te.compute(shape, lambda *i: x[i] + b[i[-1:]], name="half")
    out = te.compute(shape, lambda *i: half[i] + half[i], name="out")
    kernel = lowered([x, b], [out])
    assert len(source.generate(kernel, CUDA).launches) == (0 not in shape)
    a, c = (RNG.integers(-9, 9, size=t.shape).astype(numpy_dtype(dtype)) for t in (x, b))
    (y,) = results(kernel, [a, c], [out])
    np.testing.assert_array_equal(y.astype("f8"), 2 * (a.astype("f8") + c.astype("f8")))


@pytest.mark.parametrize(
    ("shape", "dtype", "wanted"),
    [
        ((64, 128, 32), "float32", [4]),
        ((64, 128, 40), "float16", [8]),
        ((64, 128, 30), "float16", [4]),
        ((64, 128, 32), "float64", [2]),
        ((1023, 258), "float32", [2]),
        ((64, 32), "float32", []),
        ((1023, 257), "float32", []),
    ],
)
def test_threads_take_neighbours_where_threads_are_enough(shape: Any, dtype: str, wanted: list[int]) -> None:
    x = te.placeholder(shape, dtype, name="x")
    out = te.compute(shape, lambda *i: x[i] + x[i], name="out")
    kernel = lowered([x], [out])
    (launch,) = source.generate(kernel, CUDA).launches
    assert vectors(kernel) == wanted
    assert launch.block == (256, 1, 1)
    a = RNG.integers(-9, 9, size=shape).astype(dtype)
    np.testing.assert_array_equal(results(kernel, [a], [out])[0], a + a)


def test_a_turned_operand_takes_no_vectors() -> None:
    x = te.placeholder((512, 516), name="x")
    out = te.compute((516, 512), lambda i, j: x[j, i] * 2.0, name="out")
    kernel = lowered([x], [out])
    assert vectors(kernel) == []
    a = RNG.normal(size=x.shape).astype("f4")
    np.testing.assert_array_equal(results(kernel, [a], [out])[0], a.T * 2)


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": (2, 2), "strides": (2, 2)},
        {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
        {"kernel_shape": (9, 8)},
    ],
)
@pytest.mark.parametrize("name", ["max_pool", "average_pool"])
def test_what_follows_a_window_is_in_its_launch(name: str, attributes: dict[str, Any]) -> None:
    x = te.placeholder((2, 3, 13, 11), name="x")
    op = OPS[name](**attributes)
    pooled = op.compute(x)
    out = te.compute(pooled.shape, lambda *i: te.maximum(pooled[i], te.const(0.0, "float32")) + 1.0, name="out")
    kernel = lowered([x], [out], gpu_rows.schedule)
    assert len(source.generate(kernel, CUDA).launches) == 1
    a = RNG.normal(size=x.shape).astype("f4")
    wanted = np.maximum(op.reference(a.astype("f8")), 0) + 1
    np.testing.assert_allclose(results(kernel, [a], [out])[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_depthwise_convolution_is_one_launch(dtype: str) -> None:
    x, w, b = (te.placeholder(d, dtype, name=n) for d, n in (((2, 5, 9, 11), "x"), ((5, 1, 3, 3), "w"), ((5,), "b")))
    op = OPS["conv"](group=5, pads=(1, 1, 1, 1), strides=(1, 2))
    y = op.compute(x, w, b)
    out = te.compute(y.shape, lambda *i: te.maximum(y[i], te.const(0.0, dtype)), name="out")
    kernel = lowered([x, w, b], [out])
    generated = source.generate(kernel, CUDA)
    assert len(generated.launches) == 1
    arrays = [RNG.normal(size=t.shape).astype(dtype) for t in (x, w, b)]
    wanted = np.maximum(op.reference(*(a.astype("f8") for a in arrays)), 0)
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    np.testing.assert_allclose(results(kernel, arrays, [out])[0], wanted, rtol=tolerance, atol=tolerance)
    if nvrtc.identity():
        (found,) = nvrtc.resources(generated.source, "sm_90")
        assert (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0)


@pytest.mark.parametrize(("shape", "launches"), [((4, 16, 8), 1), ((5, 7), 1), ((3, 521), 2)])
@pytest.mark.parametrize("is_chain", [False, True])
def test_results_of_one_shape_share_a_launch_that_blocks_cut_evenly(shape: Any, launches: int, is_chain: bool) -> None:
    x = te.placeholder(shape, name="x")
    a = te.compute(shape, lambda *i: x[i] * 2.0, name="a")
    b = te.compute(shape, lambda *i: (a[i] if is_chain else x[i]) + 1.0, name="b")
    kernel = lowered([x], [a, b])
    assert len(source.generate(kernel, CUDA).launches) == launches
    given = RNG.normal(size=shape).astype("f4")
    first, second = results(kernel, [given], [a, b])
    np.testing.assert_array_equal(first, given * 2)
    np.testing.assert_array_equal(second, (given * 2 if is_chain else given) + 1)


@pytest.mark.parametrize(("width", "launches"), [(2, 1), (33, 2)])
def test_what_takes_long_is_computed_once_where_many_read_it(width: int, launches: int) -> None:
    x, w = te.placeholder((5, 7), name="x"), te.placeholder((7, width), name="w")
    power = te.compute(x.shape, lambda i, k: te.exp(x[i, k]), name="power")
    k = te.reduce_axis((0, 7), name="k")
    out = te.compute((5, width), lambda i, j: te.sum(power[i, k] * w[k, j], axis=k), name="out")
    kernel = lowered([x, w], [out], cuda.schedule)
    assert len(source.generate(kernel, CUDA).launches) == launches
    a, b = RNG.normal(size=x.shape).astype("f4"), RNG.normal(size=w.shape).astype("f4")
    wanted = np.exp(a.astype("f8")) @ b
    np.testing.assert_allclose(results(kernel, [a, b], [out])[0], wanted, rtol=1e-5, atol=1e-5)
