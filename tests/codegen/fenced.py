"""Arrays between pages that nothing may touch: code that leaves its operands ends the process then and there."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
from tests.random_numbers import RNG

PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def fenced(size: int, align: int = 1) -> np.ndarray[Any, Any]:
    """`size` bytes, never zeros by chance, at a multiple of `align`: they begin where a page that cannot be read begins
    to end, or end, up to `align`, where one begins; which, is drawn."""
    room = -(-size // PAGE) * PAGE
    memory = np.frombuffer(mmap.mmap(-1, room + 2 * PAGE), np.uint8)
    for page in (memory.ctypes.data, memory.ctypes.data + PAGE + room):
        if _protect(page, PAGE, _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = PAGE + (room - size) // align * align * int(RNG.integers(2))
    fenced = memory[start : start + size]
    fenced.fill(0xA5)
    return fenced


def fenced_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, in C order, in fenced memory; aligned to its elements alone."""
    copy = fenced(array.nbytes, array.dtype.itemsize).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
