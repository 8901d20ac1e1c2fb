"""Pieces of networks, compiled for the types that calls bring: what was the same in all calls is a number, what was not
is open.

calls      x: f32[2, 1, 8], mask: f32[4]    x: f32[2, 2, 8], mask: f32[5]
compiled   x: f32[2, 1, 8], mask: f32[4]    x: f32[2, n, 8], mask: f32[n + 3]   for all later ones that fit
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import Sym
from renorm.core.errors import LimitExceeded, OutOfMemory, RenormError
from renorm.core.limits import Limits
from renorm.core.lru import Latest
from renorm.core.stated import Declared
from renorm.driver.foretold import outputs_of
from renorm.driver.module import CompiledModule, SpecializingModule
from renorm.frontends.outline import Piece, Typed
from renorm.runtime.piecewise import types_of
from renorm.runtime.rounds import ArrayType

Array = np.ndarray[Any, Any]
Compiled = CompiledModule | SpecializingModule
Kinds = tuple[tuple[np.dtype[Any], int], ...]  # of each input, with its rank
Extents = tuple[int, ...]  # of all inputs, one after the other
Form = tuple["int | None", int]  # an extent: the number of a symbol, and what is added to it; None: to nothing

MADE = 8  # modules of one piece that are kept; the one not used for the longest time goes first
SEEN = 16  # calls of other extents by which it is told which of them vary together


class CompiledPiece:
    """A piece that is compiled when a call needs it. first: the module for all types that calls bring, where these were
    known before."""

    def __init__(self, piece: Piece, compiled: Callable[[Typed], Compiled], limits: Limits):
        self.piece, self._compiled, self._limits = piece, compiled, limits
        self.first: Compiled | None = None
        self._seen = dict[Kinds, list[Extents]]()
        self._forms = dict[Kinds, tuple[Form, ...]]()
        self._closed = set[Kinds]()  # what does not compile with open extents
        self._made = Latest[tuple[Kinds, tuple[Form, ...]], Compiled](piece.part.name, MADE)

    @property
    def modules(self) -> list[Compiled]:
        return [self.first] if self.first is not None else self._made.all()

    def types(self, given: Sequence[Array]) -> list[ArrayType]:
        """As Runner.types."""
        types = self._typed(_kinds(given), _fixed(given)).types or {}
        return types_of([*types.values()], outputs_of(self.piece, types, self._limits), given)

    def module_for(self, given: Sequence[Array]) -> Compiled:
        """As Runner.module_for: compiled if it is not there yet."""
        if self.first is not None:
            return self.first
        kinds, extents = _kinds(given), tuple([n for a in given for n in a.shape])
        if kinds not in self._closed:
            forms = self._forms.get(kinds)
            if forms is None or not _fit(forms, extents):
                seen = [*self._seen.get(kinds, ()), extents][-SEEN:]
                self._seen[kinds], self._forms[kinds] = seen, (forms := varying(seen))
            try:
                return self._made.made((kinds, forms), lambda: self._compiled(self._typed(kinds, forms)))
            except (LimitExceeded, OutOfMemory):
                raise
            except RenormError:
                if all(symbol is None for symbol, _ in forms):
                    raise
                self._closed.add(kinds)
        fixed = _fixed(given)
        return self._made.made((kinds, fixed), lambda: self._compiled(self._typed(kinds, fixed)))

    def _typed(self, kinds: Kinds, forms: Sequence[Form]) -> Typed:
        left = (more if symbol is None else Sym(f"n{symbol}") + more for symbol, more in forms)
        types = {
            name: Declared(name, dtypes.from_numpy(dtype) or dtype.name, tuple(islice(left, rank)))
            for name, (dtype, rank) in zip(self.piece.part.inputs, kinds)
        }
        return Typed(self.piece, types)


def varying(seen: Sequence[Extents]) -> tuple[Form, ...]:
    """Return extents as far as calls of these are told apart: those that differ by the same in all calls share a
    symbol, the least of them is it."""
    columns = list(zip(*seen))
    changes = [tuple(n - column[0] for n in column) for column in columns]
    least = dict[tuple[int, ...], int]()  # of those that change alike, in the first call
    for change, column in zip(changes, columns):
        if any(change):
            least[change] = min(least.get(change, column[0]), column[0])
    order = list(least)
    return tuple(
        (order.index(change), column[0] - least[change]) if any(change) else (None, column[0])
        for change, column in zip(changes, columns)
    )


def _fit(forms: Sequence[Form], extents: Extents) -> bool:
    """Return whether extents are what forms say."""
    values = dict[int | None, int]({None: 0})
    for (symbol, more), extent in zip(forms, extents):
        if extent < more or values.setdefault(symbol, extent - more) != extent - more:
            return False
    return True


def _fixed(given: Sequence[Array]) -> tuple[Form, ...]:
    return tuple((None, n) for a in given for n in a.shape)


def _kinds(given: Sequence[Array]) -> Kinds:
    return tuple([(a.dtype, a.ndim) for a in given])
