"""Overloads by name, each with the function that reads it: (call, arguments as the overload's schema has them)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Reader = Callable[..., Any]
R = TypeVar("R", bound=Reader)
TABLE: dict[str, Reader] = {}
PAIRS: dict[str, Reader] = {}  # of calls that read complex numbers, or give them


def reads(*names: str) -> Callable[[R], R]:
    """Enter the decorated function for overloads: "add.Tensor"; a name alone is its default overload."""

    def enter(reader: R) -> R:
        TABLE.update({n if "." in n else f"{n}.default": reader for n in names})
        return reader

    return enter


def reads_pairs(*names: str) -> Callable[[R], R]:
    """Enter the decorated function for overloads, where complex numbers are read or made."""

    def enter(reader: R) -> R:
        PAIRS.update({n if "." in n else f"{n}.default": reader for n in names})
        return reader

    return enter
