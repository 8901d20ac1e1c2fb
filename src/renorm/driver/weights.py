"""The constants of a program: each at its place in one array, in the form that its kernels read."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
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
from renorm.runtime.program import ALIGNMENT, Weight, align
from renorm.topi.layout import Blocking

# glibc keeps what is freed, instead of giving it back and having it cleared again part by part, once an array was freed
# that is as large as its threshold may grow. Nothing of that array is ever touched.
_KEPT = (32 << 20) - (1 << 16)  # bytes


class Weights:
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
            self.records.append(weight := Weight(p.value.name, p.value.dtype, p.shape, self._end))
            self._parameters.append(p)
            self._end = align(self._end + weight.nbytes)
        return self._placed[key]

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return self._end

    def array(self, graph: Graph) -> np.ndarray[Any, Any]:
        """Return all constants in one array, ALIGNMENT-aligned. From here on the constants of `graph` are read there
        too: nothing is held twice, and nothing refers to the file that the model came from."""
        try:
            held = np.empty(self._end + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise out_of_memory(f"no memory for the weights of {graph.name}", self._end) from error
        start = -held.ctypes.data % ALIGNMENT
        held = held[start : start + self._end]
        views: list[Array] = []
        for record, p in zip(self.records, self._parameters):
            end = record.offset + record.nbytes
            views.append(held[record.offset : end].view(dtypes.numpy_dtype(record.dtype)).reshape(p.shape))
            held[end : align(end)] = 0
        _write([(p, view, *part) for p, view in zip(self._parameters, views) for part in p.parts()], self._end)
        held.flags.writeable = False  # the module then uses it as it is
        for view in views:
            view.flags.writeable = False
        self._refer(graph, views)
        return held

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


def _write(work: Iterable[tuple[Parameter, Array, int, int]], size: int) -> None:
    """Write parts of constants, `size` bytes in all, in several threads: NumPy computes without the interpreter's
    lock."""
    left, failed = iter(work), list[BaseException]()

    def run() -> None:
        try:
            for p, out, begin, end in left:
                if failed:
                    break
                p.write(out, begin, end)
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
