"""Features of CPUs that code may use: LLVM's name of each, and Linux's in /proc/cpuinfo.

Code is generated for these and no others, so that every requirement of an artifact can be asked for where it is loaded.
Linux tells what a program may use: it leaves out AVX-512 where it does not save those registers. A program must ask it
for the registers of AMX at run time (core.matrix_registers). Not among them, on purpose: what only systems use.

Sources: LLVM's `-mattr=help`; arch/x86/include/asm/cpufeatures.h and Documentation/arch/arm64/elf_hwcaps.rst of Linux.
"""

from __future__ import annotations

_X86_64 = {
    name: name
    for name in (
        "cmov", "mmx", "sse", "sse2", "ssse3", "sse4a", "popcnt", "aes", "avx", "f16c", "fma", "avx2", "bmi2", "movbe",
        "adx", "gfni", "vaes", "vpclmulqdq", "avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl", "avx512ifma",
        "avx512vbmi", "xop", "fma4", "tbm",
    )
} | {
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "pclmul": "pclmulqdq",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "sha": "sha_ni",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vp2intersect": "avx512_vp2intersect",
    "avxvnni": "avx_vnni",
    "avxifma": "avx_ifma",
    "avxneconvert": "avx_ne_convert",
    "avxvnniint8": "avx_vnni_int8",
    "avxvnniint16": "avx_vnni_int16",
    "amx-tile": "amx_tile",
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
    "crc32": "sse4_2",
    "prfchw": "3dnowprefetch",
}  # fmt: skip
_AARCH64 = {name: name for name in ("aes", "sha2", "sha3", "bf16", "i8mm", "sve", "sve2")} | {
    "neon": "asimd",
    "fp-armv8": "fp",
    "crc": "crc32",
    "lse": "atomics",
    "rdm": "asimdrdm",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "fp16fml": "asimdfhm",
    "rcpc": "lrcpc",
    "jsconv": "jscvt",
    "complxnum": "fcma",
    "flagm": "flagm",
    "altnzcv": "flagm2",
    "fptoint": "frint",
    "rcpc-immo": "ilrcpc",
    "lse2": "uscat",
    "cssc": "cssc",
    "f32mm": "svef32mm",
    "f64mm": "svef64mm",
}
FEATURES = {"x86_64": _X86_64, "aarch64": _AARCH64}
MATRIX = frozenset({"amx-tile", "amx-bf16", "amx-int8"})
"""By LLVM's names: the matrix instructions that kernels use; a CPU that lacks one of them does without all."""
NEEDED = {"x86_64": ("avx2", "fma", "f16c"), "aarch64": ("neon",)}
"""By LLVM's names: what kernels rely on."""
