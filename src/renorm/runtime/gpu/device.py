"""What a module needs of a device that runs its launches: memory, code, and a graph of launches.

`driver.py` is an NVIDIA GPU. Any other device is made known by `register`: tests run CUDA C on the CPU so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from renorm.core.errors import RenormError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Call:
    """A launch with its arguments. function: what Device.function gave. grid, block: extents x, y, z. args: addresses
    in the memory of the device, one for each parameter. shared: bytes of shared memory that it asks for."""

    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[int, ...]
    shared: int = 0


class Graph(Protocol):
    """Launches one after the other; each sees what those before it wrote."""

    def update(self, index: int, args: Sequence[int]) -> None:
        """Give launch `index` other arguments, for runs that begin from now on."""
        ...

    def launch(self, stream: int) -> None:
        """Begin a run on a stream, and return."""
        ...

    def close(self) -> None:
        """Give back what it holds on the device."""
        ...


class Device(Protocol):
    """A device. Streams are handles of the driver (0: the device's own for this module, never the legacy default one).
    Addresses are bytes in its memory, aligned to 256 where `allocate` gives them."""

    name: str
    arch: str
    stream: int  # the handle of its own stream

    def load(self, code: bytes) -> Any:
        """Return a library of functions. Raises InvalidArtifact where the code is for another device."""
        ...

    def function(self, library: Any, name: str) -> Any:
        """Return a function of a library, for Call.function."""
        ...

    def allocate(self, nbytes: int) -> int:
        """Return the address of fresh memory. Raises OutOfMemory that tells what is free."""
        ...

    def free(self, address: int) -> None:
        """Give memory back, and never raise."""
        ...

    def write(self, address: int, array: Array, stream: int) -> None:
        """Copy a C-contiguous array of the host to the device, in the stream's order; it may change afterwards."""
        ...

    def read(self, array: Array, address: int, stream: int) -> None:
        """Copy memory of the device to a C-contiguous array of the host. It is there after `wait`."""
        ...

    def copy(self, to: int, address: int, nbytes: int, stream: int) -> None:
        """Copy within the memory of the device, in the stream's order."""
        ...

    def graph(self, calls: Sequence[Call]) -> Graph:
        """Return launches that are begun together."""
        ...

    def mark(self, mark: Any, stream: int) -> Any:
        """Note how far a stream has been filled; return the note. mark: an older one, which is used again; or None."""
        ...

    def after(self, mark: Any, stream: int) -> None:
        """Have what a stream is given from now on wait for what came before a mark."""
        ...

    def wait(self, stream: int) -> None:
        """Wait for all that a stream was given. Raises what it ran into."""
        ...


_OTHERS: dict[str, Callable[[int], Device]] = {}


def register(arch: str, make: Callable[[int], Device]) -> None:
    """Make known what runs code of an architecture that is no NVIDIA GPU."""
    _OTHERS[arch] = make


def device(arch: str, index: int = 0) -> Device:
    """Return the device of a number that runs code of an architecture. Raises InvalidTarget where there is none."""
    if arch in _OTHERS:
        return _OTHERS[arch](index)
    return import_module("renorm.runtime.gpu.driver").device(index)


def arch_here() -> str:
    """Return the architecture of the first GPU of this machine; "" where there is none."""
    try:
        return device("", 0).arch
    except RenormError:  # nor where it is full, or fails
        return ""
