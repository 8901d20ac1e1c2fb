"""Copies between arrays of the host and a GPU, through memory that the GPU reaches itself while the host goes on."""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core import room
from renorm.core.errors import InvalidInput
from renorm.core.locks import Leaf
from renorm.runtime.gpu import api

Array = np.ndarray[Any, Any]

_LEAST, _MOST = 64 << 10, 4 << 20  # bytes of a block; larger arrays go in pieces, host and GPU at work on two of them
_IN_FLIGHT = 8  # blocks of one size on their way to the device, before one waits for the first of them


@dataclass(eq=False)
class _Block:
    """Page-locked memory. event: the last copy that uses it. bytes: an array over it."""

    address: int
    bytes: Array
    event: Any


class Staging:
    """The copies of one device, whose context is current at each call. Blocks are kept and used again."""

    def __init__(self) -> None:
        self._lock = Leaf("copies to and from a GPU")
        self._free: dict[int, list[_Block]] = {}
        self._written: dict[int, deque[_Block]] = {}  # on their way to the device, the first one first
        self._read: dict[int, deque[tuple[_Block, Array]]] = {}  # by stream: on their way to the host, and where to

    def write(self, address: int, array: Array, stream: int) -> None:
        """Copy an array to the device, in the stream's order. It may change afterwards."""
        source = _bytes(array)
        for at in range(0, source.size, _MOST):
            piece = source[at : at + _MOST]
            block = self._take(piece.size)
            block.bytes[: piece.size] = piece
            self._copy(block, "cuMemcpyHtoDAsync", address + at, block.address, piece.size, stream)
            with self._lock:
                self._written.setdefault(block.bytes.size, deque()).append(block)

    def read(self, array: Array, address: int, stream: int) -> None:
        """Copy from the device to an array, in the stream's order. It is there after `finish`."""
        to = _bytes(array)
        if 0 < to.size <= _MOST:
            begun = self._begin(to, address, stream)
            with self._lock:
                self._read.setdefault(stream, deque()).append(begun)
            return
        # A large one is there at the end of this call, in two blocks instead of as many as it has pieces
        before = None
        for at in range(0, to.size, _MOST):
            begun = self._begin(to[at : at + _MOST], address + at, stream)
            if before:
                self._end(*before)
            before = begun
        if before:
            self._end(*before)

    def finish(self, stream: int) -> None:
        """Put what was read by a stream into its arrays. The stream has ended since."""
        with self._lock:
            reads = self._read.setdefault(stream, deque())
            for _ in range(len(reads)):
                block, to = reads.popleft()
                if api.code("cuEventQuery", block.event)[0] == api.NOT_READY:  # of a call by another thread since
                    reads.append((block, to))
                else:
                    self._end(block, to)

    def forget(self, stream: int) -> None:
        """Drop what was read by a stream that failed."""
        with self._lock:
            for block, _ in self._read.pop(stream, ()):  # a copy into it may be under way yet: its event says when not
                self._written.setdefault(block.bytes.size, deque()).append(block)

    def _begin(self, to: Array, address: int, stream: int) -> tuple[_Block, Array]:
        block = self._take(to.size)
        self._copy(block, "cuMemcpyDtoHAsync", block.address, address, to.size, stream)
        return block, to

    def _copy(self, block: _Block, function: str, to: int, source: int, nbytes: int, stream: int) -> None:
        """Begin a copy that uses a block, with the block's event behind it. Where that fails the block stays."""
        try:
            api.call(function, to, source, nbytes, stream)
            api.call("cuEventRecord", block.event, stream)
        except BaseException:
            api.code("cuStreamSynchronize", stream)  # the copy may have begun, and no event says when it ends
            self._keep(block)
            raise

    def _end(self, block: _Block, to: Array) -> None:
        try:
            api.call("cuEventSynchronize", block.event)
            to[...] = block.bytes[: to.size]
        finally:
            self._keep(block)

    def _keep(self, block: _Block) -> None:
        with self._lock:
            self._free.setdefault(block.bytes.size, []).append(block)

    def _take(self, nbytes: int) -> _Block:
        size = max(_LEAST, 1 << (nbytes - 1).bit_length())
        with self._lock:
            if free := self._free.get(size):
                return free.pop()
            written = self._written.get(size, deque())
            done = bool(written) and not api.code("cuEventQuery", written[0].event)[0]
            oldest = written.popleft() if done or len(written) >= _IN_FLIGHT else None
        if oldest is None:
            return _block(size)
        try:
            api.call("cuEventSynchronize", oldest.event)
        except BaseException:
            with self._lock:
                written.appendleft(oldest)
            raise
        return oldest


def _block(size: int) -> _Block:
    error, values = api.code("cuMemAllocHost", size)
    if error == api.OUT_OF_MEMORY:
        raise room.out_of_memory("page-locked memory for copies to and from a GPU", size)
    if error:
        raise api.failure("cuMemAllocHost", error)
    address = int(values[0])
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    try:
        event = api.call("cuEventCreate", int(api.bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING))
    except BaseException:
        api.code("cuMemFreeHost", address)
        raise
    return _Block(address, np.frombuffer(memory, np.uint8), event)


def _bytes(array: Array) -> Array:
    if not array.flags.c_contiguous:
        raise InvalidInput("an array that is not C-contiguous cannot be copied to or from a GPU")
    return array.reshape(-1).view(np.uint8)
