"""Channels filled up with zeros, until a matrix unit multiplies them in pairs of bfloat16.

first layers   an image has three channels: a copy that pads a plane anyway makes them four, of which taps of a row
               of a window lie side by side, and is what memory holds in bfloat16
groups         several that fill a row of registers become one, whose weights are those of each on a diagonal of
               blocks; the unit makes 16 products in the time of one by vectors, so that some may be of zeros
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm, prod
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import is_static, static
from renorm.core.dots import PAIRS
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.graph.ir import Graph, Value
from renorm.graph.rewrite import Match, Plan, Rewrite
from renorm.ops.conv import Conv
from renorm.ops.schedules import dot_weights
from renorm.passes.affine import exact
from renorm.passes.context import Context
from renorm.passes.mixed_precision import SMALL
from renorm.passes.rewriting import ApplyRules

TIMES = 8  # as many products as elements of the copy, at least: below that it takes longer than it saves
MOST = 8  # groups in one, whose products are as many times those that are not of zeros


@dataclass(frozen=True)
class FillChannels:
    """conv(x) -> conv(pad(x)), conv in n groups -> conv in n / k groups, for precision "bfloat16" on a matrix unit"""

    def run(self, graph: Graph, context: Context) -> None:
        if context.uses_matrix_unit:
            machine = context.target.machine_target
            ApplyRules([ChannelsOfConv(machine), GroupsOfConv(machine)]).run(graph, context)


class ChannelsOfConv(Rewrite):
    """conv(x[N, C, *S], w, pads) -> conv(pad(x, 1 channel, pads), pad(w, 1 channel)) for an odd C"""

    def __init__(self, target: Target):
        self._target = target

    def pattern(self, x: Any, w: Any, b: Any) -> Any:
        return Conv.matching()(x, w, b)

    def plan(self, m: Match) -> Plan | None:
        conv = m.root.op
        if type(conv) is not Conv or conv.group > 1 or not m.w.is_constant or m.x.dtype != "float32":
            return None
        if not is_static((*m.x.shape, *m.w.shape)) or m.x.rank < 3:
            return None
        results, channels, *window = static(m.w.shape)
        if channels % 2 == 0 or 0 in m.x.shape or m.w.dtype != "float32":
            return None
        taps = 1 if any(s.dilation > 1 for s in self._spans(m)) else window[-1]
        if dot_weights.panels(0, 1, results, channels + 1, self._target, taps) is None:
            return None
        copied = m.x.shape[0] * (channels + 1) * prod(static(m.x.shape[2:]))
        products = prod(static(m.root.output.shape)) * prod(window) * channels
        return Plan(self.rewrite) if products >= TIMES * copied >= TIMES * SMALL else None

    def rewrite(self, m: Match) -> Value:
        conv, spans = m.root.op, self._spans(m)
        pads = [0, 0, *(s.before for s in spans), 0, 1, *(s.after for s in spans)]
        data = ops.pad(m.x, np.array(pads, np.int64))
        weight = np.pad(exact(m.w), [(0, 0), (0, 1), *[(0, 0)] * len(spans)])
        filled = m.graph.constant(weight, f"{m.w.name}.filled", m.w.source, dtype=m.w.dtype)
        return conv.with_attributes(pads=(0,) * 2 * len(spans), auto_pad="NOTSET")(data, filled, m.bound.get("b"))

    @staticmethod
    def _spans(m: Match) -> Any:
        assert isinstance(m.root.op, Conv)
        return m.root.op.spans(static(m.x.shape[2:]), static(m.w.shape[2:]))


class GroupsOfConv(Rewrite):
    """conv(x, w[M, P, *K], group = n) -> conv(x, w'[M, k * P, *K], group = n / k), w' with zeros between k groups

    k: groups whose channels, of data and of results, are whole blocks. A number of x that is not finite makes those of
    the other k - 1 groups NaN, which it would not have reached.
    """

    def __init__(self, target: Target):
        unit = Machine.of(target).matrix
        self._block = unit.depth(PAIRS) if unit else 1

    def pattern(self, x: Any, w: Any, b: Any) -> Any:
        return Conv.matching()(x, w, b)

    def plan(self, m: Match) -> Plan | None:
        conv = m.root.op
        if type(conv) is not Conv or conv.group == 1 or not m.w.is_constant or m.w.dtype != "float32":
            return None
        return Plan(self.rewrite) if 1 < self._together(m) <= MOST and conv.group % self._together(m) == 0 else None

    def rewrite(self, m: Match) -> Value:
        conv, k = m.root.op, self._together(m)
        assert isinstance(conv, Conv)
        w = exact(m.w)
        results, channels = len(w) // conv.group, w.shape[1]
        parts = w.reshape(conv.group // k, k, results, channels, *w.shape[2:])
        whole = np.zeros((conv.group // k, k, results, k, channels, *w.shape[2:]), w.dtype)
        for i in range(k):
            whole[:, i, :, i] = parts[:, i]
        shape = (len(w), k * channels, *w.shape[2:])
        weight = m.graph.constant(whole.reshape(shape), f"{m.w.name}.joined", m.w.source, dtype=m.w.dtype)
        return conv.with_attributes(group=conv.group // k)(m.x, weight, m.bound.get("b"))

    def _together(self, m: Match) -> int:
        """Return how many groups together are whole blocks of channels."""
        results, channels, *_ = static(m.w.shape)
        per_group = results // m.root.op.values["group"], channels
        return lcm(*(self._block // gcd(self._block, n) for n in per_group))
