"""Devices as programs of TVM name them: `cpu(0)`. Arrays lie, and code runs, on CPUs; other devices can be named, and
asked whether they are there.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        """Return whether code can be run on it."""
        return self.kind == "cpu" and self.index == 0

    def sync(self) -> None:
        """Wait until all that runs on it has ended: calls return only then."""

    def require(self) -> None:
        """Raise InvalidTarget where nothing can be run on it."""
        if not self.exist:
            raise InvalidTarget(f"there are no arrays on {self}: renorm runs code on CPUs", do="use cpu(0)")

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
    """A GPU, on which nothing can be run yet: `cuda(0).exist` is false."""
    return device("cuda", dev_id)


gpu = cuda
