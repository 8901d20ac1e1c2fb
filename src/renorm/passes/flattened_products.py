"""Products of operands that were flattened for them, on what there was before: other kernels join axes that they know.

PyTorch makes `linear` and `matmul` of three axes and more products of matrices, and of batches with one axis, between
views; what follows has the axes from before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from renorm import ops
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Plan, Rewrite, node_of
from renorm.ops.shared.reshaping import reshaped_to
from renorm.passes.simplify import VIEWS


def _before(x: Value | None) -> Value | None:
    """Return what a view was made of."""
    node = None if x is None else x.producer
    return node.inputs[0] if node is not None and node.op.name in VIEWS else None


@dataclass(frozen=True)
class ProductOfBatches(Rewrite):
    """reshape(matmul(reshape(a), reshape(b))) -> matmul(a, b), where axes before matrices were made one"""

    view: str

    def pattern(self) -> Any:
        return node_of(self.view, node_of("matmul", name="product"))

    def plan(self, m: Match) -> Plan | None:
        a, b = m.product.inputs
        y, before = m.root.output, (_before(a), _before(b))
        if a.rank != 3 or b.rank != 3 or y.rank < 4 or a.shape[0] != b.shape[0]:
            return None
        is_kept = y.shape[-2:] == m.product.output.shape[-2:]
        return Plan(self.rewrite) if is_kept and all(_has_matrices(x, of) for x, of in zip(before, (a, b))) else None

    def rewrite(self, m: Match) -> Value:
        lead = m.root.output.shape[:-2]
        return ops.matmul(*(reshaped_to(_before(x), (*lead, *x.shape[-2:])) for x in m.product.inputs))


def _has_matrices(x: Value | None, of: Value) -> bool:
    """Return whether a view left the last two axes alone."""
    return x is not None and x.rank > 3 and x.shape[-2:] == of.shape[-2:]


@dataclass(frozen=True)
class ProductOfRows(Rewrite):
    """reshape(gemm(reshape(x), w, c)) -> matmul(x, w) + c, where axes before the last one were made one"""

    view: str

    def pattern(self) -> Any:
        return node_of(self.view, node_of("gemm", name="product"))

    def plan(self, m: Match) -> Plan | None:
        (x, w, *_), values = m.product.inputs, m.product.op.values
        y, c = m.root.output, _added(m)
        is_plain = not values["transA"] and not values["transB"] and values["alpha"] == values["beta"] == 1
        is_row = c is None or c.shape in ((w.shape[1],), (1, w.shape[1]))
        if not is_plain or not is_row or y.rank < 3 or y.shape[-1] != w.shape[1] or _before(x) is None:
            return None
        return Plan(self.rewrite)

    def rewrite(self, m: Match) -> Value:
        x, w, c = m.product.inputs[0], m.product.inputs[1], _added(m)
        y = ops.matmul(reshaped_to(_before(x), (*m.root.output.shape[:-1], w.shape[0])), w)
        return y if c is None else ops.add(y, c)


def _added(m: Match) -> Value | None:
    return m.product.inputs[2] if len(m.product.inputs) > 2 else None


RULES: tuple[Rewrite, ...] = tuple(rule(view) for rule in (ProductOfBatches, ProductOfRows) for view in VIEWS)
