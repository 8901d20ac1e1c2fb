"""Folding: a scale and a shift per channel become part of the constants of the node before them, or after them.

    f(x; w, b) * k + shift -> f(x; w', b')
    f(x * k + shift; w, b) -> f(x; w', b') + rest

What k and shift are is read in affine.py, how they come to constants that are far away in paths.py and pushing.py, and
what these become in weight_folding.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.graph import registry
from renorm.graph.channels import ChannelMap
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Rewrite, Variable, any_result
from renorm.passes import paths, pushing
from renorm.passes.affine import ARITHMETIC, FAR, normalization, per_channel, scaling, together
from renorm.passes.weight_folding import VANISH, Scaled, absorb, absorb_front

_LONGEST = 64  # scales and shifts in a row that are looked at as one


class Fold(Rewrite):
    """f(x; w, b) * k + shift -> f(x; w', b')

    Subclasses say in `affine` what k and shift are; in their patterns `producer` is the node of f.
    """

    fate = "folded"

    def affine(self, m: Match) -> ChannelMap | str:
        """Return the map that follows the producer, or a sentence on why it is no scale and shift per channel."""
        raise NotImplementedError

    def fits(self, m: Match) -> bool:
        if len(m.producer.outputs) > 1:  # what else it gives may stay; the path tells
            m.alongside |= dict.fromkeys(m.producer.outputs)
        return True

    def refuse(self, m: Match) -> str | None:
        """The map itself is tried first, then what it is together with those that stand right before it."""
        y, found = self.scaled(m), self.affine(m)
        if isinstance(found, str):
            return found
        reasons: list[str] = []
        m.about = [m.root]
        while True:
            pattern = dict(m.bound)
            for one in found.plain().along(y.shape):
                m.bound, m.alongside = dict(pattern), {}
                if one.is_identity:  # whatever stands before it stays
                    m.bound = {name: v for name, v in pattern.items() if v is not y.producer}
                m.found = paths.back(m, y, one, absorb)
                if not isinstance(m.found, str):
                    return None
                reasons.append(m.found)
            m.bound, m.alongside, node = pattern, {}, y.producer
            before = None if node is None or len(y.readers) > 1 or m.graph.is_output(y) else scaling(node)
            both = None if before is None else together(before[1], found, before[0])
            if node is None or before is None or both is None or len(m.about) > _LONGEST:
                break
            m.bound[f"on the way: {node.name}"] = node
            m.about.append(node)
            y, found = before[0], both
        m.found = Scaled(m.root.name, y, found.plain())
        if m.found.count < len(m.about) and m.found.fits() and not _cancels(m.found.map, self.affine(m)):
            return None
        m.about = [m.root]
        return next((r for r in reasons if VANISH in r), reasons[0])  # a map along several axes has several reasons

    @staticmethod
    def scaled(m: Match) -> Value:
        """Return the value that the map falls upon."""
        return next(v for v in m.root.inputs if v is not None and v.producer is m.producer)

    def rewrite(self, m: Match) -> Value:
        return m.found(m)


def _cancels(both: ChannelMap, last: Any) -> bool:
    """Return whether x * k + shift rounds far more coarsely than (x + c) * k + shift', where x is near -c: a guess, as
    x is not known."""
    if both.k is None or both.shift is None:
        return False
    own = 0.0 if last.shift is None else np.abs(last.shift).max()
    return bool(np.abs(both.shift).max() > FAR * (np.abs(both.k).max() + own))


class FoldBatchNorm(Fold):
    """batch_norm(f(x; w, b)) -> f(x; w * k, (b - mean) * k + bias), k = scale / sqrt(var + epsilon)"""

    def pattern(self, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        return ops.batch_norm(any_result("producer"), scale, bias, mean, var)

    def affine(self, m: Match) -> ChannelMap | str:
        return normalization(m.root)


class FoldArithmetic(Fold):
    """Base of folds of arithmetic with a constant `c`."""

    constants = ("c",)
    turned = False  # the constant comes first

    def affine(self, m: Match) -> ChannelMap | str:
        if not dtypes.is_float(m.c.dtype):
            return f"{m.c.dtype} arithmetic is not folded"
        found = per_channel(m.c, self.scaled(m), m.root.output)
        return found if isinstance(found, str) else ARITHMETIC[m.root.op.name](*found, self.turned)


class FoldMul(FoldArithmetic):
    """f(x; w, b) * c -> f(x; w * c, b * c)"""

    def pattern(self, c: Any) -> Any:
        return ops.mul(any_result("producer"), c)


class FoldDiv(FoldArithmetic):
    """f(x; w, b) / c -> f(x; w / c, b / c)"""

    def pattern(self, c: Any) -> Any:
        return ops.div(any_result("producer"), c)


class FoldAdd(FoldArithmetic):
    """f(x; w, b) + c -> f(x; w, b + c)"""

    def pattern(self, c: Any) -> Any:
        return ops.add(any_result("producer"), c)


class FoldSub(FoldArithmetic):
    """f(x; w, b) - c -> f(x; w, b - c)"""

    def pattern(self, c: Any) -> Any:
        return ops.sub(any_result("producer"), c)


class FoldSubFrom(FoldArithmetic):
    """c - f(x; w, b) -> f(x; -w, c - b)"""

    turned = True

    def pattern(self, c: Any) -> Any:
        return ops.sub(c, any_result("producer"))


@dataclass(frozen=True)
class FoldInFront(Rewrite):
    """f(x * k + shift; w, b) -> f'(x; w', b') + rest        for every op f whose `absorbed` gives w', b' and rest

    x may be any operand that is not constant: the right one of a product, for example.
    """

    op: str
    fate = "folded"

    @property
    def name(self) -> str:
        return f"FoldInFront({self.op})"

    def pattern(self) -> Any:
        op = registry.find(self.op)
        return op.matching()(*(Variable(p.name) for p in op.parsed.operands))

    def fits(self, m: Match) -> bool:
        pattern = dict(m.bound)
        for index, x in enumerate(m.root.inputs):
            m.bound = dict(pattern)
            found = None if x is None or x.is_constant else pushing.front(m, x, scaling)
            if found is None:
                continue
            m.found = index, found
            m.about = [n for n in m.nodes if n.op.name == "batch_norm" or n.op.name in ARITHMETIC] or [m.root]
            if not isinstance(found, str) and pushing.is_taken_by_all(m, found.norms, scaling, absorb_front):
                m.alongside = dict.fromkeys(v for n in m.nodes if n is not m.root for v in n.outputs)
            return True
        return False

    def refuse(self, m: Match) -> str | None:
        index, found = m.found
        if isinstance(found, str):
            return found
        m.about = [*found.norms]
        x = m.root.inputs[index]
        assert x is not None
        reasons: list[str] = []
        for one in found.map.plain().along(x.shape):
            taken = absorb_front(m.root, index, one)
            if not isinstance(taken, str):
                m.found = replace(taken, made={index: found.made})
                return None
            reasons.append(taken)
        return next((r for r in reasons if VANISH in r), reasons[0])

    def rewrite(self, m: Match) -> Value:
        return m.found(m)


RULES: tuple[Rewrite, ...] = (
    FoldBatchNorm(),
    FoldMul(),
    FoldDiv(),
    FoldAdd(),
    FoldSub(),
    FoldSubFrom(),
    *(FoldInFront(op) for op in ("conv", "conv_transpose", "gemm", "matmul")),
)
