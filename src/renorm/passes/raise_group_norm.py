"""Group normalization out of what exporters write for it, a norm of groups between two reshapes: channels stay where
they are, and what stands before and after can join its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim, Shape, size
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
        channels, groups = x.shape[1] if x.rank > 1 else None, self._groups(m)
        if not isinstance(channels, int) or not isinstance(groups, int) or m.root.output.shape != x.shape:
            return None
        if not groups or channels % groups or not (m.bias is None or m.bias.is_constant):
            return None
        if self.norm == "layer_norm" and _numbers(x.shape[1:]) > _LARGEST:
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

    def _groups(self, m: Match) -> Dim:
        """Return how many slices of one sample are normalized; 0 where samples are not apart, or not whole."""
        n, grouped = m.x.shape[0], m.grouping.output.shape
        if self.norm == "instance_norm" and grouped[0] != n:  # its channels are rows of x
            return 0
        slices = size(grouped[: self._first(m)])
        return slices // n if n != 0 and slices % n == 0 else 0

    def _first(self, m: Match) -> int:
        """The first axis of a slice."""
        return int(m.norm.op.values.get("axis", 2)) % m.grouping.output.rank

    def _per_channel(self, m: Match, v: Value) -> Any:
        """A constant of the norm as one number per channel of x, or why it is not that."""
        (n, channels, *_), grouped, groups = m.x.shape, m.grouping.output.shape, self._groups(m)
        assert isinstance(channels, int)
        assert isinstance(groups, int)
        if self.norm == "instance_norm":
            return np.repeat(exact(v), channels // groups)
        first = self._first(m)
        is_apart = grouped[:first] == (n, groups)  # so that a constant may run along the groups
        if v.rank > len(grouped) - first + is_apart:
            return f"{v.name!r} {v.type} differs from sample to sample"
        spread = _per_channel(exact(v), (groups, *grouped[first:]), channels)
        return f"{v.name!r} {v.type} differs within a channel" if spread is None else spread


@dataclass(frozen=True)
class AffineBehindReshape(Rewrite):
    """reshape(norm(x) * c) -> reshape(norm(x)) * c', reshape(norm(x) + c) -> reshape(norm(x)) + c', c' per channel"""

    op: str
    constants = ("c",)

    def pattern(self, c: Any, back: Any) -> Any:
        return ops.reshape(getattr(ops, self.op)(any_op("norm"), c, name="affine"), back)

    def plan(self, m: Match) -> Plan | Refusal | None:
        inner, outer = m.affine.output, m.root.output
        channels = outer.shape[1] if min(inner.rank, outer.rank) > 1 else None
        if not isinstance(channels, int) or not channels:
            return None
        same = inner.shape[0] == outer.shape[0] and m.norm.output.shape == inner.shape and m.c.rank < inner.rank
        if not same or not _is_of_norm(m.norm) or _numbers(inner.shape[1:]) > _LARGEST:
            return None
        spread = _per_channel(exact(m.c), inner.shape[1:], channels)
        if spread is None:
            return Refusal(f"{m.c.name!r} {m.c.type} differs within a channel")
        per_channel = spread.reshape(-1, *[1] * (outer.rank - 2))

        def make(m: Match) -> Value:
            c = m.graph.constant(per_channel, f"{m.c.name}.per_channel", m.c.source, dtype=m.c.dtype)
            return m.affine.op(m.root.op(m.norm.output, m.back), c)

        return Plan(make)


def _numbers(shape: Shape) -> int:
    """Return how many elements a constant of a shape has at most: one along an open axis."""
    return int(np.prod([d for d in shape if isinstance(d, int)], dtype=np.int64))


def _per_channel(c: np.ndarray[Any, Any], shape: Shape, channels: int) -> np.ndarray[Any, Any] | None:
    """Return what a constant, spread to a shape that is cut into channels, is for each of them; None where it differs
    within one. Extents may be open: the constant has one element along these axes."""
    own = (1,) * (len(shape) - c.ndim) + c.shape
    if any(e != 1 and not isinstance(d, int) for d, e in zip(shape, own, strict=True)):
        return None
    spread = np.broadcast_to(c, tuple(d if isinstance(d, int) else 1 for d in shape))
    opened = next((axis for axis, d in enumerate(shape) if not isinstance(d, int)), None)
    parts = channels if opened is None else prod(spread.shape[:opened])  # in front of the first open axis
    if opened is not None and (not parts or (channels % parts and parts % channels)):
        return None
    if not spread.size:
        return np.zeros(channels)
    # beyond, all of one part is of the channels that it is cut into, or several parts are of one channel
    rows = spread.reshape(min(parts, channels), -1)
    return np.repeat(rows[:, 0], channels // len(rows)) if (rows == rows[:, :1]).all() else None


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
