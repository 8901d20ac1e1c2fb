"""Ops of batch norm as compiled modules, one per op, attributes, shapes and dtypes, made when first called."""

from __future__ import annotations

import pickle
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from renorm.core import system
from renorm.core.lru import Latest
from renorm.graph import registry
from renorm.graph.ir import Graph
from renorm.graph.op import OpDef
from renorm.runtime.arrays import Array
from renorm.runtime.gpu import device as devices
from renorm.runtime.gpu.arrays import View
from renorm.runtime.module import Module
from renorm.runtime.openmp import ParallelRegion
from renorm.training.background import BACKGROUND

if TYPE_CHECKING:
    from renorm.driver.module import CompiledModule
    from renorm.runtime.gpu.module import GpuModule

KEPT = 512  # modules; that which was not called for longest goes first

_modules = Latest[Any, Module]("a kernel that is compiled", KEPT)


class Gpu(NamedTuple):
    """A GPU. index: its number among those of this process."""

    arch: str
    index: int


Workers = int | ParallelRegion | Gpu | None
"""Who runs a kernel: so many threads, those of a region, a GPU; None: as many threads as modules take by default."""

_threads = ContextVar[int | ParallelRegion | None]("threads", default=None)
_stream = ContextVar[int | None]("stream", default=None)


class NotYet(Exception):
    """A kernel that is still being compiled in the background. Whoever does not wait catches it."""


@cache
def gpu(index: int) -> Gpu:
    """Return the GPU of a number. Raises InvalidTarget where there is none that renorm has code for."""
    return Gpu(devices.device("", index).arch, index)


def run(
    op: type[OpDef], attributes: tuple[tuple[str, Any], ...], operands: Sequence[Array | View | None], out: Any
) -> list[Any]:
    """Return the results of `op` on arrays (None: left out). out: None, or for each result an array or None. Where an
    operand is on a GPU, that runs it, and fresh results are DeviceArrays."""
    given, types = (
        [a for a in operands if a is not None],
        tuple([None if a is None else (a.shape, a.dtype) for a in operands]),
    )
    there = next((a for a in given if isinstance(a, View)), None)
    if there is None:
        return module((op, attributes, _threads.get(), types)).run(*given, out=out)
    on_gpu = cast("GpuModule", module((op, attributes, gpu(there.index), types)))
    return on_gpu.run(*given, out=out, stream=_stream.get())


@contextmanager
def on_stream(handle: int | None) -> Generator[None]:
    """Inside, calls on arrays of a GPU are in the order of a stream (torch.cuda.current_stream().cuda_stream), and
    return before it is done with them, `batch_norm` and both gradients where all operands are on the GPU. Without it
    they return when it is."""
    token = _stream.set(handle)
    try:
        yield
    finally:
        _stream.reset(token)


def is_awaited() -> bool:
    """Return whether calls on arrays of a GPU return when it is done with them."""
    return _stream.get() is None


def module(key: Any) -> Module:
    """Return the module of a key, compiled if it is not there yet."""
    return _modules.get(key) or _modules.made(key, lambda: compiled(*key))


def early(key: Any) -> Module:
    """Return the module of a key, if it is there; otherwise it is compiled in the background, and until then this
    raises NotYet. It is compiled here where that cannot be."""
    if (found := _modules.get(key)) is not None:
        return found
    op, attributes, workers, types = key
    gpu = workers if isinstance(workers, Gpu) else None
    answer = b"" if registry.is_overridden(op) else BACKGROUND.answer((parts, (op, attributes, gpu or 1, types)))
    if answer is None:
        raise NotYet
    if not answer:
        return module(key)
    program, objects, weights, walker = pickle.loads(answer)
    if not isinstance(workers, Gpu):
        return _modules.made(key, lambda: Module(program, objects, weights, walker, workers))
    from renorm.runtime.gpu.module import GpuModule  # who trains on the CPU is spared it

    return _modules.made(key, lambda: GpuModule(program, objects, weights, walker).on(workers.index))


def parts(op: type[OpDef], attributes: Any, workers: Any, types: Any) -> bytes:
    """Return what `early` makes a module of."""
    return pickle.dumps(compiled(op, attributes, workers, types).parts())


@contextmanager
def threads(count: int | ParallelRegion | None) -> Generator[None]:
    """Inside, `run` computes on so many threads, or a region's; without it on as many as modules take by default."""
    token = _threads.set(count)
    try:
        yield
    finally:
        _threads.reset(token)


def compiled(op: type[OpDef], attributes: Any, workers: Workers, types: Any, target: str = "llvm") -> CompiledModule:
    """Return a new module for a key. target: of the CPU that threads are of."""
    from renorm import targets
    from renorm.driver.compile import Options, specialize  # who only converts or merges is spared the compiler

    made = op(**dict(attributes))
    graph = Graph(op.name)
    operands = [
        None if t is None else graph.input(p.name, t[1].name, t[0])
        for p, t in zip(op.parsed.operands, types)  # the last ones may be left out
    ]
    graph.apply(made, operands, outputs=[p.name for p in op.parsed.results])
    graph.outputs = list(graph.nodes[0].outputs)
    keep = ()  # not RENORM_KEEP, which speaks of the user's networks
    if isinstance(workers, Gpu):
        there = targets.find(f"cuda -arch={workers.arch}")
        return specialize(graph, {}, Options(there, level=3, keep=keep, verify=False, device=workers.index))
    system.require(host := targets.find(target))
    return specialize(graph, {}, Options(host, level=3, keep=keep, verify=False, threads=workers))
