"""Group normalization out of what exporters write for it, a norm of groups between two reshapes: channels stay where
they are, and what stands before and after can join its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import static
from renorm.graph.ir import Node, Value
from renorm.graph.rewrite import Match, Plan, Refusal, Rewrite, any_op, node_of
from renorm.passes.affine import exact

_LARGEST = 1 << 24  # elements of a view over which its constants are compared, spread


@dataclass(frozen=True)
class GroupNormOfReshaped(Rewrite):
    """reshape(norm(reshape(x, [N, G, ..]), scale, bias), [N, C, ..]) -> group_norm(x, scale', bias')

    scale' and bias' hold for each channel what scale and bias spread to there. N and G may be one axis.
    """

    norm: str
    constants = ("scale",)

    def pattern(self, x: Any, inside: Any, scale: Any, bias: Any, back: Any) -> Any:
        return ops.reshape(node_of(self.norm, ops.reshape(x, inside, name="grouping"), scale, bias, name="norm"), back)

    def plan(self, m: Match) -> Plan | Refusal | None:
        x, grouped = m.x, m.grouping.output
        if not (x.type.is_static and grouped.type.is_static) or x.rank < 2 or m.root.output.shape != x.shape:
            return None
        channels, groups = int(static(x.shape)[1]), self._groups(m)
        if not groups or channels % groups or not (m.bias is None or m.bias.is_constant):
            return None
        if np.prod(static(x.shape)[1:], dtype=np.int64) > _LARGEST and self.norm == "layer_norm":
            return Refusal(f"{grouped.type} is too large to spread scale and bias over it")
        parameters = list[Any]()
        for v in (m.scale, m.bias):
            spread = np.zeros(channels) if v is None else self._per_channel(m, v)
            if isinstance(spread, str):
                return Refusal(spread)
            parameters.append(spread)

        def make(m: Match) -> Value:
            scale, bias = (
                m.graph.constant(v, f"{m.norm.name}.{what}_per_channel", m.scale.source, dtype=m.scale.dtype)
                for what, v in zip(("scale", "bias"), parameters)
            )
            epsilon = m.norm.op.values["epsilon"]
            return ops.group_norm(x, scale, bias, num_groups=groups, epsilon=epsilon, name=m.norm.name)

        return Plan(make)

    def _groups(self, m: Match) -> int:
        """Return how many slices of one sample are normalized; 0 where samples are not apart, or not whole."""
        (n, *_), grouped = static(m.x.shape), static(m.grouping.output.shape)
        slices = int(np.prod(grouped[: self._first(m)], dtype=np.int64))
        return slices // n if n and slices % n == 0 else 0

    def _first(self, m: Match) -> int:
        """The first axis of a slice."""
        return int(m.norm.op.values.get("axis", 2)) % m.grouping.output.rank

    def _per_channel(self, m: Match, v: Value) -> Any:
        """A constant of the norm as one number per channel of x, or why it is not that."""
        (n, channels, *_), grouped, groups = static(m.x.shape), static(m.grouping.output.shape), self._groups(m)
        if self.norm == "instance_norm":
            return np.repeat(exact(v), channels // groups)
        first = self._first(m)
        is_apart = grouped[:first] == (n, groups)  # so that a constant may run along the groups
        if v.rank > len(grouped) - first + is_apart:
            return f"{v.name!r} {v.type} differs from sample to sample"
        spread = np.broadcast_to(exact(v), (groups, *grouped[first:])).reshape(channels, -1)
        if not (spread == spread[:, :1]).all():
            return f"{v.name!r} {v.type} differs within a channel"
        return spread[:, 0] if spread.size else np.zeros(channels)


@dataclass(frozen=True)
class AffineBehindReshape(Rewrite):
    """reshape(norm(x) * c) -> reshape(norm(x)) * c', reshape(norm(x) + c) -> reshape(norm(x)) + c', c' per channel"""

    op: str
    constants = ("c",)

    def pattern(self, c: Any, back: Any) -> Any:
        return ops.reshape(getattr(ops, self.op)(any_op("norm"), c, name="affine"), back)

    def plan(self, m: Match) -> Plan | Refusal | None:
        inner, outer = m.affine.output, m.root.output
        if not (inner.type.is_static and outer.type.is_static) or min(inner.rank, outer.rank) < 2:
            return None
        same = inner.shape[0] == outer.shape[0] and m.norm.output.shape == inner.shape and m.c.rank < inner.rank
        if not same or not _is_of_norm(m.norm) or np.prod(static(inner.shape)[1:], dtype=np.int64) > _LARGEST:
            return None
        spread = np.broadcast_to(exact(m.c), static(m.affine.output.shape)[1:])
        spread = spread.reshape(int(static(m.root.output.shape)[1]), -1)
        if not (spread == spread[:, :1]).all():
            return Refusal(f"{m.c.name!r} {m.c.type} differs within a channel")
        per_channel = spread[:, :1].reshape(-1, *[1] * (outer.rank - 2))

        def make(m: Match) -> Value:
            c = m.graph.constant(per_channel, f"{m.c.name}.per_channel", m.c.source, dtype=m.c.dtype)
            return m.affine.op(m.root.op(m.norm.output, m.back), c)

        return Plan(make)


def _is_of_norm(node: Node) -> bool:
    """Return whether a node is a norm, or scales or shifts one."""
    made = [v.producer for v in node.inputs if v is not None and v.producer is not None]
    return node.op.is_normalization or (
        node.op.name in ("mul", "add") and len(made) == 1 and made[0].op.is_normalization
    )


RULES: tuple[Rewrite, ...] = (
    GroupNormOfReshaped("instance_norm"),
    GroupNormOfReshaped("layer_norm"),
    AffineBehindReshape("mul"),
    AffineBehindReshape("add"),
)
