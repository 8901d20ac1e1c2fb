"""Fresh tensors, the large ones in memory that earlier ones left.

Large memory goes back to the system when it is freed, and most of the time of writing to fresh memory goes into page
faults. What a tensor left is known by the number of references to its storage; it becomes that of a new storage
(torch's lazy clone, which the last owner turns into a move). Memory of renorm.runtime.pool would be no memory of
torch's: storages over it cannot be resized.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from renorm.core.locks import Leaf
from renorm.runtime import pool

CPU = torch.device("cpu")  # said of every fresh tensor: the default device is the user's
FROM = 4 << 20  # bytes; smaller memory the C library keeps, once a program has used some
_counts: Any = getattr(torch._C, "_storage_Use_Count", None)  # not every build has it
_lazy_clone: Any = getattr(torch, "_lazy_clone", None)


def empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
    """Return a tensor that nobody else refers to, whose elements are undefined. It is no view of another, so that
    autograd lets operations in place follow. On a GPU it is PyTorch's allocator that keeps memory."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < FROM or _counts is None or _lazy_clone is None or device.type != CPU.type:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)
    storage = _memory.get(nbytes).untyped_storage()
    return torch.empty(0, dtype=dtype, device=CPU).set_(storage, 0, shape, strides)


class _Held:
    """Memory and when it was last seen in use."""

    __slots__ = ("nbytes", "since", "storage", "tensor")

    def __init__(self, tensor: Tensor, since: float):
        self.tensor, self.since, self.storage = tensor, since, tensor.untyped_storage()
        self.nbytes = self.storage.nbytes()

    def references(self) -> tuple[int, int]:
        """Return the references to the storage, of tensors and of Python."""
        return _counts(self.storage._cdata), sys.getrefcount(self.storage)

    def is_idle(self) -> bool:
        return self.references() == _ALONE

    def is_intact(self) -> bool:
        """Return whether the storage is as it was: it can be resized, and moved to memory that processes share."""
        return self.storage.nbytes() == self.nbytes and not self.storage.is_shared()


_ALONE = _Held(torch.empty(1, dtype=torch.uint8, device=CPU), 0.0).references() if _counts else None


class _CachingAllocator:
    """All memory that was handed out, the oldest first. Nobody waits for another: who comes while it is in use gets
    new memory."""

    def __init__(self) -> None:
        self._lock = Leaf("the memory of tensors")
        self._held = list[_Held]()
        self._swept = 0.0

    def get(self, nbytes: int) -> Tensor:
        """Return bytes [nbytes] in a storage that nobody but this refers to."""
        if not self._lock.take():
            return torch.empty(nbytes, dtype=torch.uint8, device=CPU)
        try:
            now, found = time.monotonic(), None
            if now > self._swept + pool.AGE / 8:
                self._sweep(now)
            at = (i for i, h in enumerate(self._held) if h.nbytes == nbytes and h.is_idle() and h.is_intact())
            if (i := next(at, None)) is not None:
                del at
                found = _lazy_clone(self._held.pop(i).tensor)
                found.data_ptr()  # about to be written to: the clone, now the last owner, takes the memory over
            found = torch.empty(nbytes, dtype=torch.uint8, device=CPU) if found is None else found
            self._held.append(_Held(found.detach(), now))
            return found
        finally:
            self._lock.release()

    def _sweep(self, now: float) -> None:
        """Drop what was not used for a while, and the oldest where too much is idle."""
        self._swept, idle, kept = now, 0, list[_Held]()
        for held in reversed(self._held):
            if not held.is_idle():
                held.since = now
            elif not held.is_intact() or now - held.since > pool.AGE or idle + held.nbytes > pool.RESULTS.most:
                continue
            else:
                idle += held.nbytes
            kept.append(held)
        self._held = kept[::-1]


_memory = _CachingAllocator()
