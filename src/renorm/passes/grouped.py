"""Group normalization out of what exporters write for it, an instance normalization between two reshapes: channels stay
where they are, and what stands before and behind can join its kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import static
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Rewrite
from renorm.passes.fold import exact


class GroupNormOfReshaped(Rewrite):
    """reshape(instance_norm(reshape(x, [N, G, ..]), scale, bias), [N, C, ..]) -> group_norm(x, scale', bias'), which
    hold each number C / G times"""

    constants = ("scale", "bias")

    def pattern(self, x: Any, inside: Any, scale: Any, bias: Any, back: Any) -> Any:
        return ops.reshape(ops.instance_norm(ops.reshape(x, inside, name="grouping"), scale, bias, name="norm"), back)

    def fits(self, m: Match) -> bool:
        x, grouped = m.x, m.grouping.output
        if not (x.type.is_static and grouped.type.is_static) or x.rank < 2 or m.root.output.shape != x.shape:
            return False
        (n, channels, *_), (samples, groups, *_) = static(x.shape), static(grouped.shape)
        return n == samples and groups > 0 and channels % groups == 0

    def rewrite(self, m: Match) -> Value:
        groups = int(static(m.grouping.output.shape)[1])
        width = int(static(m.x.shape)[1]) // groups
        scale, bias = (
            m.graph.constant(np.repeat(exact(v), width), f"{v.name}.per_channel", v.source, dtype=v.dtype)
            for v in (m.scale, m.bias)
        )
        epsilon = m.norm.op.values["epsilon"]
        return ops.group_norm(m.x, scale, bias, num_groups=groups, epsilon=epsilon, name=m.norm.name)


RULES: tuple[Rewrite, ...] = (GroupNormOfReshaped(),)
