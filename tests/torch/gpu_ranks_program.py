"""A process of `test_on_gpu.py`: FOLDER RANK; a GPU in whose place the CPU stands, and whose batches are a part of all.
What a layer makes of them goes to FOLDER/RANK.pt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.gpu import host_device

import renorm.torch as ours
from renorm.torch import kernels, modules
from renorm.training.kernels import Gpu

PARTS = (slice(0, 2), slice(2, 5))  # samples of each rank
LAYERS: tuple[dict[str, Any], ...] = ({}, {"affine": False, "momentum": None}, {"relu": True})


def data(seed: int) -> Any:
    return torch.randn(5, 6, 3, 4, generator=torch.Generator().manual_seed(seed))


def step(layer: Any, part: slice, form: Any, with_residual: bool) -> list[Any]:
    """All that a layer makes of two steps, on a part of the samples."""
    found = list[Any]()
    for seed in range(2):
        x, residual, dy = (data(10 * seed + k)[part].to(layer.running_mean.dtype) for k in range(3))
        given = [t.to(memory_format=form).requires_grad_() for t in (x, residual)[: 1 + with_residual]]
        layer.zero_grad()
        y = layer(*given)
        y.backward(dy)
        found += [y.detach(), *(t.grad for t in given)]
    return found


def main(folder: Path, rank: int) -> None:
    host_device.register()
    device = host_device.host(7)
    from tests.torch.test_on_gpu import Memory  # which pytest skips where there is no PyTorch

    device._memory = Memory()
    kernels.gpu_of = lambda _: Gpu(host_device.ARCH, 7)
    kernels.stream_of = lambda _: 0
    modules.is_on_host = lambda _: False
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=len(PARTS))
    found = list[Any]()
    for i, settings in enumerate(LAYERS):
        layer = ours.SyncBatchNorm(6, **settings)
        form = torch.channels_last if i == 1 else torch.contiguous_format
        made = step(layer, PARTS[rank], form, with_residual=i == 2)
        grads = [p.grad for p in layer.parameters()]
        found.append((made, grads, [*layer.buffers()]))
    device.wait(0)
    torch.save(found, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
