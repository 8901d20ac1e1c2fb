"""Simplification: nodes that change nothing go, and chains of reindexing become one node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from renorm import ops
from renorm.core.lazy import cached_property
from renorm.core.shapes import normalize_axis, regrouping
from renorm.graph.ir import Node, Value
from renorm.graph.rewrite import Match, Plan, Rewrite, any_op, node_of
from renorm.ops.shared.reshaping import reshaped_to, told_by_numbers


@dataclass(frozen=True)
class Drop(Rewrite):
    """op(x, ..) -> x where the op changes nothing"""

    op: str
    changes_nothing: Callable[[Node], bool]

    @cached_property
    def replaces_all(self) -> bool:
        return False  # a mask of Dropout that somebody reads holds the node

    def pattern(self) -> Any:
        return node_of(self.op)

    def plan(self, m: Match) -> Plan | None:
        x = m.root.inputs[0]
        is_same = x is not None and m.root.output.type == x.type and self.changes_nothing(m.root)
        return Plan(self.rewrite) if is_same else None

    def rewrite(self, m: Match) -> Value | None:
        return m.root.inputs[0]


def _always(node: Node) -> bool:
    return True


def _same_order(node: Node) -> bool:
    """A transpose moves nothing where axes of more than one element stay in order."""
    perm = node.op.values["perm"] or tuple(reversed(range(node.output.rank)))
    moved = [a for a in perm if node.inputs[0] is not None and node.inputs[0].shape[a] != 1]
    return moved == sorted(moved)


def _forward(node: Node) -> bool:
    """A slice that gives everything moves nothing where no step is negative."""
    steps = node.inputs[4]
    return steps is None or (steps.data is not None and bool((steps.data > 0).all()))


def _no_padding(node: Node) -> bool:
    """Pads may be negative, so that equal types alone do not tell."""
    pads = node.inputs[1]
    return pads is not None and pads.data is not None and not pads.data.any()


def _one_operand(node: Node) -> bool:
    return len(node.inputs) == 1


class TransposeOfTranspose(Rewrite):
    """transpose(transpose(x, p), q) -> transpose(x, p[q])"""

    shares = True

    def pattern(self, x: Any) -> Any:
        return ops.transpose(ops.transpose(x, name="inner"))

    def rewrite(self, m: Match) -> Value:
        reverse = tuple(reversed(range(m.x.rank)))
        first, second = (n.op.values["perm"] or reverse for n in (m.inner, m.root))
        return ops.transpose(m.x, perm=tuple(first[a] for a in second))


VIEWS = ("reshape", "flatten", "squeeze", "unsqueeze")  # ops that only cut the same elements into other axes


@dataclass(frozen=True)
class ViewOfView(Rewrite):
    """reshape(reshape(x)) -> reshape(x), for all ops that only cut the same elements into other axes

    opens: also where files cannot say the shape, since extents are open.
    """

    outer: str
    inner: str
    opens: bool = False
    shares = True

    def pattern(self) -> Any:
        return node_of(self.outer, node_of(self.inner, name="below"), name="above")

    def plan(self, m: Match) -> Plan | None:
        is_told = self.opens or told_by_numbers(m.below.inputs[0].shape, m.root.output.shape) is not None
        return Plan(self.rewrite) if is_told else None

    def rewrite(self, m: Match) -> Value:
        return reshaped_to(m.below.inputs[0], m.root.output.shape)


@dataclass(frozen=True)
class ViewsAroundTranspose(Rewrite):
    """reshape(transpose(reshape(x), p)) -> transpose(x, q), for all ops that only cut the same elements into other axes

    torch.onnx turns keys of four axes round as three.
    """

    outer: str
    inner: str
    shares = True

    def pattern(self) -> Any:
        return node_of(self.outer, ops.transpose(node_of(self.inner, name="below"), name="turned"), name="above")

    def plan(self, m: Match) -> Plan | None:
        x, axes = m.below.inputs[0], m.turned.op.values["perm"]
        axes, perm = list(axes or range(m.below.output.rank)[::-1]), list[int]()
        runs = {new.start: (old, new) for old, new in regrouping(x.shape, m.below.output.shape) if new}
        while axes:
            old, new = runs.get(axes[0], (range(0), range(0)))
            if not new or axes[: len(new)] != [*new]:
                return None
            perm, axes = [*perm, *old], axes[len(new) :]
        is_all = len(perm) == x.rank and tuple(x.shape[a] for a in perm) == m.root.output.shape
        return Plan(lambda m: ops.transpose(x, perm=tuple(perm))) if is_all else None


@dataclass(frozen=True)
class ViewOfReduction(Rewrite):
    """flatten(reduce(x, keepdims)) -> reduce(x), for all reductions that can leave the reduced axes out, and the
    global average

    A view of its own would be a kernel that copies a few numbers.
    """

    view: str

    def pattern(self) -> Any:
        return node_of(self.view, any_op("reduction"))

    def plan(self, m: Match) -> Plan | None:
        axes = _reduced_axes(m.reduction)
        rest = [d for a, d in enumerate(m.reduction.output.shape) if a not in axes]
        return Plan(self.rewrite) if axes and m.root.output.shape == tuple(rest) else None

    def rewrite(self, m: Match) -> Value:
        (x,) = m.reduction.inputs
        op = m.reduction.op
        if op.name == "global_average_pool":
            return ops.reduce_mean(x, axes=_reduced_axes(m.reduction), keepdims=False)
        return op.with_attributes(keepdims=False)(x)


def _reduced_axes(node: Node) -> tuple[int, ...]:
    """Axes of extent 1 that a reduction leaves where others leave none; none where it is no such reduction."""
    if len(node.inputs) != 1 or node.inputs[0] is None:
        return ()
    rank = node.inputs[0].rank
    if node.op.name == "global_average_pool":
        return tuple(range(2, rank))
    if not node.op.values.get("keepdims", False) or "axes" not in node.op.values:
        return ()
    axes = node.op.values["axes"]
    return tuple(range(rank)) if axes is None else tuple(normalize_axis(a, rank) for a in axes)


IDENTITIES: tuple[Rewrite, ...] = (Drop("identity", _always), Drop("dropout", _always))
"""Ops that are nothing in inference; lowering drops them at every level."""

RULES: tuple[Rewrite, ...] = (
    *IDENTITIES,
    *(Drop(view, _always) for view in VIEWS),  # equal open extents are equal whatever they are
    Drop("expand", _always),
    Drop("slice", _forward),
    Drop("pad", _no_padding),
    Drop("cast", _always),
    Drop("concat", _one_operand),
    Drop("transpose", _same_order),
    TransposeOfTranspose(),
    *(ViewOfReduction(view) for view in VIEWS),
    *(rule(outer, inner) for rule in (ViewOfView, ViewsAroundTranspose) for outer in VIEWS for inner in VIEWS),
)

KERNEL_RULES: tuple[Rewrite, ...] = tuple(replace(r, opens=True) if isinstance(r, ViewOfView) else r for r in RULES)
"""The same, where nothing has to be written back."""
