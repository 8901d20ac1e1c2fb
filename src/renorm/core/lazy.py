"""Attributes that are computed, and modules that are imported, when they are first needed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
_ON_OPS = (
    "renorm.driver.",
    "renorm.frontends",
    *(f"renorm.training.{file}" for file in ("forward", "backward", "reestimation")),
)


def imported(name: str) -> ModuleType:
    """Import a module of renorm. What needs ops has all of them imported first: Python lets a thread that imports one
    file of a package, while another imports the package, go on with a part of it."""
    if name.startswith(_ON_OPS):
        import_module("renorm.ops")
    return import_module(name)


class cached_property(Generic[T]):
    """`functools.cached_property` without the lock that it has in Python 3.11, one for all objects of a class: a child
    of fork() would wait for it for ever, and threads for each other."""

    def __init__(self, compute: Callable[[Any], T]):
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: Any) -> cached_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: Any) -> T: ...
    def __get__(self, instance: object | None, owner: Any) -> Any:
        if instance is None:
            return self
        return vars(instance).setdefault(self._name, self._compute(instance))
