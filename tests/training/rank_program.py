"""A process of `test_rank_processes.py`: ENGINE FOLDER; what it finds goes to FOLDER/RANK-CASE.npz."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tests.training.faults import FAULTS, outcome
from tests.training.splits import computed, drawn

from renorm import training
from renorm.errors import RenormError, SynchronizationError
from renorm.training.communicators import Communicator
from renorm.training.padded_collectives import Bytes, Framed

SPLITS = {  # samples on each of three ranks, shape of the whole, mean / standard deviation, masked
    "uneven": ((1, 4, 2), (7, 3, 5), 100.0, False),
    "one value per channel": ((1, 1, 1), (3, 4), 10.0, False),
    "empty ranks": ((0, 5, 0), (5, 3, 5), 1.0, False),
    "masked": ((2, 3, 2), (7, 3, 5), 30.0, True),
    "long messages": ((1, 1, 1), (3, 1000, 2), 1.0, False),
}
TIMEOUT = 4.0  # seconds, where ranks do not come


def connect(engine: str, folder: Path) -> Framed:
    if engine == "mpi":
        return training.Mpi()
    import torch.distributed as dist

    if not dist.is_initialized():
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    return training.TorchGroup()


def splits(comm: Framed, folder: Path) -> dict[str, Any]:
    """All of SPLITS, twice; and how many collectives the second time took."""
    started: list[int] = []
    start = comm.start

    def counted(frame: Bytes) -> Any:
        started.append(len(frame))
        return start(frame)

    comm.start = counted
    found: dict[str, Any] = {}
    for _ in range(2):
        started.clear()
        for name, (sizes, shape, ratio, masked) in SPLITS.items():
            ends = np.cumsum([0, *sizes])
            batch = drawn(len(name), shape, ratio, masked=masked)
            part = batch.part(ends[comm.rank], ends[comm.rank + 1])
            found |= {f"{name}/{key}": value for key, value in computed(part, comm.named(name)).items()}
    return found | {"collectives": np.array(len(started))}


def mismatch(comm: Communicator, folder: Path) -> Any:
    return training.moments(np.ones((2, 900 if comm.rank == 2 else 3, 4)), comm=comm)


def raises(comm: Communicator, folder: Path) -> Any:
    return training.moments(np.ones((2, 3, 4), np.int32 if comm.rank == 1 else np.float32), comm=comm)


def late(comm: Communicator, folder: Path) -> Any:
    """Rank 1 comes when the others have given up."""
    if comm.rank == 1:
        wait_for(folder / f"{rank}-late.npz" for rank in (0, 2))
    return training.moments(np.ones((2, 3, 4)), comm=comm)


def wait_for(files: Iterable[Path]) -> None:
    until = time.monotonic() + 60
    for file in files:
        while not file.exists() and time.monotonic() < until:
            time.sleep(0.05)


def faults(comm: Communicator, folder: Path) -> Any:
    return {name: np.array(outcome(comm, fault)) for name, fault in FAULTS.items()}


def subgroup(comm: Communicator, folder: Path) -> Any:
    """A batch on ranks 2 and 0, in this order."""
    if isinstance(comm, training.Mpi):
        own = comm._comm.Split(int(comm.rank == 1), -comm.rank)
    else:
        import torch.distributed as dist

        own: Any = dist.new_group([2, 0], sort_ranks=False)
    if comm.rank == 1:
        return {} if isinstance(comm, training.Mpi) else {"no rank": training.TorchGroup(own)}
    SUBGROUPS.append(training.Mpi(own) if isinstance(comm, training.Mpi) else training.TorchGroup(own))
    whole = drawn(31, (5, 3, 7), 10.0)
    part = whole.part(0, 2) if comm.rank == 2 else whole.part(2, 5)
    return {"rank": np.array(SUBGROUPS[0].rank)} | computed(part, SUBGROUPS[0])


SUBGROUPS: list[Framed] = []


def dies(comm: Framed, folder: Path) -> Any:
    """Rank 1 is killed while the others wait for it in a forward pass."""
    return _dies(comm, folder, comm.rank == 1, backward=False)


def dies_backward(comm: Communicator, folder: Path) -> Any:
    """Of the two that are left one is killed while the other waits in a backward pass."""
    SUBGROUPS[0].timeout = TIMEOUT
    return _dies(SUBGROUPS[0], folder, comm.rank == 2, backward=True)


def _dies(comm: Framed, folder: Path, killed: bool, backward: bool) -> Any:
    b = drawn(32, (4, 3, 5), 1.0)
    before = [a.copy() for a in b if a is not None]
    out = np.full_like(b.x, 7)
    r = training.batch_norm(b.x, b.scale, b.bias, b.running_mean, b.running_var, comm=comm) if backward else None
    if killed:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        if r is None:
            training.batch_norm(b.x, b.scale, b.bias, b.running_mean, b.running_var, comm=comm.named("bn"), out=out)
        else:
            saved = r.saved_mean, r.saved_invstd
            training.batch_norm_backward(b.dy, b.x, b.scale, *saved, comm=comm.named("bn"), out=out)
    except SynchronizationError as error:
        same = all(np.array_equal(a, old) for a, old in zip([a for a in b if a is not None], before, strict=True))
        seconds = time.monotonic() - began
        return {"error": str(error), "is_unchanged": same and bool((out == 7).all()), "seconds": seconds}


CASES = {case.__name__: case for case in (splits, mismatch, raises, faults, subgroup, late, dies, dies_backward)}


def main(engine: str, folder: Path) -> None:
    comm: Any = None
    for case in CASES:
        if case != "dies_backward":  # where one is no more
            comm = connect(engine, folder)
            training.moments(np.ones((2, 3, 4)))  # compiled, so that ranks come at one time
            comm.gather("warm up", np.zeros(1))
        comm.timeout = TIMEOUT if case in ("late", "dies") else 60.0
        try:
            found = CASES[case](comm, folder)
        except RenormError as error:
            found = {"error": np.array(str(error))}
        _write(folder / f"{comm.rank}-{case}.npz", found)
        if case == "late":  # ranks have not met at its end
            wait_for(folder / f"{rank}-late.npz" for rank in range(comm.size))
    if engine == "gloo":
        os._exit(0)  # torch would wait for collectives that nobody joins


def _write(file: Path, found: dict[str, Any]) -> None:
    """Whole, or not at all: another rank looks for it."""
    part = file.with_suffix(".part.npz")
    np.savez(part, **found)
    part.rename(file)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
