"""Decomposition: ops with several results become ops with one, which fuse with what reads them."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import normalize_axis
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Plan, Rewrite, node_of


class SplitToSlices(Rewrite):
    """split(x) -> slice(x), slice(x), ..."""

    def pattern(self) -> Any:
        return node_of("split")

    def plan(self, m: Match) -> Plan | None:
        return Plan(self.rewrite) if all(v.type.is_static for v in m.root.outputs) else None

    def rewrite(self, m: Match) -> list[Value]:
        x = m.root.inputs[0]
        assert x is not None
        axis = normalize_axis(m.root.op.values["axis"], x.rank)
        ends = list(accumulate(int(str(v.shape[axis])) for v in m.root.outputs))
        begins = [0, *ends[:-1]]
        return [
            ops.slice(x, *(np.array([n], np.int64) for n in (begin, end, axis))) for begin, end in zip(begins, ends)
        ]


RULES: tuple[Rewrite, ...] = (SplitToSlices(),)
