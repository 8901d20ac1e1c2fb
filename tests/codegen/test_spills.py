"""Spills read off machine code: against what LLVM marks in its assembly, on code of known instructions, and of every
form that is in the way."""

from __future__ import annotations

import platform
import struct
from functools import cache

import llvmlite.binding as binding
import numpy as np
import pytest
from tests.codegen.native import Native
from tests.codegen.spill_marks import marked_spills
from tests.codegen.test_register_tiles import LANES, product
from tests.random_numbers import RNG

from renorm.codegen.llvm import assembly, compile_kernel
from renorm.codegen.llvm.instructions import x86_64
from renorm.codegen.llvm.spills import in_hot_loops, spills
from renorm.core.target import Target
from renorm.runtime import elf
from renorm.targets import find

CPUS = [
    "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4",
    "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell",
    "llvm -mtriple=aarch64-linux-gnu",
]
FMA = "vfmadd231ps %zmm1, %zmm2, %zmm3"


@pytest.mark.parametrize("rows", [1, 6, 9, 13, 15, 18, 30])
@pytest.mark.parametrize("cpu", CPUS)
def test_code_tells_what_llvm_marks(cpu: str, rows: int) -> None:
    target = find(cpu)
    compiled = compile_kernel(product(rows, 2, 16, 2, 3), target)
    assert compiled.spills == marked_spills(assembly(compiled, target))
    vectors = rows * 2 * max(1, LANES // target.lanes(4))  # a vector of the kernel may be several of the target's
    if vectors > target.vector_registers:
        assert compiled.spills > 0
    elif vectors < target.vector_registers - 6:
        assert compiled.spills == 0


@pytest.mark.skipif(LANES < 8, reason="the tile is for vectors of AVX")
def test_a_kernel_that_spills_is_right_all_the_same() -> None:
    x, w = (RNG.integers(-4, 5, shape).astype(np.float32) for shape in ((40, 16), (16, LANES)))
    out = np.empty((40, LANES), np.float32)
    compiled = compile_kernel(product(40, 1, 16, 1, 1), Target())
    assert compiled.spills > 0
    Native(compiled)(x, w, out)
    np.testing.assert_array_equal(out, x @ w)


@cache
def assembled(text: str) -> bytes:
    """Machine code of x86-64 in AT&T syntax, by LLVM's assembler, which this process has for its own machine."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()
    lines = "\n".join(f'module asm "{line}"' for line in text.splitlines())
    module = binding.parse_assembly(lines)
    module.triple = "x86_64-linux-gnu"
    machine = binding.Target.from_triple(module.triple).create_target_machine(cpu="znver4", reloc="pic")
    (code,) = [bytes(s.data) for s in elf.read(machine.emit_object(module)).sections if s.is_code]
    return code


needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="LLVM assembles for its own machine")


def looped(*body: str, jump: str = "jne 1b") -> str:
    return "\n".join(["ret", "1:", *body, FMA, jump, "vmovups %zmm0, 64(%rsp)", "ret"])


@needs_x86
@pytest.mark.parametrize(
    ("move", "count"),
    [
        ("vmovups %zmm0, 64(%rsp)", 1),
        ("vmovaps (%rsp), %zmm17", 1),
        ("vmovups 4096(%rsp), %ymm3", 1),
        ("vmovaps %xmm9, 16(%rsp)", 1),
        ("vmovdqu 32(%rsp), %ymm12", 1),
        ("vmovdqu64 %zmm31, -128(%rsp)", 1),
        ("vmulps 64(%rsp), %zmm1, %zmm2", 1),
        ("vfmadd231ps 32(%rsp), %ymm1, %ymm14", 1),
        ("vfmadd231ps 4(%rsp){1to16}, %zmm1, %zmm14", 1),
        ("vbroadcastss 12(%rsp), %zmm20", 1),
        ("vmovups (%rsp,%rax,4), %zmm0", 0),  # a place that changes: a buffer
        ("vmovups (%r12), %zmm0", 0),  # r12 has the low bits of rsp
        ("vmovups 64(%r12), %ymm11", 0),
        ("vmovups (%rsp,%r12), %ymm1", 0),
        ("vmovups 64(%rax), %zmm0", 0),
        ("vmovups %zmm0, %zmm4", 0),
        ("movq 8(%rsp), %rax", 0),  # an address, no vector
        ("movq %rax, 64(%rsp)", 0),
    ],
)
def test_moves_of_vectors_on_the_stack(move: str, count: int) -> None:
    assert in_hot_loops(assembled(looped(move)), "x86_64") == count


# What LLVM may write between the two ends of a loop, of every way to be long
FORMS = """
addq $8, %rax|addb $4, %al|subb $4, %al|andb $3, (%rax)|orb %cl, (%rax)|orb (%rax), %cl|addl $100000, %eax
subq $100000, %rax|cmpl $100000, %eax|andl $100000, %eax|testl $100000, %eax|addw $300, %ax|movb $3, %dl
imulq $7, %rax, %rcx|shll %eax|shrl $3, %eax|roll %cl, %ecx|movq %rax, %rcx|movl (%rax), %ecx|xchgl %eax, %ecx
movb %al, (%rcx)|movb (%rcx), %al|jno .+9|bswapl %edx|shrdq $4, %rax, %rcx|vpsrlw $3, %zmm1, %zmm2
vpinsrw $1, %eax, %xmm1, %xmm2|vpextrw $1, %xmm1, %eax|addq $100000, %rax|addl %ecx, 7(%rdx)|addq (%rdx,%rcx,8), %r9
subq $-128, %rdi|cmpq $5, 64(%rsp)|cmpl $100000, 4(%rbx,%rcx,2)|cmpq %rax, %r13|movl $1, %eax
movabsq $1234567890123, %rax|movq $-1, %rcx|movl $7, 8(%rsp)|movq $100000, 8(%rax)|movb $1, (%rax)|movw $77, (%rax)
movzbl 3(%rax), %ecx|movswl %ax, %ecx|movslq %ecx, %rdx|leaq 64(%rax,%rcx,4), %rdx|leaq 4(,%rcx,8), %rdx
leaq 0(%rip), %rdx|movl 100000(%rip), %eax|imulq $100, %rax, %rcx|imulq $100000, %rax, %rcx|imulq %rax, %rcx
xorl %eax, %eax|testb $4, %al|testb $4, 5(%rax)|testl $100000, %ecx|testl $100000, 8(%rdx)|testq %rax, %rax|notq %rax
negl 8(%rax)|divq %rcx|incq %rax|decl (%rax)|shlq $4, %rax|sarq %rcx|shrq %cl, %rdx|rolw $3, %ax|btq $3, %rax
cmovneq %rax, %rcx|setne %al|bswapq %rax|shldq $3, %rax, %rcx|popcntq %rax, %rcx|tzcntq %rax, %rcx
bextrq %rax, %rcx, %rdx|shlxq %rax, %rcx, %rdx|rorxq $7, %rax, %rcx|pushq %rax|popq %rax|pushq $9|pushq $100000
callq *%rax|jmp .+40|jmp .+400|ja .+40|ja .+400|jle .+400|nop|nopw 0(%rax,%rax)|nopl 512(%rax,%rax)|cltq|cqto|pause
prefetcht0 64(%rax)|vxorps %xmm0, %xmm0, %xmm0|vbroadcastss 4(%rax,%rcx,4), %zmm0|vbroadcastss (%r9), %ymm15
vpermps 64(%rax), %zmm1, %zmm2|vshufps $27, 64(%rax), %ymm1, %ymm2|vpermilps $7, %zmm1, %zmm2
vinsertf128 $1, 16(%rax), %ymm1, %ymm2|vshuff64x2 $9, %zmm1, %zmm2, %zmm3|vextractf32x4 $3, %zmm1, 48(%rax)
vcmpps $1, %zmm1, %zmm2, %k1|vmovups (%rax), %zmm1 {%k1} {z}|vmovss 100000(%rax), %xmm1|vpinsrd $1, %eax, %xmm1, %xmm2
vpsrld $4, %zmm1, %zmm2|vpslldq $4, %ymm1, %ymm2|vpshufd $9, %ymm1, %ymm2|vroundps $8, %ymm1, %ymm2
vrndscaleps $8, %zmm1, %zmm2|vgatherdps (%rax,%zmm1,4), %zmm2 {%k1}|vcvtph2ps (%rax), %zmm1
vcvtps2ph $4, %zmm1, (%rax)|vzeroupper|kmovw %eax, %k1|kandw %k1, %k2, %k3|kshiftrw $4, %k1, %k2
vpternlogd $3, %zmm1, %zmm2, %zmm3|vmaxps 64(%rax){1to16}, %zmm1, %zmm2|vmovntps %zmm0, (%rax)
vdivps %ymm1, %ymm2, %ymm3|vblendvps %ymm1, %ymm2, %ymm3, %ymm4|vsqrtss %xmm1, %xmm2, %xmm3|sfence|mfence|rep movsb
lock addq $1, (%rax)|xchgq %rax, (%rcx)|cmpxchgq %rcx, (%rdx)|movaps 8(%rsp), %xmm1|addss %xmm1, %xmm2
"""


@needs_x86
def test_instructions_have_their_lengths() -> None:
    forms = FORMS.strip().replace("\n", "|").split("|")
    codes = [assembled(form) for form in forms]
    places = np.cumsum([0, *map(len, codes)]).tolist()
    found = [i.at for i in x86_64(b"".join(codes))]
    assert found == places[:-1], [form for form, a, b in zip(forms, found, places) if a == b][-1]


@needs_x86
@pytest.mark.parametrize(
    ("text", "count"),
    [
        (looped("vmovups (%rsp), %zmm5", jump="jmp 1b"), 1),
        (looped("vmovups (%rsp), %zmm5", ".skip 200, 0x90", jump="jb 1b"), 1),  # far: a jump of four bytes
        (looped("vmovups (%rsp), %zmm5", jump="jne 2f\n2:"), 0),  # forward: no loop
        (f"1:\nvmovups (%rsp), %zmm5\n2:\n{FMA}\njne 2b\njb 1b\nret", 0),  # outside of the innermost
        (f"1:\n{FMA}\n2:\nvmovups (%rsp), %zmm5\n{FMA}\njne 2b\njb 1b\nret", 1),
        ("1:\nvmovups (%rsp), %zmm5\nvaddps %zmm1, %zmm2, %zmm3\njne 1b\nret", 0),  # nothing is multiplied
        ("1:\nvfmadd213ps 64(%rsp), %zmm1, %zmm2\njne 1b\nret", 1),
    ],
)
def test_loops(text: str, count: int) -> None:
    assert in_hot_loops(assembled(text), "x86_64") == count


FMLA, BACK = 0x4E23CC41, 0x54FFFFC1  # fmla v1.4s, v2.4s, v3.4s; b.ne two instructions back


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ([0x3DC007E0, FMLA, BACK], 1),  # ldr q0, [sp, #16]
        ([0x3D8003E0, FMLA, BACK], 1),  # str q0, [sp]
        ([0xAD4107E0, FMLA, BACK], 1),  # ldp q0, q1, [sp, #32]
        ([0x3CDF03E1, FMLA, BACK], 1),  # ldur q1, [sp, #-16]
        ([0xBD4013E0, FMLA, BACK], 1),  # ldr s0, [sp, #16]
        ([0x3DC00400, FMLA, BACK], 0),  # ldr q0, [x0, #16]
        ([0xF94003E0, FMLA, BACK], 0),  # ldr x0, [sp]: an address
        ([0x3CE16BE0, FMLA, BACK], 0),  # ldr q0, [sp, x1]: a place that changes
        ([0x3DC007E0, 0x4F831041, BACK], 1),  # fmla v1.4s, v2.4s, v3.s[0]
        ([0x3DC007E0, 0x1F030041, BACK], 1),  # fmadd s1, s2, s3, s0
        ([0x3DC007E0, 0x4E23D441, BACK], 0),  # fadd
        ([0x3DC007E0, FMLA, 0xB5FFFFC0], 1),  # cbnz x0
        ([0x3DC007E0, FMLA, 0x37FFFFC0], 1),  # tbnz w0, #31
        ([0x3DC007E0, FMLA, 0x17FFFFFE], 1),  # b
        ([0x3DC007E0, FMLA, 0x54000041], 0),  # b.ne forward
        ([FMLA, 0x3DC007E0, 0x54FFFFE1], 0),  # b.ne one instruction back: the product is outside
    ],
)
def test_aarch64(words: list[int], count: int) -> None:
    assert in_hot_loops(struct.pack(f"<{len(words)}I", *words), "aarch64") == count


def test_an_object_is_read() -> None:
    compiled = compile_kernel(product(4, 1, 8, 1, 1), Target())
    assert spills(compiled.object) == compiled.spills == 0
