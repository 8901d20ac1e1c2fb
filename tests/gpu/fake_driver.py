"""NVIDIA's driver as an object in Python: memory is the host's, and streams do what they were given when somebody waits
for them, no earlier, so that what was taken for done too soon shows."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

TOTAL = 1 << 20  # bytes of memory
CUBIN = b"\x7fELF of the fake"
Kernel = Callable[..., None]


def floats(address: int, count: int) -> Any:
    """Return an array over memory."""
    memory: Any = (ctypes.c_float * count).from_address(address)
    return np.frombuffer(memory, np.float32)


class FakeDriver:
    """What stands in the place of cuda.bindings.driver. kernels: what functions of any code do, by name; each is given
    the number of its threads and its arguments. failing: what a function says instead of doing anything. called: names
    of functions, in order."""

    def __init__(self, real: Any, kernels: dict[str, Kernel]):
        self._real, self._kernels = real, kernels
        self.failing: dict[str, int] = {}
        self.called: list[str] = []
        self.memory: dict[int, Any] = {}
        self.contexts: list[Any] = []  # of the thread, the current one last
        self.graphs: dict[int, list[Any]] = {}
        self.page_locked: dict[int, Any] = {}
        self._streams: dict[int, deque[Callable[[], object]]] = {}
        self._events: dict[int, bool] = {}  # whether what was before it is done
        self._number = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            return getattr(self._real, name)  # enums and structs, which need no driver
        do = getattr(self, f"_{name}")

        def function(*arguments: Any) -> tuple[Any, ...]:
            self.called.append(name)
            if name in self.failing:
                return self._real.CUresult(self.failing[name]), *[0] * 2
            done = do(*arguments)
            error, *values = done if isinstance(done, tuple) else (0, done)
            return self._real.CUresult(error), *[value for value in values if value is not None]

        return function

    def run(self, stream: int) -> None:
        """Do what a stream was given."""
        queue = self._streams.setdefault(stream, deque())
        while queue:
            queue.popleft()()

    def _new(self) -> int:
        self._number += 1
        return self._number

    def _later(self, stream: int, work: Callable[[], object]) -> None:
        assert stream, "never the legacy default stream"
        assert self.contexts
        self._streams.setdefault(stream, deque()).append(work)

    def _cuInit(self, flags: int) -> Any: ...

    def _cuDriverGetVersion(self) -> Any:
        return 13000

    def _cuGetErrorString(self, error: Any) -> Any:
        return f"what {int(error)} means".encode()

    def _cuDeviceGetCount(self) -> Any:
        return 1

    def _cuDeviceGet(self, index: int) -> Any:
        return index

    def _cuDeviceGetName(self, length: int, device: Any) -> Any:
        return b"Fake GPU".ljust(length, b"\0")

    def _cuDeviceGetAttribute(self, kind: Any, device: Any) -> Any:
        kinds = self._real.CUdevice_attribute
        return {
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 9,
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: 0,
            kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: 132,
        }[kind]

    def _cuDevicePrimaryCtxRetain(self, device: Any) -> Any:
        return "context"

    def _cuCtxPushCurrent(self, context: Any) -> Any:
        self.contexts.append(context)

    def _cuCtxPopCurrent(self) -> Any:
        return self.contexts.pop()

    def _cuCtxSynchronize(self) -> Any:
        for stream in self._streams:
            self.run(stream)

    def _cuStreamCreate(self, flags: int) -> Any:
        return self._new()

    def _cuStreamSynchronize(self, stream: int) -> Any:
        self.run(stream)

    def _cuMemGetInfo(self) -> Any:
        return 0, TOTAL - sum(len(m) for m in self.memory.values()), TOTAL

    def _cuMemAlloc(self, nbytes: int) -> Any:
        if sum(len(m) for m in self.memory.values()) + nbytes > TOTAL:
            return (2,)
        memory = (ctypes.c_ubyte * nbytes)()
        self.memory[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def _cuMemFree(self, address: int) -> Any:
        del self.memory[address]

    def _cuMemAllocHost(self, nbytes: int) -> Any:
        memory = (ctypes.c_ubyte * nbytes)()
        self.page_locked[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def _cuMemFreeHost(self, address: int) -> Any:
        del self.page_locked[address]

    def _cuMemcpyHtoDAsync(self, to: int, source: int, nbytes: int, stream: int) -> Any:
        self._later(stream, lambda: ctypes.memmove(to, source, nbytes))

    _cuMemcpyDtoHAsync = _cuMemcpyDtoDAsync = _cuMemcpyHtoDAsync

    def _cuEventCreate(self, flags: int) -> Any:
        event = self._new()
        self._events[event] = True
        return event

    def _cuEventDestroy(self, event: int) -> Any:
        del self._events[event]

    def _cuEventRecord(self, event: int, stream: int) -> Any:
        self._events[event] = False
        self._later(stream, lambda: self._events.__setitem__(event, True))

    def _cuEventQuery(self, event: int) -> Any:
        return (0 if self._events[event] else 600,)

    def _cuEventSynchronize(self, event: int) -> Any:
        for queue in self._streams.values():
            while queue and not self._events[event]:
                queue.popleft()()

    def _cuEventElapsedTime(self, begin: int, end: int) -> Any:
        return 2.0

    def _cuModuleLoadData(self, image: int) -> Any:
        return self._new() if ctypes.string_at(image, len(CUBIN)) == CUBIN else (209,)

    def _cuModuleUnload(self, module: Any) -> Any: ...

    def _cuModuleGetFunction(self, module: Any, name: bytes) -> Any:
        names = sorted(self._kernels)
        return self._real.CUfunction(1 + names.index(name.decode())) if name.decode() in names else (500,)

    def _cuFuncGetAttribute(self, kind: Any, function: Any) -> Any:
        return {"SHARED_SIZE_BYTES": 4096, "NUM_REGS": 40}[kind.name.removeprefix("CU_FUNC_ATTRIBUTE_")]

    def _cuGraphCreate(self, flags: int) -> Any:
        graph = self._new()
        self.graphs[graph] = []
        return graph

    def _cuGraphDestroy(self, graph: int) -> Any:
        del self.graphs[graph]

    def _cuGraphAddKernelNode(self, graph: int, before: list[Any], count: int, launch: Any) -> Any:
        assert list(before) == [len(self.graphs[graph]) - 1][: len(before)]
        assert count == len(before) == bool(self.graphs[graph])
        self.graphs[graph].append(self._launch(launch))
        return len(self.graphs[graph]) - 1

    def _launch(self, launch: Any) -> tuple[Kernel, int, list[int]]:
        kernel = self._kernels[sorted(self._kernels)[int(launch.func) - 1]]
        threads = launch.gridDimX * launch.gridDimY * launch.gridDimZ
        threads *= launch.blockDimX * launch.blockDimY * launch.blockDimZ
        parameters = (ctypes.c_void_p * 2).from_address(int(launch.kernelParams))
        return kernel, threads, [ctypes.c_uint64.from_address(p or 0).value for p in parameters]

    def _cuGraphInstantiate(self, graph: int, flags: int) -> Any:
        run = self._new()
        self.graphs[run] = list(self.graphs[graph])
        return run

    _cuGraphExecDestroy = _cuGraphDestroy

    def _cuGraphExecKernelNodeSetParams(self, run: int, node: int, launch: Any) -> Any:
        self.graphs[run][node] = self._launch(launch)

    def _cuGraphLaunch(self, run: int, stream: int) -> Any:
        for kernel, threads, arguments in list(self.graphs[run]):
            self._later(stream, lambda kernel=kernel, threads=threads, args=arguments: kernel(threads, *args))
