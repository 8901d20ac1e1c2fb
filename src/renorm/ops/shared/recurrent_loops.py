"""Loops over time (te.extern): a round has all steps of some rows of the batch, in one direction. The products of all
gates of a tile of hidden units are summed up in registers, and become a state there:

    for each step, each tile:   sums[b, gate, :] = x[t, b, tile, gate, :] + sum over k of h[b, k] * r[tile, k, gate, :]
                                h'[b, tile, :], c[b, tile, :] = functions of sums[b, ..] and c[b, tile, :]

Recurrent weights lie tile by tile, so that a step reads them from the first to the last. What cells do in a step is
here, what their steps are made of in recurrent_rows.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from renorm.expr.nodes import Expr, as_expr, const
from renorm.ops.shared.cells import Cell
from renorm.ops.shared.recurrent_rows import Rows, within

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


class _Steps(Rows):
    """Steps of some rows in direction d, whose functions are given."""

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
            self.begin(s)
            with self.loops.if_scope(*(self._inside() if isinstance(self.steps, Expr) else [])):
                step()
        last = self.loops.let(as_expr(self.steps) % 2, "last")
        for k, (name, a) in enumerate(held.items()):
            for b, row in enumerate(self.rows):
                with self._units() as at:
                    self.output[self.steps + k, self.d, row, at] = a[last if name == "h" else 0, b, at]

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
                    new = self._let(within(new, self.cell.state_clip), "new")
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
        return self.functions[number].element(within(value, self.cell.clip))
