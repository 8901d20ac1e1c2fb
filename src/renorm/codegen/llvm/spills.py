"""Spills in hot loops, read off assembly text: how a schedule learns that its register tile was too large."""

from __future__ import annotations

import re

_LABEL = re.compile(r"^(\.?\w+):")
_JUMP = re.compile(r"^\s+(?:j[a-z]+|b(?:\.[a-z]+)?|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#?\d+,)\s+(\.\w+)\b")
_PRODUCT = re.compile(r"^\s+(?:vf[n]?m(?:add|sub)\w*|fml[as]|fn?m(?:add|sub))\s")
_SPILL = re.compile(r"(?:#|//) \d+-byte (?:Folded )?(?:Spill|Reload)")  # LLVM's own comment


def spills(assembly: str) -> int:
    """How many instructions of hot loops move a register to or from the stack; x86-64 (AT&T syntax) or AArch64.

    A loop is the text from a label to a jump back to it; it is hot where it is innermost and multiplies and adds.
    Buffers of the kernel that live on the stack do not count.
    """
    lines = assembly.splitlines()
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for k, line in enumerate(lines):
        if found := _LABEL.match(line):
            labels[found[1]] = k
        elif (found := _JUMP.match(line)) and found[1] in labels:
            loops.append((labels[found[1]], k))
    innermost = [(a, b) for a, b in loops if not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops)]
    hot = [lines[a:b] for a, b in innermost if any(_PRODUCT.match(line) for line in lines[a:b])]
    return sum(1 for loop in hot for line in loop if _SPILL.search(line))
