"""Batch norm, raised: ((x - mean) / sqrt(var) * scale) + bias with constants per channel -> batch_norm(x, ..)

Constants of one channel axis, in any order and of any form that broadcasts, however an exporter has computed them: what
sqrt(var + epsilon) was is one number per channel by now, and its square is the variance. And batch norm of samples and
channels in one axis, as an instance norm with stored statistics is written: batch_norm of the channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.graph.channels import cancellation
from renorm.graph.deferred import fits, largest
from renorm.graph.ir import Node, Value
from renorm.graph.rewrite import Match, Plan, Refusal, Rewrite
from renorm.passes.affine import FAR, exact, per_channel

_ARITHMETIC = ("add", "sub", "mul", "div")
_LONGEST = 8  # steps; longer chains are no norm
_LINEAR = ("conv", "conv_transpose", "gemm", "matmul")
_THROUGH = ("transpose", "batch_to_space", "reshape", "squeeze", "unsqueeze", "slice", "cast", "pad")


@dataclass(frozen=True)
class AffineStep:
    """One node: x + c, x - c, c * x or x / c, c one number per channel."""

    node: Node
    x: Value
    c: Any

    @property
    def is_shift(self) -> bool:
        return self.node.op.name in ("add", "sub")


@dataclass(frozen=True)
class RaiseBatchNorm(Rewrite):
    """(x - mean) / std * scale + bias -> batch_norm(x, scale, bias, mean, std * std), epsilon = 0"""

    op: str

    def pattern(self, a: Any, b: Any) -> Any:
        return getattr(ops, self.op)(a, b)

    def pieces(self, root: Node) -> Sequence[Node]:
        """Return the nodes of the norm that ends at a node; none where there is none."""
        return [s.node for s in _norm_steps(root)]

    def kind(self, root: Node) -> str:
        """Return the norm that it is, or nearly is."""
        return "batch_norm"

    def plan(self, m: Match) -> Plan | Refusal | None:
        steps = _norm_steps(m.root)
        if not steps:
            return None
        x, parameters = steps[0].x, _parameters(steps)
        for name, v in parameters.items():
            if not fits(largest(v), x.dtype):
                return Refusal(f"its {name} goes beyond {x.dtype}")
        times = cancellation(**parameters, epsilon=0.0)
        if times > FAR:
            return Refusal(
                f"its mean is so far from 0 that a norm, k * x + shift, may round {times:.3g} times as coarsely"
            )
        return Plan(
            partial(self._norm, x=x, parameters=parameters), nodes=[*dict.fromkeys([m.root, *(s.node for s in steps)])]
        )

    @staticmethod
    def _norm(m: Match, x: Value, parameters: dict[str, Any]) -> Value:
        made = [
            m.graph.constant(v, f"{m.root.name}.{name}", f"raised {m.root.name}", dtype=x.dtype)
            for name, v in parameters.items()
        ]
        return ops.batch_norm(x, *made, epsilon=0.0, name=m.root.name)


def _parameters(steps: Sequence[AffineStep]) -> dict[str, Any]:
    """Return the constants of a chain as batch norm has them, in its order."""
    count, dtype = steps[0].c.size, dtypes.numpy_dtype(steps[0].x.dtype)
    mean, std, scale, bias = (np.full(count, v, np.float64) for v in (0.0, 1.0, 1.0, 0.0))
    smallest, greatest = (float(v) ** 0.5 for v in (np.finfo(dtype).tiny, np.finfo(dtype).max))
    is_scaled = False
    for s in steps:
        op, c = s.node.op.name, s.c
        if op in ("add", "sub") and not is_scaled:
            mean = mean - c if op == "add" else mean + c
        elif op in ("add", "sub"):
            bias = bias + c if op == "add" else bias - c
        elif op == "div" and not is_scaled and ((c > smallest) & (c < greatest)).all():  # its square is a variance
            std = c
        else:
            with np.errstate(all="ignore"):
                k = c if op == "mul" else 1 / c
                scale, bias = scale * k, bias * k
        is_scaled = is_scaled or not s.is_shift
    return {"scale": scale, "bias": bias, "mean": mean, "var": std * std}


def _step(node: Node) -> AffineStep | None:
    if node.op.name not in _ARITHMETIC or not dtypes.is_float(node.output.dtype):
        return None
    a, b = node.inputs
    assert a is not None
    assert b is not None
    turned = a.is_constant and node.op.name in ("add", "mul")
    x, c = (b, a) if turned else (a, b)
    if not c.is_constant or x.is_constant or x.rank < 2 or x.dtype not in ("float32", "float64"):
        return None
    found = per_channel(c, x, node.output)
    if isinstance(found, str) or found[0] != 1 or not np.isfinite(found[1]).all():
        return None
    return AffineStep(node, x, found[1])


def _steps(root: Node) -> list[AffineStep]:
    """The chain that ends at a node, first step first; inner ones have no other reader."""
    found = list[AffineStep]()
    node: Node | None = root
    while (
        node is not None
        and len(found) <= _LONGEST
        and (not found or [*islice(node.output.readers, 2)] == [found[-1].node])
    ):
        step = _step(node)
        if step is None:
            break
        found.append(step)
        node = step.x.producer
    return found[::-1]


def _norm_steps(root: Node) -> list[AffineStep]:
    """Return the chain that ends at a node, where it is a norm and does not go on."""
    steps, readers = _steps(root), root.output.readers
    goes_on = len(readers) == 1 and _step(*readers) is not None
    return steps if steps and not goes_on and _is_norm(steps) else []


def _is_norm(steps: Sequence[AffineStep]) -> bool:
    """Return whether a chain is more than arithmetic that happens to be there: it centres and scales per channel, or
    scales and shifts what a linear op makes. Factors of 1 are no scale: what is left is an addition."""
    kinds = [s.is_shift for s in steps]
    if len(set(kinds)) < 2 or len(steps) > _LONGEST or not _scales(steps):
        return False
    varied = any(np.ptp(s.c) > 0 for s in steps)
    return _is_behind_linear(steps[0].x) if not kinds[0] or not varied else True


def _scales(steps: Sequence[AffineStep]) -> bool:
    k = np.ones_like(steps[0].c)
    with np.errstate(all="ignore"):
        for s in steps:
            k = k if s.is_shift else k * s.c if s.node.op.name == "mul" else k / s.c
    return bool((k != 1).any())


def _is_behind_linear(x: Value) -> bool:
    node = x.producer
    while node is not None and node.op.name in _THROUGH and node.inputs[0] is not None:
        node = node.inputs[0].producer
    return node is not None and node.op.name in _LINEAR


class StoredInstanceNorm(Rewrite):
    """batch_norm(reshape(x, [1, N * C, ..]), p, ..) -> reshape(batch_norm(x, p', ..), ..), p N times p'"""

    constants = ("scale", "bias", "mean", "var")

    def pattern(self, x: Any, to: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        return ops.batch_norm(ops.reshape(x, to, name="joined"), scale, bias, mean, var)

    def plan(self, m: Match) -> Plan | Refusal | None:
        x, joined = m.x, m.root.output
        if not (x.type.is_static and joined.type.is_static) or x.rank < 2 or m.root.op.values["training_mode"]:
            return None
        count = x.shape[0] * x.shape[1]
        if x.shape[0] < 2 or not count or joined.shape[:2] != (1, count):
            return None
        differ = [c.name for c in self._parameters(m) if not ((v := self._by_sample(m, c)) == v[:1]).all()]
        return Refusal(f"{differ[0]!r} differs from sample to sample") if differ else Plan(self.rewrite)

    def _parameters(self, m: Match) -> list[Value]:
        return [m.bound[name] for name in self.constants]

    @staticmethod
    def _by_sample(m: Match, c: Value) -> Any:
        return exact(c).reshape(m.x.shape[0], -1)

    def rewrite(self, m: Match) -> Value:
        made = [
            m.graph.constant(self._by_sample(m, c)[0], c.name, c.source, dtype=c.dtype) for c in self._parameters(m)
        ]
        return ops.reshape(ops.batch_norm(m.x, *made, epsilon=m.root.op.values["epsilon"], name=m.root.name), m.to)


RULES: tuple[Rewrite, ...] = (StoredInstanceNorm(), *(RaiseBatchNorm(op) for op in _ARITHMETIC))
