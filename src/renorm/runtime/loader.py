"""Puts machine code into memory: many relocatable objects into one mapping, relocated, then never writable again.

Code comes first, constants after it on pages of their own. The mapping is written while it is neither readable as
code nor shared, then its pages become executable, or read-only: no page is ever writable and executable at a time. On
aarch64 the kernel brings the instruction cache up to date when fresh pages become executable.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence

from renorm.core.errors import InvalidArtifact
from renorm.runtime import elf
from renorm.runtime.memory import Memory
from renorm.runtime.program import ALIGNMENT, align


class Image:
    """Loaded objects. The mapping lives as long as this object; whoever calls into it keeps it alive."""

    def __init__(self, memory: Memory, symbols: Sequence[dict[str, int]]):
        self._memory = memory
        self._symbols = symbols

    def address(self, index: int, symbol: str) -> int:
        """Address of a function of object `index`. Raises InvalidArtifact when it does not define it."""
        found = self._symbols[index].get(symbol)
        if found is None:
            known = ", ".join(sorted(self._symbols[index])[:8])
            raise InvalidArtifact(
                f"object {index} does not define {symbol}", [f"it defines {known}"], "compile the model again"
            )
        return found


def load(objects: Sequence[bytes | memoryview], arch: str) -> Image:
    """Loads objects for `arch`.

    Raises InvalidArtifact for one that is damaged, for another machine, or that needs a symbol from outside.
    """
    read = [elf.read(data, f"object {i}") for i, data in enumerate(objects)]
    wrong = [f"object {i} is for {o.arch}, expected {arch}" for i, o in enumerate(read) if o.arch != arch]
    if wrong:
        raise InvalidArtifact("code for another machine", wrong[:8], "compile the model for this machine")

    places = dict[tuple[int, int], int]()  # (object, section) -> offset in the mapping
    end = code_end = 0
    for is_code in (True, False):
        for i, o in enumerate(read):
            for section in o.sections:
                if section.is_code == is_code:
                    # a hot loop keeps its alignment to cache lines wherever its section lands
                    places[i, section.index] = end = align(end, max(section.alignment, ALIGNMENT))
                    end += len(section.data)
        end = align(end, mmap.PAGESIZE)
        if is_code:
            code_end = end

    memory = Memory(end)
    base, written = memory.address, memory.array.data
    relocate = _x86_64 if arch == "x86_64" else _aarch64
    symbols = list[dict[str, int]]()
    for i, o in enumerate(read):
        sizes = {s.index: len(s.data) for s in o.sections}
        for section in o.sections:
            at = places[i, section.index]
            written[at : at + len(section.data)] = section.data
        values = [s.value if s.section is None else base + places[i, s.section] + s.value for s in o.symbols]
        for s in o.symbols:
            if s.section is not None and s.value > sizes[s.section]:
                raise InvalidArtifact(f"object {i}: symbol {s.name!r} lies outside its section")
        for r in o.relocations:
            symbol = o.symbols[r.symbol]
            if not symbol.is_defined:
                do = "compile the model again; kernels may call nothing outside themselves"
                raise InvalidArtifact(f"object {i} needs symbol {symbol.name!r}, which it does not define", (), do)
            offset = places[i, r.section] + r.offset
            if r.offset + _width(arch, r.type, i) > sizes[r.section]:
                raise InvalidArtifact(f"object {i}: a relocation at byte {r.offset} lies outside its section")
            relocate(written, offset, base + offset, r.type, values[r.symbol] + r.addend)
        code = [s.index for s in o.sections if s.is_code]
        functions = (s for s in zip(o.symbols, values) if s[0].is_global and s[0].section in code)
        symbols.append({s.name: v for s, v in functions if s.section is not None and s.value < sizes[s.section]})
    memory.protect(0, code_end, executable=True)
    memory.protect(code_end, end - code_end)
    return Image(memory, symbols)


# Relocation types by their numbers in the ABI supplements; S is the symbol's address with the addend, P the patched
# place.
_X86_64_WIDTHS = {1: 8, 2: 4, 4: 4, 10: 4, 11: 4, 24: 8}
_AARCH64_WIDTHS = {257: 8, 258: 4, 260: 8, 261: 4} | dict.fromkeys(
    (274, 275, 276, 277, 278, 282, 283, 284, 285, 286, 299), 4
)


def _width(arch: str, kind: int, index: int) -> int:
    """Bytes that a relocation reads and writes."""
    widths = _X86_64_WIDTHS if arch == "x86_64" else _AARCH64_WIDTHS
    if kind not in widths:
        raise InvalidArtifact(
            f"object {index} has a relocation of type {kind}, which renorm does not know for {arch}",
            [f"known: {', '.join(map(str, widths))}"],
            "compile the model again",
        )
    return widths[kind]


def _fit(value: int, bits: int, signed: bool = True) -> int:
    """`value` cut to `bits`, refused where it does not fit."""
    low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
    if not low <= value < high:
        raise InvalidArtifact(f"a relocation needs {value}, which does not fit into {bits} bits")
    return value & ((1 << bits) - 1)


def _x86_64(code: memoryview, at: int, place: int, kind: int, s: int) -> None:
    if kind == 1:  # R_X86_64_64: S
        struct.pack_into("<Q", code, at, s & 0xFFFFFFFFFFFFFFFF)
    elif kind in (2, 4):  # R_X86_64_PC32, PLT32: S - P
        struct.pack_into("<I", code, at, _fit(s - place, 32))
    elif kind == 10:  # R_X86_64_32: S, zero-extended
        struct.pack_into("<I", code, at, _fit(s, 32, signed=False))
    elif kind == 11:  # R_X86_64_32S: S, sign-extended
        struct.pack_into("<I", code, at, _fit(s, 32))
    else:  # R_X86_64_PC64: S - P
        struct.pack_into("<Q", code, at, (s - place) & 0xFFFFFFFFFFFFFFFF)


def _aarch64(code: memoryview, at: int, place: int, kind: int, s: int) -> None:
    if kind in (257, 260):  # ABS64: S; PREL64: S - P
        struct.pack_into("<Q", code, at, (s if kind == 257 else s - place) & 0xFFFFFFFFFFFFFFFF)
        return
    if kind == 258:  # ABS32
        struct.pack_into("<I", code, at, _fit(s, 32, signed=False))
        return
    if kind == 261:  # PREL32
        struct.pack_into("<I", code, at, _fit(s - place, 32))
        return
    (word,) = struct.unpack_from("<I", code, at)
    if kind in (275, 276):  # ADR_PREL_PG_HI21: pages from P to S, 21 bits, the low two at bit 29; 276 does not check
        pages = (s >> 12) - (place >> 12)
        pages = _fit(pages, 21) if kind == 275 else pages & 0x1FFFFF
        word = (word & 0x9F00001F) | (pages & 3) << 29 | pages >> 2 << 5
    elif kind == 274:  # ADR_PREL_LO21: bytes from P to S
        step = _fit(s - place, 21)
        word = (word & 0x9F00001F) | (step & 3) << 29 | step >> 2 << 5
    elif kind in (282, 283):  # JUMP26, CALL26: words from P to S
        word = (word & 0xFC000000) | _fit((s - place) >> 2, 26)
    else:  # ADD_ABS_LO12_NC and LDST8/16/32/64/128_ABS_LO12_NC: the offset in a page, in units of what is accessed
        shift = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}[kind]
        low = s & 0xFFF
        if low & ((1 << shift) - 1):
            raise InvalidArtifact(f"a relocation of type {kind} needs an address aligned to {1 << shift} bytes")
        word = (word & ~(0xFFF << 10)) | low >> shift << 10
    struct.pack_into("<I", code, at, word)
