"""CUDA C of schedules, run on the CPU, gives NumPy's results; the device keeps what is promised of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.driver.test_build import tiled_product
from tests.gpu.host_assembler import ARCH, assemble, needs_compiler
from tests.gpu.host_device import HostDevice, host, register, run
from tests.gpu.host_texts import HEAD
from tests.te import test_articles as articles
from tests.te import test_schedules_keep_results as schedules

from renorm import te
from renorm.codegen.cuda import assemblers
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import InternalError, InvalidArtifact
from renorm.runtime.gpu.device import Call, device
from renorm.tir import interpret

pytestmark = needs_compiler

EVERY_CHECK: Any = list(HealthCheck)


def staged_product(shape: tuple[int, int, int]) -> tuple[te.Schedule, list[te.Tensor]]:
    """A tiled product whose tiles of A and B come through shared memory, four steps at a time."""
    s, args = tiled_product(*shape)
    a, b, c = args
    step, inner = s[c].split(c.op.reduce_axis[0], factor=4)
    by, bx, ty, tx = s[c].leaf_iter_vars[:4]
    s[c].reorder(by, bx, ty, tx, step, inner)
    for tensor in (a, b):
        tile = s.cache_read(tensor, "shared", [c])
        s[tile].compute_at(s[c], step)
        y, x = s[tile].leaf_iter_vars
        for axis, name in ((y, "threadIdx.y"), (x, "threadIdx.x")):
            _, thread = s[tile].split(axis, factor=4)
            s[tile].bind(thread, te.thread_axis((0, 4), name))
    return s, args


def product_arrays(shape: tuple[int, int, int]) -> list[np.ndarray[Any, Any]]:
    n, m, k = shape
    rng = np.random.default_rng(n)
    return [*(rng.normal(size=at).astype(np.float32) for at in ((n, k), (k, m))), np.zeros((n, m), np.float32)]


@pytest.mark.parametrize("shape", [(8, 8, 8), (5, 7, 3), (1, 1, 1), (13, 22, 19)])
@pytest.mark.parametrize("of", [tiled_product, lambda *shape: staged_product(shape)], ids=["direct", "shared"])
def test_product(of: Any, shape: tuple[int, int, int]) -> None:
    s, args = of(*shape)
    arrays = product_arrays(shape)
    run(te.lower(s, args), arrays)
    np.testing.assert_allclose(arrays[2], arrays[0].astype(np.float64) @ arrays[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fix_gamma", [False, True])
def test_instance_norm_of_the_article(fix_gamma: bool) -> None:
    articles.test_instance_norm(run, fix_gamma, True)


@settings(max_examples=30, deadline=None, suppress_health_check=EVERY_CHECK)
@given(data=st.data())
def test_any_schedule_on_blocks_and_threads(data: st.DataObject) -> None:
    p = schedules.draw_program(data.draw)
    outputs = [p.computed[-1]]
    s = schedules.draw_schedule(data.draw, p, outputs, gpu=True)
    schedules.check(run, p, s, outputs, f"cuda -arch={ARCH}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_storage_of_16_bits(dtype: str) -> None:
    """Odd sizes, a tail in the last block; sums in float32, rounded once."""
    x = te.placeholder((5, 37), dtype, name="X")
    y = te.compute((5, 37), lambda i, j: (x[i, j].astype("float32") * 1.7).astype(dtype), name="Y")
    s = te.create_schedule(y.op)
    block, thread = s[y].split(s[y].fuse(*y.op.axis), factor=32)
    s[y].bind(block, te.thread_axis("blockIdx.x"))
    s[y].bind(thread, te.thread_axis("threadIdx.x"))
    kind = numpy_dtype(dtype)
    a = np.random.default_rng(1).normal(size=(5, 37)).astype(kind)
    b = np.zeros((5, 37), kind)
    run(te.lower(s, [x, y]), [a, b])
    np.testing.assert_array_equal(b, (a.astype(np.float32) * np.float32(1.7)).astype(kind))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_narrow_integers_wrap_before_they_are_cast(dtype: str) -> None:
    """C computes them as int."""
    x = te.placeholder((6,), dtype, name="X")
    values = [lambda i: x[i] + x[i], lambda i: x[i] * x[i], lambda i: x[i] - x[5 - i], lambda i: te.abs(x[i])]
    held = np.array([np.iinfo(dtype).min, 3, 7, 11, 100, np.iinfo(dtype).max], dtype)
    with np.errstate(over="ignore"):
        wanted = [held + held, held * held, held - held[::-1], np.abs(held)]
    for of, exact in zip(values, wanted, strict=True):
        y = te.compute((6,), lambda i, of=of: of(i).astype("int32"), name="Y")
        s = te.create_schedule(y.op)
        s[y].bind(y.op.axis[0], te.thread_axis("threadIdx.x"))
        found = np.zeros(6, np.int32)
        run(te.lower(s, [x, y]), [held, found])
        np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["sigmoid", "sign"])
def test_zeros_and_denormals_are_those_of_cpus(name: str, dtype: str) -> None:
    """exp(97), which the sigmoid of -97 was the inverse of, is beyond float32; the sign of -0 is 0."""
    x = te.placeholder((8,), dtype, name="X")
    y = te.compute((8,), lambda i: getattr(te, name)(x[i]), name="Y")
    s = te.create_schedule(y.op)
    s[y].bind(y.op.axis[0], te.thread_axis("threadIdx.x"))
    values = np.array([-0.0, np.nan, np.inf, -np.inf, -97.4, -740, 3, 1e-40], dtype)
    found, wanted = np.zeros(8, dtype), np.zeros(8, dtype)
    run(te.lower(s, [x, y]), [values, found])
    interpret.run(te.lower(te.create_schedule(y.op), [x, y]), [values, wanted])
    np.testing.assert_array_max_ulp(found, wanted, 3)
    np.testing.assert_array_equal(np.signbit(found)[~np.isnan(found)], np.signbit(wanted)[~np.isnan(found)])


def test_indices_of_elements_do_not_wrap() -> None:
    """The least int, less 5, is clamped to 0, as on CPUs."""
    a, x = te.placeholder((8,), name="A"), te.placeholder((4,), "int32", name="X")
    y = te.compute((4,), lambda i: a[te.max(te.min(x[i], 10) - 5, 0)], name="Y")
    s = te.create_schedule(y.op)
    s[y].bind(y.op.axis[0], te.thread_axis("threadIdx.x"))
    found = np.zeros(4, np.float32)
    run(
        te.lower(s, [a, x, y]), [np.arange(8, dtype=np.float32), np.array([-(2**31), 0, 7, 2**31 - 1], np.int32), found]
    )
    np.testing.assert_array_equal(found, [0, 0, 2, 5])


def test_registered_under_its_architecture() -> None:
    register()
    assert assemblers.assembler(ARCH) is assemble
    assert device(ARCH) is host() is host(0)
    assert device(ARCH, 1) is not device(ARCH)


def test_memory() -> None:
    one = HostDevice()
    at = one.allocate(100)
    assert at % 256 == 0
    assert one.live == (1, 100)
    got = np.zeros(25, np.float32)
    one.read(got, at, 0)
    assert np.isnan(got).all()
    other = one.allocate(0)
    assert other not in (0, at)
    one.write(at, np.arange(25, dtype=np.float32), 0)
    one.copy(at, at + 40, 40, 0)
    one.read(got, at, 0)
    np.testing.assert_array_equal(got, [*range(10, 20), *range(10, 25)])
    for wrong in (lambda: one.read(got, at + 4, 0), lambda: one.write(other, got, 0), lambda: one.copy(at, 64, 4, 0)):
        with pytest.raises(InternalError, match="bytes are copied"):
            wrong()
    one.free(at)
    one.free(other)
    assert one.live == (0, 0)
    one.wait(0)
    for address in (at, 4096):
        one.free(address)
        with pytest.raises(InternalError, match="given back"):
            one.wait(0)
    one.free(0)
    one.wait(0)


def test_graph() -> None:
    """Launches see what those before them wrote; arguments change; the first fault ends a run, and `wait` tells it."""
    one = HostDevice(check_races=True)
    text = f"{HEAD} b[threadIdx.x] = a[threadIdx.x] * 2; }}\n"
    f = one.function(one.load(assemble(text, ARCH)), "f")
    x, y, z, w = (one.allocate(256) for _ in range(4))
    one.write(x, np.ones(64, np.float32), 0)
    graph = one.graph([Call(f, (1, 1, 1), (64, 1, 1), at) for at in ((x, y), (y, z))])
    graph.launch(0)
    one.wait(0)
    got = np.zeros(64, np.float32)
    one.read(got, z, 0)
    np.testing.assert_array_equal(got, np.full(64, 4))
    graph.update(1, (y, w))
    one.write(x, np.full(64, 3, np.float32), 0)
    graph.launch(7)
    one.wait(7)
    one.read(got, w, 0)
    np.testing.assert_array_equal(got, np.full(64, 12))
    one.free(y)
    graph.launch(0)
    with pytest.raises(InternalError, match="kernel f: argument 1 is byte 0 of 256 bytes that were given back"):
        one.wait(0)
    one.wait(0)
    graph.close()
    with pytest.raises(InternalError, match="closed"):
        graph.launch(0)
    with pytest.raises(InvalidArtifact, match="no kernel g"):
        one.function(one.load(assemble(text, ARCH)), "g")
    with pytest.raises(InvalidArtifact, match="not for device"):
        one.load(b"\x7fELF of another machine")


def test_memory_that_was_given_back_is_not_touched() -> None:
    """Also where the address is hidden from the device, as in a table of pointers."""
    one = HostDevice()
    text = 'extern "C" __global__ void __launch_bounds__(64) f(float** a, float* b) { b[0] = a[0][threadIdx.x]; }\n'
    f = one.function(one.load(assemble(text, ARCH)), "f")
    table, b, gone = one.allocate(8), one.allocate(4), one.allocate(256)
    one.write(table, np.array([gone], np.uint64), 0)
    one.free(gone)
    one.graph([Call(f, (1, 1, 1), (1, 1, 1), (table, b))]).launch(0)
    with pytest.raises(InternalError, match=r"(?s)outside of its memory.*byte 0 of 256 bytes that were given back"):
        one.wait(0)
