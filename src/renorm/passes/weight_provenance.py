"""Constants that hold what was folded into them: how large they were, and how large they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.graph.deferred import Deferred, Product, extremes
from renorm.graph.ir import Graph, Node, Value
from renorm.runtime.report import ConstantRecord, Extreme

Array = np.ndarray[Any, Any]

_DEQUANTIZES = "dequantize_linear"


class Holders:
    """Compares constants with those of the source model, which stay alive as long as this does."""

    def __init__(self, source: Graph):
        self._names = frozenset(source.constants)
        self._before: dict[tuple[str, int], _Weight] = {}
        self._dequantizes = {n.name for n in source.nodes if n.op.name == _DEQUANTIZES}
        for node in source.nodes:
            types = node.operand_types()
            for i, v in enumerate(node.inputs):
                if v is not None and v.is_constant and dtypes.is_float(v.dtype):
                    self._before[node.name, i] = _Weight(v, node.op.channel_axis(i, types), _groups(node))

    def of(self, node: Node) -> list[tuple[int, Value]]:
        """Constants of a node that were made by passes, with their places among its operands."""
        return [
            (i, v)
            for i, v in enumerate(node.inputs)
            if v is not None and v.is_constant and v.name not in self._names and dtypes.is_float(v.dtype)
        ]

    def records(self, node: Node) -> list[ConstantRecord]:
        """Return the record of each: what it was, and became."""
        types, made = node.operand_types(), list[ConstantRecord]()
        for i, v in self.of(node):
            weight = _Weight(v, node.op.channel_axis(i, types), _groups(node))
            before = self._before.get((node.name, i))
            if node.op.name == _DEQUANTIZES:
                made.append(self._of_scales(node, i, v))
            elif weight.axis is None:
                made.append(_record(node, v, before, _of_map(v, node), None, node.op.name in ("mul", "div")))
            else:
                made.append(_record(node, v, before, weight.largest(), _before(weight, before), True))
        return made

    def _of_scales(self, node: Node, index: int, scales: Value) -> ConstantRecord:
        """Return the record of scales of integers, as of a weight with one number for each channel. The node has a name
        of its own, and those of the source in its origin."""
        found = (self._before.get((name, index)) for name in node.origin if name in self._dequantizes)
        before, now = next((b for b in found if b is not None), None), _of_map(scales, node)
        then = None if before is None else np.broadcast_to(_of_map(before.value, node), now.shape)
        return _record(node, scales, before, now, then, True)


@dataclass(frozen=True, eq=False)
class _Weight:
    """A constant of a node. axis: which carries the result's channels, if one does; groups: of the node."""

    value: Value
    axis: int | None
    groups: int

    def largest(self) -> Array:
        """Largest magnitudes for each channel of the result."""
        source, axis = self.value.elements, self.axis
        assert axis is not None
        if isinstance(source, Product) and source.factor.shape[axis] == source.shape[axis]:
            with np.errstate(all="ignore"):
                return self._by_channel(np.abs(source.reached() * source.factor))
        data = source.exact() if isinstance(source, Deferred) else np.asarray(source)
        shape = tuple(n if a in (0, axis) else 1 for a, n in enumerate(data.shape))
        return self._by_channel(extremes(data, shape))

    def multiplied(self, before: _Weight) -> Array | None:
        """Largest magnitudes before, where they were looked at when the product of that weight was made."""
        source = self.value.elements
        if not isinstance(source, Product) or source.data is not before.value.elements or self.axis != before.axis:
            return None
        return self._by_channel(source.reached()) if source.factor.shape[self.axis or 0] > 1 else None

    def _by_channel(self, magnitudes: Array) -> Array:
        """A weight of several groups has the channels of each of them in its part of axis 0."""
        axis = self.axis or 0
        rows = magnitudes.max(tuple(a for a in range(magnitudes.ndim) if a not in (0, axis)), initial=0.0)
        if axis == 0:
            return rows
        if self.groups == 1 or rows.shape[0] == 1:
            return np.tile(rows.max(0, initial=0.0), self.groups)
        return rows.reshape(self.groups, rows.shape[0] // self.groups, rows.shape[1]).max(1, initial=0.0).reshape(-1)


def _groups(node: Node) -> int:
    return int(node.op.values.get("group", 1))


def _before(weight: _Weight, before: _Weight | None) -> Array | None:
    if before is None or before.axis is None:
        return None
    known = weight.multiplied(before)
    return before.largest() if known is None else known


def _record(
    node: Node, v: Value, before: _Weight | None, now: Array, then: Array | None, is_weight: bool
) -> ConstantRecord:
    """now, then: magnitudes by channel."""
    growth: dict[str, Any] = {}
    if then is not None and then.shape == now.shape and then.any():
        channels = np.flatnonzero(then)
        ratios = now[channels] / then[channels]
        least, most = int(ratios.argmin()), int(ratios.argmax())
        growth["growth"] = float(now.max() / then.max())
        growth["shrunk"] = Extreme(int(channels[least]), float(ratios[least]))
        growth["grown"] = Extreme(int(channels[most]), float(ratios[most]))
    if now.any():
        channels = np.flatnonzero(now)
        least, most = int(channels[now[channels].argmin()]), int(now.argmax())
        growth["largest"] = Extreme(most, float(now[most]))
        growth["smallest"] = Extreme(least, float(now[least]))
    name = before.value.name if before is not None else ""
    return ConstantRecord(node.name, v.name, name, is_weight, **growth)


def _of_map(v: Value, node: Node) -> Array:
    """Magnitudes of what is added, or multiplied by, for each channel of the result."""
    assert v.data is not None
    found = np.abs(v.data.astype(np.float64))
    if found.ndim > 1 and node.output.rank > 1:  # broadcast to the result
        spread = found.reshape((1,) * (node.output.rank - found.ndim) + found.shape)
        found = spread.max(tuple(a for a in range(spread.ndim) if a != 1))
    return found.reshape(-1)
