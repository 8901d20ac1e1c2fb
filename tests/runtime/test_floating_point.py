"""Bits do not depend on the floating-point environment of any thread, nor does a run change it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pytest
from tests.driver.external_targets import Interpreted, target

import renorm
from renorm import ops, training
from renorm.driver.module import CompiledModule, SpecializingModule
from renorm.graph.ir import Graph
from renorm.runtime import loader, openmp

DEFAULT = 0x1F80
# denormals are flushed; rounding up, down, to zero; an invalid operation traps; all of that, and all exceptions trap
# but that of rounding, which Python's own floats meet
ENVIRONMENTS = [DEFAULT | 0x8040, DEFAULT | 0x4000, DEFAULT | 0x2000, DEFAULT | 0x6000, DEFAULT & ~0x80, 0xF040]
TEXT = """
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse.stmxcsr(ptr)
define i32 @change(i32 %to) {
  %at = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %at)
  %was = load i32, ptr %at
  store i32 %to, ptr %at
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret i32 %was
}
"""
CONTROL = 0xFFC0  # without the flags of what has happened
Inside = Callable[[int], AbstractContextManager[None]]


@pytest.fixture
def inside(assemble) -> Inside:
    """A block in which the thread has this MXCSR, and which has it still at its end."""
    image = loader.load([assemble(TEXT)], "x86_64")
    change = ctypes.PYFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32)(image.address(0, "change"))

    @contextmanager
    def inside(environment: int) -> Generator[None]:
        before = change(environment)
        try:
            yield
        finally:
            now = change(before)
            assert image
        assert now & CONTROL == environment & CONTROL

    return inside


def network(threads) -> CompiledModule | SpecializingModule:
    """Sums of products that round, some of them denormal."""
    g = Graph("sums")
    x = g.input("x", "float32", (64, 300))
    scaled = ops.mul(x, g.constant(np.array([1e-39], np.float32)))
    g.outputs = [scaled, ops.softmax(x, axis=1), ops.div(ops.add(x, x), g.constant(np.array([3], np.float32)))]
    return renorm.compile(g, threads=threads)


def batch() -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((64, 300)).astype(np.float32)
    x[:, ::3] *= np.float32(1e-40)
    x[0, 0] = np.inf
    return x


def same(a, b) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x.view(np.uint32), y.view(np.uint32))


@pytest.mark.parametrize("threads", [1, 2, 4, "region"])
def test_of_the_caller(inside: Inside, kept_code, threads) -> None:
    if threads == "region":
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        threads = openmp.region(2, torch._C.__file__)
    x = batch()
    expected = network(1).run(x)
    assert np.any((expected[0] != 0) & (np.abs(expected[0]) < 1e-38))
    for environment in ENVIRONMENTS:
        m = network(threads)
        with inside(environment):
            found = [m.run(x) for _ in range(3)]
        for each in (*found, m.run(x)):
            same(each, expected)


@pytest.mark.parametrize("threads", [2, 3])
def test_of_the_thread_that_starts_the_workers(inside: Inside, mirrors, mirrored, monkeypatch, threads) -> None:
    """They begin with the environment of their maker."""
    monkeypatch.setattr(renorm.runtime.threads, "_teams", {})  # so that there are none
    x = np.full(1000, 1e-40, np.float32)
    m = mirrors(1000, 20, threads, 10)
    with inside(ENVIRONMENTS[0]):
        first = m.run(x)[0]
    halved = [first, *(m.run(x)[0] for _ in range(20))]
    for y in halved:
        np.testing.assert_array_equal(y, mirrored(x, 20))
    m._team.close()


def test_of_torch(kept_code) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x, m = batch(), network(2)
    expected = m.run(x)
    torch.set_flush_denormal(True)
    try:
        same(m.run(x), expected)
        other: list[list[np.ndarray]] = []
        thread = threading.Thread(target=lambda: other.append(m.run(x)))
        thread.start()
        thread.join()
    finally:
        torch.set_flush_denormal(False)
    same(other[0], expected)


def test_of_training_kernels(inside: Inside, kept_code) -> None:
    x = np.random.default_rng(0).standard_normal((8, 3, 17)).astype(np.float32) * np.float32(1e-38)
    scale = np.array([1e-3, 1, 2], np.float32)
    expected = training.batch_norm(x, scale)
    for environment in ENVIRONMENTS[:4]:
        with inside(environment):
            found = training.batch_norm(x, scale)
        np.testing.assert_array_equal(found.y.view(np.uint32), expected.y.view(np.uint32))


@pytest.mark.parametrize("threads", [1, 2])
def test_external_code_sees_that_of_the_caller(inside: Inside, kept_code, threads) -> None:
    flushed, g, x = list[bool](), Graph("exps"), batch()

    class Looking(Interpreted):
        def run(self, inputs, outputs) -> None:
            flushed.append(not np.any(np.full(8, 1e-30, np.float32) * np.float32(1e-10)))
            outputs[0][...] = inputs[0]

    scale = g.constant(np.array([1e-39], np.float32))
    g.outputs = [ops.mul(ops.exp(ops.mul(g.input("x", "float32", x.shape), scale)), scale)]
    m = renorm.compile(g, target=target(["exp"], Looking), threads=threads, opt_level=0)
    large = x * 1000
    (expected,) = m.run(large)
    with inside(ENVIRONMENTS[0]):
        (found,) = m.run(large)
    same([found], [expected])
    assert flushed == [False, True]


def test_of_who_compiles(inside: Inside, kept_code) -> None:
    """Folded weights are denormal."""

    w = (np.random.default_rng(0).standard_normal((4, 4, 3, 3)) * 1e-20).astype(np.float32)
    scale, zero, one = np.full(4, 1e-19, np.float32), np.zeros(4, np.float32), np.ones(4, np.float32)

    def folded() -> CompiledModule | SpecializingModule:
        g = Graph("folded")
        y = ops.conv(g.input("x", "float32", (2, 4, 6, 6)), w, None)
        g.outputs = [ops.batch_norm(y, scale, zero, zero, one)]
        return renorm.compile(g, threads=1)

    x = np.random.default_rng(1).standard_normal((2, 4, 6, 6)).astype(np.float32)
    expected = folded().run(x)
    assert np.all(expected[0])
    for environment in ENVIRONMENTS[:4]:
        with inside(environment):
            m = folded()
        same(m.run(x), expected)
