"""Attributes that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


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
