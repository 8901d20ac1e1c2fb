"""The constants of a program: each at its place in memory, in the form that its kernels read.

Modules of one network at several extents mostly read large constants in the same form. Each is then there once
(`SharedConstants`): what is equal is told by its bytes, whatever passes, folding and algorithms made it of, and nothing
has to be known of that. It is made all the same, since making takes less than compiling, and goes at once where the
same is there.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import count, groupby
from threading import Thread
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import static
from renorm.core.room import WORTH_A_THREAD, out_of_memory, start_thread
from renorm.driver.lowering import Parameter
from renorm.graph.deferred import Array, Deferred, cut
from renorm.graph.ir import Graph
from renorm.runtime import threads
from renorm.runtime.memory import Memory
from renorm.runtime.program import ALIGNMENT, Weight, align
from renorm.runtime.weights import Bytes, Weights
from renorm.topi.layout import Blocking

# glibc keeps what is freed, instead of giving it back and having it cleared again part by part, once an array was freed
# that is as large as its threshold may grow. Nothing of that array is ever touched.
_KEPT = (32 << 20) - (1 << 16)  # bytes
LARGE = 1 << 16  # bytes from which a constant has pages of its own where it may be shared
_SAMPLE = 64  # words of a constant under which it is looked for


class SharedConstants:
    """Constants in memory that modules of one network share. Each is there as long as one of these modules is.

    Safe to use from several threads: of two that make the same at once, both may keep theirs.
    """

    def __init__(self) -> None:
        self._held = weakref.WeakValueDictionary[tuple[int, bytes], Bytes]()

    @property
    def nbytes(self) -> int:
        """Bytes of all that are there."""
        return sum(a.nbytes for a in list(self._held.values()))

    def kept(self, made: Bytes) -> Bytes:
        """Return the array of the same bytes that is there already, or `made`, which then is there."""
        words = made.view(np.int64)
        key = (made.nbytes, words[:: -(-len(words) // _SAMPLE)].tobytes())
        held = self._held.setdefault(key, made)
        return held if held is made or np.array_equal(held.view(np.int64), words) else made


class Constants:
    """Constants at aligned offsets; one that several kernels read in one form is stored once."""

    def __init__(self) -> None:
        self.records: list[Weight] = []
        self._parameters: list[Parameter] = []
        self._placed: dict[tuple[int, Blocking | None], int] = {}
        self._end = 0

    def place(self, p: Parameter) -> int:
        """Byte offset of a constant."""
        key = (id(p.value.elements), p.form)
        if key not in self._placed:
            self._placed[key] = self._end
            self.records.append(weight := Weight(p.value.name, p.dtype, p.shape, self._end))
            self._parameters.append(p)
            self._end = align(self._end + weight.nbytes)
        return self._placed[key]

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return self._end

    def stored(self, graph: Graph, shared: SharedConstants | None = None) -> Weights:
        """Return all constants in read-only arrays, one after the other, each ALIGNMENT-aligned: in one, or, where
        large ones are `shared`, in several. From here on the constants of `graph` are read there too: nothing is held
        twice, and nothing refers to the file that the model came from."""
        pieces = self._pieces(graph, shared)
        _write([(piece, i, *part) for piece in pieces for i, (_, p) in enumerate(piece.placed) for part in p.parts()])
        for piece in pieces:
            piece.held.flags.writeable = False  # the module then uses it as it is
        self._refer(graph, [view for piece in pieces for view in piece.views()])
        return Weights(tuple(piece.held for piece in pieces))

    def _pieces(self, graph: Graph, shared: SharedConstants | None) -> list[_Piece]:
        """Return memory for all constants: of each that is shared, and of those between two such."""
        alone = [i if shared is not None and r.nbytes >= LARGE else -1 for i, r in enumerate(self.records)]
        ends = [*(r.offset for r in self.records[1:]), self._end]
        size = sum(end - r.offset for r, end, i in zip(self.records, ends, alone) if i < 0)
        try:
            rest = np.empty(size + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise out_of_memory(f"no memory for the weights of {graph.name}", size) from error
        rest = rest[-rest.ctypes.data % ALIGNMENT :][:size]
        found = list[_Piece]()
        for i, group in groupby(range(len(alone)), alone.__getitem__):
            of = list(group)
            size = ends[of[-1]] - self.records[of[0]].offset
            held, rest = (rest[:size], rest[size:]) if i < 0 else (Memory(size).array, rest)
            placed = [(self.records[k], self._parameters[k]) for k in of]
            found.append(_Piece(held, placed, None if i < 0 else shared))
        return found or [_Piece(rest, [], None)]

    def _refer(self, graph: Graph, views: list[Array]) -> None:
        stored = {id(p.value.elements): (p.form, view) for p, view in zip(self._parameters, views)}
        for v in graph.constants.values():
            form, view = stored.get(id(v.elements), (None, None))
            if view is None or form is None:
                v.data = np.array(v.data) if view is None else view
            elif dtypes.is_float(v.dtype):
                v.data, v.deferred = None, _Stored(view, form, static(v.shape))
            else:
                v.data = form.unpack(view, static(v.shape))


class _Stored(Deferred):
    """A constant as memory holds it in a form."""

    def __init__(self, held: Array, form: Blocking, shape: tuple[int, ...]):
        self.held, self.form, self.shape = held, form, shape

    def part(self, axis: int, begin: int, end: int) -> Array:
        return cut(self.form.unpack(self.held, self.shape), axis, begin, end).astype(np.float64)

    def exact(self) -> Array:
        return self.form.unpack(self.held, self.shape).astype(np.float64)

    def rounded(self, dtype: str) -> Array:
        return self.form.unpack(self.held, self.shape).astype(dtypes.numpy_dtype(dtype))

    def bound(self) -> float:
        return float(np.abs(self.held).max(initial=0.0))

    def key(self) -> tuple[Any, ...]:
        return (_Stored, id(self.held), self.form)


class _Piece:
    """Memory of constants that lie one after the other. held: where they are written, or, once they all are, where the
    same are in `shared`."""

    def __init__(
        self,
        held: Bytes,
        placed: Sequence[tuple[Weight, Parameter]],
        shared: SharedConstants | None,
    ):
        self.held, self.placed, self._shared = held, placed, shared
        self._count, self._written = sum(len(p.parts()) for _, p in placed), count(1)
        for r, _ in placed:
            end = r.offset - placed[0][0].offset + r.nbytes
            held[end : align(end)] = 0

    def views(self) -> list[Array]:
        """Return the constants as arrays."""
        return [self._view(i) for i in range(len(self.placed))]

    def _view(self, i: int) -> Array:
        r, p = self.placed[i]
        begin = r.offset - self.placed[0][0].offset
        return self.held[begin : begin + r.nbytes].view(dtypes.numpy_dtype(r.dtype)).reshape(p.shape)

    def write(self, i: int, begin: int, end: int) -> None:
        """Write a part of a constant."""
        self.placed[i][1].write(self._view(i), begin, end)
        if next(self._written) == self._count and self._shared is not None:
            self.held = self._shared.kept(self.held)


def _write(work: Sequence[tuple[_Piece, int, int, int]]) -> None:
    """Write parts of constants in several threads: NumPy computes without the interpreter's lock."""
    left, failed = iter(work), list[BaseException]()
    size = sum(piece.held.nbytes for piece in {piece for piece, *_ in work})

    def run() -> None:
        try:
            for piece, *part in left:
                if failed:
                    break
                piece.write(*part)
        except BaseException as error:  # of a thread nobody else would hear
            failed.append(error)

    with suppress(MemoryError):
        np.empty(_KEPT, np.uint8)
    others = list[Thread]()
    with suppress(RuntimeError):  # no more threads: those there are do all of it
        for _ in range(threads.default() - 1 if size > WORTH_A_THREAD else 0):
            start_thread(one := Thread(target=run))
            others.append(one)
    run()
    for one in others:
        one.join()
    if failed:
        raise failed[0]
