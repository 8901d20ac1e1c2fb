"""Frozen dataclasses as JSON and back, led by their type hints: what comes from a file is checked, never believed.

field ::= int | float | bool | str | field | None | tuple[field, ...] | tuple[field, field] | dataclass
"""

from __future__ import annotations

import types
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def plain(value: Any, without: Collection[str] = ()) -> Any:
    """A value as JSON has it; a dataclass as an object of its fields, but for those named in `without`."""
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name not in without}
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    if value is None or type(value) in (int, float, bool, str):
        return value
    raise TypeError(f"{value!r} of type {type(value).__name__} has no form in JSON here")


def record(kind: type[T], data: Any, **given: Any) -> T:
    """The dataclass that `plain` wrote; given: the fields that were left out. Raises ValueError where data does not
    fit."""
    hints = _hints(kind)
    if not isinstance(data, dict) or set(data) | set(given) != set(hints):
        raise ValueError(f"{data!r} does not have the fields of {kind.__name__}")
    return kind(**{name: _field(hints[name], v) for name, v in data.items()}, **given)


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _field(hint: Any, data: Any) -> Any:
    arguments = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return None if data is None else _field(next(a for a in arguments if a is not types.NoneType), data)
    if get_origin(hint) is tuple:
        if isinstance(data, list):
            parts: list[Any] = [arguments[0]] * len(data) if arguments[-1] is Ellipsis else [*arguments]
            if len(parts) == len(data):
                return tuple(_field(p, d) for p, d in zip(parts, data))
    elif isinstance(hint, type) and is_dataclass(hint):
        return record(hint, data)
    elif hint is float and type(data) is int:
        return float(data)
    elif type(data) is hint:
        return data
    raise ValueError(f"{data!r} is not {hint}")
