"""Devices as programs of TVM name them: `cpu(0)`. Arrays of `nd` lie on CPUs; `cuda(0)` can be asked whether it is
there, and waited for; others can be named.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from renorm.core.errors import InvalidTarget, suggest

# kind of device -> other names that programs and targets have for it
KINDS = {"cpu": ("llvm",), "cuda": ("gpu", "nvptx"), "opencl": ("cl",), "vulkan": (), "metal": (), "rocm": ()}


@dataclass(frozen=True)
class Device:
    """kind: a name of KINDS. index: which one of that kind."""

    kind: str
    index: int = 0

    @property
    def exist(self) -> bool:
        """Return whether code can be run on it: the first CPU, a GPU of NVIDIA with its driver and cuda-bindings."""
        if self.kind == "cuda":
            return _has_driver() and self.index < _count()
        return self.kind == "cpu" and self.index == 0

    def sync(self) -> None:
        """Wait until all that this process has begun on it has ended: on CPUs calls return only then."""
        if self.kind == "cuda" and self.exist:
            _driver().device(self.index).synchronize()

    def require(self) -> None:
        """Raise InvalidTarget where no arrays can lie on it."""
        if self.kind != "cpu" or self.index:
            raise InvalidTarget(f"there are no arrays on {self}: they lie on CPUs", do="use cpu(0)")

    def __str__(self) -> str:
        return f"{self.kind}({self.index})"

    __repr__ = __str__


def device(dev_type: str, dev_id: int = 0) -> Device:
    """The device of a kind, or that a target runs on: "cpu", "llvm -mcpu=haswell", "cuda". Raises InvalidTarget."""
    name = dev_type.split()[0] if isinstance(dev_type, str) and dev_type.strip() else dev_type
    for kind, others in KINDS.items() if isinstance(name, str) else ():
        if name == kind or name in others:
            if isinstance(dev_id, bool) or not isinstance(dev_id, int) or dev_id < 0:
                raise InvalidTarget(f"{dev_id!r} is not the number of a device", ["expected an int from 0 up"])
            return Device(kind, dev_id)
    raise InvalidTarget(f"{dev_type!r} is not a kind of device", [f"known: {suggest(str(name), KINDS)}"])


context = device


def cpu(dev_id: int = 0) -> Device:
    """The CPU."""
    return device("cpu", dev_id)


def cuda(dev_id: int = 0) -> Device:
    """Return a GPU of NVIDIA, as CUDA_VISIBLE_DEVICES numbers them; `cuda(0).exist` says whether it is there."""
    return device("cuda", dev_id)


gpu = cuda


def _has_driver() -> bool:
    """Return whether NVIDIA's driver has its library here, before anything large is imported to ask it."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _count() -> int:
    try:
        return _driver().count()
    except InvalidTarget:
        return 0


def _driver() -> Any:
    return import_module("renorm.runtime.gpu.driver")
