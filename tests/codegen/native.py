"""Runs compiled kernels without the runtime: objects are loaded by LLVM's own linker, phases called through ctypes."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from tests.codegen.fenced import fenced, fenced_copy

from renorm.codegen.abi import CompiledKernel
from renorm.codegen.llvm import compile_kernel
from renorm.codegen.llvm.requirements import requirements
from renorm.core.dims import Dim, static, substitute
from renorm.core.target import Target
from renorm.runtime import cpu
from renorm.runtime.program import ALIGNMENT
from renorm.targets import find
from renorm.tir.nodes import Buffer, Kernel, Stmt, Store, walk

HOST = Target()
_Phase = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def where_it_runs(target: str) -> Any:
    """A target as a parameter of a test that runs code for it; on other machines it is skipped."""
    lacking = cpu.obstacles(requirements(find(target)), platform.machine())
    return pytest.param(target, marks=pytest.mark.skipif(bool(lacking), reason="; ".join(lacking)))


def program(name: str, params: Sequence[Buffer], body: Stmt) -> Kernel:
    """A kernel whose outputs are what it stores to."""
    stored = {s.buffer for s in walk(body) if isinstance(s, Store)}
    return Kernel(name, tuple(params), body, frozenset(p.name for p in params if p in stored))


class Native:
    """A compiled kernel that can be called with one array per parameter, in order."""

    def __init__(self, compiled: CompiledKernel):
        self.compiled = compiled
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten()
        )
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly("", llvm.create_context()), machine, use_lmm=True)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(compiled.object))
        self._engine.finalize_object()
        self._phases = [_Phase(self._engine.get_function_address(f"phase{k}")) for k in range(len(compiled.phases))]

    def __call__(self, *arrays: np.ndarray[Any, Any], threads: int = 1, extents: Sequence[int] = ()) -> None:
        assert all(a.flags.c_contiguous for a in arrays)
        values = dict(zip(self.compiled.extents, extents, strict=True))

        def number(size: Dim) -> int:
            return static([substitute(size, values)])[0]

        kept = [fenced(number(size), ALIGNMENT) for size in self.compiled.workspace]
        scratch = number(self.compiled.scratch)
        private = [fenced(scratch * threads, ALIGNMENT)] if scratch else []
        slots = [*(a.ctypes.data for a in (*arrays, *kept)), *extents, *(a.ctypes.data for a in private)]
        pointers = (ctypes.c_void_p * len(slots))(*slots)
        for phase, open_extent in zip(self._phases, self.compiled.phases, strict=True):
            extent = number(open_extent)
            for t in reversed(range(threads)):  # one after the other: iterations are independent
                low, high = extent * t // threads, extent * (t + 1) // threads
                if low < high:  # a serial phase does not look at its range, and one thread calls it
                    phase(pointers, low, high, t)


def run_native(
    kernel: Kernel,
    arrays: Sequence[np.ndarray[Any, Any]],
    target: Target = HOST,
    threads: int = 1,
    extents: Sequence[int] = (),
) -> None:
    """Compiles `kernel` and runs it on arrays in C order, as tir.interpret.run does; writes into them. It must stay
    within them."""
    copies = [fenced_copy(a) for a in arrays]
    Native(compile_kernel(kernel, target))(*copies, threads=threads, extents=extents)
    for array, copy in zip(arrays, copies):
        if array.flags.writeable:
            array[...] = copy
