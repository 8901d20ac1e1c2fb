"""What CUDA C says of memory, names and integers; whether it computes what it should, tests/gpu asks."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler

import renorm
from renorm import te
from renorm.core.errors import InvalidLoops
from renorm.graph.ir import Graph


def spread(s: te.Schedule, t: te.Tensor, vector: int = 1, threads: int = 32) -> None:
    """Bind the elements of a stage to blocks of threads, so many to each."""
    whole, inner = s[t].split(s[t].fuse(*s[t].op.axis), factor=vector)
    block, thread = s[t].split(whole, factor=threads)
    s[t].bind(block, te.thread_axis("blockIdx.x"))
    s[t].bind(thread, te.thread_axis("threadIdx.x"))
    if vector > 1:
        s[t].vectorize(inner)


def source(s: te.Schedule, args: list[te.Tensor]) -> str:
    return renorm.build(s, args, target="cuda -arch=sm_90").get_source()


@pytest.mark.parametrize(
    ("dtype", "vector", "offset", "accesses"),
    [
        ("float32", 4, 0, {"int4": (1, 1)}),
        ("float32", 8, 0, {"int4": (2, 2)}),
        ("float32", 2, 0, {"int2": (1, 1)}),
        ("float16", 8, 0, {"int4": (1, 1)}),
        ("float64", 4, 0, {"int4": (2, 2)}),
        ("float32", 4, 1, {"int4": (0, 1)}),  # what is read begins at no multiple of 16 bytes
        ("float32", 3, 0, {}),
    ],
)
def test_vectorized_loops_are_wide_accesses(
    dtype: str, vector: int, offset: int, accesses: dict[str, tuple[int, int]]
) -> None:
    x = te.placeholder((960 + offset,), dtype, name="x")
    y = te.compute((960,), lambda i: x[i + offset], name="y")
    s = te.create_schedule(y.op)
    spread(s, y, vector)
    text = source(s, [x, y])
    found = {k: (text.count(f"*(const {k}*)(x +"), text.count(f"*({k}*)(y + ")) for k in ("int2", "int4")}
    assert {kind: counts for kind, counts in found.items() if any(counts)} == accesses
    if shutil.which("g++"):
        a, b = np.random.default_rng(0).normal(size=960 + offset).astype(dtype), np.zeros(960, dtype)
        host_device.run(te.lower(s, [x, y]), [a, b])
        np.testing.assert_array_equal(b, a[offset:])


def test_what_is_written_and_read_may_be_anybodys() -> None:
    """With __restrict__ the compiler may read a total before the barrier behind which another thread has written it."""
    x = te.placeholder((4, 32), name="x")
    k = te.reduce_axis((0, 32), name="k")
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="total")
    y = te.compute((4, 32), lambda i, j: x[i, j] / total[i], name="y")
    s = te.create_schedule(y.op)
    block, thread = y.op.axis
    s[y].bind(block, te.thread_axis("blockIdx.x"))
    s[y].bind(thread, te.thread_axis((0, 32), "threadIdx.x"))
    s[total].compute_at(s[y], block)
    text = source(s, [x, total, y])
    assert "float* total" in text
    assert "const float* __restrict__ x" in text
    assert "float* __restrict__ y" in text


@needs_compiler
def test_words_of_the_language_are_no_names() -> None:
    x = te.placeholder((33,), "float64", name="const")
    y = te.compute((33,), lambda i: te.rsqrt(x[i]), name="rsqrt")
    s = te.create_schedule(y.op)
    spread(s, y)
    a, b = np.random.default_rng(0).uniform(1, 2, 33), np.zeros(33)
    host_device.run(te.lower(s, [x, y]), [a, b])
    np.testing.assert_allclose(b, a**-0.5, rtol=1e-14)


@needs_compiler
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_floats_out_of_range_become_the_nearest_integer(dtype: str) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 300.7, -300.7, -0.9, 5.9])
    x = te.placeholder(values.shape, "float64", name="x")
    y = te.compute(values.shape, lambda i: x[i].astype(dtype), name="y")
    s = te.create_schedule(y.op)
    spread(s, y)
    got = np.zeros(values.shape, dtype)
    host_device.run(te.lower(s, [x, y]), [values, got])
    limits = np.iinfo(dtype)
    want = [0 if np.isnan(v) else max(limits.min, min(limits.max, int(np.clip(v, -2e19, 2e19)))) for v in values]
    assert got.tolist() == want


@needs_compiler
def test_the_least_integer_can_be_divided_by_minus_one() -> None:
    a, b = (te.placeholder((3,), "int32", name=n) for n in "ab")
    quotient = te.compute((3,), lambda i: te.truncdiv(a[i], b[i]), name="quotient")
    rest = te.compute((3,), lambda i: te.floormod(a[i], b[i]), name="rest")
    of_c = te.compute((3,), lambda i: te.truncmod(a[i], b[i] + 4), name="of_c")
    results = [quotient, rest, of_c]
    s = te.create_schedule([t.op for t in results])
    for t in results:
        spread(s, t)
    arrays = [np.array([-(2**31), -7, 9], "i4"), np.array([-1, 2, -4], "i4"), *(np.zeros(3, "i4") for _ in results)]
    host_device.run(te.lower(s, [a, b, *results]), arrays)
    assert arrays[2].tolist() == [-(2**31), -3, -2]
    assert arrays[3].tolist() == [0, 1, -3]
    assert arrays[4].tolist() == [-2, -1, 0]  # by 3, 6 and 0


def shared_copy(n: int) -> tuple[te.Schedule, list[te.Tensor]]:
    """Rows that are copied to shared memory, and read from it the other way round."""
    x = te.placeholder((3, n), name="x")
    y = te.compute((3, n), lambda i, j: x[i, n - 1 - j], name="y")
    s = te.create_schedule(y.op)
    copy = s.cache_read(x, "shared", [y])
    block, row = y.op.axis
    s[y].bind(block, te.thread_axis("blockIdx.x"))
    s[copy].compute_at(s[y], block)
    for t, axis in ((y, row), (copy, s[copy].op.axis[1])):
        _, thread = s[t].split(axis, factor=64)
        s[t].bind(thread, te.thread_axis("threadIdx.x"))
    return s, [x, y]


@pytest.mark.parametrize(("n", "is_asked_for"), [(12288, False), (12352, True)])
def test_a_launch_asks_for_more_shared_memory_than_a_block_has(n: int, is_asked_for: bool) -> None:
    s, args = shared_copy(n)
    built: Any = renorm.build(s, args, target="cuda -arch=sm_90")
    assert ("extern __shared__" in built.get_source()) == is_asked_for
    assert built.generated.launches[0].shared == is_asked_for * 4 * n
    if shutil.which("g++"):
        a, b = np.random.default_rng(0).normal(size=(3, n)).astype("f4"), np.zeros((3, n), "f4")
        host_device.run(te.lower(s, args), [a, b])
        np.testing.assert_array_equal(b, a[:, ::-1])


def test_an_architecture_has_no_more_shared_memory_than_it_has() -> None:
    s, args = shared_copy(16384 + 64)
    renorm.build(s, args, target="cuda -arch=sm_80")
    with pytest.raises(InvalidLoops, match=r"stage y: 65792 bytes of shared memory .*a block has 65536"):
        renorm.build(s, args, target="cuda -arch=sm_75")


@pytest.mark.parametrize(("rows", "kind"), [(1 << 22, "long long"), (1 << 12, "int")])
def test_indices_of_large_arrays_are_wide(rows: int, kind: str) -> None:
    x = te.placeholder((rows, 1024), name="x")
    y = te.compute((rows, 1024), lambda i, j: x[i, j] + 1.0, name="y")
    s = te.create_schedule(y.op)
    spread(s, y, threads=256)
    assert f"const {kind} blockIdx_x" in source(s, [x, y])


@needs_compiler
def test_parts_of_a_concat_lie_where_wide_accesses_may() -> None:
    """Three elements in front of a part: what writes it cannot write 16 bytes at a time into the whole."""
    g = Graph("parts")
    shapes = (1, 3), (1, 132 * 1024 * 4)
    a, b = (g.input(name, "float32", shape) for name, shape in zip("ab", shapes))
    g.outputs = [renorm.ops.concat([renorm.ops.relu(a), renorm.ops.sigmoid(b)], axis=1)]
    host_device.register()
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype("f4") for shape in shapes]
    (got,) = renorm.compile(g, target="cuda -arch=host").run(*arrays)
    want = np.concatenate([np.maximum(arrays[0], 0), 1 / (1 + np.exp(-arrays[1].astype("f8")))], axis=1)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
