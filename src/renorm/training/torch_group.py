"""Ranks of torch.distributed: one all-gather for each exchange, over a gloo of their own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from renorm.core.errors import SynchronizationError
from renorm.training.communicators import TIMEOUT, missing
from renorm.training.padded_collectives import Bytes, Framed

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
except ImportError as error:
    raise SynchronizationError(f"training.TorchGroup: {error}", do="pip install torch") from None

_made: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by group: ranks make their TorchGroups in one order


class TorchGroup(Framed):
    """The ranks of a process group of torch.distributed, numbered as in it.

    pg: the group, of any backend; default the one that init_process_group made. Its store is where the ranks meet to
    connect with each other over gloo, so that messages of the program, as those of DistributedDataParallel, and those
    of renorm never meet: who of them comes first depends on a rank's data. Statistics lie in the memory of the CPU, and
    nccl, which knows no other than a GPU's, has no part in it. All ranks of a group make their TorchGroups in the same
    order, and wait for each other there.
    timeout: seconds (default 300) that a rank waits for the others before it raises SynchronizationError.
    """

    _engine = "gloo"

    def __init__(self, pg: dist.ProcessGroup | None = None, *, timeout: float = TIMEOUT):
        if not dist.is_initialized():
            raise SynchronizationError(
                "torch.distributed has no process group yet",
                do="call torch.distributed.init_process_group('gloo') first; torchrun sets what it needs",
            )
        group = dist.group.WORLD if pg is None else pg
        if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
            raise SynchronizationError("this process is no rank of the process group")
        if not dist.is_gloo_available():
            raise SynchronizationError(
                "training.TorchGroup: this build of torch has no gloo",
                ["statistics lie in the memory of the CPU, between which gloo carries them"],
                "install a torch with gloo, or give training.Mpi",
            )
        super().__init__(dist.get_rank(group), dist.get_world_size(group), timeout)
        _made[group] = _made.get(group, 0) + 1
        self._store = PrefixStore(f"renorm {_made[group]}", group.get_group_store())
        self._meet_in_store()
        try:
            self._gloo = dist.ProcessGroupGloo(
                self._store, self.rank, self.size, timedelta(seconds=2 * timeout)
            )  # ours ends first
        except RuntimeError as error:
            raise SynchronizationError("training.TorchGroup: ranks do not reach each other", [str(error)]) from error

    def _meet_in_store(self) -> None:
        places = [f"made {rank}" for rank in range(self.size)]
        self._store.set(places[self.rank], "")
        try:
            self._store.wait(places, timedelta(seconds=self.timeout))
        except RuntimeError as error:
            absent = [rank for rank, place in enumerate(places) if not self._store.check([place])]
            raise missing(absent or range(self.size), "the making of TorchGroup", self.timeout) from error

    def start(self, frame: Bytes) -> _AllGather:
        return _AllGather(self._gloo, torch.from_numpy(frame), self.size)

    def call(self) -> None:
        self._store.set(str(self.rank), "")
        self._store.set("called", "")

    def present(self) -> set[int]:
        if not self._store.check(["called"]):
            return set()
        return {rank for rank in range(self.size) if self._store.check([str(rank)])}


class _AllGather:
    def __init__(self, gloo: Any, frame: torch.Tensor, size: int):
        self._frame = frame
        self._frames = torch.empty(size, len(frame), dtype=torch.uint8)
        self._work: Any = gloo.allgather([list(self._frames)], [frame])

    def is_done(self) -> bool:
        return self._work.is_completed()

    def frames(self) -> Bytes:
        self._work.wait()
        return self._frames.numpy()
