"""Kernels called on tensors where they lie, and what happens at a layer's first call with a shape.

Then a kernel must be compiled: meanwhile the layer computes with torch's function, and kernels are compiled in the
background, unless somebody has to have the same bits in each run. Kernels run on as many threads as torch uses itself,
the same ones where they are OpenMP's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch._C._autograd import _top_saved_tensors_default_hooks

from renorm.core.dims import static
from renorm.core.errors import OutOfMemory
from renorm.graph.op import OpDef
from renorm.runtime import openmp
from renorm.runtime.module import Module
from renorm.runtime.openmp import ParallelRegion
from renorm.torch.arrays import DTYPES, TORCH_DTYPES
from renorm.torch.gpus import gpu_of, stream_of
from renorm.training import kernels
from renorm.training.background import BACKGROUND, SEVERAL, finish
from renorm.training.kernels import Gpu

if TYPE_CHECKING:
    from renorm.runtime.gpu.module import GpuModule

_OPENMP_USER = torch._C.__file__ if torch.backends.openmp.is_available() else None  # the library that calls OpenMP
_is_background_on = True


def set_background(enabled: bool) -> None:
    """Set whether layers compute with torch's functions while kernels for a shape that they meet for the first time are
    compiled in the background (the default); otherwise such a call takes until they are, some tenths of a second.

    When renorm's kernels take over depends on time, and they round otherwise: without it a run repeats bit by bit. It
    is off as well where torch.use_deterministic_algorithms(True) was said."""
    global _is_background_on
    _is_background_on = bool(enabled)


def wait(timeout: float | None = None) -> bool:
    """Wait until all that is compiled in the background is, at most `timeout` seconds. Return whether it is."""
    return finish((BACKGROUND, *SEVERAL.all), timeout)


def waits() -> bool:
    """Return whether a kernel that is not there is waited for. So it is where what a forward pass saves is handed to
    others: a checkpoint is compared with that of a second pass."""
    return (
        not _is_background_on
        or torch.are_deterministic_algorithms_enabled()
        or bool(_top_saved_tensors_default_hooks(True))
    )


def team() -> int | ParallelRegion:
    """Return torch.get_num_threads(), of torch's own parallel regions if it has them."""
    threads = torch.get_num_threads()
    return (openmp.region(threads, _OPENMP_USER) if _OPENMP_USER else None) or threads


def workers(x: Tensor) -> int | ParallelRegion | Gpu:
    """Return who runs kernels on a tensor."""
    return gpu_of(x) or team()


def compiled(key: Any, is_torchs: bool = True) -> Module:
    """Return the module of a key of renorm.training.kernels. Raises NotYet where it is compiled in the background, and
    torch has a function in its place."""
    return (kernels.module if not is_torchs or waits() else kernels.early)(key)


def run_at(module: Module, addresses: list[int], by: int | ParallelRegion | Gpu | None) -> None:
    """Run a module at addresses: on a GPU in the order of the caller's stream, and where that has no memory for it once
    more without what PyTorch keeps of memory that nobody uses."""
    if not isinstance(by, Gpu):
        module.run_at(addresses)
        return
    on_gpu = cast("GpuModule", module)
    try:
        on_gpu.run_at(addresses, stream_of(by))
    except OutOfMemory:
        torch.cuda.empty_cache()
        on_gpu.run_at(addresses, stream_of(by))


def run_on(gpu: Gpu, module: Any, given: Sequence[Tensor]) -> list[Tensor]:
    """Run a module on tensors of a GPU, in the order of the caller's stream; return fresh ones. module: of fixed
    extents, or what is compiled for each combination of shapes."""
    fixed = module
    if not isinstance(module, Module):
        fixed = module.specialized(**{spec.name: tuple(x.shape) for spec, x in zip(module.inputs, given)})
    device = next(x.device for x in given)
    made = [torch.empty(static(y.shape), dtype=getattr(torch, y.dtype), device=device) for y in fixed.outputs]
    fixed.run(*given, out=made, stream=stream_of(gpu))
    return made


def run(
    op: type[OpDef],
    attributes: tuple[tuple[str, Any], ...],
    operands: Sequence[Tensor | None],
    into: Tensor,
    is_torchs: bool = True,
) -> list[Tensor]:
    """Run `op` on contiguous tensors (None: left out). into: has the memory of its first result, in whatever shape.
    Return the others. is_torchs: torch has a function in its place. Raises NotYet as `compiled`."""
    types, by = tuple([None if t is None else (tuple(t.shape), DTYPES[t.dtype]) for t in operands]), workers(into)
    module = compiled((op, attributes, by, types), is_torchs)
    rest = [
        torch.empty(cast("tuple[int, ...]", r.shape), dtype=TORCH_DTYPES[r.dtype], device=into.device)
        for r in module.outputs[1:]
    ]
    addresses = [t.data_ptr() for t in operands if t is not None]
    run_at(module, [*addresses, into.data_ptr(), *[t.data_ptr() for t in rest]], by)
    return rest
