"""Machine code, read as far as it tells what a loop does: where instructions jump, which of them multiply and add, and
which move vector registers to or from the stack. x86-64 and AArch64, as LLVM writes them.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, chapter 2 and appendix A; Arm
Architecture Reference Manual for A-profile, chapter C4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple


class Kind(Enum):
    """The effects of an instruction that matter here."""

    OTHER = auto()
    JUMP = auto()
    PRODUCT = auto()  # multiplies and adds
    STACK = auto()  # a vector instruction with an operand at a fixed place of the stack
    STACK_PRODUCT = auto()


class Instruction(NamedTuple):
    """at: offset of its first byte. target: offset that a jump goes to."""

    at: int
    kind: Kind
    target: int = 0


def x86_64(code: bytes) -> Iterator[Instruction]:
    """All instructions."""
    at = 0
    while at < len(code):
        end, kind, target = _X86(code, at).read()
        yield Instruction(at, kind, target)
        at = end


# VEX (two and three bytes) or EVEX, opcode, ModRM with SIB and displacement or none, SIB with base rsp and no index
_STACK_OPERAND = re.compile(rb"(?:\xc5.|\xc4..|\x62...).[\x04-\xbc]\x24", re.DOTALL)


def may_use_stack(code: bytes, machine: str) -> bool:
    """Return whether vector instructions on the stack are worth looking for; quick."""
    return machine != "x86_64" or _STACK_OPERAND.search(code) is not None


_PREFIXES = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\xf0\xf2\xf3")
# Opcodes of one byte, and of the map 0F (with AVX map 1), that a ModRM byte and immediate bytes follow
_BYTES = [*range(0x100)]
_MODRM = frozenset(
    [b for b in _BYTES if b < 0x40 and b % 8 < 4]
    + [0x63, 0x69, 0x6B, *range(0x80, 0x90), 0xC0, 0xC1, 0xC6, 0xC7, *range(0xD0, 0xD4), *range(0xD8, 0xE0)]
    + [0xF6, 0xF7, 0xFE, 0xFF]
)
_BYTE = frozenset(
    [b for b in _BYTES if b < 0x40 and b % 8 == 4]
    + [0x6A, 0x6B, *range(0x70, 0x80), 0x80, 0x83, 0xA8, *range(0xB0, 0xB8), 0xC0, 0xC1, 0xC6, 0xEB]
)
_WORD = frozenset([b for b in _BYTES if b < 0x40 and b % 8 == 5] + [0x68, 0x69, 0x81, 0xA9, 0xC7])  # 4 bytes, or 2
_PLAIN_0F = frozenset([0x05, 0x0B, 0x31, 0xA2, *range(0xC8, 0xD0)])  # without ModRM
_BYTE_0F = frozenset([0x70, 0x71, 0x72, 0x73, 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6])


class _X86:
    """One instruction. `read` gives where it ends, its kind, and where it jumps to."""

    def __init__(self, code: bytes, at: int):
        self._code, self._at = code, at

    def read(self) -> tuple[int, Kind, int]:
        code, short = self._code, False
        while code[self._at] in _PREFIXES:
            short |= code[self._at] == 0x66
            self._at += 1
        match code[self._at]:
            case 0x62:
                return self._vector(code[self._at + 1] & 7, 4)
            case 0xC4:
                return self._vector(code[self._at + 1] & 31, 3)
            case 0xC5:
                return self._vector(1, 2)
            case _:
                return self._plain(short)

    def _vector(self, opcodes: int, prefix: int) -> tuple[int, Kind, int]:
        """VEX or EVEX. opcodes: number of their map. Bits 5 and 6 after the escape are not set where the base or the
        index is one of r8 to r15; the short form has neither."""
        code = self._code
        opcode, low = code[self._at + prefix], prefix == 2 or code[self._at + 1] & 0x60 == 0x60
        modrm = self._at + prefix + 1
        if opcodes == 1 and opcode == 0x77:  # vzeroupper
            return modrm, Kind.OTHER, 0
        is_stack = low and code[modrm] & 0xC7 in (0x04, 0x44, 0x84) and code[modrm + 1] & 0x3F == 0x24
        is_product = opcodes == 2 and opcode >> 4 in (9, 10, 11) and opcode & 15 >= 6
        self._at = self._operand(modrm) + (opcodes == 3 or (opcodes == 1 and opcode in _BYTE_0F))
        kind = Kind.PRODUCT if is_product else Kind.OTHER
        if is_stack:
            kind = Kind.STACK_PRODUCT if is_product else Kind.STACK
        return self._at, kind, 0

    def _plain(self, short: bool) -> tuple[int, Kind, int]:
        code, wide = self._code, False
        if code[self._at] >> 4 == 4:  # REX
            wide = bool(code[self._at] & 8)
            self._at += 1
        opcode = code[self._at]
        self._at += 1
        if opcode == 0x0F:
            return self._escaped()
        if opcode in _MODRM:
            part = code[self._at] >> 3 & 7
            self._at = self._operand(self._at)
            if opcode in (0xF6, 0xF7) and part < 2:  # test with an immediate
                self._at += 1 if opcode == 0xF6 else 2 if short else 4
        if opcode in _BYTE:
            self._at += 1
        elif opcode in _WORD:
            self._at += 2 if short else 4
        elif 0xB8 <= opcode < 0xC0:
            self._at += 8 if wide else 2 if short else 4
        elif opcode in (0xE8, 0xE9):
            self._at += 4
        elif opcode == 0xC2:
            self._at += 2
        if opcode == 0xEB or 0x70 <= opcode < 0x80:
            return self._jump(1)
        return self._jump(4) if opcode == 0xE9 else (self._at, Kind.OTHER, 0)

    def _escaped(self) -> tuple[int, Kind, int]:
        opcode = self._code[self._at]
        self._at += 1
        if opcode in (0x38, 0x3A):
            self._at = self._operand(self._at + 1) + (opcode == 0x3A)
        elif 0x80 <= opcode < 0x90:
            self._at += 4
            return self._jump(4)
        elif opcode not in _PLAIN_0F:
            self._at = self._operand(self._at) + (opcode in _BYTE_0F)
        return self._at, Kind.OTHER, 0

    def _operand(self, at: int) -> int:
        """Return where the operand of the ModRM byte at `at` ends."""
        form, register = self._code[at] >> 6, self._code[at] & 7
        at += 1
        if form == 3:
            return at
        if register == 4:
            register = self._code[at] & 7
            at += 1
        return at + (4 if form == 2 or (form == 0 and register == 5) else form)

    def _jump(self, length: int) -> tuple[int, Kind, int]:
        """The jump whose distance are the last bytes read."""
        distance = int.from_bytes(self._code[self._at - length : self._at], "little", signed=True)
        return self._at, Kind.JUMP, self._at + distance


# (mask, value) of AArch64: jumps with how many bits of distance stand from which bit on, fused products, and moves of
# floating and vector registers whose base is sp
_JUMPS = (
    (0xFC000000, 0x14000000, 26, 0),  # b
    (0xFF000000, 0x54000000, 19, 5),  # b.cond
    (0x7E000000, 0x34000000, 19, 5),  # cbz, cbnz
    (0x7E000000, 0x36000000, 14, 5),  # tbz, tbnz
)
_PRODUCTS = (
    (0xBF20FC00, 0x0E20CC00),  # fmla, fmls of vectors
    (0xBF80B400, 0x0F801000),  # the same by an element
    (0xFF000000, 0x1F000000),  # fmadd and its kin
)
_MOVES = (
    (0x3F0003E0, 0x3D0003E0),  # ldr, str
    (0x3F200FE0, 0x3C0003E0),  # ldur, stur
    (0x3E0003E0, 0x2C0003E0),  # ldp, stp
)


def aarch64(code: bytes) -> Iterator[Instruction]:
    """All instructions."""
    for at, word in zip(range(0, len(code), 4), memoryview(code).cast("I")):
        kind, target = Kind.OTHER, 0
        if any(word & mask == value for mask, value in _PRODUCTS):
            kind = Kind.PRODUCT
        elif any(word & mask == value for mask, value in _MOVES):
            kind = Kind.STACK
        for mask, value, bits, low in _JUMPS:
            if word & mask == value:
                distance = word >> low & (1 << bits) - 1
                distance -= (distance >> bits - 1) << bits
                kind, target = Kind.JUMP, at + 4 * distance
        yield Instruction(at, kind, target)
