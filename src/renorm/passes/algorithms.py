"""Algorithms that compute the same with fewer operations and round differently: Winograd's for convolutions.

Every convolution that can be computed so is asked what each way costs (passes.convolution_cost). Transformed weights
take 16 / 9 or 4 times the memory of weights: those that save most for a byte come first, until what is added is a
quarter of all constants of the network, or as much as a process takes anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import is_static, static
from renorm.core.dtypes import itemsize
from renorm.core.target import Target
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.rewrite import Driver, Match, Rewrite
from renorm.ops.conv import Conv
from renorm.ops.winograd import POINTS, TAPS
from renorm.ops.winograd_conv import WinogradConv
from renorm.ops.winograd_weight import TransformedWeight
from renorm.passes.context import Context
from renorm.passes.convolution_cost import Convolution
from renorm.passes.fold import given

WORTH = 1.1  # estimated gain below which the direct convolution stays: it rounds less


class ConvToWinograd(Rewrite):
    """conv(x, w, b) -> winograd_conv(x, G w G^T, b) for a constant w of 3 x 3, strides 1, one group

    plan: for each convolution the tile that is chosen, or why there is none.
    """

    constants = ("w",)

    def __init__(self, plan: Mapping[Node, int | str]):
        self.plan = plan

    def pattern(self, x: Any, w: Any, b: Any) -> Any:
        return ops.conv(x, w, b)

    def fits(self, m: Match) -> bool:
        return m.root in self.plan

    def refuse(self, m: Match) -> str | None:
        tile = self.plan[m.root]
        if isinstance(tile, str):
            return tile
        m.found = TransformedWeight(given(m.w), tile)
        return None if m.found.is_finite(m.w.dtype) else "its transformed weights are not finite"

    def rewrite(self, m: Match) -> Value:
        op, u = m.root.op, m.graph.constant(m.found, m.w.name, m.w.source, dtype=m.w.dtype)
        assert isinstance(op, Conv)
        spans = op.spans(static(m.x.shape[2:], m.x.name), m.w.shape[2:])
        pads = (*(s.before for s in spans), *(s.after for s in spans))
        return WinogradConv(tile=self.plan[m.root], pads=pads)(m.x, u, m.b)


@dataclass(frozen=True)
class ChooseAlgorithms:
    """conv(x, w, b) -> winograd_conv(x, w', b) where that is estimated to be faster; nothing for precision "exact"

    growth: bytes that transformed weights may add, as a share of the bytes of all constants. free: bytes that they may
    add to any network; Python with NumPy takes about as many.
    """

    growth: float = 0.25
    free: int = 32 << 20

    def run(self, graph: Graph, context: Context) -> None:
        if context.precision == "exact" or context.target.machine_target.is_gpu:
            return
        plan = self.plan(graph, context)
        Driver((ConvToWinograd(plan),), context.kept, context.probe, context.log).run(graph)
        graph.discard_constants()

    def plan(self, graph: Graph, context: Context) -> dict[Node, int | str]:
        """For each convolution that could be computed by tiles the tile, or why it stays direct."""
        constants = sum(itemsize(v.dtype) * prod(static(v.shape)) for v in graph.constants.values())
        left = max(self.free, self.growth * constants)
        target = context.target.machine_target
        choices = [_Choice(n, convolution_of(n), target) for n in graph.nodes if _may_change(n) and not context.kept(n)]
        waiting = [c for c in choices if c.upgrades()]
        while waiting:
            best = max(waiting, key=_Choice.density)
            tile, more = best.upgrades()[0]
            if more <= left:
                left -= more
                best.tile = tile
            else:
                best.refused.add(tile)
            waiting = [c for c in waiting if c.upgrades()]
        return {c.node: c.tile if c.tile > 1 else c.reason() for c in choices}


@dataclass
class _Choice:
    """How one convolution is computed so far: tile 1 is direct. refused: tiles whose weights do not fit."""

    node: Node
    convolution: Convolution
    target: Target
    tile: int = 1
    refused: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        self.costs = {t: self.convolution.cost(t, self.target) for t in (1, *POINTS)}

    def gain(self, tile: int) -> float:
        return self.costs[self.tile] - self.costs[tile]

    def bytes_more(self, tile: int) -> int:
        return self.convolution.weight_bytes(tile) - self.convolution.weight_bytes(self.tile)

    def upgrades(self) -> list[tuple[int, int]]:
        """Tiles worth having with the bytes that they add, that which saves most for a byte first."""
        found = [
            t
            for t in POINTS
            if t > self.tile and t not in self.refused and self.gain(t) > 0 and self.costs[1] > WORTH * self.costs[t]
        ]
        return [(t, self.bytes_more(t)) for t in sorted(found, key=lambda t: -self.gain(t) / self.bytes_more(t))]

    def density(self) -> float:
        tile, more = self.upgrades()[0]
        return self.gain(tile) / more

    def reason(self) -> str:
        best = min(POINTS, key=lambda t: self.costs[t])
        times = self.costs[1] / self.costs[best]
        if self.refused:
            return (
                f"transformed, its weights would be too large, though it is estimated to be {times:.2f} times as fast"
            )
        return f"by Winograd's tiles it is estimated to be {times:.2f} times as fast only"


def _may_change(node: Node) -> bool:
    op = node.op
    if not isinstance(op, Conv) or op.group != 1:
        return False
    x, w = node.inputs[:2]
    if x is None or w is None or not w.is_constant or w.shape[2:] != (TAPS, TAPS) or x.dtype != "float32":
        return False
    return is_static(x.shape) and {*op.along("strides", 2), *op.along("dilations", 2)} == {1}


def convolution_of(node: Node) -> Convolution:
    """What the cost of a convolution depends on."""
    (batch, results, height, width), w = static(node.output.shape, node.name), node.inputs[1]
    assert w is not None
    return Convolution(batch, int(np.asarray(w.shape)[1]), results, height, width)
