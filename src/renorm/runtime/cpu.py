"""What the CPU of this machine can run, compared with what code was generated for."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from renorm.core.errors import InvalidArtifact
from renorm.core.target import host_flags
from renorm.runtime.program import Machine

# LLVM's name of a feature -> Linux's name in /proc/cpuinfo: arch/x86/include/asm/cpufeatures.h, and
# Documentation/arch/arm64/elf_hwcaps.rst. Linux tells what a program may use: it clears the names of AVX-512 where it
# does not save those registers. Code is generated for these features and no others, so that every requirement can be
# asked for. Not among them, on purpose: AMX, which a program must ask the system for at run time, and what only systems
# and intrinsics use.
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


def missing_features(arch: str, features: Sequence[str]) -> list[str]:
    """Which of LLVM's `features` this CPU does not have, or nothing tells that it has them."""
    flags, names = host_flags(), FEATURES.get(arch, {})
    return [f for f in features if names.get(f) not in flags]


def obstacles(machine: Machine, arch: str) -> list[str]:
    """Why this machine, an `arch`, cannot run code for `machine`, actual beside expected; an empty list when it can."""
    if sys.platform != "linux":
        return [f"this system is {sys.platform}, expected linux"]
    if machine.arch != arch:
        return [f"this machine is {arch}, expected {machine.arch}"]
    of = machine.cpu or "the CPU it was compiled for"
    if machine.features and not host_flags():
        return [f"/proc/cpuinfo does not tell what this CPU has, expected {', '.join(machine.features)} of {of}"]
    missing = missing_features(arch, machine.features)
    unknown = [f for f in missing if f not in FEATURES.get(arch, {})]
    lacking = [f for f in missing if f not in unknown]
    facts = [f"this CPU lacks {', '.join(lacking)} of {of}"] if lacking else []
    return facts + ([f"nothing tells whether this CPU has {', '.join(unknown)} of {of}"] if unknown else [])


def require(machine: Machine, arch: str, what: str) -> None:
    """Raises InvalidArtifact, about `what`, unless this machine, an `arch`, can run code for `machine`."""
    if facts := obstacles(machine, arch):
        do = "compile the model on this machine, or with -mcpu= for the oldest CPU it must run on"
        raise InvalidArtifact(f"{what} holds code for another machine", facts, do)
