"""Memory that starts on a page and that only its owner writes: weights, arenas, tables."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Any

import numpy as np

from renorm.core.room import out_of_memory

# bytes from which the kernel is asked for huge pages: fewer misses in the TLB, no waste on small arenas
_HUGE = 4 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Memory:
    """`nbytes` of zeroed anonymous memory, aligned to a page; unmapped with this object and the views of `array`.

    Raises OutOfMemory.
    """

    __slots__ = ("_mapping", "address", "array", "nbytes")

    def __init__(self, nbytes: int):
        try:
            self._mapping = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, MemoryError) as error:
            raise out_of_memory("no memory for weights, code or values between kernels", nbytes) from error
        if nbytes >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages
                self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self.nbytes = nbytes
        self.array: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(self._mapping, np.uint8, nbytes)
        self.address: int = self.array.ctypes.data

    def seal(self) -> None:
        """Makes it read-only for ever: writing through any view ends the program."""
        self.array.flags.writeable = False
        self.protect(0, len(self._mapping))

    def protect(self, offset: int, size: int, executable: bool = False) -> None:
        """Takes the right to write from the pages of `size` bytes at `offset`; `executable` gives the right to run."""
        rights = mmap.PROT_READ | (mmap.PROT_EXEC if executable else 0)
        if size and _libc.mprotect(self.address + offset, size, rights):
            what = "executable" if executable else "read-only"
            raise OSError(ctypes.get_errno(), f"mprotect: the system refused {what} memory")


def sealed(data: bytes | bytearray | memoryview | np.ndarray[Any, Any]) -> Memory:
    """A read-only copy."""
    source = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data.reshape(-1).view(np.uint8)
    memory = Memory(source.nbytes)
    memory.array[:] = source
    memory.seal()
    return memory
