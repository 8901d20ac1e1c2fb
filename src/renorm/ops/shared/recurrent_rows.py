"""What steps of recurrent cells are made of, for some rows of a batch that are computed at once: products with a state,
where each row reads its data and stores its result, and states that are held."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from renorm import te
from renorm.core.dtypes import compute_dtype
from renorm.expr.nodes import Expr, Var, as_expr, cast, const, select
from renorm.ops.shared.cells import Cell, Function

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Loops


@dataclass(frozen=True)
class _Moment:
    """Where a row reads data at a step and stores a result; is_inside: whether its sequence has this step, None where
    each has. is_step: whether the place is the step, or counts from the end."""

    at: Expr
    is_inside: Expr | None
    is_step: bool = True


class Rows:
    """Some rows in direction d. moments, before: of the step that is written now: where rows are, and which part of h
    is from before."""

    moments: Sequence[_Moment]
    before: Expr

    def __init__(
        self, loops: Loops, cell: Cell, functions: Sequence[Function], arrays: dict[str, Array], output: Array,
        d: Expr, rows: Sequence[Expr],
    ):  # fmt: skip
        self.loops, self.cell, self.functions, self.arrays, self.output = loops, cell, functions, arrays, output
        self.d, self.rows, self.dtype = d, rows, compute_dtype(arrays["r"].dtype)
        self.steps, (_, self.tiles, self.hidden, _, self.lanes) = arrays["x"].shape[0], arrays["r"].shape
        self.lengths = self._lengths() if "lengths" in arrays else None
        self.places = loops.allocate((len(rows),), "int32", "places")
        self.h = self._held("h", 2)  # before a step and after it, in turns

    def begin(self, step: Expr) -> None:
        """Begin a step."""
        self.before = self.loops.let(step % 2, "before")
        self.moments = [self._moment(step, b) for b in range(len(self.rows))]

    @contextmanager
    def _products(self, h: Array, part: Expr, gates: Sequence[int]) -> Generator[tuple[Var, Array]]:
        """The statements within for each tile, and the sums of its gates: what a part of h gives, and the data, or a
        bias where data comes later."""
        loops, r = self.loops, self.arrays["r"]
        with loops.for_range(0, self.tiles, "tile") as tile:
            sums = loops.allocate((len(self.rows), len(gates), self.lanes), self.dtype, "sums")
            for b in range(len(self.rows)):
                for i, gate in enumerate(gates):
                    with self._of(tile) as (lane, at):
                        is_reset = self.cell.kind == "gru" and gate == 2 and self.cell.resets_after
                        sums[b, i, lane] = self._bias(at) if is_reset else self._data(b, tile, gate, lane)
            with loops.for_range(0, self.hidden, "k") as k:
                for b in range(len(self.rows)):
                    for i, gate in enumerate(gates):
                        with self._of(tile) as (lane, _):
                            weight = cast(self.dtype, r[self.d, tile, k, gate, lane])
                            sums[b, i, lane] = sums[b, i, lane] + h[part, b, self._unit(k)] * weight
            if self.cell.kind == "gru" or self.lengths is not None:
                self.old = loops.allocate((len(self.rows), self.lanes), self.dtype, "old")  # h of these units
                for b in range(len(self.rows)):  # not where it is replaced, which would be done one by one
                    with self._of(tile) as (lane, at):
                        self.old[b, lane] = self.h[self.before, b, at]
            yield tile, sums

    @contextmanager
    def _of(self, tile: Expr) -> Generator[tuple[Var, Expr]]:
        """The statements within for each unit of a tile, side by side."""
        with self.loops.for_range(0, self.lanes, "lane", "vectorized") as lane:
            yield lane, tile * self.lanes + lane

    @contextmanager
    def _units(self) -> Generator[Expr]:
        """The statements within for each unit."""
        with self.loops.for_range(0, self.tiles, "tile") as tile, self._of(tile) as (_, at):
            yield at

    def _held(self, name: str, count: int = 1) -> Array:
        return self.loops.allocate((count, len(self.rows), self.tiles * self.lanes), self.dtype, name)

    def _let(self, e: Expr, name: str) -> Var:
        return self.loops.let(e, name)

    def _unit(self, k: Expr) -> Expr:
        """Return the place of a hidden unit in a state, where units of tiles are no fewer."""
        return k if isinstance(self.hidden, int) else te.min(k, self.tiles * self.lanes - 1)

    def _lengths(self) -> Array:
        """Return how many steps the sequence of each row has, in memory, as `places` are."""
        held = self.loops.allocate((len(self.rows),), "int32", "lengths")
        for b, row in enumerate(self.rows):
            held[b] = te.max(te.min(self.arrays["lengths"][row], self.steps), 0)
        return held

    def _inside(self) -> list[Expr]:
        """Return conditions that always hold, by which it is proved that places are inside open arrays."""
        return [c for m in self.moments if not m.is_step for c in (m.at >= 0, m.at < self.steps)]

    def _moment(self, s: Expr, b: int) -> _Moment:
        """Where a row is at step s: a sequence is read backward from its own end."""
        length = as_expr(self.steps) if self.lengths is None else self.lengths[b]
        back, is_back, is_inside = length - 1 - s, self.cell.is_back, None
        at: Expr = s if not any(is_back) else back
        if any(is_back) and not all(is_back):
            at = select(self.d.equal(is_back.index(True)), back, s)
        if self.lengths is not None:
            is_inside = self.loops.let(s < length, "is_inside")
            at = select(is_inside, at, s)
        if self.lengths is not None or (any(is_back) and not all(is_back)):
            self.places[b] = at  # what is chosen is read from memory: proofs of bounds do not look into it
            at = self.places[b]
            at = te.max(te.min(at, self.steps - 1), 0) if isinstance(self.steps, int) else at
            return _Moment(self.loops.let(at, "at"), is_inside, is_step=False)
        return _Moment(at, is_inside)

    def _chosen(self, b: int, inside: Expr, beyond: Expr) -> Expr:
        is_inside = self.moments[b].is_inside
        return inside if is_inside is None else select(is_inside, inside, beyond)

    def _data(self, b: int, tile: Expr, gate: int, lane: Expr) -> Expr:
        gates = self.cell.gates
        place = ((self.d * self.tiles + tile) * gates + gate) * self.lanes + lane
        return cast(self.dtype, self.arrays["x"][self.moments[b].at, self.rows[b], place])

    def _given(self, name: str, row: Expr, at: Expr) -> Expr:
        return cast(self.dtype, self.arrays[name][self.d, row, at])

    def _bias(self, at: Expr) -> Expr:
        return cast(self.dtype, self.arrays["bias"][self.d, at]) if "bias" in self.arrays else const(0, self.dtype)

    def _peeped(self, gate: int, value: Expr, at: Expr, c: Expr) -> Expr:
        """Return what a gate is given, with what it is given by a state of the cell. Peepholes are those of i, o, f."""
        given = self.arrays.get("peepholes")
        return value if given is None else value + cast(self.dtype, given[self.d, gate, at]) * c


def within(e: Expr, bound: float | None) -> Expr:
    """Return a number held within bounds, if there are any."""
    return e if bound is None else te.max(te.min(e, bound), -bound)
