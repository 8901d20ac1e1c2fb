"""Tandem's instructions, and programs as text: `str(program)` prints one, `parse` reads it back.

The package's docstring says what each does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from renorm.core.errors import ParseError, suggest

Range = tuple[int, int]  # the first element, and the one after the last
Shape = tuple[int, int, int, int]


def _range(r: Range) -> str:
    return f"{r[0]}:{r[1]}"


@dataclass(frozen=True)
class Scan:
    def __str__(self) -> str:
        return "scan x"


@dataclass(frozen=True)
class LoadW:
    m: Range
    c: Range

    def __str__(self) -> str:
        return f"loadw w[{_range(self.m)}, {_range(self.c)}]"


@dataclass(frozen=True)
class LoadP:
    m: Range

    def __str__(self) -> str:
        return f"loadp p[{_range(self.m)}]"


@dataclass(frozen=True)
class LoadX:
    n: int
    c: Range
    h: Range
    w: Range

    def __str__(self) -> str:
        return f"loadx x[{self.n}, {_range(self.c)}, {_range(self.h)}, {_range(self.w)}]"


@dataclass(frozen=True)
class Conv:
    rows: int
    columns: int
    strides: tuple[int, int]
    dilations: tuple[int, int]
    groups: int
    is_first: bool

    def __str__(self) -> str:
        (sh, sw), (dh, dw) = self.strides, self.dilations
        end = "first" if self.is_first else "more"
        return f"conv {self.rows}x{self.columns} stride {sh}x{sw} dilation {dh}x{dw} groups {self.groups} {end}"


@dataclass(frozen=True)
class Norm:
    relu: bool

    def __str__(self) -> str:
        return "norm relu" if self.relu else "norm"


@dataclass(frozen=True)
class Store:
    n: int
    m: Range
    h: Range
    w: Range

    def __str__(self) -> str:
        return f"store y[{self.n}, {_range(self.m)}, {_range(self.h)}, {_range(self.w)}]"


Instruction = Scan | LoadW | LoadP | LoadX | Conv | Norm | Store


@dataclass(frozen=True)
class Program:
    """A launch. input: [N, C, H, W]; weights: [M, C/groups, KH, KW]; output: [N, M, OH, OW], as memory holds them."""

    input: Shape
    weights: Shape
    output: Shape
    instructions: tuple[Instruction, ...]

    def __str__(self) -> str:
        shapes = {"input": self.input, "weights": self.weights, "output": self.output}
        head = [f".{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items()]
        return "\n".join([*head, *map(str, self.instructions)]) + "\n"


_N = "([0-9]{1,15})"
_R = "(-?[0-9]{1,15}):(-?[0-9]{1,15})"
_FORMS: dict[str, tuple[str, Callable[..., Instruction]]] = {
    "scan": ("x", Scan),
    "loadw": (rf"w\[{_R}, {_R}\]", lambda a, b, c, d: LoadW((a, b), (c, d))),
    "loadp": (rf"p\[{_R}\]", lambda a, b: LoadP((a, b))),
    "loadx": (rf"x\[{_N}, {_R}, {_R}, {_R}\]", lambda n, *r: LoadX(n, r[0:2], r[2:4], r[4:6])),
    "conv": (
        f"{_N}x{_N} stride {_N}x{_N} dilation {_N}x{_N} groups {_N} (first|more)",
        lambda *v: Conv(v[0], v[1], v[2:4], v[4:6], v[6], v[7] == "first"),
    ),
    "norm": ("(relu)?", lambda relu: Norm(relu == "relu")),
    "store": (rf"y\[{_N}, {_R}, {_R}, {_R}\]", lambda n, *r: Store(n, r[0:2], r[2:4], r[4:6])),
}
_SHAPE = re.compile(f"{_N}x{_N}x{_N}x{_N}")


def parse(text: str) -> Program:
    """Return the program that a text writes, line by line. Raises ParseError."""
    shapes: dict[str, Any] = {}
    instructions: list[Instruction] = []
    for number, whole in enumerate(text.splitlines(), 1):
        line = " ".join(whole.partition(";")[0].split())
        word, _, rest = line.partition(" ")
        if line.startswith("."):
            found = _SHAPE.fullmatch(rest)
            if found is None or word[1:] not in ("input", "weights", "output"):
                raise ParseError(f"line {number}: {line!r} is no shape", ["expected as in .input 1x8x14x14"])
            shapes[word[1:]] = tuple(map(int, found.groups()))
        elif line:
            instructions.append(_instruction(number, line, word, rest))
    missing = [f".{name}" for name in ("input", "weights", "output") if name not in shapes]
    if missing:
        raise ParseError(f"the program does not say {', '.join(missing)}")
    return Program(**shapes, instructions=tuple(instructions))


def _instruction(number: int, line: str, word: str, rest: str) -> Instruction:
    if word not in _FORMS:
        raise ParseError(f"line {number}: {word!r} is no instruction", [f"nearest: {suggest(word, _FORMS)}"])
    form, make = _FORMS[word]
    found = re.fullmatch(form, rest)
    if found is None:
        raise ParseError(f"line {number}: cannot read {line!r}", ["renorm.targets.tandem says how it is written"])
    return make(*(v if v is None or v.isalpha() else int(v) for v in found.groups()))
