"""Memory that notices who goes outside of it: pages that may not be touched lie around every allocation, and what is
given back may not be touched either.

Fresh memory is NaN as a number of any width and negative as an integer, by bits that differ between allocations: what
is copied from beside one to beside another is seen.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
from bisect import bisect, insort
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from renorm.core.errors import OutOfMemory

ALIGNMENT = 256
PAGE = mmap.PAGESIZE
POISONS = tuple(range(0xFF81, 0xFFFF, 2))  # 16 bits each: NaN as float16 and as the upper half of other floats
KEPT = 256  # places that were given back and not handed out again: whoever still uses them is seen

_UNTOUCHABLE, _FIXED = 0, 0x10  # PROT_NONE and MAP_FIXED of Linux, which the module mmap does not name
_FRESH = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class Live(NamedTuple):
    """What was allocated and not yet given back."""

    allocations: int
    nbytes: int


@dataclass(frozen=True, order=True)
class Region:
    """One allocation. low, high: the pages that it lies in, which it does not fill. poison: what they began with."""

    address: int
    nbytes: int
    low: int
    high: int
    poison: int

    def __post_init__(self) -> None:
        words = (self.high - self.low) // 2
        np.ctypeslib.as_array((ctypes.c_uint16 * words).from_address(self.low))[:] = self.poison

    @property
    def is_whole(self) -> bool:
        """Return whether nothing was written beside it."""
        before, end = self.address - self.low, self.address + self.nbytes
        words = self.poison.to_bytes(2, sys.byteorder) * ((self.high - self.low) // 2)
        return (
            ctypes.string_at(self.low, before) == words[:before]
            and ctypes.string_at(end, self.high - end) == words[end - self.low :]
        )

    def contents(self) -> bytes:
        return ctypes.string_at(self.address, self.nbytes)


class GuardedMemory:
    """Allocations, each with its end as near to a page that may not be touched as its alignment lets it."""

    def __init__(self) -> None:
        self._regions: list[Region] = []  # by address
        self._given_back: deque[Region] = deque()
        self._poisons = itertools.cycle(POISONS)

    @property
    def live(self) -> Live:
        return Live(len(self._regions), sum(r.nbytes for r in self._regions))

    def allocate(self, nbytes: int) -> int:
        """Return the address of fresh memory, aligned to 256 bytes. Raises OutOfMemory."""
        padded = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        inner = -(-padded // PAGE) * PAGE
        got = _LIBC.mmap(None, inner + 2 * PAGE, _UNTOUCHABLE, _FRESH, -1, 0)
        if got is None or got == ctypes.c_void_p(-1).value:
            raise OutOfMemory(f"the system gives no memory for {nbytes} bytes", [f"in use: {self.live.nbytes} bytes"])
        low = got + PAGE
        if _LIBC.mprotect(low, inner, mmap.PROT_READ | mmap.PROT_WRITE):
            _LIBC.munmap(got, inner + 2 * PAGE)
            raise OutOfMemory(f"the system gives no memory for {nbytes} bytes", [f"in use: {self.live.nbytes} bytes"])
        region = Region(low + inner - padded, nbytes, low, low + inner, next(self._poisons))
        insort(self._regions, region)
        return region.address

    def free(self, address: int) -> str:
        """Give memory back, and return what is wrong with that, "" for nothing."""
        region = self.at(address)
        if region is None or region.address != address:
            return f"memory at {self.place(address)} is given back"
        self._regions.remove(region)
        wrong = "" if region.is_whole else f"something was written beside the {region.nbytes} bytes at {address:#x}"
        size = region.high - region.low
        _LIBC.mmap(region.low, size, _UNTOUCHABLE, _FRESH | _FIXED, -1, 0)
        self._given_back.append(region)
        if len(self._given_back) > KEPT:
            oldest = self._given_back.popleft()
            _LIBC.munmap(oldest.low - PAGE, oldest.high - oldest.low + 2 * PAGE)
        return wrong

    def at(self, address: int) -> Region | None:
        """Return the allocation that has an address, the one behind its last byte included."""
        i = bisect(self._regions, address, key=lambda r: r.address)
        region = self._regions[i - 1] if i else None
        return region if region and address <= region.address + region.nbytes else None

    def place(self, address: int) -> str:
        """Return an address in words: which allocation has it, or is next to it."""
        for region in self._regions:
            if region.low - PAGE <= address < region.high + PAGE:
                offset = address - region.address
                return f"byte {offset} of the {region.nbytes} bytes at {region.address:#x}"
        for region in self._given_back:
            if region.low - PAGE <= address < region.high + PAGE:
                return f"byte {address - region.address} of {region.nbytes} bytes that were given back"
        return f"{address:#x}, which is no memory of this device"
