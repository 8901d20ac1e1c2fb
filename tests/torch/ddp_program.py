"""A process of `test_ddp.py`: FOLDER; the state of its network after each kind of training goes to
FOLDER/RANK-KIND.npz, and what became of its communicator to FOLDER/RANK-freed."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.checkpoint import checkpoint

import renorm.torch as ours
from renorm.torch.process_groups import world

RANKS, SAMPLES, STEPS = 2, 3, 4
SHARDED = ("FullyShardedDataParallel", "fully_shard")
KINDS = ("plain", "unused", "accumulated", "checkpointed", "replaced", "compiled")


class Network(nn.Module):
    """Some samples go through a layer that others do not: a rank may have none of them, and then no gradient. It is
    registered last and runs first, so that DistributedDataParallel waits for it where it is used."""

    def __init__(self, kind: str):
        super().__init__()
        torch.manual_seed(11)
        self.kind = kind
        self.blocks = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
            nn.Sequential(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5, momentum=None)),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(20, 2))
        if kind == "unused":
            self.side = nn.Conv2d(3, 3, 1)
        self.double()

    def forward(self, x: Any, chosen: Any) -> Any:
        if self.kind == "unused" and chosen.any():
            x = x + self.side(x) * chosen.view(-1, 1, 1, 1)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.kind == "checkpointed" else block(x)
        return self.head(x)


def batches() -> list[tuple[Any, Any, Any]]:
    draw = torch.Generator().manual_seed(4)
    n = RANKS * SAMPLES
    return [
        (
            torch.randn(n, 3, 6, 6, generator=draw).double(),
            torch.randn(n, 2, generator=draw),
            torch.arange(n) // SAMPLES == step % RANKS,  # those of one rank, which changes
        )
        for step in range(STEPS)
    ]


def trained(model: Any, part: slice) -> None:
    """SGD, each step or every second one."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    kind = getattr(model, "module", model).kind
    for step, (x, t, chosen) in enumerate(batches()):
        adds_up = kind == "accumulated" and step % 2 == 0
        with model.no_sync() if adds_up and model is not getattr(model, "module", model) else nullcontext():
            ((model(x[part], chosen[part]) - t[part]) ** 2).mean().backward()
        if not adds_up:
            optimizer.step()
            optimizer.zero_grad()


def converted(kind: str) -> nn.Module:
    convert = (nn.SyncBatchNorm if kind == "replaced" else ours.SyncBatchNorm).convert_sync_batchnorm
    model: Any = convert(Network(kind))
    if kind == "replaced":
        ours.replace_norms(model)
    elif kind == "checkpointed":
        model.blocks[0][1].relu = True  # in the norm's kernels; the ReLU after it changes nothing
    return model


def norms(kind: str) -> nn.Module:
    """A network whose norms need no other sample; ours, if a kind is said."""
    torch.manual_seed(12)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.InstanceNorm2d(4, affine=True),
        nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 2),
    ).double()  # fmt: skip
    if kind:
        ours.replace_norms(model)
    return model


def learned(model: Any, part: slice) -> None:
    """SGD in each step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, t, _ in batches():
        ((model(x[part]) - t[part]) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def sharded(kind: str, part: slice) -> dict[str, Any]:
    """What ranks learn that have a part of each parameter, whose whole takes memory only while it is used."""
    model = norms(kind)
    if kind == "fully_shard":
        mesh = init_device_mesh("cpu", (RANKS,))
        for child in model.children():
            if next(child.parameters(), None) is not None:
                fully_shard(child, mesh=mesh)
        fully_shard(model, mesh=mesh)
        learned(model, part)
        return {name: t.full_tensor().numpy() for name, t in model.state_dict().items()}
    whole = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    learned(whole, part)
    return {name: t.numpy() for name, t in whole.state_dict().items()}


def connect(store: Path) -> int:
    """The rank of this process."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    return rank


def main(folder: Path) -> None:
    ours.set_background(False)
    rank = connect(folder / "first")
    for kind in KINDS:
        model = converted(kind)
        parallel = nn.parallel.DistributedDataParallel(model, find_unused_parameters=kind == "unused")
        if kind == "compiled":
            model.compile(backend="eager")
        trained(parallel, slice(rank * SAMPLES, (rank + 1) * SAMPLES))
        found = {name: t.numpy() for name, t in model.state_dict().items()}
        ours.restore(model)
        assert kind != "replaced" or sum(type(m) is nn.SyncBatchNorm for m in model.modules()) == 2
        np.savez(folder / f"{rank}-{kind}.npz", **found)
        del parallel, model
    for kind in SHARDED:
        np.savez(folder / f"{rank}-{kind}.npz", **sharded(kind, slice(rank * SAMPLES, (rank + 1) * SAMPLES)))
    comm = weakref.ref(world())
    torch.distributed.destroy_process_group()
    connect(folder / "second")
    again = world()
    gc.collect()
    assert again is not None
    assert len(again.gather("again", np.zeros(1))) == RANKS
    (folder / f"{rank}-freed").write_text(str(comm() is None))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
