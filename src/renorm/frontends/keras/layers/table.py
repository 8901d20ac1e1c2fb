"""Layers by class, each with the function that reads it: (call, arguments as the layer's `call` has them).

Functions of users stand beside them, by "package>Class", class, or name of a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from renorm.core.errors import InvalidInput
from renorm.frontends.keras.config import Described


@dataclass(frozen=True)
class Entry:
    """keeps_mask: what comes out counts at the same time steps as what goes in."""

    read: Callable[..., Any]
    keeps_mask: bool = False


R = TypeVar("R", bound=Callable[..., Any])
TABLE: dict[str, Entry] = {}
OPERATIONS: dict[str, Entry] = {}
"""Of keras.ops, as nodes of a functional model."""

_REGISTERED: dict[str, Callable[..., Any]] = {}


def reads(*kinds: str, keeps_mask: bool = False) -> Callable[[R], R]:
    """Enter the decorated function for classes of layers."""

    def enter(reader: R) -> R:
        TABLE.update({kind: Entry(reader, keeps_mask) for kind in kinds})
        return reader

    return enter


def computes(*kinds: str) -> Callable[[R], R]:
    """Enter the decorated function for classes of operations."""

    def enter(reader: R) -> R:
        OPERATIONS.update({kind: Entry(reader) for kind in kinds})
        return reader

    return enter


def register_keras_layer(name: str, function: Callable[..., Any]) -> None:
    """Have layers read by a function of your own: those of a class, "Class" or "package>Class", or the one of that
    name, a Lambda say. It is called as function(call, *inputs), with values whose axes are Keras', and returns a value,
    or several: `call.config` is the layer's config, `call.weights` are its variables in their order. It comes before
    renorm's own. Raises InvalidInput for what is no name, or no function."""
    if not isinstance(name, str) or not name or not callable(function):
        raise InvalidInput(f"register_keras_layer({name!r}, {function!r})", ["expected a name and a function"])
    _REGISTERED[name] = function


def registered(path: str, layer: Described) -> Callable[..., Any] | None:
    """Return the user's function for a layer."""
    names = (path, layer.name, layer.registered, layer.kind)
    return next((_REGISTERED[name] for name in names if name in _REGISTERED), None)
