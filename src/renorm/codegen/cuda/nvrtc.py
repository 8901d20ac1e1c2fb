"""Cubins from CUDA C by NVRTC, NVIDIA's compiler as a library: no GPU, no driver and no nvcc is needed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from renorm.core.errors import InternalError, InvalidTarget, OutOfMemory, RenormError

_INSTALL = "pip install 'renorm[cuda]'"
_ARCH = re.compile(r"sm_(\d+)[af]?")


@dataclass(frozen=True)
class Resources:
    """What a kernel takes. registers, stack (bytes): of a thread. shared: bytes of a block. spill_stores, spill_loads:
    bytes of registers that the instructions of a thread put into memory and take back, loops counted once."""

    name: str
    registers: int
    spill_stores: int
    spill_loads: int
    shared: int
    stack: int


def assemble(source: str, arch: str) -> bytes:
    """Return the cubin of a text of CUDA C for an architecture, "sm_90". Threads may call it side by side.

    Raises InvalidTarget where there is no NVRTC or it does not know the architecture; InternalError, with what NVRTC
    says, where it does not take the text.
    """
    return _compile(source, arch)[0]


def resources(source: str, arch: str) -> tuple[Resources, ...]:
    """Return what each kernel of a text takes on an architecture, in the order of the text. Raises as `assemble`."""
    found = _read(_compile(source, arch, "--ptxas-options=-v")[1])
    return tuple(sorted(found, key=lambda kernel: source.find(f" {kernel.name}(")))


@cache
def identity() -> str:
    """Return which NVRTC is used, for keys of caches: equal where equal texts give equal cubins. "": there is none."""
    if not _is_installed():
        return ""
    try:  # looked for beside cuda-bindings first; to know it costs no loading then
        return f"nvidia-cuda-nvrtc {version('nvidia-cuda-nvrtc')}"
    except PackageNotFoundError:
        pass
    try:
        return "NVRTC {}.{}".format(*_call(_nvrtc(), "nvrtcVersion"))
    except InvalidTarget:
        return ""


def architectures() -> tuple[str, ...]:
    """Return the architectures that NVRTC makes code for: ("sm_75", "sm_80", ...). Raises InvalidTarget without one."""
    return tuple(f"sm_{number}" for number in _numbers())


@cache
def _numbers() -> tuple[int, ...]:
    return tuple(_call(_nvrtc(), "nvrtcGetSupportedArchs")[0])


def _is_installed() -> bool:
    try:
        return find_spec("cuda.bindings.nvrtc") is not None
    except ImportError:  # no package `cuda`
        return False


@cache
def _nvrtc() -> Any:
    """Return the module of cuda-bindings, once its library has been loaded."""
    try:
        nvrtc: Any = import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise InvalidTarget(
            "code for NVIDIA GPUs is made by NVRTC, which is not here", [str(error)], _INSTALL
        ) from None
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:  # bindings without a library
        facts = str(error).splitlines()[:1]
        raise InvalidTarget("code for NVIDIA GPUs is made by NVRTC, which is not here", facts, _INSTALL) from None
    return nvrtc


def _compile(source: str, arch: str, *options: str) -> tuple[bytes, str]:
    """Return the cubin and what NVRTC printed."""
    nvrtc = _nvrtc()
    known = _ARCH.fullmatch(arch)
    if not known or int(known[1]) not in _numbers():
        raise InvalidTarget(
            f"NVRTC {'.'.join(map(str, _call(nvrtc, 'nvrtcVersion')))} makes no code for {arch!r}",
            [f"known: {', '.join(architectures())}"],
            "name the GPU's architecture: target='cuda -arch=sm_90'",
        )
    given = [f"--gpu-architecture={arch}", "-std=c++17", *options]
    if "#include" in source:
        given += [f"--include-path={folder}" for folder in _headers()]
    encoded = [option.encode() for option in given]
    (program,) = _call(nvrtc, "nvrtcCreateProgram", source.encode(), b"kernels.cu", 0, [], [])
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)[0]
        (size,) = _call(nvrtc, "nvrtcGetProgramLogSize", program)
        log = bytearray(size)  # NVRTC writes to it: Python shares bytes of length 1
        _call(nvrtc, "nvrtcGetProgramLog", program, log)
        text = bytes(log).rstrip(b"\0 \n").decode(errors="replace")
        if int(status):
            raise _refused(nvrtc, status, arch, text)
        (size,) = _call(nvrtc, "nvrtcGetCUBINSize", program)
        cubin = bytearray(size)
        _call(nvrtc, "nvrtcGetCUBIN", program, cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return bytes(cubin), text


def _refused(nvrtc: Any, status: Any, arch: str, log: str) -> RenormError:
    lines = [line for line in log.splitlines() if line.strip()]
    if "open source file" in log and not _headers():
        return InvalidTarget("headers of CUDA, which kernels of float16 need, are not here", lines, _INSTALL)
    if int(status) == int(nvrtc.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY):
        return OutOfMemory("NVRTC has no memory for a text of CUDA C", lines)
    return InternalError(f"NVRTC does not take a generated text for {arch}: {status.name}", lines)


def _call(nvrtc: Any, function: str, *arguments: Any) -> tuple[Any, ...]:
    status, *values = getattr(nvrtc, function)(*arguments)
    if int(status):
        raise InternalError(f"NVRTC: {function}: {status.name}")
    return tuple(values)


@cache
def _headers() -> tuple[str, ...]:
    """Return the folders of cuda_fp16.h and what it includes: those of pip, of $CUDA_HOME, or the usual one."""
    folders = [
        os.path.join(os.environ.get(name) or "/usr/local/cuda", "include") for name in ("CUDA_HOME", "CUDA_PATH")
    ]
    find: Any = getattr(import_module("cuda.pathfinder"), "find_nvidia_header_directory", None)
    if find and (found := find("cudart")):
        folders.insert(0, found)
    return tuple(folder for folder in dict.fromkeys(folders) if os.path.isfile(os.path.join(folder, "cuda_fp16.h")))[:1]


_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def _read(log: str) -> list[Resources]:
    """Return what the assembler tells of each kernel:

    ptxas info    : Compiling entry function 'f' for 'sm_90'
    ptxas info    : Function properties for f
    ptxas         .     1024 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
    ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes cumulative stack size, 512 bytes smem
    """
    found = list[Resources]()
    _, *parts = _ENTRY.split(log)
    for name, part in zip(parts[::2], parts[1::2]):
        own = part.partition(f"Function properties for {name}\n")[2]  # beside those of functions that it calls
        frame, registers = _FRAME.search(own), _REGISTERS.search(own)
        if not frame or not registers:
            raise InternalError(f"NVRTC does not tell what {name} takes", part.splitlines())
        shared = _SHARED.search(own)
        stack, stores, loads = map(int, frame.groups())
        found.append(Resources(name, int(registers[1]), stores, loads, int(shared[1]) if shared else 0, stack))
    return found
