"""Targets, objects and keys: what is emitted stands alone, other CPUs are honoured, equal kernels have equal code."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from tests.codegen.native import program

from renorm.codegen.llvm import assembly, compile_kernel, machine, structure
from renorm.core.dtypes import STORED
from renorm.core.errors import InternalError, InvalidLoops, InvalidTarget
from renorm.core.target import Target
from renorm.expr.nodes import (
    BITCAST,
    INTRINSICS,
    OF_BITS,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Ramp,
    Var,
    cast,
    const,
    maximum,
)
from renorm.runtime import elf
from renorm.targets import find
from renorm.tir.nodes import Barrier, Buffer, For, Kernel, Seq, Store

TARGETS = [
    "llvm",
    "llvm -mcpu=haswell",
    "llvm -mcpu=znver4",
    "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3",
    "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1",
    "llvm -mtriple=aarch64-linux-gnu",
]


def double(name: str = "double", buffer: str = "x", factor: float = 2.0, n: int = 64, kind: str = "parallel") -> Kernel:
    x, y, i = Buffer(buffer, "float32", n), Buffer("y", "float32", n), Var("i")
    body = Store(y, i, Load(x, [i]) * factor)
    return program(name, (x, y), For(i, const(0), const(n), kind, body))


def everything(dtype: str, lanes: int) -> Kernel:
    """Uses every intrinsic and every conversion."""
    x, i = Buffer("x", dtype, 4096), Var("i")
    index: Expr = Ramp(i * lanes, const(1), lanes) if lanes > 1 else i
    a = Load(x, [index])
    stores: list[Store] = []
    params = [x]
    for name, arity in INTRINSICS.items():
        if name == "if_then_else" or name in OF_BITS or (name == "bitcast" and dtype not in BITCAST):
            continue
        value = Call(name, [a] * arity)
        params.append(Buffer(name, value.dtype, 4096))
        stores.append(Store(params[-1], index, value))
    for op in ("+", "-", "*", "/", "//", "%", "min", "max", "pow"):
        params.append(Buffer(f"op{len(params)}", dtype, 4096))
        stores.append(Store(params[-1], index, Binary(op, a, a)))
    for other in ("float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "uint64", "bool", *STORED):
        params.append(Buffer(f"cast_{other}", other, 4096))
        stores.append(Store(params[-1], index, cast(other, a)))
        params.append(Buffer(f"back_{other}", dtype, 4096))
        stores.append(Store(params[-1], index, Cast(dtype, Load(params[-2], [index]))))
    return program("everything", tuple(params), For(i, const(0), const(8), "parallel", Seq(tuple(stores))))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 1), ("float32", 16), ("float64", 4), ("float16", 8)])
def test_objects_need_nothing_else(target: str, dtype: str, lanes: int) -> None:
    compiled = compile_kernel(everything(dtype, lanes), find(target))  # checks the object itself
    read = elf.read(compiled.object)  # refuses writable data
    assert read.undefined == ()
    assert read.arch == ("aarch64" if "aarch64" in target else "x86_64")


def test_the_check_of_objects_sees_a_missing_symbol() -> None:
    call = "  %y = call float @expf(float %x)\n  ret float %y\n"
    text = f"declare float @expf(float)\ndefine float @phase0(float %x) {{\n{call}}}"
    with pytest.raises(InternalError, match=r"kernel broken: .*undefined symbol expf"):
        machine.emit_object(text, Target(), "broken")
    counter = "@count = global i32 0\ndefine void @phase0() {\n  store i32 1, ptr @count\n  ret void\n}"
    with pytest.raises(InternalError, match=r"kernel broken[^$]*section \.bss is writable data"):
        machine.emit_object(counter, Target(), "broken")


def test_rejected_ir_names_the_kernel_and_shows_the_ir() -> None:
    with pytest.raises(InternalError, match="kernel broken: LLVM rejects") as error:
        machine.emit_object("define void @phase0() {\n  ret i32 0\n}", Target(), "broken")
    assert "ret i32 0" in str(error.value)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("llvm -mcpu=foo", "does not know the processor foo"),
        ("llvm -mattr=+bar", "does not know the feature"),
        ("llvm -mtriple=riscv64-linux-gnu", "no code generator for riscv64"),
        ("llvm -mtriple=nonsense", "no code generator for nonsense"),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=haswell", "does not know the processor haswell"),
        ("llvm -mcpu=x86-64-v2", "the CPU x86-64-v2 has no AVX2, FMA, F16C"),
        ("llvm -mcpu=haswell -mattr=-fma", "the CPU haswell has no FMA"),
        ("cuda", "the kind llvm only"),
    ],
)
def test_a_target_without_code_generator_is_refused(
    target: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidTarget, match=message):
        compile_kernel(double(), find(target))
    assert "not a recognized" not in capfd.readouterr().err


def test_cpus_are_honoured() -> None:
    lanes = 16
    x, y, i = Buffer("x", "float32", 64), Buffer("y", "float32", 64), Var("i")
    index = Ramp(i * lanes, const(1), lanes)
    body = Store(y, index, Load(x, [index]) * Broadcast(Const(2.0, "float32"), lanes))
    kernel = program("wide", (x, y), For(i, const(0), const(4), "serial", body))

    def text(target: str) -> str:
        return assembly(compile_kernel(kernel, find(target)), find(target))

    assert "zmm" in text("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4")
    haswell = text("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell")
    assert "ymm" in haswell
    assert "zmm" not in haswell
    assert "fadd\tv" in text("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")


def test_the_maximum_with_a_constant_is_one_instruction() -> None:
    x, y, i = Buffer("x", "float32", 64), Buffer("y", "float32", 64), Var("i")
    kernel = program("relu", (x, y), For(i, const(0), const(64), "serial", Store(y, i, maximum(Load(x, [i]), 0.0))))
    target = find("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4")
    text = assembly(compile_kernel(kernel, target), target)
    assert "vmaxss" in text
    assert "cmpunord" not in text


@pytest.mark.parametrize("cpu", ["haswell", "znver4"])
def test_a_chain_of_maxima_waits_for_one_of_them_and_one_more_instruction(cpu: str) -> None:
    """Ask whether the other operand is a number off the chain: no select, no second comparison."""
    x, y, i = Buffer("x", "float32", 64), Buffer("y", "float32", 8), Var("i")
    most, here = Ramp(const(0), const(1), 8), Ramp(i * 8, const(1), 8)
    body = Store(y, most, maximum(Load(y, [most]), Load(x, [here])))
    kernel = program("most", (x, y), For(i, const(0), const(8), "serial", body))
    target = find(f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu}")
    text = assembly(compile_kernel(kernel, target), target)
    assert text.count("vmaxps") == text.count("vcmpunordps") > 0
    assert "blend" not in text
    assert "vcmplt" not in text


def test_equal_kernels_have_equal_keys_and_objects() -> None:
    a, b = double("a", "left"), double("b", "right")
    assert structure(a, Target()) == structure(b, Target())
    assert compile_kernel(a, Target()).object == compile_kernel(b, Target()).object
    others = [double(factor=3.0), double(factor=-0.0), double(factor=0.0), double(n=65), double(kind="serial")]
    keys = {structure(k, Target()) for k in [a, *others]}
    assert len(keys) == 1 + len(others)
    assert structure(a, Target()) != structure(a, find("llvm -mtriple=aarch64-linux-gnu"))


def _compile_double(target: Target) -> tuple[bytes, str]:
    return compile_kernel(double(), target).object, structure(double(), target)


def test_worker_processes_give_the_same_objects_and_keys() -> None:
    here = _compile_double(Target())
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(_compile_double, Target()).result() == here
    compiled = compile_kernel(double(), Target())
    assert pickle.loads(pickle.dumps(compiled)) == compiled


def test_what_a_cpu_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidLoops, match="bound to threadIdx"):
        compile_kernel(double(kind="threadIdx.x"), Target())
    kernel = double()
    with pytest.raises(InvalidLoops, match="barrier"):
        compile_kernel(program("b", kernel.params, Seq((kernel.body, Barrier()))), Target())


@pytest.mark.parametrize("cpu", ["ampere1b", "oryon-1"])
def test_timings_that_llvm_lacks_do_not_end_the_process(cpu: str) -> None:
    """A convolution in blocks loads one element into four registers, for which LLVM aborts on these CPUs."""
    script = f"""
from tests.stress.cpus import _network
import renorm
renorm.compile(_network(), target="llvm -mtriple=aarch64-linux-gnu -mcpu={cpu}", threads=1)
"""
    environment = {**os.environ, "RENORM_CACHE": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    has = find(f"llvm -mtriple=aarch64-linux-gnu -mcpu={cpu}").has
    assert has is not None  # its own features, not those of the CPU whose timings count
    assert has >= {"fullfp16", "dotprod"}
