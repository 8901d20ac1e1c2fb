"""How many threads work for PyTorch: as many as it uses itself."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from renorm.training import kernels


def torch_threads() -> AbstractContextManager[None]:
    """Inside, kernels run on torch.get_num_threads() threads."""
    return kernels.threads(torch.get_num_threads())
