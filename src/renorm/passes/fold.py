"""Folding: a scale and a shift per channel become part of the constants of the node before them, or after them.

    f(x; w, b) * k + shift -> f(x; w', b')
    f(x * k + shift; w, b) -> f(x; w', b') + rest

What k and shift are is read in affine.py, how they come to constants that are far away in channel_flow.py, and what
these become in weight_folding.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.graph.channels import ChannelMap
from renorm.graph.ir import Node, Value
from renorm.graph.rewrite import Match, Plan, Refusal, Rewrite, any_result, node_of
from renorm.passes.affine import ARITHMETIC, FAR, normalization, per_channel, scaling, together
from renorm.passes.channel_flow import Front, Fronts, Readers, Rewiring, ask
from renorm.passes.weight_folding import VANISH, Absorbed, Scaled, absorb, absorb_front

_LONGEST = 64  # scales and shifts in a row that are looked at as one


class Fold(Rewrite, ABC):
    """f(x; w, b) * k + shift -> f(x; w', b')

    Subclasses say in `affine` what k and shift are; in their patterns `producer` is the node of f.
    """

    fate = "folded"

    @abstractmethod
    def affine(self, m: Match) -> ChannelMap | str:
        """Return the map that follows the producer, or a sentence on why it is no scale and shift per channel."""

    def plan(self, m: Match) -> Plan | Refusal:
        """Try the map itself first, then what it is together with those that stand right before it."""
        y, found = self.scaled(m), self.affine(m)
        if isinstance(found, str):
            return Refusal(found)
        chain, reasons = [m.root], list[str]()
        while True:
            for one in found.plain().along(y.shape):
                rewiring = ask(m.graph, y, one, absorb, chain)
                if isinstance(rewiring, str):
                    reasons.append(rewiring)
                    continue
                make = partial(self._rewired, y=y, rewiring=rewiring)
                plan = Plan(make, [*chain, *rewiring.steps], chain, rewiring.beside)
                reason = self.still_read(m, plan)
                if reason is None:
                    return plan
                reasons.append(reason)
            node = y.producer
            before = None if node is None or len(y.readers) > 1 or m.graph.is_output(y) else scaling(node)
            both = None if before is None else together(before[1], found, before[0])
            if node is None or before is None or both is None or len(chain) > _LONGEST:
                break
            chain.append(node)
            y, found = before[0], both
        scaled = Scaled(m.root.name, y, found.plain())
        if scaled.count < len(chain) and scaled.fits() and not _cancels(scaled.map, self.affine(m)):
            return Plan(scaled, chain, chain)
        return Refusal(_nearest(reasons))

    @staticmethod
    def _rewired(m: Match, y: Value, rewiring: Rewiring) -> dict[Value, Value]:
        new = rewiring(m)
        return {m.root.output: new.get(y, y), **{v: new[v] for v in rewiring.beside if v in new}}

    @staticmethod
    def scaled(m: Match) -> Value:
        """Return the value that the map falls upon."""
        return next(v for v in m.root.inputs if v is not None and v.producer is m.producer)


def _nearest(reasons: list[str]) -> str:
    """Return the reason that says most, where a map along several axes has several."""
    return next((r for r in reasons if VANISH in r), reasons[0])


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
    """f(x * k + shift; w, b) -> f'(x; w', b') + rest        for every op f whose `fold_before` gives w', b' and rest

    x may be any operand that is not constant: the right one of a product, for example.
    """

    op: str
    fate = "folded"

    def pattern(self) -> Any:
        return node_of(self.op)

    def plan(self, m: Match) -> Plan | Refusal | None:
        fronts = Fronts(m.graph, scaling)
        for index, x in enumerate(m.root.inputs):
            front = None if x is None or x.is_constant else fronts.of(x)
            if isinstance(front, Refusal):
                return front
            if front is not None and x is not None:
                return self._without(m, index, x, front)
        return None

    def _without(self, m: Match, index: int, x: Value, front: Front) -> Plan | Refusal:
        """Return the plan of f' without the map in front of its operand x."""
        reasons: list[str] = []
        for one in front.map.plain().along(x.shape):
            taken = absorb_front(m.root, index, one)
            if not isinstance(taken, str):
                carriers = [*front.rewiring.steps]
                beside = [v for n in carriers for v in n.outputs] if self._goes(m, carriers, front.norms) else ()
                make = partial(self._rewired, taken=taken, index=index, x=x, rewiring=front.rewiring)
                return Plan(make, [m.root, *carriers], front.norms, beside)
            reasons.append(taken)
        return Refusal(_nearest(reasons), front.norms)

    @staticmethod
    def _rewired(m: Match, taken: Absorbed, index: int, x: Value, rewiring: Rewiring) -> Value:
        return taken(m, {index: rewiring(m)[x]})

    @staticmethod
    def _goes(m: Match, carriers: Sequence[Node], norms: Sequence[Node]) -> bool:
        """Return whether others read what norms give, or what carries it, and all who do take the maps into their
        constants, too: one after the other they will, and then the norms are gone."""
        inside = {m.root, *carriers}
        if all(u in inside for n in carriers for v in n.outputs for u in v.readers):
            return False
        readers = Readers(m.graph, scaling, lambda *asked: not isinstance(absorb_front(*asked), str))
        steps = {n.output: step[1] for n in norms if (step := scaling(n)) is not None}
        return all(readers.take(v, step) for v, step in steps.items())


RULES: tuple[Rewrite, ...] = (
    FoldBatchNorm(),
    FoldMul(),
    FoldDiv(),
    FoldAdd(),
    FoldSub(),
    FoldSubFrom(),
    *(FoldInFront(op) for op in ("conv", "conv_transpose", "gemm", "matmul")),
)
