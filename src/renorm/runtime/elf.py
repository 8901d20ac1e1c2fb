"""ELF64 relocatable objects as LLVM writes them: the sections that code needs, its relocations and its symbols.

Reads only; every offset is checked against the end of the file before use. Sections for debuggers, unwinding and the
linker are left out: kernels neither throw nor are thrown through.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from renorm.core.errors import InvalidArtifact

ARCHES = {62: "x86_64", 183: "aarch64"}  # e_machine

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_RELOCATABLE = 1
_SYMTAB, _RELA_TABLE, _NOBITS, _REL_TABLE = 2, 4, 8, 9
_X86_64_UNWIND = 0x70000001
_WRITE, _ALLOC, _EXECUTE, _TLS = 1, 2, 4, 0x400
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2
_GLOBAL, _WEAK = 1, 2
_LARGEST_ALIGNMENT = 4096


class Section(NamedTuple):
    """A section that is loaded. index: in the file. data: its bytes. alignment: a power of two up to a page."""

    index: int
    name: str
    data: memoryview
    alignment: int
    is_code: bool


class Symbol(NamedTuple):
    """name: "" for a section's own symbol.

    section: index, or None where it is absolute. value: offset into the section.
    """

    name: str
    section: int | None
    value: int
    is_defined: bool
    is_global: bool


class Relocation(NamedTuple):
    """Patch `section` at `offset` with a value made of symbol and `addend`; `type` says how, per architecture."""

    section: int
    offset: int
    type: int
    symbol: int
    addend: int


class Object(NamedTuple):
    """A relocatable object. Relocations are those of the sections kept; their symbols index `symbols`."""

    arch: str
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]

    @property
    def undefined(self) -> tuple[str, ...]:
        """Names that another object would have to define."""
        return tuple(s.name for s in self.symbols if s.is_global and not s.is_defined)


def read(data: bytes | memoryview, name: str = "object") -> Object:
    """Reads an object.

    Raises InvalidArtifact, which names `name`, for one that is damaged or needs more than code and constants.
    """
    try:
        return _read(memoryview(data).cast("B"), name)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise _invalid(name, f"{type(error).__name__}: {error}") from error


def _invalid(name: str, *facts: str) -> InvalidArtifact:
    return InvalidArtifact(f"{name} is not an object that renorm can load", facts, "compile the model again")


def _slice(data: memoryview, offset: int, size: int, name: str) -> memoryview:
    if offset + size > len(data):
        raise _invalid(name, f"bytes {offset} to {offset + size} of a file of {len(data)}")
    return data[offset : offset + size]


def _string(table: bytes, offset: int) -> str:
    if offset >= len(table):
        raise IndexError(f"string at {offset} of a table of {len(table)}")
    return table[offset : table.index(b"\0", offset)].decode()


def _read(data: memoryview, name: str) -> Object:
    ident, kind, machine, _, _, _, table_at, _, _, _, _, entry, count, names_index = _HEADER.unpack_from(data)
    if ident[:6] != b"\x7fELF\x02\x01" or kind != _RELOCATABLE or machine not in ARCHES or entry != _SECTION.size:
        facts = [
            f"starts with {ident[:6]!r}, type {kind}, machine {machine}",
            "expected a little-endian ELF64 relocatable",
        ]
        raise _invalid(name, *facts)
    headers = list(_SECTION.iter_unpack(_slice(data, table_at, count * _SECTION.size, name)))
    contents = [data[:0] if h[1] == _NOBITS else _slice(data, h[4], h[5], name) for h in headers]
    if sum(map(len, contents)) > len(data):
        raise _invalid(name, "sections share their bytes")
    names = bytes(contents[names_index])

    sections = list[Section]()
    for i, (name_at, type_, flags, _, _, size, _, _, alignment, _) in enumerate(headers):
        title = _string(names, name_at) if i else ""
        unwinding = title == ".eh_frame" or type_ == _X86_64_UNWIND
        if not flags & _ALLOC or unwinding or size == 0:
            continue
        # what is written once, by relocation, is a constant to the code: .data.rel.ro
        if (flags & _WRITE and not title.startswith(".data.rel.ro")) or flags & _TLS or type_ == _NOBITS:
            raise _invalid(name, f"section {title} is writable data; kernels have only code and constants")
        if alignment > _LARGEST_ALIGNMENT or alignment & (alignment - 1):
            raise _invalid(
                name, f"section {title} is aligned to {alignment} bytes; at most a page of {_LARGEST_ALIGNMENT}"
            )
        sections.append(Section(i, title, contents[i], max(1, alignment), bool(flags & _EXECUTE)))
    kept = {s.index for s in sections}

    symbols = list[Symbol]()
    for header, content in zip(headers, contents):
        if header[1] != _SYMTAB:
            continue
        if symbols:
            raise _invalid(name, "two symbol tables")
        strings = bytes(contents[header[6]])
        for name_at, info, _, section, value, _ in _SYMBOL.iter_unpack(content):
            if section == _COMMON:
                raise _invalid(name, f"symbol {_string(strings, name_at)} is common: writable data")
            defined = section == _ABSOLUTE or section in kept
            symbols.append(
                Symbol(
                    _string(strings, name_at),
                    section if section in kept else None,
                    value,
                    defined,
                    info >> 4 in (_GLOBAL, _WEAK),
                )
            )

    relocations = list[Relocation]()
    for (_, type_, _, _, _, _, _, target, _, _), content in zip(headers, contents):
        if type_ == _REL_TABLE and target in kept:
            raise _invalid(name, "relocations without addends, which neither architecture uses")
        if type_ == _RELA_TABLE and target in kept:
            for offset, info, addend in _RELA.iter_unpack(content):
                if info >> 32 >= len(symbols):
                    raise _invalid(name, f"a relocation names symbol {info >> 32} of {len(symbols)}")
                relocations.append(Relocation(target, offset, info & 0xFFFFFFFF, info >> 32, addend))
    return Object(ARCHES[machine], tuple(sections), tuple(symbols), tuple(relocations))
