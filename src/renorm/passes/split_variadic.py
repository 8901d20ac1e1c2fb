"""Ops of many operands become ops of few: one expression, and one kernel's parameters, have an end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.graph import registry
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Plan, Rewrite, node_of

MOST = 32  # operands of one op; a kernel that reads more is long to compile, and no faster


@dataclass(frozen=True)
class TakeInTurn(Rewrite):
    """op(x0, .., xn) -> op(op(x0, .., xi), .., xn), in the same order; a mean is a sum times 1 / n"""

    op: str

    def pattern(self) -> Any:
        return node_of(self.op)

    def plan(self, m: Match) -> Plan | None:
        return Plan(self.rewrite) if len(m.root.inputs) > MOST else None

    def rewrite(self, m: Match) -> Value:
        dtype = m.root.output.dtype
        wide = dtypes.compute_dtype(dtype)  # 16-bit floats are rounded once, at the end
        op = ops.sum if self.op == "mean" else registry.find(self.op)()
        xs: list[Any] = [x if wide == dtype else ops.cast(x, to=wide) for x in m.root.inputs]
        y = xs[0]
        for i in range(1, len(xs), MOST - 1):
            y = op([y, *xs[i : i + MOST - 1]])
        if self.op == "mean":
            y = ops.mul(y, np.asarray(1 / len(xs), dtypes.numpy_dtype(wide)))
        return y if wide == dtype else ops.cast(y, to=dtype)


class JoinInParts(Rewrite):
    """concat(x0, .., xn) -> concat(concat(x0, .., xi), .., concat(.., xn)): what lies within lies within, and is not
    copied twice"""

    def pattern(self) -> Any:
        return node_of("concat")

    def plan(self, m: Match) -> Plan | None:
        return Plan(self.rewrite) if len(m.root.inputs) > MOST else None

    def rewrite(self, m: Match) -> Value:
        parts, axis = list[Any](m.root.inputs), m.root.op.values["axis"]
        while len(parts) > 1:
            cuts = [parts[i : i + MOST] for i in range(0, len(parts), MOST)]
            parts = [ops.concat(cut, axis=axis) if len(cut) > 1 else cut[0] for cut in cuts]
        return parts[0]


RULES: tuple[Rewrite, ...] = (*(TakeInTurn(op) for op in ("sum", "mean", "max", "min")), JoinInParts())
