"""Frozen dataclasses as JSON and back, led by their type hints: what comes from a file is checked, never believed.

field ::= int | float | bool | str | Dim | field | None | dataclass | dataclass of one set of fields | of another
        | tuple[field, ...] | Sequence[field] | tuple[field, field] | Mapping[str, field] | dict[str, field]

Integers have 64 bits and a sign, text has a form in UTF-8, sequences come back as tuples. A dataclass is an object with
all of its fields, or, where it says `is_row = True`, a list of them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from reprlib import repr as short
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from renorm.core import extents
from renorm.core.dims import Dim, Sym

T = TypeVar("T")

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def plain(value: Any, without: Collection[str] = ()) -> Any:
    """Return a value as JSON has it; a dataclass as an object of its fields, but for those named in `without`."""
    if is_dataclass(value):
        held = {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name not in without}
        return list(held.values()) if _is_row(value) else held
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    if isinstance(value, dict) and all(type(k) is str for k in value):
        return {k: plain(v) for k, v in value.items()}
    if (
        value is None
        or type(value) in (bool, str)
        or isinstance(value, float)
        or (type(value) is int and _LEAST <= value <= _MOST)
    ):
        return value
    if isinstance(value, Sym):
        return extents.plain(value)
    raise TypeError(f"{short(value)} of type {type(value).__name__} has no form in JSON here")


def record(kind: type[T], data: Any, **given: Any) -> T:
    """Return the dataclass that `plain` wrote; given: the fields that were left out. Raises ValueError where data does
    not fit."""
    return _record(kind)(data, given)


def _is_row(kind: Any) -> bool:
    return getattr(kind, "is_row", False)


@cache
def _record(kind: Any) -> Callable[..., Any]:
    """Return the reader of a dataclass, which takes data and the fields that were left out of it."""
    hints = get_type_hints(kind)
    readers = {f.name: _reader(hints[f.name]) for f in fields(kind)}
    in_order, names = tuple(readers.values()), frozenset(readers)

    def of_row(data: Any, _: dict[str, Any] | None = None) -> Any:
        if not isinstance(data, list) or len(data) != len(in_order):
            raise ValueError(f"{short(data)} is not a list of the fields of {kind.__name__}")
        return kind(*[read(v) for read, v in zip(in_order, data)])

    def of_object(data: Any, given: dict[str, Any] | None = None) -> Any:
        held = dict(given or {})
        if not isinstance(data, dict) or (data.keys() | held.keys() if held else data.keys()) != names:
            raise ValueError(f"{short(data)} does not have the fields of {kind.__name__}")
        name = ""
        try:
            for name, value in data.items():
                held[name] = readers[name](value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        return kind(**held)

    return of_row if _is_row(kind) else of_object


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return the reader of a field of this type, which raises ValueError for anything else."""
    arguments, origin = get_args(hint), get_origin(hint)
    if hint == Dim:
        return extents.read
    if origin in (Union, types.UnionType):
        others = [a for a in arguments if a is not types.NoneType]
        read = _reader(others[0]) if len(others) == 1 else _one_of(others)
        return read if len(others) == len(arguments) else lambda data: None if data is None else read(data)
    if origin in (dict, Mapping):
        return _mapping(_reader(arguments[1]))
    if origin is Sequence or (origin is tuple and arguments[-1] is Ellipsis):
        return _sequence(_reader(arguments[0]))
    if origin is tuple:
        return _pair([_reader(a) for a in arguments])
    if isinstance(hint, type) and is_dataclass(hint):
        return _record(hint)
    return {int: _int, float: _float, str: _text}.get(hint) or _exactly(hint)


def _one_of(kinds: Sequence[Any]) -> Callable[[Any], Any]:
    """Return the reader of dataclasses that are told apart by their fields."""
    readers = {frozenset(f.name for f in fields(kind)): _record(kind) for kind in kinds}

    def one_of(data: Any) -> Any:
        read = readers.get(frozenset(data)) if isinstance(data, dict) else None
        if read is None:
            raise ValueError(f"{short(data)} does not have the fields of any of {len(readers)} kinds")
        return read(data)

    return one_of


def _mapping(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def mapping(data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise ValueError(f"{short(data)} is not an object")
        return {_text(k): read(v) for k, v in data.items()}

    return mapping


def _sequence(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def sequence(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise ValueError(f"{short(data)} is not a list")
        return tuple([read(v) for v in data])

    return sequence


def _pair(readers: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def pair(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, list) or len(data) != len(readers):
            raise ValueError(f"{short(data)} is not a list of {len(readers)}")
        return tuple([read(v) for read, v in zip(readers, data)])

    return pair


def _int(data: Any) -> int:
    if type(data) is not int or not _LEAST <= data <= _MOST:
        raise ValueError(f"{short(data)} is not an integer of 64 bits")
    return data


def _float(data: Any) -> float:
    return data if type(data) is float else float(_int(data))


def _text(data: Any) -> str:
    if type(data) is not str:
        raise ValueError(f"{short(data)} is not text")
    data.encode()  # a lone surrogate raises UnicodeEncodeError, a ValueError
    return data


def _exactly(hint: Any) -> Callable[[Any], Any]:
    def exactly(data: Any) -> Any:
        if type(data) is not hint:
            raise ValueError(f"{short(data)} is not {hint}")
        return data

    return exactly
