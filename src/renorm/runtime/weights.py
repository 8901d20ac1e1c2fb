"""The weights of a program in memory: in one array, or in several, which modules of one network share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm.core.errors import InvalidInput
from renorm.runtime.arrays import Array, address
from renorm.runtime.memory import Memory, sealed
from renorm.runtime.program import ALIGNMENT

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Source = Memory | bytes | bytearray | memoryview | Array


class Weights:
    """Bytes that cannot change. arrays: where they are, one after the other; each is aligned, and others may refer to
    it too. address: of the first.

    source: a Memory is taken over and becomes read-only, an array that is read-only and aligned is used as it is,
    anything else is copied.
    """

    def __init__(self, source: Source | tuple[Array, ...]):
        self.arrays = tuple(map(_held, source)) if isinstance(source, tuple) else (_held(source),)
        self.nbytes, self.address = sum(a.nbytes for a in self.arrays), address(self.arrays[0])

    def distances(self, offsets: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return how many bytes further than `address` and the offset says each of these is."""
        begins = np.cumsum([0, *(a.nbytes for a in self.arrays[:-1])])
        apart = np.array([address(a) for a in self.arrays]) - begins - self.address
        return apart[np.searchsorted(begins, offsets, side="right") - 1]

    def tobytes(self) -> bytes:
        """Return a copy, in one piece."""
        return b"".join(a.data for a in self.arrays)


def _held(source: Source) -> Bytes:
    if isinstance(source, Memory):
        source.seal()
        return source.array
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim != 1:
            raise InvalidInput(f"weights are {source.dtype.name}{list(source.shape)}", ["expected bytes: uint8[n]"])
        if not source.flags.writeable and source.flags.c_contiguous and address(source) % ALIGNMENT == 0:
            return source
    return sealed(source).array
