"""Decomposition: ops with several results become ops with one, which fuse with what reads them; what constants pick is
said by slices."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.shapes import normalize_axis
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Plan, Rewrite, node_of


class SplitToSlices(Rewrite):
    """split(x) -> slice(x), slice(x), ..."""

    def pattern(self) -> Any:
        return node_of("split")

    def plan(self, m: Match) -> Plan | None:
        return Plan(self.rewrite)

    def rewrite(self, m: Match) -> list[Value]:
        x = m.root.inputs[0]
        assert x is not None
        axis = normalize_axis(m.root.op.values["axis"], x.rank)
        ends = [0, *accumulate(v.shape[axis] for v in m.root.outputs)]
        bounds = [x.graph.open_constant(np.array([n], dtype=object), "bound", "int64") for n in ends]
        return [ops.slice(x, begin, end, np.array([axis], np.int64)) for begin, end in pairwise(bounds)]


class GatherOfOne(Rewrite):
    """gather(x, i) -> squeeze(slice(x, i, i + 1)) for a constant number i"""

    constants = ("i",)

    def pattern(self, x: Any, i: Any) -> Any:
        return node_of("gather", x, i)

    def plan(self, m: Match) -> Plan | None:
        extent = m.x.shape[normalize_axis(m.root.op.values["axis"], m.x.rank)]
        is_inside = m.i.rank == 0 and isinstance(extent, int) and -extent <= m.i.data < extent
        return Plan(self.rewrite) if is_inside else None

    def rewrite(self, m: Match) -> Value:
        axis = normalize_axis(m.root.op.values["axis"], m.x.rank)
        at = int(m.i.data) % m.x.shape[axis]
        one = ops.slice(m.x, *(np.array([n], np.int64) for n in (at, at + 1, axis)))
        return ops.squeeze(one, axes=[axis])


RULES: tuple[Rewrite, ...] = (SplitToSlices(), GatherOfOne())
