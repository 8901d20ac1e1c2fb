"""Batch norm in training: forward, backward, running statistics, statistics over ranks. Names are loaded when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from renorm.training.communicators import Alone, Communicator, Threads

# public name -> module of this room that has it
_PUBLIC = {
    "Alone": "communicators",
    "Communicator": "communicators",
    "Threads": "communicators",
}

__all__ = ["Alone", "Communicator", "Threads"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'renorm.training' has no attribute {name!r}")
    value = getattr(import_module(f"renorm.training.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
