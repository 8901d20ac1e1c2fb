"""Recurrent networks: what their data give to the gates is one product for all of time, and the steps are one op."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim
from renorm.core.dtypes import numpy_dtype
from renorm.graph.ir import Graph, Value
from renorm.graph.rewrite import Match, Plan, Refusal, Rewrite, node_of
from renorm.ops.recurrence import Recurrence
from renorm.ops.schedules import recurrent
from renorm.ops.shared.recurrent import OverTime
from renorm.ops.shared.reshaping import reshaped, reshaped_to
from renorm.passes.context import Context
from renorm.passes.rewriting import ApplyRules


class ToSteps(Rewrite):
    """lstm(x, w, r, b, ..) -> slices of recurrence(x * w' + b', r', ..), whose weights lie tile by tile of units"""

    def __init__(self, op: str, context: Context):
        self.op, self._context = op, (context,)

    def pattern(self) -> Any:
        return node_of(self.op)

    def plan(self, m: Match) -> Plan | Refusal:
        op, (x, _, r, *_) = m.root.op, m.root.operands
        assert isinstance(op, OverTime)
        hidden = r.shape[2]
        if not isinstance(hidden, int):
            return Refusal("how many hidden units it has is not known")
        (context,) = self._context
        _, batch = op.turned(context.typical(x.shape[:2]))
        gates = op.cell().gates
        tile = recurrent.tile(gates, hidden, batch, x.dtype, context.target.machine_target)
        return Plan(partial(_in_steps, tile=tile))


def _in_steps(m: Match, tile: tuple[int, int]) -> list[Value]:
    op, (x, w, r, *optional) = m.root.op, m.root.operands
    assert isinstance(op, OverTime)
    cell, (lanes, rows), given = op.cell(), tile, dict(zip(op.reads, optional, strict=True))
    directions, gates, hidden = op.directions, cell.gates, r.shape[2]
    tiles = -(-hidden // lanes)
    width = directions * tiles * gates * lanes

    def padded(value: Value, axis: int) -> Value:
        """Return a value with zeros behind its units, up to the end of the last tile."""
        pads = np.zeros(2 * value.rank, np.int64)
        pads[value.rank + axis] = tiles * lanes - hidden
        return ops.pad(value, pads) if pads.any() else value

    def tiled(value: Value) -> Value:
        """Return [direction, gate, tile, lane, columns] of [direction, units of all gates, columns]."""
        by_gate = padded(reshaped(value, directions, gates, hidden, -1), 2)
        return reshaped(by_gate, directions, gates, tiles, lanes, -1)

    def states(value: Value | None) -> Value | None:
        if value is None:
            return None
        return padded(ops.transpose(value, perm=(1, 0, 2)) if op.layout else value, 2)

    of_data = reshaped(ops.transpose(tiled(w), perm=(4, 0, 2, 1, 3)), -1, width)
    turned = ops.transpose(x, perm=(1, 0, 2)) if op.layout else x
    steps, batch, channels = turned.shape
    data = ops.matmul(reshaped_to(turned, (steps * batch, channels)), of_data)
    b, p, bias = given["b"], given.get("p"), None
    if b is not None:
        both = reshaped(b, directions, 2, gates, hidden)
        if cell.resets_after:
            bias = padded(reshaped(_cut(_cut(both, 1, 1, 2), 2, 2, 3), directions, hidden), 1)
            inside = np.ones((1, 2, gates, 1), np.float32)
            inside[:, 1, 2] = 0
            both = ops.where(inside > 0, both, np.zeros((), numpy_dtype(b.dtype)))
        whole = tiled(reshaped(ops.reduce_sum(both, axes=(1,), keepdims=False), directions, gates * hidden, 1))
        data = ops.add(data, reshaped(ops.transpose(whole, perm=(0, 2, 1, 3, 4)), width))
    made = Recurrence(
        kind=cell.kind,
        rows=rows,
        **{k: v for k, v in op.values.items() if k in Recurrence.attributes},
    )(
        reshaped_to(data, (steps, batch, width)),
        ops.transpose(tiled(r), perm=(0, 2, 4, 1, 3)),
        bias,
        given["sequence_lens"],
        states(given["initial_h"]),
        states(given.get("initial_c")),
        None if p is None else padded(reshaped(p, directions, 3, hidden), 2),
        name=m.root.name,
    )
    own = _cut(made, 3, 0, hidden) if tiles * lanes > hidden else made
    y = ops.transpose(_cut(own, 0, 0, steps), perm=(2, 0, 1, 3) if op.layout else (0, 1, 2, 3))
    lasts = [ops.squeeze(_cut(own, 0, steps + k, steps + k + 1), axes=[0]) for k in range(cell.states)]
    return [y, *(ops.transpose(v, perm=(1, 0, 2)) if op.layout else v for v in lasts)]


def _cut(x: Value, axis: int, begin: Dim, end: Dim) -> Value:
    """Return x[begin:end] along an axis, where bounds may be open."""
    bounds = [x.graph.open_constant(np.array([n], dtype=object), "bound", "int64") for n in (begin, end)]
    return ops.slice(x, *bounds, np.array([axis], np.int64))


@dataclass(frozen=True)
class TakeStepsApart:
    """lstm, gru, rnn -> a product of matrices, and a recurrence"""

    def run(self, graph: Graph, context: Context) -> None:
        ApplyRules(tuple(ToSteps(op, context) for op in ("lstm", "gru", "rnn"))).run(graph, context)
