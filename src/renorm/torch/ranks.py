"""The ranks of process groups of torch.distributed, as layers ask for them: one communicator for each group."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from renorm.training import Communicator, TorchGroup

_communicators: WeakKeyDictionary[Any, Communicator] = WeakKeyDictionary()


def world(group: Any = None) -> Communicator | None:
    """The ranks of a process group, without one all of torch.distributed; None where there is one rank. One
    communicator for each group, as long as the group lives: ranks make them in the same order, that of their first
    layers."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    group = group or dist.group.WORLD
    if dist.get_world_size(group) == 1:
        return None
    if group not in _communicators:
        _communicators[group] = TorchGroup(group)
    return _communicators[group]
