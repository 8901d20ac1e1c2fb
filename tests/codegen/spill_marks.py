"""Spills as LLVM itself marks them in assembly text: what reading machine code is held against."""

from __future__ import annotations

import re

_LABEL = re.compile(r"^(\.?\w+):")
_JUMP = re.compile(r"^\s+(?:j[a-z]+|b(?:\.[a-z]+)?|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#?\d+,)\s+(\.\w+)\b")
_PRODUCT = re.compile(r"^\s+(?:vf[n]?m(?:add|sub)\w*|fml[as]|fn?m(?:add|sub))\s")
_SPILL = re.compile(r"(?:#|//) (?:16|32|64)-byte (?:Folded )?(?:Spill|Reload)")


def marked_spills(assembly: str) -> int:
    """How many instructions of innermost loops with products LLVM calls spills or reloads of vectors."""
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
