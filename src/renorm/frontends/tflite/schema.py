"""The tables, unions and enumerations of a file format, as format.txt states them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

IDENTIFIERS = {b"TFL3": "TensorFlow Lite", b"CIR0": "Circle"}

SCALARS = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q",
    "uint64": "Q", "float32": "f", "float64": "d",
}  # fmt: skip
"""Their codes in `struct`; elements of vectors have the dtype of that name."""


_SHARED_OPTIONS = {
    **dict.fromkeys(("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D"), "Pool2DOptions"),
    **dict.fromkeys(("MAXIMUM", "MINIMUM"), "MaximumMinimumOptions"),
    **dict.fromkeys(("MEAN", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "SUM"), "ReducerOptions"),
}


@dataclass(frozen=True)
class Field:
    """One slot of a table. type: a scalar, `string`, a table, or what a union is of. is_vector: of that type; a union's
    number stands in the slot before it."""

    name: str
    type: str
    default: float = 0
    is_vector: bool = False
    is_union: bool = False

    @property
    def is_scalar(self) -> bool:
        return self.type in SCALARS and not self.is_vector


@dataclass
class Schema:
    """The schema of files of one identifier. tables: fields by slot, None for a slot out of use. unions: tables by
    number. enums: numbers by name."""

    tables: dict[str, tuple[Field | None, ...]] = field(default_factory=dict[str, tuple[Field | None, ...]])
    unions: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    enums: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])

    def names(self, enum: str) -> Mapping[int, str]:
        """Names by number."""
        return {number: name for name, number in self.enums[enum].items()}

    def options(self, operator: str) -> tuple[int, str]:
        """Return number and name of the table of an operator's options, which is called like it unless several share
        it; 0 and "" where it has none."""
        found = _SHARED_OPTIONS.get(operator, operator.replace("_", "") + "Options").lower()
        held = self.unions["BuiltinOptions"]
        return next(((number, name) for number, name in held.items() if name.lower() == found), (0, ""))


@cache
def schema(identifier: bytes) -> Schema:
    """Return the schema of files with that identifier, one of IDENTIFIERS."""
    found = Schema()
    text = resources.files("renorm.frontends.tflite").joinpath("format.txt").read_text()
    for line in text.replace("\n    ", " ").splitlines():
        if line.startswith("#"):
            continue
        head, _, body = line.partition(":")
        *only, kind, name = head.split(" ")
        if only not in ([], [identifier.decode()]):
            continue
        items = [item for item in body.strip().split(", ") if item]
        numbered = {n: int(number) for n, number in (i.split() for i in items)} if kind != "table" else {}
        match kind:
            case "table":
                found.tables[name] = (*found.tables.get(name, ()), *(None if i == "-" else _field(i) for i in items))
            case "union":
                found.unions.setdefault(name, {}).update({number: table for table, number in numbered.items()})
            case _:
                found.enums.setdefault(name, {}).update(numbered)
    return found


def _field(item: str) -> Field:
    parts = re.fullmatch(r"(\w+) (union )?(\[?)(\w+)\]?(?: = (\S+))?", item)
    assert parts is not None, item
    name, is_union, is_vector, type, default = parts.groups()
    return Field(name, type, float(default or 0), bool(is_vector), bool(is_union))
