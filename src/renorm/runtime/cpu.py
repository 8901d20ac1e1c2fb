"""What the CPU of this machine can run, compared with what code was generated for."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from renorm.core.errors import InvalidArtifact
from renorm.core.target import host_flags
from renorm.runtime.program import Machine

# LLVM's name of a feature -> Linux's name in /proc/cpuinfo, where code generation can make use of the feature at all.
# Other features of LLVM's lists (tuning hints, system instructions) never reach a kernel.
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
    "cx16": "cx16",
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
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
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
}
FEATURES = {"x86_64": _X86_64, "aarch64": _AARCH64}


def missing_features(arch: str, features: Sequence[str]) -> list[str]:
    """Which of LLVM's `features` this CPU does not have; an empty list where the system does not tell."""
    flags = host_flags()
    names = FEATURES.get(arch, {})
    return [f for f in features if flags and f in names and names[f] not in flags]


def obstacles(machine: Machine, arch: str) -> list[str]:
    """Why this machine, an `arch`, cannot run code for `machine`, actual beside expected; an empty list when it can."""
    if sys.platform != "linux":
        return [f"this system is {sys.platform}, expected linux"]
    if machine.arch != arch:
        return [f"this machine is {arch}, expected {machine.arch}"]
    missing = missing_features(arch, machine.features)
    return [f"this CPU lacks {', '.join(missing)} of {machine.cpu or 'the CPU it was compiled for'}"] if missing else []


def require(machine: Machine, arch: str, what: str) -> None:
    """Raises InvalidArtifact, about `what`, unless this machine, an `arch`, can run code for `machine`."""
    if facts := obstacles(machine, arch):
        do = "compile the model on this machine, or with -mcpu= for the oldest CPU it must run on"
        raise InvalidArtifact(f"{what} holds code for another machine", facts, do)
