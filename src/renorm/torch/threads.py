"""Which threads work for PyTorch: as many as it uses itself, and the same ones where they are OpenMP's."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from renorm.runtime import openmp
from renorm.runtime.openmp import Region
from renorm.training import kernels

_USER = torch._C.__file__ if torch.backends.openmp.is_available() else None  # the library that calls OpenMP


def team() -> int | Region:
    """torch.get_num_threads(), of torch's own parallel regions if it has them."""
    threads = torch.get_num_threads()
    return (openmp.region(threads, _USER) if _USER else None) or threads


def torch_threads(waits: bool = True) -> AbstractContextManager[None]:
    """Inside, kernels run on `team`. waits: for those that must be compiled; else NotYet is raised."""
    return kernels.threads(team(), waits)
