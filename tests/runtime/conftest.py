"""Programs built by hand: phases written as LLVM text, as the contract of codegen.abi has them."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm
import numpy as np
import pytest

from renorm.codegen.llvm.walk import compile_walker
from renorm.core.dims import Sym, symbols_of
from renorm.core.target import Target
from renorm.runtime import Argument, Code, Machine, Module, Program, Step, TensorSpec
from renorm.runtime.program import Above, Buffer, align

TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


@cache
def _assemble(text: str, arch: str = "x86_64") -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(TRIPLES[arch]).create_target_machine(opt=2, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(f'target triple = "{TRIPLES[arch]}"\n{text}')
    module.verify()
    return machine.emit_object(module)


def _phase(index: int, pointers: int, body: str, declarations: str = "") -> str:
    """A phase that runs `body` for each %i in [lo, hi); %p0, %p1, ... are its arguments."""
    loads = "\n".join(
        f"  %a{k} = getelementptr ptr, ptr %args, i64 {k}\n  %p{k} = load ptr, ptr %a{k}" for k in range(pointers)
    )
    return f"""
{declarations}
define void @phase{index}(ptr %args, i64 %lo, i64 %hi, i64 %thread) {{
entry:
{loads}
  %some = icmp ult i64 %lo, %hi
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ %lo, %entry ], [ %i.next, %latch ]
  {body}
  br label %latch
latch:
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


# y[i] = x[n - 1 - i] + 1: each thread reads what others wrote, so a missing barrier shows
def _mirror(n: int) -> str:
    body = f"""
  %j = sub i64 {n - 1}, %i
  %x = getelementptr float, ptr %p0, i64 %j
  %v = load float, ptr %x
  %w = fadd float %v, 1.0
  %y = getelementptr float, ptr %p1, i64 %i
  store float %w, ptr %y"""
    return _phase(0, 2, body)


# constants that lie in .rodata, a jump table (.rodata refers to .text), and calls between functions
TABLE = """
@table = internal constant [5 x i64] [i64 11, i64 22, i64 33, i64 44, i64 55], align 16
@vector = internal constant [4 x float] [float 1.5, float 2.5, float 3.5, float 4.5], align 64

define internal i64 @pick(i64 %k) noinline {
  %at = getelementptr i64, ptr @table, i64 %k
  %v = load i64, ptr %at
  ret i64 %v
}
define i64 @twice(i64 %k) noinline {
  %v = call i64 @pick(i64 %k)
  %w = add i64 %v, %v
  ret i64 %w
}
define i64 @fourfold(i64 %k) {
  %v = call i64 @twice(i64 %k)
  %w = add i64 %v, %v
  ret i64 %w
}
define float @lane(i64 %k) {
  %at = getelementptr float, ptr @vector, i64 %k
  %v = load float, ptr %at
  ret float %v
}
define ptr @where() {
  ret ptr @vector
}
define i64 @choose(i64 %k, ptr %out) {
  switch i64 %k, label %none [ i64 0, label %a i64 1, label %b i64 2, label %c i64 3, label %d i64 4, label %e ]
a:
  store i64 7, ptr %out
  ret i64 100
b:
  store i8 6, ptr %out
  ret i64 201
c:
  store i32 5, ptr %out
  ret i64 302
d:
  store i16 4, ptr %out
  ret i64 403
e:
  store i64 3, ptr %out
  ret i64 -504
none:
  ret i64 -1
}
"""


@pytest.fixture
def table_text() -> str:
    """LLVM text with constants, a jump table, and calls between functions."""
    return TABLE


@pytest.fixture
def mirror_text():
    """Extent -> text of the phase of `mirrors`."""
    return _mirror


@pytest.fixture
def assemble():
    """LLVM text -> ELF object, for an architecture."""
    return _assemble


@pytest.fixture
def phase():
    """(index, number of pointers, body) -> text of a phase."""
    return _phase


@pytest.fixture
def walker() -> bytes:
    return compile_walker(Target())


@pytest.fixture
def build(walker):
    """(codes as (text, extents, scratch), steps as (code, args), inputs, outputs) -> Module."""

    def build(codes, steps, inputs, outputs, arena_bytes=0, weights=b"", threads=1, **fields):
        program = Program(
            Machine("x86_64"),
            tuple(TensorSpec(*s) for s in inputs),
            tuple(TensorSpec(*s) for s in outputs),
            tuple(Code(i, *rest) for i, (_, *rest) in enumerate(codes)),
            tuple(Step(f"kernel_{i}", code, tuple(Argument(*a) for a in args)) for i, (code, args) in enumerate(steps)),
            arena_bytes=arena_bytes,
            weight_bytes=len(weights),
            **fields,
        )
        return Module(program, [_assemble(c[0]) for c in codes], weights, walker, threads)

    return build


@pytest.fixture
def mirrors(build):
    """(n, length, threads) -> Module that mirrors n float32 and adds one, `length` times."""

    def mirrors(n=1000, length=10, threads=1, chunk=0, **fields):
        room = align(4 * n)
        buffers = [("input", 0), *(("arena", room * (i % 2)) for i in range(length - 1)), ("output", 0)]
        code = (_mirror(n), (n,), 0, (chunk,))
        steps = [(0, [buffers[i], buffers[i + 1]]) for i in range(length)]
        return build(
            [code], steps, [("x", "float32", (n,))], [("y", "float32", (n,))], 2 * room, threads=threads, **fields
        )

    return mirrors


@pytest.fixture
def mirrored():
    """What `mirrors` computes, by NumPy."""

    def mirrored(x: np.ndarray, length: int = 10) -> np.ndarray:
        for _ in range(length):
            x = x[::-1] + np.float32(1)
        return x

    return mirrored


N = Sym("n")
# the same, of any extent: n is the third argument
OPEN_MIRROR = """
  %n = ptrtoint ptr %p2 to i64
  %last = sub i64 %n, 1
  %j = sub i64 %last, %i
  %x = getelementptr float, ptr %p0, i64 %j
  %v = load float, ptr %x
  %w = fadd float %v, 1.0
  %y = getelementptr float, ptr %p1, i64 %i
  store float %w, ptr %y"""


@pytest.fixture
def open_program():
    """(length, cost of an iteration in ns, extent, typical value of its symbol) -> Program that mirrors so many float32
    and adds one, `length` times, and its object."""

    def open_program(length=10, cost=1.0, n=N, typical=100, **fields):
        buffers = [Argument("input", 0), *(Argument("buffer", i % 2) for i in range(length - 1)), Argument("output", 0)]
        program = Program(
            Machine("x86_64"),
            (TensorSpec("x", "float32", (n,)),),
            (TensorSpec("y", "float32", (n,)),),
            (Code(0, (n,), costs=(cost,)),),
            tuple(Step(f"kernel_{i}", 0, (*buffers[i : i + 2], Argument("extent", n))) for i in range(length)),
            name="mirrors",
            typical=dict.fromkeys(map(str, symbols_of(n)), typical),
            buffers=(Buffer(4 * n), Buffer(4 * n, (Above(0, 4 * n),))),
            **fields,
        )
        return program, _assemble(_phase(0, 3, OPEN_MIRROR))

    return open_program


@pytest.fixture
def open_mirrors(open_program, walker):
    """The module of `open_program`."""

    def open_mirrors(*args, threads=1, **fields):
        program, made = open_program(*args, **fields)
        return Module(program, [made], b"", walker, threads)

    return open_mirrors
