"""Spills in hot loops, read off machine code: how a compiler learns that a register tile was too large."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from renorm.codegen.llvm.instructions import Instruction, Kind, aarch64, may_use_stack, x86_64
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
    places = [i.at for i in found]  # in order
    inside = ([i.kind for i in found[bisect_left(places, a) : bisect_left(places, b)]] for a, b in _innermost(found))
    return sum(sum(k in _STACK for k in kinds) for kinds in inside if any(k in _PRODUCT for k in kinds))


def _innermost(found: Iterable[Instruction]) -> list[tuple[int, int]]:
    """Return where loops begin and end in which no other one lies."""
    innermost, latest = list[tuple[int, int]](), -1  # where the last of the loops begins that end before
    loops = ((i.at, -i.target) for i in found if i.kind is Kind.JUMP and i.target <= i.at)
    for end, begin in ((end, -begin) for end, begin in sorted(loops)):
        if latest < begin:
            innermost.append((begin, end))
        latest = max(latest, begin)
    return innermost
