"""PyTorch's own samples of its operators (op_db), as programs of torch.export, and what renorm makes of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

import renorm
from renorm.errors import RenormError
from renorm.graph import interpret

MOST = 12  # samples of an operator, of more evenly spread ones
FEW = 3  # where all are exhaustive


@dataclass(frozen=True)
class Program:
    """op: applied to a sample's arguments, of which tensors are inputs and all else is as it is."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def leaves(self) -> tuple[list[Any], Any]:
        return tree_flatten((self.args, self.kwargs))

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [x for x in self.leaves[0] if isinstance(x, torch.Tensor)]

    def module(self) -> torch.nn.Module:
        op, (leaves, tree) = self.op, self.leaves

        class Applied(torch.nn.Module):
            def forward(self, *tensors: torch.Tensor) -> Any:
                given = iter(tensors)
                args, kwargs = tree_unflatten([next(given) if isinstance(x, torch.Tensor) else x for x in leaves], tree)
                made = op(*args, **kwargs)
                return tuple(made) if isinstance(made, (list, tuple)) else made

        return Applied()


def spread(samples: Sequence[Any], most: int) -> Sequence[Any]:
    """Return so many samples at most, evenly spread."""
    return samples[:: -(-len(samples) // most) or 1]


def programs(info: Any, dtype: torch.dtype, most: int = MOST) -> Iterator[Program]:
    """Yield programs of so many of an operator's samples at most."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(info.sample_inputs("cpu", dtype, requires_grad=False))
    for sample in spread(samples, most):
        yield Program(info.op, (sample.input, *sample.args), dict(sample.kwargs))


def reasons(path: Path) -> dict[str, str]:
    """Return why samples are not read, by name: lines of a file of expectations."""
    return {name: why for line in path.read_text().splitlines() for name, _, why in [line.partition(": ")]}


def outcome(program: Program, tolerance: float = 1e-4) -> str:
    """Return "" where renorm reads the program and computes what PyTorch does, in float64 where it can; else why
    not."""
    module, tensors = program.module(), program.tensors
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exported = torch.export.export(module, tuple(tensors), strict=False)
        except Exception as error:
            return f"torch.export: {type(error).__name__}"
        try:
            graph = renorm.read(exported)
            found = interpret.run(graph, [_real(t.detach()).contiguous().numpy() for t in tensors])
        except RenormError as error:
            return str(error.headline)
        wanted = module(*tensors)
    wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
    if len(wanted) != len(found):
        return "it gives what is no tensor"
    pairs = (
        (a, b if isinstance(b, torch.Tensor) else torch.from_numpy(np.asarray(b, a.dtype)))
        for a, b in zip(found, wanted)
    )
    return next((d for a, b in pairs if (d := difference(a, b, tolerance))), "")


def _real(x: torch.Tensor) -> torch.Tensor:
    """Return the parts of complex numbers on a last axis."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def difference(found: Any, wanted: torch.Tensor, tolerance: float) -> str:
    """Return in what a result differs from PyTorch's; "" for nothing."""
    if wanted.dtype == torch.bfloat16:
        found, wanted = found.astype(np.float32), wanted.float()
    expected = _real(wanted.detach()).resolve_neg().numpy()
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"a result is {found.dtype}{list(found.shape)}, not {expected.dtype}{list(expected.shape)}"
    if not np.issubdtype(expected.dtype, np.floating):
        return "" if np.array_equal(found, expected) else "whole numbers differ"
    finite = np.isfinite(expected)
    size = np.abs(expected[finite]).max(initial=1.0)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return "results that are no finite numbers differ"
    worst = np.abs(found[finite] - expected[finite]).max(initial=0.0) / size
    return "" if worst <= tolerance else f"results differ by {worst:.1e} of the largest"
