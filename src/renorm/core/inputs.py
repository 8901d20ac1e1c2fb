"""Inputs of networks, and what a call says of symbols by their shapes, and by elements that decide shapes.

    x: f32[N, 3], s: i64[2] = [s.0, s.1]      of x[2, 3] and s = [4, 5]: N is 2, s.0 is 4, s.1 is 5

Elements of small integer inputs are extents where shapes behind them depend on them: what Reshape is to make, where
Slice ends, how far Range counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf, prod
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from renorm.core import dtypes
from renorm.core.dims import (
    Dim,
    Shape,
    Sym,
    Symbol,
    bounds,
    format_range,
    format_shape,
    is_static,
    linear,
    solved,
    static,
    substitute,
    symbols_of,
)
from renorm.core.errors import InvalidInput
from renorm.core.extents import LONGEST

FEW = 16  # elements of an input that may decide shapes, at most: pads of eight axes have as many
IDLE = -(1 << 62)  # in the place of an element that decides nothing
_NONE: Mapping[str, Sequence[int]] = MappingProxyType({})


class Typed(Protocol):
    """An input: of a graph, of a compiled module, or of an artifact. deciding: the extents that its elements are, in
    row-major order, where these decide shapes (IDLE for one that does not); none where no element does."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> Sequence[Dim]: ...
    @property
    def deciding(self) -> Sequence[Dim]: ...


def given_extents(v: Typed) -> Shape:
    """Return the extents that a call tells with an input."""
    return (*v.shape, *v.deciding)


def given_symbols(inputs: Iterable[Typed]) -> list[Symbol]:
    """Return the symbols of inputs: those of shapes, then those of elements."""
    inputs = list(inputs)
    told = (*(d for v in inputs for d in v.shape), *(d for v in inputs for d in v.deciding))
    return list(dict.fromkeys(s for d in told for s in sorted(symbols_of(d))))


def element_symbols(inputs: Iterable[Typed]) -> dict[str, tuple[Sym, ...]]:
    """Return what elements of small integer inputs are called, by the names of inputs: s.0 and s.1 of s, which no
    extent is called."""
    found, taken = dict[str, tuple[Sym, ...]](), set[str]()
    for v in inputs:
        if not dtypes.is_int(v.dtype) or not is_static(v.shape) or not 0 < prod(static(v.shape)) <= FEW:
            continue
        name = re.sub(r"\W|^(?=\d)", "_", v.name)
        while name in taken:
            name += "_"
        taken.add(name)
        found[v.name] = tuple(Sym(f"{name}.{k}") for k in range(prod(static(v.shape))))
    return found


class Reading(NamedTuple):
    """A way to read a call. values: by symbols, the extents or numbers that are read in their place. is_cut: bounds of
    slices are moved into their axes, which else are taken to lie inside."""

    values: Mapping[Symbol, Dim]
    is_cut: bool = False


def readings(
    inputs: Iterable[Typed], shapes: Mapping[str, Sequence[int]], elements: Mapping[str, Sequence[int]]
) -> list[Reading]:
    """Return how a call that has no result as it stands may be read. What comes first is open in more.

    Bounds beyond an axis are its ends; extents of 1 are numbers, which broadcast, and in the end those of 0 are, which
    Reshape keeps, and of which nothing is left. Of elements:
    1. -1, which in a shape is what is left, and what is beyond all extents are numbers. Below -1 are positions from the
    end. 2. What is above 0 is known to be, and bounds beyond an axis are its ends before any is read as a number for
    its size: more for kernels to know of extents, but it serves all elements. 3. 0 and 1 are numbers too, which keep
    extents. 4. All elements are.
    """
    inputs = list(inputs)
    given = _symbols_told((d, n) for v in inputs for d, n in zip(v.deciding, elements.get(v.name, ())))
    extents = _symbols_told((d, n) for v in inputs for d, n in zip(v.shape, shapes.get(v.name, ())))
    ones, short = ({s: n for s, n in extents.items() if n in which} for which in ((1,), (0, 1)))
    signs: dict[Symbol, Dim] = {}
    for s, n in given.items():
        if -LONGEST <= n < -1:
            signs[s] = -Sym(Symbol(s, 2))
        elif n < 0 or n > LONGEST:
            signs[s] = n
    positive = {s: Sym(Symbol(s, 1)) for s, n in given.items() if n > 0}
    few = {s: n for s, n in given.items() if n in (0, 1)}
    if not given:
        numbers = [Reading(found, is_cut) for found in (ones, short) for is_cut in (False, True) if found]
        return [Reading({}, is_cut=True), *numbers]
    whole = Reading({**positive, **signs}, is_cut=True)
    told = [Reading({**ones, **signs, **few}), Reading({**ones, **given}), Reading({**short, **given})]
    return [Reading(signs), whole, *told]


def _symbols_told(told: Iterable[tuple[Dim, int]]) -> dict[Symbol, int]:
    """Return numbers that a call gives for symbols of which nothing is stated."""
    return {next(iter(symbols_of(d))): n for d, n in told if _is_symbol(d)}


def _is_symbol(extent: Dim) -> bool:
    """Return whether an extent is a symbol of which nothing is stated."""
    found = linear(extent)
    return found is not None and found[1:] == (1, 0) and (found[0].least, found[0].most) == (0, inf)


def format_elements(deciding: Sequence[Dim]) -> str:
    """Return elements that decide shapes as what is written behind the type of an input."""
    return f" = [{', '.join('?' if d == IDLE else str(d) for d in deciding)}]" if deciding else ""


def fixed_extents(
    inputs: Sequence[Typed],
    shapes: Mapping[str, Sequence[int]],
    network: str,
    elements: Mapping[str, Sequence[int]] = _NONE,
) -> dict[str, int]:
    """Return what `shapes` and `elements` (of inputs that decide shapes, row-major), by the names of inputs, say of
    their symbols; InvalidInput names every contradiction: ranks, extents that are fixed, equal, multiples, or in a
    range."""
    known = {v.name: v for v in inputs}
    problems = [f"{name!r} is not an input" for name in shapes if name not in known]
    sizes, told = dict[str, int](), list[tuple[str, Dim, int]]()
    for v in inputs:
        if v.name not in shapes:
            continue
        given = tuple(shapes[v.name])
        if len(given) != len(v.shape):
            problems.append(f"{v.name} has rank {len(v.shape)}, not {len(given)}")
            continue
        told += ((f"{v.name}, axis {axis}", *pair) for axis, pair in enumerate(zip(v.shape, given)))
        for k, (extent, number) in enumerate(zip(v.deciding, elements.get(v.name, ()))):
            where = f"{v.name}, element {k}" if v.shape else v.name
            if extent == IDLE:
                continue
            if number > LONGEST and not isinstance(extent, int):
                problems.append(f"{where}: {number}, but an extent is at most {LONGEST}")
            else:
                told.append((where, extent, number))
    for where, extent, number in told:
        problem = _solve(extent, int(number), sizes)
        problems += [f"{where}: {problem}"] if problem else []
    known_before = -1
    while not problems and known_before < len(sizes):  # what is left of sums once others are known
        known_before = len(sizes)
        others = dict[Symbol, Dim]()  # of two unknown ones the first, by what a sum leaves to it
        for where, extent, number in told:
            try:
                left = substitute(substitute(extent, others), sizes)
            except ZeroDivisionError:
                continue  # which is said below
            unknown = symbols_of(left)
            if len(unknown) == 1 and len(symbols_of(extent)) > 1:
                problem = _solve(left, int(number), sizes)
                by = ", ".join(f"{s} is {d}" for s, d in {**others, **sizes}.items() if s in symbols_of(extent))
                problems += [f"{where}: {problem} where {by}"] if problem else []
            elif first := next((s for s in sorted(unknown) if symbols_of(left - Sym(s)) == unknown - {s}), None):
                others[first] = number - (left - Sym(first))
    if not problems:  # extents that several symbols make, or one in another way than a multiple
        for where, extent, n in told:
            try:
                made = substitute(extent, sizes)
            except ZeroDivisionError:
                made = "a quotient by 0"
            problems += [f"{where}: {n} where {extent} is {made}"] if made != n else []
    if problems:
        types = (f"{v.dtype}{format_shape(v.shape)}{format_elements(v.deciding)}" for v in inputs)
        what = "arrays" if any(v.deciding for v in inputs) else "shapes"
        facts = [*problems, *(f"input {v.name}: {type}" for v, type in zip(inputs, types))]
        raise InvalidInput(f"the {what} given do not fit {network}", facts)
    return sizes


def _solve(extent: Dim, number: int, sizes: dict[str, int]) -> str | None:
    """Note in `sizes` what the symbol of an extent is where the extent is a number. Return why it cannot be that."""
    if isinstance(extent, int):
        return f"{number} where the model has {extent}" if extent != number else None
    least, most = bounds(extent)
    if not least <= number <= most:
        return f"{number}, but {extent} is in {format_range(least, most)}"
    if (found := solved(extent, number)) is None:
        return None if (one := linear(extent)) is None else f"{number} is {extent} for no {one[0]}"
    symbol, (size,) = str(found[0]), static([found[1]])
    if sizes.setdefault(symbol, size) != size:
        return f"{symbol} is {size} here and {sizes[symbol]} elsewhere"
    return None


def named_inputs(module: str, names: Sequence[str], args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given for inputs of these names, in order or by name. Raises InvalidInput."""
    problems = [f"{len(args)} arrays by position, expected at most {len(names)}"] * (len(args) > len(names))
    given = dict(zip(names, args))
    problems += [f"input {n} is given by position and by name" for n in named if n in given]
    problems += [f"{n!r} is not an input" for n in named if n not in names]
    if problems:
        raise InvalidInput(f"{module}: the arrays given do not fit its inputs", problems)
    return {**given, **named}
