"""A GPU made of the interpreter of loops: each launch of a network runs as blocks, threads and barriers, one by one.

Within `interpreting()`, a target of `-arch=loops` compiles for it. It finds in every order what host_device.py finds
where an order shows it: accesses that race, those that write the same as well; and shared memory that is read before it
is written. It runs loops: what becomes of them in CUDA C is for the other device to see.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from tests.gpu.host_device import HostDevice

from renorm.codegen.cuda import assemblers, compiler, source
from renorm.core import dtypes
from renorm.core.difference import largest
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import InternalError, InvalidArtifact, RenormError
from renorm.core.target import Target
from renorm.core.tolerance import tolerance
from renorm.driver import cache
from renorm.runtime.gpu import device
from renorm.runtime.gpu.device import Array, Call
from renorm.tir.nodes import Kernel, Store, walk

ARCH = "loops"
TARGET = f"cuda -arch={ARCH}"
Runner = Callable[[Kernel, Sequence[Array]], None]


class InterpretedDevice(HostDevice):
    """runners: what runs each launch, one after the other from the same memory; they must agree. change: what is
    done to the loops of a launch before, to plant faults."""

    name = "CPU (loops)"
    arch = ARCH

    def __init__(self, runners: Sequence[Runner], change: Callable[[Kernel], Kernel] | None):
        super().__init__()
        self._runners, self._change = runners, change or (lambda kernel: kernel)
        self._launches = dict[str, dict[str, Kernel]]()  # by the text of their kernel, and by their names

    def generate(self, kernel: Kernel, target: Target) -> source.CudaKernel:
        """Return the CUDA C of a kernel, and keep the loops of its launches."""
        made = source.generate(kernel, target)
        nests = source._roots(kernel.body)[1]
        self._launches[made.source] = {
            launch.name: self._change(Kernel(launch.name, launch.params, nest))
            for launch, nest in zip(made.launches, nests, strict=True)
        }
        return made

    def load(self, code: bytes) -> Any:
        if code.decode() not in self._launches:
            raise InvalidArtifact("this device runs what was compiled for it in this process")
        return self._launches[code.decode()]

    def function(self, library: Any, name: str) -> Any:
        return library[name]

    def _run(self, call: Call) -> InternalError | None:
        kernel: Kernel = call.function
        arrays = list[Array]()
        for b, address in zip(kernel.params, call.args, strict=True):
            assert b.nbytes is not None
            memory = (ctypes.c_char * b.nbytes).from_address(self._range(address, b.nbytes))
            arrays.append(np.frombuffer(memoryview(memory), numpy_dtype(b.dtype)))
        try:
            arrays = apart(kernel, arrays)
        except InternalError as error:
            return error
        before, results = [a.copy() for a in arrays], list[list[Array]]()
        for run in self._runners:
            for a, b in zip(arrays, before):
                a[...] = b
            try:
                run(kernel, arrays)
            except RenormError as error:
                return InternalError(str(error))
            results.append([a.copy() for a in arrays])
        for each in zip(kernel.params, *results):
            if not all(_agree(each[1], other) for other in each[2:]):
                return InternalError(f"kernel {kernel.name}: runners differ in {each[0].name}")
        return None


def _agree(a: Array, b: Array) -> bool:
    """Return whether two results are the same, but for how functions of float64 round."""
    if a.tobytes() == b.tobytes():
        return True
    dtype = dtypes.from_numpy(a.dtype)
    if not dtypes.is_float(dtype):
        return False
    x, y, allowed = a.astype(np.float64), b.astype(np.float64), tolerance(dtype, 1)
    return bool(np.allclose(x, y, rtol=allowed, atol=allowed * largest(x[np.isfinite(x)]), equal_nan=True))


def apart(kernel: Kernel, arrays: list[Array]) -> list[Array]:
    """Return the arrays of a launch, each in memory of its own where one that is written lies in a gap of one that is
    read: NaN stands there, which shows if it is no gap. Raises InternalError where two of them are written, or begin at
    one address and are not of one type."""
    written = {s.buffer for s in walk(kernel.body) if isinstance(s, Store)}
    found = list(arrays)
    for i, j in itertools.permutations(range(len(arrays)), 2):
        x, y = arrays[i], arrays[j]
        is_same = x.ctypes.data == y.ctypes.data
        if (is_same and x.dtype == y.dtype) or kernel.params[j] not in written or not np.may_share_memory(x, y):
            continue
        if is_same or kernel.params[i] in written:
            names = f"{kernel.params[i].name} and {kernel.params[j].name}"
            raise InternalError(f"kernel {kernel.name}: {names} overlap")
        found[i] = x.copy() if found[i] is x else found[i]
        first, end = (y.ctypes.data - x.ctypes.data + n for n in (0, y.nbytes))
        found[i].view(np.uint8)[max(first, 0) : end] = 0xFF
    return found


@contextmanager
def interpreting(*runners: Runner, change: Callable[[Kernel], Kernel] | None = None) -> Generator[InterpretedDevice]:
    """Make the target TARGET known, which compiles for a device of loops."""
    made = InterpretedDevice(runners, change)
    with (
        mock.patch.object(compiler, "generate", made.generate),
        mock.patch.object(cache, "default", return_value=cache.Cache(None)),  # whose code has no loops here
        mock.patch.dict(assemblers._OTHERS, {ARCH: lambda text, arch: text.encode()}),
        mock.patch.dict(device._OTHERS, {ARCH: lambda index: made}),
    ):
        yield made
