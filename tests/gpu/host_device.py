"""The CPU in a GPU's place: CUDA C, the text that a GPU gets, compiled by g++ and run on memory of the host.

A target of `-arch=host` compiles for it once `register` was called. It finds what no result shows: threads that race,
barriers that some threads of a block do not reach, accesses outside of memory, memory that nobody wrote.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tests.gpu.host_assembler import ARCH, assemble
from tests.gpu.host_memory import GuardedMemory, Live, Region

from renorm.codegen.cuda import assemblers, source
from renorm.core import target as targets
from renorm.core.errors import InternalError, InvalidArtifact
from renorm.runtime.gpu import device
from renorm.runtime.gpu.device import Array, Call, Device
from renorm.tir.nodes import Buffer, Kernel


class _Request(ctypes.Structure):
    _fields_ = [
        ("args", ctypes.c_void_p), ("count", ctypes.c_uint), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
        ("back", ctypes.c_int), ("seed", ctypes.c_ulonglong),
    ]  # fmt: skip


class Function:
    """A kernel of a library. adds: it has atomic operations, whose order may show in a sum of floats."""

    def __init__(self, library: ctypes.CDLL, name: str):
        self.name = name
        self._launch = library[f"{name}__launch"]
        self._launch.restype = ctypes.c_char_p
        self.adds = bool(ctypes.c_int.in_dll(library, f"{name}__adds").value)

    def __call__(self, call: Call, seed: int, back: bool) -> str:
        """Run all blocks, and return what went wrong, "" for nothing."""
        args = (ctypes.c_void_p * len(call.args))(*call.args)
        at = ctypes.addressof(args)
        request = _Request(at, len(call.args), call.grid, call.block, back, seed)
        return (self._launch(ctypes.byref(request)) or b"").decode()


class HostGraph:
    """Launches that a device runs one after the other."""

    def __init__(self, host: HostDevice, calls: Sequence[Call]):
        self._host, self._calls = host, list(calls)
        self._is_open = True

    def update(self, index: int, args: Sequence[int]) -> None:
        old = self._calls[index]
        self._calls[index] = Call(old.function, old.grid, old.block, tuple(args))

    def launch(self, stream: int) -> None:
        if not self._is_open:
            raise InternalError("a graph is launched that was closed")
        for call in self._calls:
            self._host.launch(call)

    def close(self) -> None:
        self._is_open = False


class HostDevice:
    """A Device that does everything at once: streams have no say. check_races: run each launch in two opposite orders
    of blocks and threads, and compare what they write. Not for several threads that write the same memory."""

    name = "CPU (CUDA C by g++)"
    arch = ARCH
    stream = 0

    def __init__(self, check_races: bool = False, seed: int = 0):
        self.check_races = check_races
        self.launches = 0
        self._seeds = itertools.count(seed)
        self._memory = GuardedMemory()
        self._fault: InternalError | None = None

    @property
    def live(self) -> Live:
        """Return how many allocations there are, and their bytes."""
        return self._memory.live

    def load(self, code: bytes) -> ctypes.CDLL:
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(code)
            file.flush()
            try:
                return ctypes.CDLL(file.name)
            except OSError as e:
                raise InvalidArtifact(f"code is not for device {self.name}", [str(e)]) from None

    def function(self, library: ctypes.CDLL, name: str) -> Function:
        try:
            return Function(library, name)
        except (AttributeError, ValueError):
            raise InvalidArtifact(f"code for device {self.name} has no kernel {name}") from None

    def allocate(self, nbytes: int) -> int:
        with _LOCK:
            return self._memory.allocate(nbytes)

    def free(self, address: int) -> None:
        """Give memory back. What is wrong with that, `wait` raises."""
        with _LOCK:
            if address and (wrong := self._memory.free(address)):
                self._fault = self._fault or InternalError(wrong)

    def write(self, address: int, array: Array, stream: int) -> None:
        assert array.flags.c_contiguous
        ctypes.memmove(self._range(address, array.nbytes), array.ctypes.data, array.nbytes)

    def read(self, array: Array, address: int, stream: int) -> None:
        assert array.flags.c_contiguous
        ctypes.memmove(array.ctypes.data, self._range(address, array.nbytes), array.nbytes)

    def copy(self, to: int, address: int, nbytes: int, stream: int) -> None:
        ctypes.memmove(self._range(to, nbytes), self._range(address, nbytes), nbytes)

    def graph(self, calls: Sequence[Call]) -> HostGraph:
        return HostGraph(self, calls)

    def mark(self, mark: Any, stream: int) -> Any:
        return stream

    def after(self, mark: Any, stream: int) -> None:
        pass

    def wait(self, stream: int) -> None:
        fault, self._fault = self._fault, None
        if fault:
            raise fault

    def launch(self, call: Call) -> None:
        """Run a launch, unless one before it failed and nobody waited for that yet."""
        with _LOCK:
            self.launches += 1
            self._fault = self._fault or self._run(call)

    def _run(self, call: Call) -> InternalError | None:
        regions = list[Region]()
        for i, address in enumerate(call.args):
            region = self._memory.at(address)
            if region is None:
                return InternalError(f"kernel {call.function.name}: argument {i} is {self._memory.place(address)}")
            regions.append(region)
        seed = next(self._seeds)
        results: list[list[bytes]] = []
        before = [r.contents() for r in regions] if self.check_races and not call.function.adds else None
        for back in (True, False) if before else (False,):
            for region, contents in zip(regions, before or []):
                ctypes.memmove(region.address, contents, region.nbytes)
            if wrong := call.function(call, seed, back):
                return InternalError(wrong, self._places(wrong))
            for i, region in enumerate(regions):
                if not region.is_whole:
                    return InternalError(
                        f"kernel {call.function.name} writes beside its argument {i}",
                        [f"that has {region.nbytes} bytes at {region.address:#x}"],
                    )
            results.append([r.contents() for r in regions] if before else [])
        return _race(call, *results) if before else None

    def _places(self, message: str) -> list[str]:
        return [f"that is {self._memory.place(int(a, 16))}" for a in re.findall(r"address (0x\w+)", message)]

    def _range(self, address: int, nbytes: int) -> int:
        region = self._memory.at(address)
        if region is None or address + nbytes > region.address + region.nbytes:
            raise InternalError(f"{nbytes} bytes are copied to or from {self._memory.place(address)}")
        return address


_LOCK = threading.RLock()  # a library has one set of threads


def _race(call: Call, one: list[bytes], other: list[bytes]) -> InternalError | None:
    for i, (a, b) in enumerate(zip(one, other)):
        if a != b:
            differ = np.flatnonzero(np.frombuffer(a, np.uint8) != np.frombuffer(b, np.uint8))
            return InternalError(
                f"kernel {call.function.name}: a race: what it writes depends on the order of its threads",
                [f"argument {i}: {len(differ)} of {len(a)} bytes differ, the first is byte {differ[0]}"],
            )
    return None


_DEVICES: dict[int, HostDevice] = {}


def host(index: int = 0) -> HostDevice:
    """Return the device of a number, which there is once in a process."""
    return _DEVICES.setdefault(index, HostDevice())


def register() -> None:
    """Make `-arch=host` known."""
    make: Callable[[int], Device] = host
    assemblers.register(ARCH, assemble)
    device.register(ARCH, make)


def run(
    kernel: Kernel,
    arrays: Sequence[np.ndarray[Any, Any]],
    target: str = f"cuda -arch={ARCH}",
    check_races: bool = True,
) -> None:
    """Run a kernel on one array for each parameter, as tir.interpret.run does: writes into those that it stores to."""
    generated = source.generate(kernel, targets.parse(target))
    run_text(generated.source, generated.launches, kernel.params, arrays, generated.workspace, check_races)


def run_text(
    text: str,
    launches: Sequence[source.Launch],
    params: Sequence[Buffer],
    arrays: Sequence[np.ndarray[Any, Any]],
    workspace: Sequence[Buffer] = (),
    check_races: bool = True,
) -> None:
    """The same, for a text of CUDA C."""
    one = HostDevice(check_races)
    library = one.load(assemble(text, ARCH))
    at: dict[Buffer, int] = {b: one.allocate(b.nbytes or 0) for b in (*params, *workspace)}
    for b, array in zip(params, arrays, strict=True):
        assert array.nbytes == b.nbytes, f"{b.name} has {b.nbytes} bytes, not {array.nbytes}"
        one.write(at[b], np.array(array, order="C"), 0)
    calls = [
        Call(one.function(library, launch.name), launch.grid, launch.block, tuple(at[b] for b in launch.params))
        for launch in launches
    ]
    one.graph(calls).launch(0)
    one.wait(0)
    for b, array in zip(params, arrays):
        result = np.empty(array.shape, array.dtype)
        one.read(result, at[b], 0)
        array[...] = result
    for address in at.values():
        one.free(address)
    one.wait(0)
