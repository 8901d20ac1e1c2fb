"""Ranks of torch.distributed: one all-gather for each exchange, over gloo, nccl or what the group has."""

from __future__ import annotations

from collections import Counter
from typing import Any

from renorm.core.errors import SynchronizationError
from renorm.training.communicators import TIMEOUT
from renorm.training.frames import Bytes, Framed

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
except ImportError as error:
    raise SynchronizationError(f"training.TorchGroup: {error}", do="pip install torch") from None

_made: Counter[str] = Counter()  # by name of the group


class TorchGroup(Framed):
    """The ranks of a process group of torch.distributed.

    pg: the group; default the one that init_process_group made. Statistics travel from the memory of the CPU where the
    group has a backend for it (gloo), else through the current CUDA device (nccl). All ranks of a group make their
    TorchGroups in the same order.
    timeout: seconds (default 300) that a rank waits for the others before it raises SynchronizationError. The group has
    a timeout of its own, and the shorter one counts.
    """

    _engine = "torch.distributed"

    def __init__(self, pg: dist.ProcessGroup | None = None, *, timeout: float = TIMEOUT):
        if not dist.is_initialized():
            raise SynchronizationError(
                "torch.distributed has no process group yet",
                do="call torch.distributed.init_process_group('gloo') first; torchrun sets what it needs",
            )
        group = dist.group.WORLD if pg is None else pg
        if group is None or dist.get_rank(group) < 0:
            raise SynchronizationError("this process is no rank of the process group")
        super().__init__(dist.get_rank(group), dist.get_world_size(group), timeout)
        self._group = group
        self._device = "cpu" if "cpu:" in dist.get_backend_config(group) else "cuda"
        _made[group.group_name] += 1
        self._roll = PrefixStore(f"renorm {_made[group.group_name]}", group.get_group_store())

    def start(self, frame: Bytes) -> _AllGather:
        return _AllGather(self._group, torch.from_numpy(frame).to(self._device), self.size)

    def call(self) -> None:
        self._roll.set(str(self.rank), "")
        self._roll.set("called", "")

    def present(self) -> set[int]:
        if not self._roll.check(["called"]):
            return set()
        return {rank for rank in range(self.size) if self._roll.check([str(rank)])}


class _AllGather:
    def __init__(self, group: dist.ProcessGroup, frame: torch.Tensor, size: int):
        self._frame = frame
        self._frames = torch.empty(size, len(frame), dtype=torch.uint8, device=frame.device)
        self._work: Any = dist.all_gather(list(self._frames), frame, group, async_op=True)

    def is_done(self) -> bool:
        return self._work.is_completed()

    def frames(self) -> Bytes:
        self._work.wait()
        return self._frames.cpu().numpy()
