"""Compiled modules inside programs of PyTorch: one custom op, `renorm::run`, which torch.compile and torch.export take
as one call."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from renorm.core.dims import APPLIED, linear, substitute
from renorm.core.errors import InvalidInput
from renorm.runtime.module import Module
from renorm.torch.arrays import tensor_of
from renorm.torch.gpus import gpu_of
from renorm.torch.kernels import run_on

_MODULES = WeakValueDictionary[int, Module]()
_NUMBERS = count()
_APPLIED = {**APPLIED, "min": torch.sym_min, "max": torch.sym_max}  # of symbolic integers


class CompiledLayer(nn.Module):
    """A compiled module as a layer: the same inputs, results as a tensor, or as a tuple of several. It has no
    parameters, and no gradient."""

    def __init__(self, module: Module):
        super().__init__()
        self.compiled, self._number = module, next(_NUMBERS)
        _MODULES[self._number] = module

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        made = torch.ops.renorm.run([*inputs], self._number)
        return made[0] if len(made) == 1 else tuple(made)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledLayer:
        """Return a layer of the same module, of which nothing changes; of one that has state, a module of its own."""
        program = getattr(self.compiled, "program", None)
        has_state = program is not None and program.states
        return CompiledLayer(copy.deepcopy(self.compiled, memo) if has_state else self.compiled)

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledLayer, (self.compiled,)

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.compiled.inputs))


def as_module(module: Module) -> CompiledLayer:
    """Return a compiled module, or one that was loaded, as a layer of PyTorch's. An exported program that holds it runs
    in this process, as long as the layer lives."""
    return CompiledLayer(module)


def extents_told(module: Module, shapes: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return a module's open extents as shapes of its inputs tell them, whose extents may be None: not known."""
    found = dict[str, Any]()
    for spec, shape in zip(module.inputs, shapes):
        for wanted, there in zip(spec.shape, shape):
            if not isinstance(wanted, int) and there is not None and (known := linear(wanted)) is not None:
                symbol, times, more = known
                found.setdefault(symbol, (there - more) // times)
    return found


def _held(number: int) -> Module:
    if number not in _MODULES:
        raise InvalidInput(
            f"renorm::run of module {number}, which is not there",
            ["a program that was saved does not hold compiled modules, and one that is gone takes its code along"],
            "keep the layer, or save the module itself: m.save()",
        )
    return _MODULES[number]


@torch.library.custom_op("renorm::run", mutates_args=(), device_types=("cpu", "cuda"))
def run(inputs: Sequence[Tensor], number: int) -> list[Tensor]:
    """Run the module of that number. On tensors of a GPU it is in the order of PyTorch's stream, and results are
    there."""
    gpu = next((gpu for x in inputs if (gpu := gpu_of(x)) is not None), None)
    module, given = _held(number), [x.detach().contiguous() for x in inputs]
    return [tensor_of(y) for y in module.run(*given)] if gpu is None else run_on(gpu, module, given)


@run.register_fake
def _(inputs: Sequence[Tensor], number: int) -> list[Tensor]:
    module = _held(number)
    extents = extents_told(module, [x.shape for x in inputs])
    made, device = list[Tensor](), next((x.device for x in inputs if not x.is_cpu), torch.device("cpu"))
    for spec in module.outputs:
        shape: list[Any] = [substitute(n, extents, _APPLIED) for n in spec.shape]
        made.append(torch.empty(shape, dtype=getattr(torch, spec.dtype), device=device))
    return made
