"""What users state of open extents: shapes={"x": ["n:1..64", 3, "16*h", "16*w"]}, --shape x=n:1..64x3x16*hx16*w.

    extent ::= number | [multiple "*"] name [":" range] | range
    name   ::= "?" | identifier             ? is whatever the model calls it
    range  ::= [least] ".." [most]          of the extent, both included

Extents of one name are equal. What is stated takes the place of the model's own symbols before anything is inferred, as
do the elements of inputs: inputs={"sr": 16000}, --input sr=16000; where those of small integer inputs decide shapes,
they may stay open as extents do: inputs={"size": ["16*h", "1..512"]}. STATED: where a graph's metadata has what its
symbols became.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf
from operator import index
from typing import Any, Union

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import (
    Dim,
    Shape,
    Sym,
    Symbol,
    bounds,
    format_range,
    format_shape,
    linear,
    solved,
    substitute,
    symbols_of,
)
from renorm.core.errors import InvalidInput, OperandError
from renorm.core.inputs import Typed, given_extents

Array = np.ndarray[Any, Any]
STATED = "stated"
Stated = Union[int, str, Sym, None]  # an extent as users write it; None is "?"

_RANGE = r"(?P<least>\d*)\.\.(?P<most>\d*)"
_EXTENT = re.compile(rf"((?P<multiple>\d+)\*)?(?P<name>\?|[A-Za-z_]\w*)(:{_RANGE})?")
_BARE = re.compile(_RANGE)


@dataclass(frozen=True)
class _Statement:
    """An extent: multiple * name. name: "" where it is the model's. least, most: of the extent."""

    multiple: int = 1
    name: str = ""
    least: float = 0
    most: float = inf


def _read(given: Stated) -> int | _Statement | Sym | None:
    """Return an extent; None where it is none."""
    if given is None:
        return _Statement()
    if isinstance(given, Sym):
        return given
    if not isinstance(given, str):
        try:
            return None if isinstance(given, bool) or index(given) < 0 else index(given)
        except TypeError:
            return None
    text = given.replace(" ", "")
    if text.isdecimal():
        return int(text)
    found = _EXTENT.fullmatch(text) or _BARE.fullmatch(text)
    if found is None:
        return None
    told = found.groupdict()
    name, multiple = told.get("name", "?") or "?", int(told.get("multiple") or 1)
    made = _Statement(
        multiple, "" if name == "?" else name, int(told["least"] or 0), int(told["most"]) if told["most"] else inf
    )
    return made if multiple and made.least <= made.most else None


def split_shape(text: str) -> list[str]:
    """Return the extents of a shape as the command line has it: 1x3x224x224, or separated by commas, which names that
    have an x need. Raises ValueError."""
    extents = (text.split(",") if "," in text else text.split("x")) if text else []
    if any(_read(d) is None for d in extents):
        raise ValueError(f"{text!r} is no shape")
    return extents


@dataclass(frozen=True)
class Declared:
    """An input as a file declares it."""

    name: str
    dtype: str
    shape: Shape
    deciding: Shape = ()


class Undecided(OperandError):
    """Elements of inputs decide more of a network than extents: axes, scales, branches. It can be read once they are
    known. declared: all inputs. by: names of those that decide."""

    def __init__(
        self,
        headline: str,
        facts: Iterable[str] = (),
        do: str | None = None,
        declared: Sequence[Typed] = (),
        by: Sequence[str] = (),
        network: str = "",
    ):
        super().__init__(headline, facts, do)
        self.declared, self.by, self.network = tuple(declared), tuple(by), network


def stated(
    inputs: Sequence[Typed],
    shapes: Mapping[str, Iterable[Stated]] | None,
    values: Mapping[str, Any] | None,
    network: str,
) -> tuple[dict[str, Dim], dict[str, Array]]:
    """Return what users make of a network's symbols by `shapes` (extents by the names of inputs), numbers or extents of
    symbols that are named there, and of inputs by `values`, their elements. InvalidInput lists every contradiction."""
    if wrong := [name for name, given in (shapes or {}).items() if not isinstance(given, Iterable)]:
        raise InvalidInput(f"shapes of {', '.join(map(str, wrong))}: expected an extent for each axis")
    known, facts, shapes, arrays = {v.name: v for v in inputs}, _Facts(), shapes or {}, dict[str, Array]()
    facts.problems += [f"{name!r} is not an input" for name in {**shapes, **(values or {})} if name not in known]
    for name, value in (values or {}).items():
        if (v := known.get(name)) is None:
            continue
        if v.deciding and (elements := _open_elements(value)) is not None:
            facts.state_elements(v, elements)
            continue
        try:
            arrays[name] = _elements(value, v.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            facts.problems.append(f"{name} is {v.dtype}{format_shape(v.shape)}: {error}")
        else:
            facts.state_shape(f"the value given for {name}", v.shape, arrays[name].shape)
    for name, given in shapes.items():
        if name in known:
            facts.state_shape(name, known[name].shape, given)
    extents = facts.values({s for v in inputs for d in given_extents(v) for s in symbols_of(d)})
    if facts.problems:
        lines = [*facts.problems, *(f"input {v.name}: {v.dtype}{format_shape(v.shape)}" for v in inputs)]
        raise InvalidInput(f"the {'inputs' if values else 'shapes'} given do not fit {network}", lines)
    return extents, arrays


def _open_elements(value: Any) -> Array | None:
    """Return elements of which some are stated as extents are; None where all are numbers, or it is nothing such."""
    if not isinstance(value, (str, Sym, list, tuple)):
        return None
    held = np.array(value, object)
    return held if any(e is None or isinstance(e, (str, Sym)) for e in held.flat) else None


def _elements(value: Any, dtype: str) -> Array:
    """Return elements in a dtype. Raise ValueError where it cannot hold them; floats may be rounded."""
    given, kind = np.asarray(value), dtypes.lookup(dtype).kind
    made = given.astype(dtypes.numpy_dtype(dtype)) if given.dtype.kind in "biuf" else given
    is_rounded = kind == "float" and given.dtype.kind in "iuf"
    if made is given and given.dtype != dtypes.numpy_dtype(dtype):
        raise ValueError(f"{value!r} is no number")
    if not is_rounded and ((given.dtype.kind == "b") != (kind == "bool") or not np.array_equal(made, given)):
        raise ValueError(f"it cannot be {value!r}")
    return made


class _Facts:
    """What is stated so far: values of the network's symbols over the user's, numbers of the user's, and ranges of
    extents over either."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._values, self._numbers = dict[str, Dim](), dict[str, Dim]()
        self._ranges: list[tuple[str, Dim, float, float]] = []  # of the network's symbols
        self._named: list[tuple[str, Dim, float, float]] = []  # of the user's

    def state_shape(self, where: str, shape: Sequence[Dim], given: Iterable[Stated]) -> None:
        """Note what the user says of a shape of the network."""
        given = tuple(given)
        if len(given) != len(shape):
            self.problems.append(f"{where} has rank {len(shape)}, not {len(given)}")
            return
        for axis, (extent, one) in enumerate(zip(shape, given)):
            self.state(f"{where}, axis {axis}", extent, one)

    def state_elements(self, v: Typed, given: Array) -> None:
        """Note what the user says of the elements of an input, which may decide shapes."""
        if given.shape != tuple(v.shape):
            self.problems.append(f"{v.name} is {v.dtype}{format_shape(v.shape)}: it cannot be {given.tolist()}")
            return
        for k, (extent, one) in enumerate(zip(v.deciding, given.flat)):
            self.state(f"{v.name}, element {k}" if v.shape else v.name, extent, one)

    def state(self, where: str, extent: Dim, given: Stated) -> None:
        """Note what the user says of an extent of the network."""
        read = _read(given)
        if read is None:
            forms = "224, ?, n, 16*h, 1..64, n:1..64, 16*h:16..1280"
            self.problems.append(f"{where}: {given!r} is no extent; write one of {forms}")
        elif not isinstance(read, _Statement):
            self._equate(where, extent, read)
        elif isinstance(extent, int):
            self.problems.append(f"{where}: {given!r} where the model has {extent}, which is not open")
        elif not read.name and read.multiple > 1 and str(extent) not in symbols_of(extent):
            self.problems.append(f"{where}: {given!r} where the model has {extent}, give it a name")
        elif not read.name and read.multiple == 1:
            self._ranges.append((where, extent, read.least, read.most))
        else:
            value = read.multiple * Sym(read.name or str(extent))
            self._named.append((where, value, read.least, read.most))
            self._equate(where, extent, value)

    def _equate(self, where: str, extent: Dim, value: Dim) -> None:
        if extent == value and isinstance(extent, int):
            return
        found = solved(extent, value)
        if found is None or bounds(found[1])[1] < 0:
            self.problems.append(f"{where}: {value} where the model has {extent}")
            return
        symbol, new = found
        old = self._values.setdefault(symbol, new)
        if old == new:
            return
        both = (old, new) if isinstance(new, int) else (new, old)  # a number, if there is one, comes last
        told = solved(*both) if isinstance(both[1], int) else None
        if told is None or self._numbers.setdefault(*told) != told[1]:
            self.problems.append(f"{where}: {symbol} is {new} here and {old} elsewhere")

    def values(self, symbols: set[Symbol]) -> dict[str, Dim]:
        """Return what the network's symbols are."""
        found = {str(s): self._values.get(s, Sym(str(s))) for s in sorted(symbols)}
        own = ((str(s), Sym(s), s.least, s.most) for s in sorted(symbols))
        within = dict[str, tuple[float, float]]()
        for where, extent, least, most in (*own, *self._ranges):
            self._narrow(where, substitute(extent, found), least, most, within)
        for where, extent, least, most in self._named:
            self._narrow(where, extent, least, most, within)
        last: dict[str, Dim] = {}
        for name, (least, most) in within.items():
            if least > most:
                self.problems.append(f"{name} can be no number: it is in {format_range(least, most)}")
            last[name] = int(least) if least == most else Sym(Symbol(name, int(least), most))
        return {s: substitute(substitute(d, self._numbers), last) for s, d in found.items()}

    def _narrow(
        self, where: str, extent: Dim, least: float, most: float, within: dict[str, tuple[float, float]]
    ) -> None:
        """Note in `within`, by symbols, that an extent k*s + c lies in a range."""
        extent = substitute(extent, self._numbers)
        if isinstance(extent, int):
            if not least <= extent <= most:
                self.problems.append(f"{where}: {extent} is not in {format_range(least, most)}")
            return
        if (found := linear(extent)) is None or found[1] < 0:
            return  # a range of what several symbols make says nothing of one
        symbol, k, c = found
        low, high = within.get(symbol, (0, inf))
        low = max(low, ceil((least - c) / k))
        within[symbol] = low, min(high, most if most == inf else floor((most - c) / k))
