"""Graphs as modules that background processes compile: what LLVM and compiling take is not this one's memory."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import Any

from renorm.graph import registry
from renorm.graph.ir import Graph
from renorm.runtime.launches import GPU
from renorm.runtime.module import Module
from renorm.runtime.openmp import ParallelRegion
from renorm.training.background import SEVERAL

Request = tuple[Any, tuple[Any, ...]]


def asked(graph: Graph, options: Mapping[str, Any]) -> Request | None:
    """Have a graph of fixed extents compiled, and return what `module` is to be asked. options: of renorm.compile. None
    where only this process can: it has ops, overrides or a progress bar that others have not."""
    ops = {type(n.op) for n in graph.nodes}
    if "progress" in options or any(not registry.is_own(op) or registry.is_overridden(op) for op in ops):
        return None
    arrays = {name: v.data for name, v in graph.constants.items()}
    request = parts, (pickle.dumps((str(graph), arrays, dict(options), _settings())),)
    SEVERAL.answer(request)
    return request


def module(request: Request, threads: int | ParallelRegion | None, device: int = 0) -> Module | None:
    """Return the module that was asked for, once it is there; None where the process has none. device: the number of
    the GPU that runs it, where one does."""
    answer = SEVERAL.awaited(request)
    if not answer:
        return None
    program, objects, weights, walker = pickle.loads(answer)
    if program.machine.arch != GPU:
        return Module(program, objects, weights, walker, threads)
    from renorm.runtime.gpu.module import GpuModule  # who trains on the CPU is spared it

    return GpuModule(program, objects, weights, walker).on(device)


def _settings() -> dict[str, str]:
    """Return the environment's RENORM_CACHE and the like, which may have changed since the other process began."""
    return {name: value for name, value in os.environ.items() if name.startswith("RENORM_")}


def parts(message: bytes) -> bytes:
    """Return what `module` makes a module of."""
    from renorm.driver.compile import compile  # who asks is spared the compiler
    from renorm.driver.module import CompiledGpuModule, CompiledModule
    from renorm.graph.parse import parse

    text, arrays, options, settings = pickle.loads(message)
    for name in _settings():
        del os.environ[name]
    os.environ |= settings
    made = compile(parse(text, arrays), **options)
    if isinstance(made, CompiledGpuModule) or type(made) is CompiledModule:
        return pickle.dumps(made.parts())
    return b""
