"""Open extents of a program: many reckoned at once, written and read.

Evaluation    values of symbols -> values of Dims
plain, read   a Dim as JSON has it, and back

    dim ::= integer | [term, ...]    term ::= [integer, factor, ...]    factor ::= symbol | [op, dim, dim]
    op ::= "//" | "%" | "min" | "max"    symbol ::= name | [name, [least, most or null]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from operator import floordiv, mod
from reprlib import repr as short
from typing import Any

from renorm.core.dims import Dim, Sym, Symbol, product_of, terms
from renorm.core.errors import InvalidInput, OperandError

LARGEST = 1 << 47  # bytes, elements, iterations: what a process can address on either architecture
LONGEST = (1 << 31) - 1  # that a symbol may be: loops over open extents count in 32 bits
_DEPTH, _PARTS = 8, 4096  # of a Dim in a file, at most: quotients in quotients, and factors in all
_OPERATORS: dict[str, Callable[[int, int], int]] = {"//": floordiv, "%": mod, "min": min, "max": max}


class Evaluation:
    """Values of many Dims at once, each reckoned once. symbols: names of those that have values."""

    def __init__(self, symbols: Iterable[str], dims: Iterable[Dim]):
        self.symbols = tuple(symbols)
        self.index = dict[Sym, int]()  # where the value of a Dim is
        self._atoms = dict[Any, int]()
        # what comes after the symbols: (op, index, index), or (constant, [(coefficient, indices)])
        self._steps = list[tuple[str, int, int] | tuple[int, list[tuple[int, list[int]]]]]()
        self._numbers = {name: i for i, name in enumerate(self.symbols)}
        for dim in dims:
            if isinstance(dim, Sym):
                self._enter(dim)

    def _step(self, step: Any) -> int:
        self._steps.append(step)
        return len(self.symbols) + len(self._steps) - 1

    def _enter(self, dim: Dim) -> int:
        if not isinstance(dim, Sym):
            return self._step((dim, []))
        if dim not in self.index:
            constant, products = 0, list[tuple[int, list[int]]]()
            for factors, k in terms(dim):
                if factors:
                    products.append((k, [self._factor(f) for f in factors]))
                else:
                    constant = k
            is_symbol = constant == 0 and len(products) == 1 and products[0][0] == 1 and len(products[0][1]) == 1
            self.index[dim] = products[0][1][0] if is_symbol else self._step((constant, products))
        return self.index[dim]

    def _factor(self, atom: Any) -> int:
        if isinstance(atom, str):
            return self._numbers[atom]
        if atom not in self._atoms:
            op, a, b = atom
            self._atoms[atom] = self._step((op, self._enter(a), self._enter(b)))
        return self._atoms[atom]

    def at(self, values: Mapping[str, int]) -> list[int]:
        """Return the values, at the places that `index` says. Raises InvalidInput for one beyond LARGEST, or that is
        divided by zero, and for values that are no extents."""
        held = [values[name] for name in self.symbols]
        if any(not 0 <= n <= LONGEST for n in held):
            raise _unfit(values, f"an extent is at most {LONGEST}")
        for step in self._steps:
            if len(step) == 2:
                value, products = step
                for k, factors in products:
                    for i in factors:
                        k *= held[i]
                    value += k
            else:
                op, i, j = step
                a, b = held[i], held[j]
                if not b and op in ("//", "%"):
                    raise _unfit(values, f"{a} {op} 0")
                value = _OPERATORS[op](a, b)
            if not -LARGEST <= value <= LARGEST:
                raise _unfit(values, f"an extent, or a number of bytes, would be {short(value)}, at most {LARGEST}")
            held.append(value)
        return held


def _unfit(values: Mapping[str, int], fact: str) -> InvalidInput:
    told = ", ".join(f"{name} is {value}" for name, value in sorted(values.items()))
    return InvalidInput(f"there is nothing of that size: {told}", [fact])


def plain(dim: Dim) -> Any:
    """Return a Dim as JSON has it. Raises OperandError for one that `read` would not take."""
    parts = _PARTS

    def of(dim: Dim, depth: int) -> Any:
        nonlocal parts
        if not isinstance(dim, Sym):
            return dim
        found = [[k, *(factor(f, depth) for f in factors)] for factors, k in terms(dim)]
        parts -= len(found) + sum(map(len, found))
        if parts < 0 or depth == 0:
            raise OperandError(f"an extent of more than {_PARTS} factors, or {_DEPTH} quotients in each other")
        return found

    def factor(atom: Any, depth: int) -> Any:
        if not isinstance(atom, Symbol):
            return [atom[0], of(atom[1], depth - 1), of(atom[2], depth - 1)]
        most = None if atom.most == inf else int(atom.most)
        return str(atom) if (atom.least, most) == (0, None) else [str(atom), [atom.least, most]]

    return of(dim, _DEPTH)


def read(data: Any) -> Dim:
    """Return the Dim that `plain` wrote. Raises ValueError for anything else, and for what is too large."""
    parts = [_PARTS]

    def dim(data: Any, depth: int) -> Dim:
        if type(data) is int:
            return _integer(data)
        if not isinstance(data, list) or not data or depth == 0:
            raise ValueError(f"{short(data)} is not an extent")
        parts[0] -= len(data)
        if parts[0] < 0:
            raise ValueError(f"{short(data)} is too large for an extent")
        products = dict[Any, int]()
        for term in data:
            if not isinstance(term, list) or not term or not _integer(term[0]):
                raise ValueError(f"{short(term)} is not a term of an extent")
            parts[0] -= len(term)
            if parts[0] < 0:
                raise ValueError(f"{short(term)} is too large for an extent")
            product = product_of([factor(f, depth) for f in term[1:]])
            if product in products:
                raise ValueError(f"{short(data)} is not an extent: it has a product twice")
            products[product] = term[0]
        if not any(products):
            raise ValueError(f"{short(data)} is not an open extent")
        return Sym.of(products)

    def factor(data: Any, depth: int) -> Any:
        if type(data) is str:
            return _symbol(data)
        match data:
            case [str(op), a, b] if op in _OPERATORS:
                return (op, dim(a, depth - 1), dim(b, depth - 1))
            case [name, [least, most]]:
                return _symbol(name, _integer(least), inf if most is None else _integer(most))
            case _:
                raise ValueError(f"{short(data)} is not a factor of an extent")

    return dim(data, _DEPTH)


def _symbol(name: Any, least: int = 0, most: float = inf) -> Symbol:
    if type(name) is not str or not name or not 0 <= least <= most:
        raise ValueError(f"{short([name, least, most])} is not a symbol of an extent")
    name.encode()  # a lone surrogate raises UnicodeEncodeError, a ValueError
    return Symbol(name, least, most)


def _integer(data: Any) -> int:
    if type(data) is not int or not -(1 << 63) <= data < 1 << 63:
        raise ValueError(f"{short(data)} is not an integer of an extent")
    return data
