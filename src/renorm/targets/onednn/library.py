"""oneDNN's C interface (version 3): descriptors, primitives, their execution.

The library is `libdnnl.so.3`, as the package onednn-cpu-gomp on PyPI installs it below `sys.prefix`, or as the system
has it. Constants are those of oneapi/dnnl/dnnl_types.h.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_uint, c_void_p
from functools import cache
from typing import Any

from renorm.core.errors import InvalidTarget, RenormError
from renorm.core.room import out_of_threads
from renorm.runtime.openmp import address, entrance

MOST_AXES = 12
NORM_AXES = 5  # of a batch norm; with more, version 3.2 makes a primitive that computes something else
_STATUS = {1: "out of memory", 2: "invalid arguments", 3: "unimplemented", 4: "no implementation", 5: "runtime error"}

F32 = 3
ANY = 1  # a format that the primitive may choose
FORWARD_INFERENCE = 96
DIRECT, DECONVOLUTION_DIRECT = 1, 10
GLOBAL_STATS, USE_SCALE, USE_SHIFT, FUSE_RELU = 1, 2, 4, 8
RELU = 32
SRC, DST, WEIGHTS, BIAS, MEAN, VARIANCE, SCALE, SHIFT = 1, 17, 33, 41, 49, 50, 51, 52
_QUERY = {SRC: 129, WEIGHTS: 131, DST: 133}
_QUERY_IMPLEMENTATION = 8


class Unimplemented(Exception):
    """oneDNN has no implementation of a primitive for these shapes and attributes on this machine, or forbids them, as
    padding of less than nothing after a deconvolution of stride 1."""


class _Argument(Structure):
    _fields_ = (("argument", c_int), ("memory", c_void_p))


class Opaque:
    """An object of the library, destroyed when Python no longer refers to it.

    owner: the object that it is part of, which then is what gets destroyed.
    """

    def __init__(
        self, pointer: c_void_p, destroy: Callable[[c_void_p], Any] | None = None, owner: Opaque | None = None
    ):
        self._as_parameter_ = pointer
        self._owner = owner
        if destroy is not None:
            weakref.finalize(self, destroy, pointer)


def dims(values: Sequence[int]) -> Any:
    """dnnl_dims_t: one number per axis."""
    return (c_int64 * MOST_AXES)(*values)


def path() -> str:
    """Return where the library is. InvalidTarget when it is not installed."""
    beside = [os.path.join(prefix, "lib", "libdnnl.so.3") for prefix in (sys.prefix, sys.base_prefix)]
    found = next((p for p in beside if os.path.exists(p)), None) or ctypes.util.find_library("dnnl")
    if found is None:
        raise InvalidTarget(
            "target 'onednn': the library oneDNN is not installed",
            [f"looked for {', '.join(dict.fromkeys(beside))}, and for libdnnl.so among the libraries of the system"],
            "pip install 'renorm[onednn]', which brings onednn-cpu-gomp",
        )
    return found


class Library:
    """The loaded library with one engine (the CPU) and one stream; calls that fail raise.

    After fork() the threads that OpenMP had started for the thread that forked are gone, and it would wait for them for
    ever: in a child, another thread executes, for which OpenMP starts its own. Where it could not start them, which
    would end the process, nothing is executed.
    """

    def __init__(self, found: str):
        try:
            self._c = ctypes.CDLL(found)
        except OSError as e:
            raise InvalidTarget(f"target 'onednn': {found} cannot be loaded", [str(e)]) from None
        self._c.dnnl_memory_desc_get_size.restype = c_size_t
        self._c.dnnl_primitive_desc_query_md.restype = c_void_p
        self._c.dnnl_version.restype = POINTER(c_int)
        version = self._c.dnnl_version()[:3]
        if version[0] != 3:
            raise InvalidTarget(
                f"target 'onednn': {found} is oneDNN {'.'.join(map(str, version))}",
                ["expected: version 3, whose C interface this target calls"],
            )
        self.version = ".".join(map(str, version))
        self.engine = self.create("dnnl_engine_create", c_int(1), c_size_t(0))
        self.stream = self.create("dnnl_stream_create", self.engine, c_uint(1))
        self._most: Callable[[], int] = getattr(self._c, "omp_get_max_threads", lambda: 1)  # of a region; 1: no OpenMP
        self._entrance = entrance(address(getattr(self._c, "GOMP_parallel", None)))
        self._other_thread: ThreadPoolExecutor | None = None
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._other_thread = ThreadPoolExecutor(1, "onednn")

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function that returns a status; Unimplemented, or RenormError with the status."""
        status = getattr(self._c, function)(*arguments)
        if status in (2, 3, 4):
            raise Unimplemented(f"{function}: {_STATUS[status]}")
        if status:
            raise RenormError(f"oneDNN {self.version}: {function}: {_STATUS.get(status, f'status {status}')}")

    def create(self, function: str, *arguments: Any, destroy: str = "") -> Opaque:
        """Return the object that `function` writes to its first argument; `destroy` is the function that ends it."""
        pointer = c_void_p()
        self.call(function, byref(pointer), *arguments)
        return Opaque(pointer, getattr(self._c, destroy) if destroy else None)

    def layout(self, shape: Sequence[int], strides: Sequence[int] | None = None) -> Opaque:
        """Descriptor of a float32 tensor; without strides (in elements) its format is for a primitive to choose."""
        extents = dims(shape)
        if strides is None:
            name, form = "dnnl_memory_desc_create_with_tag", c_int(ANY)
        else:
            name, form = "dnnl_memory_desc_create_with_strides", dims(strides)
        return self.create(name, len(shape), extents, c_int(F32), form, destroy="dnnl_memory_desc_destroy")

    def rows(self, shape: Sequence[int]) -> Opaque:
        """Descriptor of a dense float32 tensor in row-major order."""
        strides, step = [], 1
        for extent in reversed(shape):
            strides.insert(0, step)
            step *= max(extent, 1)
        return self.layout(shape, strides)

    def is_same(self, a: Opaque, b: Opaque) -> bool:
        """Return whether two descriptors describe the same layout."""
        return bool(self._c.dnnl_memory_desc_equal(a, b))

    def size(self, layout: Opaque) -> int:
        """Bytes of a tensor in that layout."""
        return int(self._c.dnnl_memory_desc_get_size(layout))

    def chosen(self, description: Opaque, argument: int) -> Opaque:
        """Return the layout that a primitive wants one of its arguments in."""
        pointer = self._c.dnnl_primitive_desc_query_md(description, c_int(_QUERY[argument]), c_int(0))
        return Opaque(c_void_p(pointer), owner=description)

    def implementation(self, description: Opaque) -> str:
        """oneDNN's own name of what it chose, as "jit:avx512_core"."""
        text = c_char_p()
        self.call("dnnl_primitive_desc_query", description, c_int(_QUERY_IMPLEMENTATION), c_int(0), byref(text))
        return (text.value or b"").decode()

    def memory(self, layout: Opaque, address: int) -> Opaque:
        """Return a tensor at `address`, which the caller keeps alive."""
        arguments = (layout, self.engine, c_void_p(address))
        return self.create("dnnl_memory_create", *arguments, destroy="dnnl_memory_destroy")

    def primitive(self, description: Opaque) -> Opaque:
        """Return what is executed: a primitive."""
        return self.create("dnnl_primitive_create", description, destroy="dnnl_primitive_destroy")

    def execute(self, primitive: Opaque, memories: Mapping[int, Opaque]) -> None:
        """Run a primitive to its end. Raises OutOfMemory where the system does not give OpenMP its threads."""
        if self._other_thread is None:
            self._execute(primitive, memories)
        else:
            self._other_thread.submit(self._execute, primitive, memories).result()

    def _execute(self, primitive: Opaque, memories: Mapping[int, Opaque]) -> None:
        if not self._entrance.admits(most := self._most()):
            raise out_of_threads(f"oneDNN {self.version}: no threads for its primitives", most - 1)
        arguments = (_Argument * len(memories))(*((k, m._as_parameter_) for k, m in memories.items()))
        self.call("dnnl_primitive_execute", primitive, self.stream, c_int(len(memories)), arguments)
        self.call("dnnl_stream_wait", self.stream)


@cache
def library() -> Library:
    """Return the library, loaded once. InvalidTarget when it is not installed or of another version."""
    return Library(path())
