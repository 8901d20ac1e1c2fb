"""Dilation: a convolution between blocks that are taken apart and put together is a dilated one."""

from __future__ import annotations

from typing import Any

from renorm import ops
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Plan, Refusal, Rewrite, any_op
from renorm.ops.conv import Conv
from renorm.ops.shared.family import Elementwise
from renorm.ops.space_to_batch import BatchToSpace, SpaceToBatch


class ConvOfBlocks(Rewrite):
    """batch_to_space(conv(space_to_batch(x, B, p), w, b), B, c) -> conv(x, w, b, dilations * B, pads * B + p - c)

    Sample b of the blocks holds every B-th element from b on, so that a step there is B elements of x.
    """

    def pattern(self, x: Any, w: Any, b: Any) -> Any:
        inner = SpaceToBatch.matching()(x)
        return BatchToSpace.matching()(ops.conv(inner, w, b))

    def plan(self, m: Match) -> Plan | Refusal:
        conv, rank = m.conv.op, m.x.rank - 2
        if m.batch_to_space.op.blocks != m.space_to_batch.op.blocks:
            apart, together = (list(n.op.blocks) for n in (m.space_to_batch, m.batch_to_space))
            return Refusal(f"blocks {apart} are put together as {together}")
        if any(s != 1 for s in conv.along("strides", rank)):
            return Refusal(f"strides {list(conv.along('strides', rank))} leave out elements of each block")
        if conv.auto_pad not in ("NOTSET", "VALID") and not m.space_to_batch.output.type.is_static:
            return Refusal(f"auto_pad = {conv.auto_pad} depends on extents that are not known")
        if any(p < 0 for p in self._pads(m)):
            return Refusal(f"crops {list(m.batch_to_space.op.crops)} go beyond what was padded")
        return Plan(self.rewrite)

    def rewrite(self, m: Match) -> Value:
        conv, rank = m.conv.op, m.x.rank - 2
        dilations = tuple(d * b for d, b in zip(conv.along("dilations", rank), m.batch_to_space.op.blocks))
        return conv.with_attributes(dilations=dilations, pads=self._pads(m), auto_pad="NOTSET")(m.x, m.w, m.b)

    @staticmethod
    def _pads(m: Match) -> tuple[int, ...]:
        conv: Conv = m.conv.op
        extents, kernel = m.space_to_batch.output.shape[2:], [int(str(d)) for d in m.w.shape[2:]]
        if conv.auto_pad in ("NOTSET", "VALID"):
            inner = conv.explicit_pads(len(kernel))
        else:
            inner = [(s.before, s.after) for s in conv.spans([int(str(e)) for e in extents], kernel)]
        sides = [p[0] for p in inner], [p[1] for p in inner]
        blocks = m.batch_to_space.op.blocks
        own = [p * b for side in sides for p, b in zip(side, blocks)]
        return tuple(o + p - c for o, p, c in zip(own, m.space_to_batch.op.pads, m.batch_to_space.op.crops))


class BlocksOfElementwise(Rewrite):
    """batch_to_space(f(x)) -> f(batch_to_space(x)) for f of one operand, element by element"""

    def pattern(self) -> Any:
        return BatchToSpace.matching()(any_op("f"))

    def plan(self, m: Match) -> Plan | None:
        is_unary = isinstance(m.f.op, Elementwise) and len(m.f.inputs) == 1 and len(m.f.outputs) == 1
        return Plan(self.rewrite) if is_unary else None

    def rewrite(self, m: Match) -> Value:
        return m.f.op(m.batch_to_space.op(m.f.inputs[0]))


RULES: tuple[Rewrite, ...] = (ConvOfBlocks(), BlocksOfElementwise())
