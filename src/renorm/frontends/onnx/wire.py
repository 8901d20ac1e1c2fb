"""Messages in protobuf's wire format, read without protobuf: large elements stay where the file has them.

    message ::= field*      field ::= key content      key ::= number * 8 + kind, a varint
    content ::= varint (kind 0) | 8 bytes (kind 1) | how many, a varint, and these bytes (kind 2) | 4 bytes (kind 5)

See protobuf's documentation of the encoding. As there, fields that a message does not know are passed over, the last
one of several counts, messages that stand in the place of one are merged, and text that is not UTF-8 stays bytes.
Groups, which no version of ONNX has, are refused.

A class of messages states its fields (frontends.onnx.messages has ONNX's); those that a file leaves out have their
default. Methods have the names of protobuf's, so that one of its own messages may come in the place of these.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from renorm.frontends.files import Buffer

LARGE = 1 << 16  # bytes of a message that is worth reading in place
_DEEPEST = 100  # messages within each other, as in protobuf
_FIELDS = 1 << 29  # their numbers are below
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # kinds
_GROUP = 3, 4  # where one begins and ends
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_ALL_BITS = 2**64 - 1  # of a number


class DamagedError(Exception):
    """Why bytes are not a message; an InvalidModel where it is known which bytes they are."""


class Message:
    """Base of all messages. exclusive: the fields are a `oneof`: of several that a file has the last one is there."""

    exclusive: ClassVar[bool] = False
    fields: ClassVar[dict[str, Field]] = {}
    _takers: ClassVar[dict[int, Taker]] = {}  # by key
    _span: tuple[Buffer, int, int] = (b"", 0, 0)

    def __init_subclass__(cls) -> None:
        cls.fields = {name: f for name, f in vars(cls).items() if isinstance(f, Field)}
        cls._takers = {}
        for name, f in cls.fields.items():
            f.name = name
            cls._takers.update((f.number << 3 | kind, taker) for kind, taker in f.takers().items())
            delattr(cls, name)

    def __getattr__(self, name: str) -> Any:
        """Return the default of a field that is not there."""
        field = type(self).fields.get(name)
        if field is None:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}")
        return field.default()

    @classmethod
    def read(cls, data: Buffer) -> Self:
        """Return the message that these bytes are. Raises DamagedError."""
        made = cls()
        try:
            made.merge(data, 0, len(data), 0)
        except IndexError:
            raise DamagedError(f"{cls.__name__} ends within a number") from None
        return made

    def merge(self, data: Buffer, at: int, end: int, depth: int) -> None:
        """Take over the fields that lie there."""
        if depth > _DEEPEST:
            raise DamagedError(f"more than {_DEEPEST} messages within each other")
        self._span = data, at, end
        takers = self._takers
        while at < end:
            key, at = data[at], at + 1
            if key > 127:
                key, at = _varint(data, at - 1)
            kind, begin = key & 7, at
            if kind == _LENGTH:
                size, begin = data[at], at + 1
                if size > 127:
                    size, begin = _varint(data, at)
                at = begin + size
            elif kind == _VARINT:
                at = at + 1 if data[at] < 128 else _end_of_varint(data, at)
            elif kind in _SIZES:
                at += _SIZES[kind]
            else:
                what = "a group" if kind in _GROUP else f"a field of kind {kind}"
                raise DamagedError(f"{type(self).__name__} has {what}, which there is not")
            if at > end:
                raise DamagedError(
                    f"field {key >> 3} of {type(self).__name__} is {at - end} bytes longer than it may be"
                )
            if (take := takers.get(key)) is not None:
                if self.exclusive:
                    self._keep_only(key >> 3)
                take(self, data, begin, at, depth)
            elif not 0 < key >> 3 < _FIELDS:
                raise DamagedError(f"{type(self).__name__} has a field {key >> 3}, which there is not")

    def _keep_only(self, number: int) -> None:
        for name, f in self.fields.items():
            if f.number != number:
                self.__dict__.pop(name, None)

    def HasField(self, name: str) -> bool:
        return name in self.__dict__

    def WhichOneof(self, group: str) -> str | None:
        """Return the field that is there of an exclusive message."""
        return next((name for name in self.fields if name in self.__dict__), None)

    def SerializeToString(self) -> bytes:
        """Return the bytes that it was read from; of one that stands several times the last part."""
        data, begin, end = self._span
        return data[begin:end]


Taker = Callable[[Message, Buffer, int, int, int], None]  # into, data, begin, end, depth
Read = Callable[[Buffer, int, int], Any]  # data, begin, end


@dataclass(frozen=True)
class Kind:
    """The encoding of one value. content: the kind of its content. code: how `array` holds several; "" for a list."""

    content: int
    read: Read
    default: Any
    code: str = ""


class Field:
    """A field with one value. kind: of its content."""

    name = ""

    def __init__(self, number: int, kind: Kind):
        self.number, self.kind, self._read = number, kind, kind.read

    def takers(self) -> dict[int, Taker]:
        """By kind of content: what puts it into a message."""
        return {self.kind.content: self.take}

    def take(self, into: Message, data: Buffer, begin: int, end: int, depth: int) -> None:
        into.__dict__[self.name] = self._read(data, begin, end)

    def default(self) -> Any:
        return self.kind.default


class _Choice(Field):
    """A member of an enumeration; other numbers are as if they were not there."""

    def __init__(self, number: int, count: int):
        super().__init__(number, INT32)
        self._count = count

    def take(self, into: Message, data: Buffer, begin: int, end: int, depth: int) -> None:
        if 0 <= self._read(data, begin, end) < self._count:
            super().take(into, data, begin, end, depth)


class _Repeated(Field):
    """A field with several values, in the order in which they stand: numbers one by one, or all in the content of one
    field."""

    def takers(self) -> dict[int, Taker]:
        return super().takers() | ({_LENGTH: self._take_all} if self.kind.code else {})

    def take(self, into: Message, data: Buffer, begin: int, end: int, depth: int) -> None:
        self._held(into).append(self._read(data, begin, end))

    def _take_all(self, into: Message, data: Buffer, begin: int, end: int, depth: int) -> None:
        held, size = self._held(into), _SIZES.get(self.kind.content)
        if size is not None:
            if (end - begin) % size:
                raise DamagedError(f"field {self.number} of {type(into).__name__} ends within a number")
            held.frombytes(data[begin:end])
            return
        while begin < end:
            at = _end_of_varint(data, begin)
            if at > end:
                raise DamagedError(f"field {self.number} of {type(into).__name__} ends within a number")
            held.append(self._read(data, begin, at))
            begin = at

    def _held(self, into: Message) -> Any:
        return into.__dict__.setdefault(self.name, array(self.kind.code) if self.kind.code else [])

    def default(self) -> Any:
        return ()


class Nested(Field):
    """A message in a message, or several."""

    def __init__(self, number: int, message: Callable[[], type[Message]], is_repeated: bool):
        super().__init__(number, OCTETS)
        self.message, self.is_repeated = message, is_repeated

    def take(self, into: Message, data: Buffer, begin: int, end: int, depth: int) -> None:
        if self.is_repeated:
            made = self.message()()
            into.__dict__.setdefault(self.name, []).append(made)
        else:
            made = into.__dict__.setdefault(self.name, self.message()())
        if end - begin < LARGE and not isinstance(data, bytes):  # what is small refers to the file no more
            made.merge(data[begin:end], 0, end - begin, depth + 1)
        else:
            made.merge(data, begin, end, depth + 1)

    def default(self) -> Any:
        return () if self.is_repeated else self.message()()


# --- content ----------------------------------------------------------------------------------------------------------


def _end_of_varint(data: Buffer, at: int) -> int:
    """Return where the varint that lies there ends."""
    while data[at] > 127:
        at += 1
    return at + 1


def _varint(data: Buffer, at: int) -> tuple[int, int]:
    """Return a number in groups of 7 bits, lowest first, and where it ends."""
    number, shift = 0, 0
    while shift < 70:
        byte, at = data[at], at + 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & _ALL_BITS, at
        shift += 7
    raise DamagedError("a number has more than ten bytes")


def _unsigned(data: Buffer, begin: int, end: int) -> int:
    return data[begin] if end - begin == 1 else _varint(data, begin)[0]


def _signed(data: Buffer, begin: int, end: int) -> int:
    number = _unsigned(data, begin, end)
    return number - (number >> 63 << 64)


def _signed32(data: Buffer, begin: int, end: int) -> int:
    number = _unsigned(data, begin, end) & 0xFFFFFFFF
    return number - (number >> 31 << 32)


def _octets(data: Buffer, begin: int, end: int) -> bytes:
    return data[begin:end]


def _view(data: Buffer, begin: int, end: int) -> memoryview:
    return memoryview(data)[begin:end]


def _text(data: Buffer, begin: int, end: int) -> str | bytes:
    try:
        return data[begin:end].decode()
    except UnicodeDecodeError:
        return data[begin:end]


def _single(data: Buffer, begin: int, end: int) -> float:
    return struct.unpack("<f", data[begin:end])[0]


def _double(data: Buffer, begin: int, end: int) -> float:
    return struct.unpack("<d", data[begin:end])[0]


TEXT = Kind(_LENGTH, _text, "")
OCTETS = Kind(_LENGTH, _octets, b"")
VIEW = Kind(_LENGTH, _view, b"")  # bytes that stay where they are
INT32 = Kind(_VARINT, _signed32, 0, "i")
INT64 = Kind(_VARINT, _signed, 0, "q")
UINT64 = Kind(_VARINT, _unsigned, 0, "Q")
FLOAT32 = Kind(_FIXED32, _single, 0.0, "f")
FLOAT64 = Kind(_FIXED64, _double, 0.0, "d")


# --- fields as a class of messages states them ------------------------------------------------------------------------


def one(number: int, kind: Kind) -> Any:
    return Field(number, kind)


def several(number: int, kind: Kind) -> Any:
    return _Repeated(number, kind)


def choice(number: int, count: int) -> Any:
    """Return a field of an enumeration with so many members, from 0."""
    return _Choice(number, count)


def message(number: int, kind: Callable[[], type[Message]]) -> Any:
    return Nested(number, kind, False)


def messages(number: int, kind: Callable[[], type[Message]]) -> Any:
    return Nested(number, kind, True)
