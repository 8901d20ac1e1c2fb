"""Which threads work for PyTorch: as many as it uses itself, and the same ones where they are OpenMP's."""

from __future__ import annotations

import torch

from renorm.runtime import openmp
from renorm.runtime.openmp import Region

_USER = torch._C.__file__ if torch.backends.openmp.is_available() else None  # the library that calls OpenMP


def team() -> int | Region:
    """Return torch.get_num_threads(), of torch's own parallel regions if it has them."""
    threads = torch.get_num_threads()
    return (openmp.region(threads, _USER) if _USER else None) or threads
