"""Memory between pages that nobody may touch: who reads or writes outside of an array ends the process."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_NOBODY = 0  # PROT_NONE


def guarded(data: Array, is_at_end: bool) -> Array:
    """Return a copy whose last element is followed, or whose first one is preceded, by a page that nobody may touch."""
    size = -(-max(data.nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    mapping = mmap.mmap(-1, size + 2 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(mapping, np.uint8)
    for page in (0, mmap.PAGESIZE + size):
        assert _libc.mprotect(whole.ctypes.data + page, mmap.PAGESIZE, _NOBODY) == 0
    begin = mmap.PAGESIZE + (size - data.nbytes if is_at_end else 0)
    made = whole[begin : begin + data.nbytes].view(data.dtype).reshape(data.shape)
    made[...] = data
    return made
