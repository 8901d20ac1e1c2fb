"""Calls of kernels on tensors where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from renorm.graph.op import OpDef
from renorm.runtime.module import Module
from renorm.torch.arrays import DTYPES, TORCH_DTYPES
from renorm.torch.first import waits
from renorm.torch.recycled import CPU
from renorm.torch.threads import team
from renorm.training import kernels


def compiled(key: Any, is_torchs: bool = True) -> Module:
    """Return the module of a key of renorm.training.kernels. Raises NotYet where it is compiled in the background, and
    torch has a function in its place."""
    return (kernels.module if not is_torchs or waits() else kernels.early)(key)


def run(
    op: type[OpDef], attributes: tuple[tuple[str, Any], ...], operands: Sequence[Tensor | None], into: Tensor
) -> list[Tensor]:
    """Run `op` on contiguous tensors (None: left out). into: has the memory of its first result, in whatever shape.
    Return the others, which are small. Raises NotYet as `compiled`."""
    types = tuple([None if t is None else (tuple(t.shape), DTYPES[t.dtype]) for t in operands])
    module = compiled((op, attributes, team(), types))
    rest = [torch.empty(r.shape, dtype=TORCH_DTYPES[r.dtype], device=CPU) for r in module.outputs[1:]]
    addresses = [t.data_ptr() for t in operands if t is not None]
    module.run_at([*addresses, into.data_ptr(), *[t.data_ptr() for t in rest]])
    return rest
