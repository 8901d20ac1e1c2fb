"""Code for aarch64, executed by an emulator, gives the bits that code for this machine gives."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import unicorn
import unicorn.arm64_const as arm64
from tests.codegen.native import HOST, Native, program
from unicorn.unicorn_py3 import Uc

from renorm.codegen.llvm import compile_kernel
from renorm.core import dtypes
from renorm.core.dims import static
from renorm.expr.nodes import Binary, Broadcast, Call, Cast, Const, Expr, Load, Ramp, Var, const
from renorm.runtime import Memory, loader
from renorm.targets import find
from renorm.tir.nodes import Allocate, Buffer, For, Kernel, Seq, Store

pytestmark = pytest.mark.skipif(platform.machine() == "aarch64", reason="compares with another machine")

ARM = find("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
PAGE, STACK = 4096, 1 << 18
Array = np.ndarray[Any, Any]


def emulate(kernel: Kernel, arrays: list[Array]) -> None:
    """Runs the kernel on an emulated core with one thread; writes into the arrays."""
    compiled = compile_kernel(kernel, ARM)
    image = loader.load([compiled.object], "aarch64")
    held = [Memory(max(a.nbytes, 1)) for a in arrays]
    for memory, array in zip(held, arrays, strict=True):
        memory.array[: array.nbytes] = array.reshape(-1).view(np.uint8)
    extra = [Memory(max(size, 1)) for size in static((*compiled.workspace, compiled.scratch)) if size]
    table, stack, end = Memory(PAGE), Memory(STACK), Memory(PAGE)
    addresses = [m.address for m in (*held, *extra)]
    table.array.view(np.uint64)[: len(addresses)] = addresses
    core = Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    core.ctl_set_cpu_model(arm64.UC_CPU_ARM64_MAX)  # with half-precision instructions, as the target has them
    for m in (image._memory, *held, *extra, table, stack, end):
        core.mem_map_ptr(m.address, -(-max(m.nbytes, 1) // PAGE) * PAGE, unicorn.UC_PROT_ALL, m.address)
    for k, extent in enumerate(static(compiled.phases)):
        core.reg_write(arm64.UC_ARM64_REG_SP, stack.address + STACK)
        core.reg_write(arm64.UC_ARM64_REG_LR, end.address)
        for register, value in enumerate((table.address, 0, extent, 0)):
            core.reg_write(arm64.UC_ARM64_REG_X0 + register, value)
        core.emu_start(image.address(0, f"phase{k}"), end.address)
    for memory, array in zip(held, arrays, strict=True):
        array.reshape(-1).view(np.uint8)[:] = memory.array[: array.nbytes]


def same_on_both(kernel: Kernel, arrays: list[Array]) -> None:
    here, there = [a.copy() for a in arrays], [a.copy() for a in arrays]
    Native(compile_kernel(kernel, HOST))(*here)
    emulate(kernel, there)
    for h, t in zip(here, there, strict=True):
        plain = [a.view(f"u{a.itemsize}") for a in (h, t)]
        if dtypes.is_float(dtypes.from_numpy(h.dtype)):
            np.testing.assert_array_equal(np.isnan(t), np.isnan(h))
            plain = [np.where(np.isnan(h), 0, p) for p in plain]
        np.testing.assert_array_equal(plain[1], plain[0])


def over(build: Callable[..., Expr], sources: list[str], n: int, lanes: int) -> Kernel:
    xs, i = [Buffer(f"x{k}", d, n) for k, d in enumerate(sources)], Var("i")
    index: Expr = Ramp(i * lanes, const(1), lanes) if lanes > 1 else i
    value = build(*(Load(x, [index]) for x in xs))
    y = Buffer("y", value.dtype, n)
    return program("f", (*xs, y), For(i, const(0), const(n // lanes), "parallel", Store(y, index, value)))


def patterns(dtype: str, n: int) -> Array:
    """Half random representations, half moderate numbers."""
    rng = np.random.default_rng(3)
    kind = dtypes.lookup(dtype)
    bits = rng.integers(0, 2**kind.bits - 1, n, f"u{kind.bits // 8}", endpoint=True)
    if kind.kind == "bool":
        return bits % 2 == 0
    values = bits.view(dtypes.numpy_dtype(dtype)).copy()
    if kind.kind == "float":
        values[n // 2 :] = (rng.standard_normal(n - n // 2) * 4).astype(values.dtype)
    return values


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "name", ["exp", "log", "tanh", "erf", "sigmoid", "rsqrt", "sin", "tan", "acos", "sinh", "atanh", "round", "sign"]
)
def test_functions(name: str, dtype: str) -> None:
    kernel = over(lambda a: Call(name, [a]), [dtype], 256, 8)
    same_on_both(kernel, [patterns(dtype, 256), np.zeros(256, dtype)])


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("op", ["+", "*", "/", "//", "%", "min", "max", "pow"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "uint8", "int64"])
def test_operators(dtype: str, op: str, lanes: int) -> None:
    def build(a: Expr, b: Expr) -> Expr:
        if op == "pow" and not dtypes.is_float(dtype):
            five = Const(5, dtype)
            b = Binary("%", b, Broadcast(five, lanes) if lanes > 1 else five)
        return Binary(op, a, b)

    a, b = patterns(dtype, 256), patterns(dtype, 256)[::-1].copy()
    same_on_both(over(build, [dtype, dtype], 256, lanes), [a, b, np.zeros(256, a.dtype)])


@pytest.mark.parametrize("source", dtypes.ALL)
@pytest.mark.parametrize("target", dtypes.ALL)
def test_casts(source: str, target: str) -> None:
    kernel = over(lambda a: Cast(target, a), [source], 128, 8)
    same_on_both(kernel, [patterns(source, 128), np.zeros(128, dtypes.numpy_dtype(target))])


@pytest.mark.parametrize("step", [1, -1, 2, 3, 7])
def test_predicated_vectors_and_every_kind_of_memory(step: int) -> None:
    """Masked and strided accesses, a workspace, a buffer on the stack and one in scratch."""
    n, lanes = 64, 8
    x, y, t = Buffer("x", "float32", n * 7), Buffer("y", "float32", n), Buffer("t", "float32", n)
    small, large = Buffer("small", "float32", lanes, "local"), Buffer("large", "float32", 2048, "local")
    i, j = Var("i"), Var("j")
    plain = Ramp(i * lanes, const(1), lanes)
    odd = Binary("==", Binary("%", plain, Broadcast(const(2), lanes)), Broadcast(const(1), lanes))
    apart = Ramp(i * lanes * abs(step) + (lanes * abs(step) if step < 0 else 0), const(step), lanes)
    lane = Ramp(const(0), const(1), lanes)
    parts = (
        Store(small, lane, Load(x, [apart], odd)),
        Store(large, plain, Load(small, [lane])),
        Store(t, plain, Load(x, [plain])),
        Store(t, plain, Load(large, [plain]), odd),
    )
    first = For(i, const(0), const(n // lanes), "parallel", Allocate(small, Allocate(large, Seq(parts))))
    last = For(j, const(0), const(n), "parallel", Store(y, const(n - 1) - j, Load(t, [j]) * 3.0))
    kernel = program("m", (x, y), Allocate(t, Seq((first, last))))
    same_on_both(kernel, [patterns("float32", n * 7), np.zeros(n, np.float32)])
