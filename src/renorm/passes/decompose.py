"""Decomposition: ops with several results become ops with one, which fuse with what reads them."""

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


RULES: tuple[Rewrite, ...] = (SplitToSlices(),)
