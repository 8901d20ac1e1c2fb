"""The ranks of process groups of torch.distributed, as layers ask for them: one communicator for each group."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from renorm.training import Communicator, TorchGroup

_communicators: WeakKeyDictionary[Any, Communicator] = WeakKeyDictionary()


def world(group: Any = None) -> Communicator | None:
    """Return the ranks of a process group, without one all of torch.distributed, or those of a communicator of
    renorm.training; None where there is one rank. One communicator for each group, until it is destroyed: ranks make
    them in the same order, that of their first layers."""
    if isinstance(group, Communicator):
        return group if group.size > 1 else None
    if not (dist.is_available() and dist.is_initialized()):
        return None
    group = group or dist.group.WORLD
    if dist.get_world_size(group) == 1:
        return None
    if group not in _communicators:
        for other in [g for g in _communicators if not _is_alive(g)]:  # DistributedDataParallel may keep its group
            del _communicators[other]
        _communicators[group] = TorchGroup(group)
    return _communicators[group]


def _is_alive(group: Any) -> bool:
    """Return whether nobody has destroyed it."""
    try:
        return dist.get_rank(group) >= 0
    except ValueError:
        return False
