"""Runs of slices that a scatter replaces, by known indices, lie between those that it leaves."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import ops
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Plan, Rewrite


class ReplaceRun(Rewrite):
    """scatter_nd(x, [a, .., b - 1], u) -> concat(x[:a], u, x[b:])

    torch.onnx writes x[:, a:b] = u so, between transposes that bring the axis to the front: these go.
    """

    constants = ("i",)

    def pattern(self, x: Any, i: Any, u: Any) -> Any:
        return ops.scatter_nd(x, i, u)

    def plan(self, m: Match) -> Plan | None:
        indices, extent = m.i.data, m.x.shape[0]
        of_rows = m.root.op.values["reduction"] == "none" and m.i.rank == 2 and m.i.shape[1] == 1
        if not of_rows or not isinstance(extent, int):
            return None
        at = indices[:, 0]
        at = np.where(at < 0, at + extent, at)
        is_run = at.size and np.array_equal(at, np.arange(at[0], at[0] + at.size)) and 0 <= at[0] <= extent - at.size
        return Plan(lambda m: _replaced(m, int(at[0]), int(at[0]) + at.size)) if is_run else None


def _replaced(m: Match, start: int, end: int) -> Value:
    x, u, node = m.x, m.u, m.x.producer
    if node is None or node.op.name != "transpose" or (perm := node.op.values["perm"]) is None:
        return _between(x, u, 0, start, end)
    turned = ops.transpose(u, perm=tuple(int(axis) for axis in np.argsort(perm)))
    return ops.transpose(_between(node.inputs[0], turned, perm[0], start, end), perm=perm)


def _between(x: Value, u: Value, axis: int, start: int, end: int) -> Value:
    """Return `u` with what `x` has before `start` and from `end` on."""
    before, after = ([] if a == b else [ops.slice(x, *(np.array([k]) for k in (a, b, axis)))]
                     for a, b in ((0, start), (end, x.shape[axis])))  # fmt: skip
    parts = [*before, u, *after]
    return ops.concat(parts, axis=axis) if len(parts) > 1 else u


RULES: tuple[Rewrite, ...] = (ReplaceRun(),)
