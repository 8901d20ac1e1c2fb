"""Padding: a node that pads with a constant becomes part of the convolution that reads it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import is_static, static
from renorm.core.dtypes import itemsize
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Plan, Refusal, Rewrite
from renorm.ops.conv import Conv
from renorm.ops.pad import Pad
from renorm.ops.shared.folding import border, window_hits
from renorm.passes.weight_folding import BORDER, exact


class PadIntoConv(Rewrite):
    """conv(pad(x, p, v), w, pads = q) -> conv(x, w, pads = p + q) + image, for pads around spatial axes

    The image is what v adds at the border: v times the sum of the taps that fall on it, a constant. None for v = 0.
    """

    def pattern(self, x: Any, pads: Any, value: Any, axes: Any, w: Any, b: Any) -> Any:
        return ops.conv(ops.pad(x, pads, value, axes, mode="constant"), w, b)

    def plan(self, m: Match) -> Plan | Refusal | None:
        if not all(v is None or v.is_constant for v in (m.pads, m.value, m.axes)):
            return None
        if m.root.op.values["auto_pad"] not in ("NOTSET", "VALID"):
            return Refusal(f"auto_pad = {m.root.op.values['auto_pad']} depends on the padded extents")
        if self._value(m) and (reason := self._no_image(m)):
            return Refusal(f"it pads with {self._value(m):g}, and {reason}")
        around = self._around(m)
        if any(before or after for before, after in around[:2]):
            return Refusal("it pads batch or channels")
        if any(before < 0 or after < 0 for before, after in around):
            return Refusal("it crops, which convolutions cannot")
        return Plan(self.rewrite)

    def rewrite(self, m: Match) -> Value:
        conv = m.root.op
        assert isinstance(conv, Conv)
        own = conv.explicit_pads(m.x.rank - 2)
        pairs = [(a + c, b + d) for (a, b), (c, d) in zip(self._around(m)[2:], own)]
        pads = (*(before for before, _ in pairs), *(after for _, after in pairs))
        padding = conv.with_attributes(pads=pads, auto_pad="NOTSET")
        if not self._value(m):
            return padding(m.x, m.w, m.b)
        taps = self._value(m) * exact(m.w).sum(axis=1)
        image = self._seen(taps, conv, m.pad.output) - self._seen(taps, padding, m.x)
        added = m.graph.constant(image, f"{m.root.name}.border", m.pad.name, dtype=m.root.output.dtype)
        return ops.add(padding(m.x, m.w, m.b), added)

    @staticmethod
    def _value(m: Match) -> float:
        return 0.0 if m.value is None else float(m.value.data.reshape(()))

    @staticmethod
    def _no_image(m: Match) -> str | None:
        """Return why what it adds cannot be a constant."""
        shape = m.root.output.shape[1:]
        if not m.w.is_constant or not np.isfinite(m.value.data).all():
            return "convolutions pad with 0"
        if not is_static(m.pad.output.shape[2:]) or not is_static(shape):
            return "what that adds at the border depends on extents that are not known"
        if prod(static(shape)) * itemsize(m.root.output.dtype) > BORDER:
            return f"what that adds at the border would take {prod(static(shape))} numbers"
        return None

    @staticmethod
    def _seen(taps: np.ndarray[Any, Any], conv: Conv, x: Value) -> np.ndarray[Any, Any]:
        """For each position of the result the sum of the taps that lie inside of x."""
        extents, kernel = static(x.shape[2:]), taps.shape[1:]
        spans, counts = conv.spans(extents, kernel), conv.counts(extents, kernel)
        return border(taps, [window_hits(s, count) for s, count in zip(spans, counts, strict=True)])

    @staticmethod
    def _around(m: Match) -> list[tuple[int, int]]:
        op: Pad = m.pad.op
        axes = None if m.axes is None else m.axes.data
        return [(int(before), int(after)) for before, after in op.around(m.x.rank, np.asarray(m.pads.data), axes)]


RULES: tuple[Rewrite, ...] = (PadIntoConv(),)
