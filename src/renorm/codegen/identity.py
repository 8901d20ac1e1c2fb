"""The identity of a target's code: what it depends on besides its loops, told without loading LLVM."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.util import find_spec

from renorm.codegen.cuda import assemblers
from renorm.core.host import host_cpu
from renorm.core.target import Target


def identity(target: Target) -> tuple[str, ...]:
    """Equal where LLVM, or what makes code for GPUs, would make equal code of equal loops."""
    if target.is_gpu:
        return target.kind, target.arch, assemblers.identity(target.arch)
    stated = (target.kind, target.triple, target.cpu, ",".join(target.features), str(target.vector_bytes))
    host = "" if target.triple else f"{sys.platform} {target.machine}"
    return (*stated, host, _cpu() if target.is_host else "", _llvm())


def _cpu() -> str:
    """Return what LLVM learns of this machine's CPU: the system says the same, or else LLVM is asked."""
    if found := host_cpu():
        return found
    from renorm.codegen.llvm import machine

    return machine.host()


@cache
def _llvm() -> str:
    """Return which llvmlite is installed: size and time of its libraries and modules, which no two builds share."""
    found = find_spec("llvmlite")
    folders = (
        [] if found is None else [f for at in found.submodule_search_locations or () for f in (at, f"{at}/binding")]
    )
    files = [e for f in folders if os.path.isdir(f) for e in os.scandir(f) if e.is_file()]
    return " ".join(sorted(f"{e.name}:{e.stat().st_size}:{e.stat().st_mtime_ns}" for e in files))
