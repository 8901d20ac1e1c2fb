"""Loops over time (te.extern): a round has all steps of some rows of the batch, in one direction. The products of all
gates of a tile of hidden units are summed up in registers, and become a state there:

    for each step, each tile:   sums[b, gate, :] = x[t, b, tile, gate, :] + sum over k of h[b, k] * r[tile, k, gate, :]
                                h'[b, tile, :], c[b, tile, :] = functions of sums[b, ..] and c[b, tile, :]

Recurrent weights lie tile by tile, so that a step reads them from the first to the last.
"""

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
    from renorm.te.given_loops import Array, Body, Loops


def over_time(cell: Cell, present: Sequence[str], rows: int) -> Body:
    """The loops of one round. Arrays: x [steps, batch, (direction, tile, gate, lanes)], r [direction, tile, hidden,
    gate, lanes], and those in `present`: bias [direction, units] of what a reset gate is applied to, lengths [batch], h
    and c [direction, batch, units], peepholes [direction, 3, units]. The output is [steps + 1 or 2, direction, batch,
    units]: behind the steps come the last h, and the last c where there is one. rows: of the batch, at once."""

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        arrays = dict(zip(("x", "r", *present), inputs, strict=True))
        batch, directions = arrays["x"].shape[1], len(cell.is_back)
        blocks = (batch + (rows - 1)) // rows
        d: Expr = loops.let(loops.round // blocks % directions, "direction") if directions > 1 else const(0)
        first = loops.let(loops.round % blocks * rows, "first")
        ways = range(directions) if len({*cell.functions}) > 1 else [0]
        for way in ways:
            with loops.if_scope(*([d.equal(way)] if len(ways) > 1 else [])):
                own = cell.functions[way]
                whole = [first + rows <= batch] if not isinstance(batch, int) or batch % rows else []
                with loops.if_scope(*whole):
                    _Steps(loops, cell, own, arrays, output, d, [first + b for b in range(rows)]).run()
                if whole:
                    with loops.if_scope(first + rows > batch), loops.for_range(first, batch, "row") as row:
                        _Steps(loops, cell, own, arrays, output, d, [row]).run()

    return body


@dataclass(frozen=True)
class _Moment:
    """Where a row reads data at a step and stores a result; is_inside: whether its sequence has this step, None where
    each has. is_step: whether the place is the step, or counts from the end."""

    at: Expr
    is_inside: Expr | None
    is_step: bool = True


class _Steps:
    """Steps of some rows in direction d, whose functions are given."""

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

    def run(self) -> None:
        """All steps, and what is left after them."""
        step = {"lstm": self._lstm, "gru": self._gru, "rnn": self._rnn}[self.cell.kind]
        held = {"h": self.h}
        if self.cell.kind == "lstm":
            self.c = held["c"] = self._held("c")
        elif self.cell.kind == "gru" and not self.cell.resets_after:
            self.z, self.reset = self._held("z"), self._held("reset")
        for name, a in held.items():
            for b, row in enumerate(self.rows):
                with self._units() as at:
                    a[0, b, at] = self._given(name, row, at) if name in self.arrays else const(0, self.dtype)
        with self.loops.for_range(0, self.steps, "step") as s:
            self.before = self.loops.let(s % 2, "before")
            self.moments = [self._moment(s, b) for b in range(len(self.rows))]
            with self.loops.if_scope(*(self._inside() if isinstance(self.steps, Expr) else [])):
                step()
        last = self.loops.let(as_expr(self.steps) % 2, "last")
        for k, (name, a) in enumerate(held.items()):
            for b, row in enumerate(self.rows):
                with self._units() as at:
                    self.output[self.steps + k, self.d, row, at] = a[last if name == "h" else 0, b, at]

    # --- steps --------------------------------------------------------------------------------------------------------

    def _rnn(self) -> None:
        with self._products(self.h, self.before, range(1)) as (tile, sums):
            for b in range(len(self.rows)):
                with self._of(tile) as (lane, at):
                    self._finish(b, lane, at, self._gate(0, sums[b, 0, lane]))

    def _lstm(self) -> None:
        """c' = f * c + i * g; h' = o * function(c'). The gates are i, o, f, g in memory."""
        with self._products(self.h, self.before, range(4)) as (tile, sums):
            for b in range(len(self.rows)):
                with self._of(tile) as (lane, at):
                    c = self.loops.let(self.c[0, b, at], "c")
                    i = self._let(self._gate(0, self._peeped(0, sums[b, 0, lane], at, c)), "i")
                    f = 1.0 - i if self.cell.coupled else self._gate(0, self._peeped(2, sums[b, 2, lane], at, c))
                    new = f * c + i * self._gate(1, sums[b, 3, lane])
                    new = self._let(_within(new, self.cell.state_clip), "new")
                    o = self._gate(0, self._peeped(1, sums[b, 1, lane], at, new))
                    self.c[0, b, at] = self._chosen(b, new, c)
                    self._finish(b, lane, at, o * self.functions[2].element(new))

    def _gru(self) -> None:
        """h' = (1 - z) * g + z * h. The gates are z, r, g in memory."""
        if self.cell.resets_after:
            with self._products(self.h, self.before, range(3)) as (tile, sums):
                for b in range(len(self.rows)):
                    with self._of(tile) as (lane, at):
                        reset = self._gate(0, sums[b, 1, lane]) * sums[b, 2, lane]
                        g = self._gate(1, self._data(b, tile, 2, lane) + reset)
                        self._mix(b, lane, at, self._let(self._gate(0, sums[b, 0, lane]), "z"), g)
            return
        with self._products(self.h, self.before, range(2)) as (tile, sums):
            for b in range(len(self.rows)):
                with self._of(tile) as (lane, at):
                    self.z[0, b, at] = self._gate(0, sums[b, 0, lane])
                    self.reset[0, b, at] = self._gate(0, sums[b, 1, lane]) * self.old[b, lane]
        with self._products(self.reset, const(0), range(2, 3)) as (tile, sums):
            for b in range(len(self.rows)):
                with self._of(tile) as (lane, at):
                    self._mix(b, lane, at, self._let(self.z[0, b, at], "z"), self._gate(1, sums[b, 0, lane]))

    def _mix(self, b: int, lane: Expr, at: Expr, z: Expr, g: Expr) -> None:
        self._finish(b, lane, at, (1.0 - z) * g + z * self.old[b, lane])

    def _finish(self, b: int, lane: Expr, at: Expr, h: Expr) -> None:
        """Store a unit's state after a step, and the result."""
        value, moment = self._let(h, "state"), self.moments[b]
        self.h[1 - self.before, b, at] = value if self.lengths is None else self._chosen(b, value, self.old[b, lane])
        self.output[moment.at, self.d, self.rows[b], at] = self._chosen(b, value, const(0, self.dtype))

    def _gate(self, number: int, value: Expr) -> Expr:
        """Return a function of what it is given, which is held within bounds before."""
        return self.functions[number].element(_within(value, self.cell.clip))

    # --- what steps are made of ---------------------------------------------------------------------------------------

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


def _within(e: Expr, bound: float | None) -> Expr:
    return e if bound is None else te.max(te.min(e, bound), -bound)
