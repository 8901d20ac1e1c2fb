"""Recurrent networks by NumPy, sequence by sequence and step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm.ops.shared.cells import Cell, Function

Array = np.ndarray[Any, Any]


def states(cell: Cell, given: Array, r: Array, bias: Any, lengths: Any, h: Any, c: Any, peepholes: Any) -> Array:
    """Return [steps + 1 or 2, direction, batch, units]: h after each step, 0 beyond the end of a sequence; then the
    last h, and the last c where there is one.

    given: [steps, batch, direction, gate, units], what data and biases give. r: [direction, hidden, gate, units]. bias:
    [direction, units] of what a reset gate is applied to. h, c: [direction, batch, units]. peepholes: [direction, 3,
    units].
    """
    steps, batch, directions, _, units = given.shape
    y = np.zeros((steps + cell.states, directions, batch, units))
    zeros = np.zeros((directions, batch, units))
    starts = [zeros if s is None else np.asarray(s, np.float64) for s in (h, c)][: cell.states]
    for d, n in np.ndindex(directions, batch):
        own = [s[d, n] for s in starts]
        length = steps if lengths is None else min(max(int(lengths[n]), 0), steps)
        order = range(length - 1, -1, -1) if cell.is_back[d] else range(length)
        holes = np.zeros((3, units)) if peepholes is None else peepholes[d]
        of_reset = np.zeros(units) if bias is None else bias[d]
        for t in order:
            own = _step(cell, cell.functions[d], given[t, n, d], r[d], of_reset, holes, own)
            y[t, d, n] = own[0]
        for k, s in enumerate(own):
            y[steps + k, d, n] = s
    return y


def _step(
    cell: Cell, functions: Sequence[Function], x: Array, r: Array, bias: Array, holes: Array, before: Sequence[Array]
) -> list[Array]:
    def gate(number: int, value: Array) -> Array:
        held = np.clip(value, -cell.clip, cell.clip) if cell.clip is not None else value
        return np.asarray(functions[number].numpy(held))

    def product(state: Array, number: int) -> Array:
        return state[: len(r)] @ r[:, number]

    h = before[0]
    if cell.kind == "rnn":
        return [gate(0, x[0] + product(h, 0))]
    if cell.kind == "gru":
        z, reset = (gate(0, x[i] + product(h, i)) for i in range(2))
        inner = reset * (product(h, 2) + bias) if cell.resets_after else product(reset * h, 2)
        return [(1 - z) * gate(1, x[2] + inner) + z * h]
    c = before[1]
    i = gate(0, x[0] + product(h, 0) + holes[0] * c)
    f = 1 - i if cell.coupled else gate(0, x[2] + product(h, 2) + holes[2] * c)
    new = f * c + i * gate(1, x[3] + product(h, 3))
    new = new if cell.state_clip is None else np.clip(new, -cell.state_clip, cell.state_clip)
    o = gate(0, x[1] + product(h, 1) + holes[1] * new)
    return [o * np.asarray(functions[2].numpy(new)), new]
