"""NVIDIA GPUs, through the driver's interface: memory, code, and launches as CUDA graphs."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.errors import InternalError, InvalidArtifact, InvalidTarget, OutOfMemory
from renorm.runtime.gpu import api
from renorm.runtime.gpu.device import Call
from renorm.runtime.gpu.staging import Staging

Array = np.ndarray[Any, Any]

_devices: dict[int, DriverDevice] = {}


def device(index: int = 0) -> DriverDevice:
    """Return the GPU of a number, as CUDA_VISIBLE_DEVICES numbers them; the same object at each call.

    Raises InvalidTarget where there is none, no driver or no cuda-bindings, and in a child of a process that used CUDA.
    """
    api.require_own_process()
    found = _devices.get(index)
    return found if found is not None else _devices.setdefault(index, DriverDevice(index))


def count() -> int:
    """Return how many GPUs there are. Raises InvalidTarget where there is no driver, or none at all."""
    api.start()
    return int(api.call("cuDeviceGetCount"))


@dataclass(frozen=True)
class Properties:
    """What reports say of a GPU. free, total: bytes of its memory, now. driver: the version of CUDA that it runs."""

    name: str
    arch: str
    multiprocessors: int
    free: int
    total: int
    driver: str


class _Library:
    """A loaded cubin, unloaded when neither functions nor graphs of it are left."""

    def __init__(self, module: Any, context: _Current):
        self.module = module
        weakref.finalize(self, _end, context, "cuModuleUnload", module).atexit = False


class _Event:
    """A place in a stream. It tells no times, which costs the GPU more."""

    def __init__(self, context: _Current):
        self.handle = api.call("cuEventCreate", int(api.bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING))
        weakref.finalize(self, _end, context, "cuEventDestroy", self.handle).atexit = False


@dataclass(frozen=True)
class _Function:
    """A kernel. It keeps its library."""

    handle: Any
    library: _Library


class DriverDevice:
    """A GPU, with its primary context, which it shares with other libraries of the process, and a stream of its own.
    `renorm.runtime.gpu.device.Device` says what the methods do."""

    def __init__(self, index: int):
        there = count()
        if not 0 <= index < there:
            raise InvalidTarget(
                f"there is no cuda({index})",
                [f"NVIDIA GPUs: {there}"],
                "numbers begin at 0; CUDA_VISIBLE_DEVICES says which GPUs a process sees",
            )
        self.index = index
        self._device = api.call("cuDeviceGet", index)
        self.name = api.call("cuDeviceGetName", 256, self._device).split(b"\0")[0].decode()
        major, minor = (self._attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        self.arch = f"sm_{major}{minor}"
        self._current = _Current(api.call("cuDevicePrimaryCtxRetain", self._device))
        self._staging = Staging()
        with self._current:
            flags = int(api.bindings().CUstream_flags.CU_STREAM_NON_BLOCKING)
            self.stream = self._own = int(api.call("cuStreamCreate", flags))

    def properties(self) -> Properties:
        """Return what reports say of it."""
        with self._current:
            free, total = api.call("cuMemGetInfo")
        multiprocessors = self._attribute("MULTIPROCESSOR_COUNT")
        return Properties(self.name, self.arch, multiprocessors, int(free), int(total), api.driver_version())

    def load(self, code: bytes) -> Any:
        here = f"cuda({self.index}), {self.name}, {self.arch}"
        if not code.startswith(b"\x7fELF"):  # the driver is not told its size, and would read on
            raise InvalidArtifact(f"{here}: the code is no cubin", [f"begins with {code[:4]!r}, expected b'\\x7fELF'"])
        image = np.frombuffer(code, np.uint8)
        with self._current:
            try:
                return _Library(api.call("cuModuleLoadData", image.ctypes.data), self._current)
            except InvalidArtifact as error:
                raise error.within(here) from None

    def function(self, library: Any, name: str) -> Any:
        with self._current:
            return _Function(api.call("cuModuleGetFunction", library.module, name.encode()), library)

    def allocate(self, nbytes: int) -> int:
        with self._current:
            error, values = api.code("cuMemAlloc", max(nbytes, 1))
            if error == api.OUT_OF_MEMORY:
                facts = [f"{nbytes:,} bytes, which the GPU does not have", *api.memory()]
                raise OutOfMemory(f"memory of cuda({self.index}), {self.name}", facts, api.LESS)
        if error:
            raise api.failure("cuMemAlloc", error)
        return int(values[0])

    def free(self, address: int) -> None:
        _end(self._current, "cuMemFree", address)

    def write(self, address: int, array: Array, stream: int) -> None:
        with self._current:
            self._staging.write(address, array, stream or self._own)

    def read(self, array: Array, address: int, stream: int) -> None:
        with self._current:
            self._staging.read(array, address, stream or self._own)

    def copy(self, to: int, address: int, nbytes: int, stream: int) -> None:
        with self._current:
            api.call("cuMemcpyDtoDAsync", to, address, nbytes, stream or self._own)

    def graph(self, calls: Sequence[Call]) -> DriverGraph:
        with self._current:
            return DriverGraph(calls, self._current, self._own)

    def mark(self, mark: Any, stream: int) -> Any:
        with self._current:
            mark = mark or _Event(self._current)
            api.call("cuEventRecord", mark.handle, stream or self._own)
        return mark

    def after(self, mark: Any, stream: int) -> None:
        with self._current:
            api.call("cuStreamWaitEvent", stream or self._own, mark.handle, 0)

    def wait(self, stream: int) -> None:
        stream = stream or self._own
        with self._current:
            error, _ = api.code("cuStreamSynchronize", stream)
            if error:
                self._staging.forget(stream)
                raise api.failure("cuStreamSynchronize", error)
            self._staging.finish(stream)

    def synchronize(self) -> None:
        """Wait for all that this process has begun on the GPU, by whichever library."""
        with self._current:
            api.call("cuCtxSynchronize")

    def time(self, call: Callable[[], None], repeats: int, stream: int = 0) -> list[float]:
        """Return the seconds that the GPU takes for what `call` gives to a stream, for each of `repeats` calls."""
        stream, times = stream or self._own, list[float]()
        with self._current:
            begin, end = api.call("cuEventCreate", 0), api.call("cuEventCreate", 0)
            try:
                for _ in range(repeats):
                    api.call("cuEventRecord", begin, stream)
                    call()
                    api.call("cuEventRecord", end, stream)
                    api.call("cuEventSynchronize", end)
                    times.append(float(api.call("cuEventElapsedTime", begin, end)) / 1000)
            finally:
                api.code("cuEventDestroy", begin)
                api.code("cuEventDestroy", end)
        return times

    def resources(self, function: Any) -> tuple[int, int]:
        """Return the bytes of shared memory that a function has without asking, and the registers of a thread."""
        kinds = api.bindings().CUfunction_attribute
        asked = kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kinds.CU_FUNC_ATTRIBUTE_NUM_REGS
        with self._current:
            shared, registers = (int(api.call("cuFuncGetAttribute", kind, function.handle)) for kind in asked)
        return shared, registers

    def _attribute(self, name: str) -> int:
        kinds = api.bindings().CUdevice_attribute
        return int(api.call("cuDeviceGetAttribute", getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}"), self._device))


class DriverGraph:
    """Launches in a chain, instantiated once. Parameters are kept where the driver reads them at an update."""

    def __init__(self, calls: Sequence[Call], current: _Current, own: int):
        self._current, self._own = current, own
        self._functions = [call.function for call in calls]
        self._nodes = list[tuple[Any, Any, Array, Array]]()  # node, its launch, values of arguments, their addresses
        graph = api.call("cuGraphCreate", 0)
        self._close = weakref.finalize(self, _end, current, "cuGraphDestroy", graph)
        before = list[Any]()
        for call in calls:
            launch, values, addresses = _launch(call)
            before = [api.call("cuGraphAddKernelNode", graph, before, len(before), launch)]
            self._nodes.append((before[0], launch, values, addresses))
        self._run = api.call("cuGraphInstantiate", graph, 0)
        self._close_run = weakref.finalize(self, _end, current, "cuGraphExecDestroy", self._run)
        self._close.atexit = self._close_run.atexit = False

    def update(self, index: int, args: Sequence[int]) -> None:
        node, launch, values, _ = self._nodes[index]
        if len(args) != values.size:
            raise InternalError(f"launch {index} of a graph: {len(args)} arguments", [f"expected: {values.size}"])
        values[:] = args
        with self._current:
            api.call("cuGraphExecKernelNodeSetParams", self._run, node, launch)

    def launch(self, stream: int) -> None:
        with self._current:
            api.call("cuGraphLaunch", self._run, stream or self._own)

    def close(self) -> None:
        self._close_run()
        self._close()


def _launch(call: Call) -> tuple[Any, Array, Array]:
    values = np.array(call.args, np.uint64)
    addresses = np.arange(values.size, dtype=np.uint64) * np.uint64(8) + np.uint64(values.ctypes.data)
    launch = api.bindings().CUDA_KERNEL_NODE_PARAMS()
    launch.func = call.function.handle
    launch.gridDimX, launch.gridDimY, launch.gridDimZ = call.grid
    launch.blockDimX, launch.blockDimY, launch.blockDimZ = call.block
    launch.sharedMemBytes = call.shared
    if call.shared:  # more than a block has without asking
        most = api.bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        api.call("cuFuncSetAttribute", call.function.handle, most, call.shared)
    launch.kernelParams = addresses.ctypes.data
    return launch, values, addresses


class _Current:
    """A context that is current to the thread inside `with`; what was current before, which other libraries count on,
    is again afterwards. Raises InvalidTarget in a child of the process that made it."""

    def __init__(self, context: Any):
        self.context, self.process = context, os.getpid()

    def __enter__(self) -> None:
        if os.getpid() != self.process:
            api.require_own_process()
        api.call("cuCtxPushCurrent", self.context)

    def __exit__(self, *_: object) -> None:
        api.code("cuCtxPopCurrent")


def _end(current: _Current, function: str, handle: Any) -> None:
    """Give back what a function of the driver ends. Nothing is raised: in a child of fork there is nothing to end, and
    what fails now was lost before."""
    if os.getpid() != current.process:
        return
    with suppress(InvalidTarget):  # no driver any more, where the process ends
        if not api.code("cuCtxPushCurrent", current.context)[0]:
            api.code(function, handle)
            api.code("cuCtxPopCurrent")
