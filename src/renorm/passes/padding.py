"""Padding: a node that pads with zeros becomes part of the convolution that reads it."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import ops
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Rewrite
from renorm.ops.conv import Conv
from renorm.ops.pad import Pad


class PadIntoConv(Rewrite):
    """conv(pad(x, p), w, pads = q) -> conv(x, w, pads = p + q) for zeros around spatial axes"""

    def pattern(self, x: Any, pads: Any, value: Any, axes: Any, w: Any, b: Any) -> Any:
        return ops.conv(ops.pad(x, pads, value, axes, mode="constant"), w, b)

    def fits(self, m: Match) -> bool:
        return all(v is None or v.is_constant for v in (m.pads, m.value, m.axes))

    def refuse(self, m: Match) -> str | None:
        if m.value is not None and m.value.data.any():
            return f"it pads with {float(m.value.data.reshape(())):g}, and convolutions pad with 0"
        if m.root.op.values["auto_pad"] not in ("NOTSET", "VALID"):
            return f"auto_pad = {m.root.op.values['auto_pad']} depends on the padded extents"
        around = self._around(m)
        if any(before or after for before, after in around[:2]):
            return "it pads batch or channels"
        if any(before < 0 or after < 0 for before, after in around):
            return "it crops, which convolutions cannot"
        return None

    def rewrite(self, m: Match) -> Value:
        conv = m.root.op
        assert isinstance(conv, Conv)
        own = conv.explicit_pads(m.x.rank - 2)
        pairs = [(a + c, b + d) for (a, b), (c, d) in zip(self._around(m)[2:], own)]
        pads = (*(before for before, _ in pairs), *(after for _, after in pairs))
        return conv.with_attributes(pads=pads, auto_pad="NOTSET")(m.x, m.w, m.b)

    @staticmethod
    def _around(m: Match) -> list[tuple[int, int]]:
        op: Pad = m.pad.op
        axes = None if m.axes is None else m.axes.data
        return [(int(before), int(after)) for before, after in op.around(m.x.rank, np.asarray(m.pads.data), axes)]


RULES: tuple[Rewrite, ...] = (PadIntoConv(),)
