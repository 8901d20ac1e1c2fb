"""Spills in hot loops, read off machine code: how a compiler learns that a register tile was too large."""

from __future__ import annotations

from renorm.codegen.llvm.instructions import Kind, aarch64, may_use_stack, x86_64
from renorm.runtime import elf

_READERS = {"x86_64": x86_64, "aarch64": aarch64}
_STACK = (Kind.STACK, Kind.STACK_PRODUCT)
_PRODUCT = (Kind.PRODUCT, Kind.STACK_PRODUCT)


def spills(code: bytes, name: str = "object") -> int:
    """Return how many instructions of hot loops move a vector register to or from the stack, in an ELF object.

    A loop is what lies between a jump back and its target; it is hot where it is innermost and multiplies and adds.
    """
    read = elf.read(code, name)
    return sum(in_hot_loops(bytes(s.data), read.arch) for s in read.sections if s.is_code)


def in_hot_loops(code: bytes, machine: str) -> int:
    """The same of machine code. machine: "x86_64" or "aarch64"."""
    if not may_use_stack(code, machine):
        return 0
    found = list(_READERS[machine](code))
    if not any(i.kind in _STACK for i in found):
        return 0
    loops = [(i.target, i.at) for i in found if i.kind is Kind.JUMP and i.target <= i.at]
    innermost = [(a, b) for a, b in loops if not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops)]
    inside = [[i.kind for i in found if a <= i.at < b] for a, b in innermost]
    return sum(sum(k in _STACK for k in kinds) for kinds in inside if any(k in _PRODUCT for k in kinds))
