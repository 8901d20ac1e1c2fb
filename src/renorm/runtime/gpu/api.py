"""The driver's C interface, through cuda-bindings: loaded when it is first called, and each return code looked at."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Any

from renorm.core.errors import InternalError, InvalidArtifact, InvalidTarget, OutOfMemory, RenormError

OUT_OF_MEMORY, NOT_READY, INVALID_DEVICE = 2, 600, 101
_NOT_INITIALIZED = 3  # what cuInit says in a child by fork of a process that called it
# the image is damaged; nothing in it is for this GPU; of a newer toolkit than the driver; its source is damaged
_NOT_LOADED = (200, 209, 218, 222, 300)
# from these on every call in the process gives the same: memory, instructions, an assertion, a time limit, the launch
_LOST = (700, 702, 710, *range(714, 720))
_BROKEN = (46, 214, 220, 226)  # no fault of code: the GPU is unavailable, memory or a link has errors

LESS = "run fewer inputs at a time, drop other modules, or end other processes on this GPU (`nvidia-smi` lists them)"
_SPAWN = "start processes by multiprocessing.get_context('spawn'), or use a GPU only after the fork"

_started_in = 0  # the process that called cuInit; CUDA cannot be used in a child by fork of it


@cache
def bindings() -> Any:
    """Return cuda.bindings.driver. Raises InvalidTarget where it is not installed."""
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise InvalidTarget(
            "no NVIDIA GPU can be used: cuda-bindings is not installed",
            [str(error)],
            "pip install 'renorm[cuda]'",
        ) from None


def start() -> None:
    """Initialise the driver, once in a process. Raises InvalidTarget where there is none, or in a child of fork."""
    global _started_in
    if not _started_in:
        call("cuInit", 0)
        _started_in = os.getpid()
    require_own_process()


def require_own_process() -> None:
    """Raise InvalidTarget in a child by fork of a process that used CUDA: calls of the driver would fail or hang."""
    if not is_own_process():
        raise InvalidTarget(
            "CUDA cannot be used in this process: its parent used CUDA before os.fork",
            [f"process {os.getpid()}, CUDA was started in {_started_in}"],
            _SPAWN,
        )


def is_own_process() -> bool:
    """Return whether this process may call the driver: False in a child by fork of one that did."""
    return _started_in in (0, os.getpid())


def code(function: str, *arguments: Any) -> tuple[int, tuple[Any, ...]]:
    """Call a function, and return its CUresult as a number and what else it gives; for calls that are asked whether.

    Raises InvalidTarget where there is no driver, or it does not have the function.
    """
    api = bindings()
    try:
        error, *values = getattr(api, function)(*arguments)
    except RuntimeError as missing:  # cuda-bindings finds neither the library nor the function in it
        raise InvalidTarget(
            "no NVIDIA GPU can be used: NVIDIA's driver is not installed, or is too old",
            [f"{function}: {line}" for line in str(missing).splitlines()[:1]],
            "install NVIDIA's driver for CUDA 13 (580 or later); in a container: docker run --gpus all",
        ) from None
    return int(error), tuple(values)


def call(function: str, *arguments: Any) -> Any:
    """Call a function, and return what it gives: None, a value, or a tuple of them. Raises what its CUresult means."""
    error, values = code(function, *arguments)
    if error:
        raise failure(function, error)
    return values[0] if len(values) == 1 else values or None


def failure(function: str, error: int) -> RenormError:
    """Return the error for a CUresult other than 0: InvalidTarget for no GPU or an unfit driver, OutOfMemory,
    InvalidArtifact for code of another GPU, RenormError for a broken GPU, InternalError for all else."""
    name = _name(error)
    facts = [f"{function}: {_meaning(error)}"]
    if function == "cuInit" and error == _NOT_INITIALIZED:
        return InvalidTarget("CUDA cannot be used in this process: its parent used CUDA before os.fork", facts, _SPAWN)
    if function == "cuInit" or error == INVALID_DEVICE:
        return InvalidTarget(
            f"no NVIDIA GPU can be used: {name}", facts, "see what `nvidia-smi` says, and CUDA_VISIBLE_DEVICES"
        )
    if error == OUT_OF_MEMORY:
        return OutOfMemory(f"memory of the GPU: {name}", [*facts, *memory()], LESS)
    if error in _NOT_LOADED:
        return InvalidArtifact(
            f"the code cannot be loaded on this GPU: {name}",
            [*facts, *_driver_version()],
            "compile for the architecture of this GPU (-arch=...), with an NVRTC no newer than its driver",
        )
    if error in _BROKEN:
        return RenormError(f"the GPU failed: {name}", facts, "see what `nvidia-smi -q` and the system's log say of it")
    if error in _LOST:
        return InternalError(
            f"code on the GPU failed: {name}",
            [*facts, "raised where the driver told of it; the fault is in something begun before"],
            "start a new process, in this one CUDA is lost; `compute-sanitizer python ...` names the kernel",
        )
    return InternalError(f"the driver refused a call: {name}", facts)


def memory() -> list[str]:
    """Return a line with the bytes that are free on the current device, or none where the driver does not say."""
    error, values = code("cuMemGetInfo")
    return [] if error else [f"free: {int(values[0]):,} of {int(values[1]):,} bytes"]


def driver_version() -> str:
    """Return the version of CUDA that the driver runs: "13.0"."""
    return _version(call("cuDriverGetVersion"))


def _driver_version() -> list[str]:
    error, values = code("cuDriverGetVersion")
    return [] if error else [f"the driver runs CUDA {_version(values[0])}"]


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _name(error: int) -> str:
    try:
        return bindings().CUresult(error).name
    except ValueError:  # newer than the bindings
        return f"CUresult {error}"


def _meaning(error: int) -> str:
    api = bindings()
    try:
        status, text = api.cuGetErrorString(api.CUresult(error))
    except (ValueError, RuntimeError):
        return f"CUresult {error}"
    return f"CUresult {error}" if int(status) or not text else text.decode()
