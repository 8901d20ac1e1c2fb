"""Products of matrices that indices choose read them where they lie: layers of experts whose weights are gathered."""

from __future__ import annotations

from typing import Any

from renorm import ops
from renorm.core.dtypes import is_float
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Plan, Rewrite

_TURNED = (0, 2, 1)


class _Chosen(Rewrite):
    """Base of these: x, w of three axes, one index for each matrix of x."""

    def plan(self, m: Match) -> Plan | None:
        axis, ranks = self._gather(m).op.values["axis"], (m.x.rank, m.w.rank, m.i.rank)
        fits = axis in (0, -3) and ranks == (3, 3, 1) and m.x.shape[0] == m.i.shape[0] and is_float(m.x.dtype)
        return Plan(self.rewrite) if fits else None

    def _gather(self, m: Match) -> Any:
        return next(n for n in m.nodes if n.op.name == "gather")


class MultiplyChosen(_Chosen):
    """matmul(x, gather(w, i)) -> gather_matmul(x, w, i)"""

    def pattern(self, x: Any, w: Any, i: Any) -> Any:
        return ops.matmul(x, ops.gather(w, i))

    def rewrite(self, m: Match) -> Value:
        return ops.gather_matmul(m.x, m.w, m.i)


class MultiplyChosenTurned(_Chosen):
    """matmul(x, gather(w, i)') -> gather_matmul(x, w', i) for constant w, each matrix turned"""

    constants = ("w",)

    def pattern(self, x: Any, w: Any, i: Any) -> Any:
        return ops.matmul(x, ops.transpose(ops.gather(w, i), perm=_TURNED))

    def rewrite(self, m: Match) -> Value:
        return ops.gather_matmul(m.x, ops.transpose(m.w, perm=_TURNED), m.i)


class MultiplyByChosen(_Chosen):
    """matmul(gather(w, i), x) -> gather_matmul(x', w', i)' for constant w, each matrix turned"""

    constants = ("w",)

    def pattern(self, x: Any, w: Any, i: Any) -> Any:
        return ops.matmul(ops.gather(w, i), x)

    def rewrite(self, m: Match) -> Value:
        x, w = (ops.transpose(v, perm=_TURNED) for v in (m.x, m.w))
        return ops.transpose(ops.gather_matmul(x, w, m.i), perm=_TURNED)


RULES: tuple[Rewrite, ...] = (MultiplyChosen(), MultiplyChosenTurned(), MultiplyByChosen())
