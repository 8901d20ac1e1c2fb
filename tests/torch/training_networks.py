"""A network with every kind of norm and many activations, and what it learns in some steps: for tests of compiled
training, also in processes of their own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "relu6": nn.ReLU6, "silu": nn.SiLU, "gelu": nn.GELU, "gelu_tanh": lambda: nn.GELU("tanh"),
    "hardswish": nn.Hardswish, "hardsigmoid": nn.Hardsigmoid, "leaky": lambda: nn.LeakyReLU(0.1),
    "elu": lambda: nn.ELU(1.3), "selu": nn.SELU, "celu": lambda: nn.CELU(0.7), "softplus": nn.Softplus,
    "mish": nn.Mish, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "hardtanh": nn.Hardtanh,
}  # fmt: skip
CHANNELS, SIZE = 8, (13, 9)


class Block(nn.Module):
    """y = act(norm(conv(x))), z = act(norm(conv(y)) + x)"""

    def __init__(self, norm: nn.Module, last: nn.Module, activation: str = "relu"):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = norm, last
        self.act = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm1(self.conv1(x)))
        return self.act(self.norm2(self.conv2(y)) + x)


class Network(nn.Module):
    def __init__(self, checkpointed: bool = False, has_images: bool = True):
        super().__init__()
        self.checkpointed = checkpointed
        self.stem = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.blocks = nn.ModuleList(
            [
                Block(nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS)),
                Block(nn.BatchNorm2d(CHANNELS), nn.GroupNorm(2, CHANNELS), "silu"),
                Block(nn.InstanceNorm2d(CHANNELS, affine=True), nn.BatchNorm2d(CHANNELS, affine=False), "hardswish"),
            ]
        )
        self.norm, self.out = nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        for block in self.blocks:
            y = checkpoint(block, y, use_reentrant=False) if self.checkpointed else block(y)
        return self.out(nn.functional.rms_norm(self.norm(y.permute(0, 2, 3, 1)), (CHANNELS,)).mean((1, 2)))


def learned(
    module: nn.Module,
    run: Callable[[Tensor], Tensor],
    steps: int = 10,
    order: torch.memory_format = torch.contiguous_format,
    autocast: torch.dtype | None = None,
    part: slice = slice(None),
    samples: int = 6,
) -> dict[str, Tensor]:
    """Return the last outputs, gradients of parameters and input, and all state after SGD on random images."""
    dtype = next(module.parameters()).dtype
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    draw = torch.Generator().manual_seed(1)
    y = x = torch.zeros(())
    for _ in range(steps):
        images = torch.randn(samples, 3, *SIZE, generator=draw, dtype=torch.float64)[part]
        x = images.to(dtype).contiguous(memory_format=order).requires_grad_()
        optimizer.zero_grad()
        scaled = torch.autocast("cpu", autocast) if autocast is not None else contextlib.nullcontext()
        with scaled:
            y = run(x)
        (y.double() ** 2).mean().backward()
        optimizer.step()
    found: dict[str, Any] = {"y": y, "dx": x.grad}
    found |= {f"d{name}": p.grad for name, p in module.named_parameters()}
    return {k: v.detach().clone() for k, v in (found | dict(module.state_dict())).items()}


RANKS, SAMPLES = 3, 2


def main(folder: Path) -> None:
    """Learn as one of several ranks."""
    rank = int(os.environ["RANK"])
    store = f"file://{folder / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    module = Network()
    parallel = nn.parallel.DistributedDataParallel(module)
    run = torch.compile(parallel, backend="renorm") if "compiled" in sys.argv else parallel
    own = slice(rank * SAMPLES, (rank + 1) * SAMPLES)
    found = learned(module, run, steps=3, part=own, samples=RANKS * SAMPLES)
    arrays: dict[str, Any] = {k: v.numpy() for k, v in found.items()}
    np.savez(folder / f"{rank}.npz", **arrays)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
