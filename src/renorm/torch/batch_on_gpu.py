"""The kernels of batch norm for tensors of a GPU: what is small lies there too, and nobody waits for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from renorm.core.errors import InvalidInput
from renorm.torch.batch_kernels import Kernels


def per_channel(name: str, given: Tensor | None, channels: int, dtype: torch.dtype) -> Tensor | None:
    """Return a parameter [C] as kernels read it. Raises InvalidInput for other shapes."""
    if given is None:
        return None
    if given.shape != (channels,):
        expected = f"expected [{channels}]: one number for each channel of x"
        raise InvalidInput(f"{name} has shape {list(given.shape)}", [expected])
    return given.to(dtype).contiguous()


class KernelsOnGpu(Kernels):
    """As Kernels. A running variance that becomes infinite is not reported: to see that it would have to wait."""

    _at = staticmethod(Tensor.data_ptr)
    _share: tuple[float, Tensor] | None = None  # the momentum, and where it lies: it seldom changes

    def _small(self, x: Tensor) -> Tensor:
        return torch.empty(self._words, dtype=torch.float64, device=x.device)

    def _read(self, name: str, given: Tensor | None) -> Tensor | None:
        return per_channel(name, given, self._channels.count, self._wide)

    def _momentum(self, small: Tensor, share: float) -> int:
        known = self._share
        if known is None or known[0] != share:
            known = self._share = share, torch.full((1,), share, dtype=torch.float64, device=small.device)
        return known[1].data_ptr()

    def _frozen(self, mean: Tensor, var: Tensor) -> list[Any]:
        return [mean.double(), (var.double() + self._key.epsilon).rsqrt()]

    def _keep(self, running: tuple[Tensor, Tensor], read: tuple[Tensor, Tensor], small: Tensor, name: str) -> None:
        for old, offset in zip(running, self._offsets):
            old.copy_(small.view(torch.uint8)[offset : offset + self._nbytes].view(self._wide))
