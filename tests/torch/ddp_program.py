"""A process of `test_ddp.py`: FOLDER; the state of its network after training goes to FOLDER/RANK.npz."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import renorm.torch as ours

RANKS, SAMPLES, STEPS = 2, 3, 3


def network() -> Any:
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 5, 3),
        nn.BatchNorm2d(5, momentum=None),
        nn.Flatten(),
        nn.Linear(20, 2),
    ).double()


def batches() -> list[tuple[Any, Any]]:
    draw = torch.Generator().manual_seed(4)
    return [
        (
            torch.randn(RANKS * SAMPLES, 3, 6, 6, generator=draw).double(),
            torch.randn(RANKS * SAMPLES, 2, generator=draw),
        )
        for _ in range(STEPS)
    ]


def trained(model: Any, part: slice) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, t in batches():
        optimizer.zero_grad()
        ((model(x[part]) - t[part]) ** 2).mean().backward()
        optimizer.step()


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=int(os.environ["WORLD_SIZE"])
    )
    model = ours.SyncBatchNorm.convert_sync_batchnorm(network())
    trained(nn.parallel.DistributedDataParallel(model), slice(rank * SAMPLES, (rank + 1) * SAMPLES))
    np.savez(folder / f"{rank}.npz", **{name: t.numpy() for name, t in model.state_dict().items()})
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
