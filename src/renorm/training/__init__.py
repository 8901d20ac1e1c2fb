"""Batch norm in training: forward, backward, running statistics, statistics over ranks. Names are loaded when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from renorm.training.branches import together
    from renorm.training.communicators import Alone, Communicator, Threads
    from renorm.training.mpi import Mpi
    from renorm.training.torch_group import TorchGroup

# public name -> module of this room that has it
_PUBLIC = {
    "Alone": "communicators",
    "Communicator": "communicators",
    "Mpi": "mpi",
    "Threads": "communicators",
    "TorchGroup": "torch_group",
    "together": "branches",
}

__all__ = ["Alone", "Communicator", "Mpi", "Threads", "TorchGroup", "together"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'renorm.training' has no attribute {name!r}")
    value = getattr(import_module(f"renorm.training.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
