"""Unpacking: a normalization in inference becomes smaller ops."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from renorm import ops
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Plan, Refusal, Rewrite
from renorm.passes.affine import FAR, Array, exact, normalization


class UnpackBatchNorm(Rewrite):
    """batch_norm(x) -> x * k + (bias - mean * k), k = scale / sqrt(var + epsilon), both constants per channel"""

    fate = "unpacked"

    def pattern(self, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        return ops.batch_norm(x, scale, bias, mean, var)

    def plan(self, m: Match) -> Plan | Refusal:
        found = normalization(m.root)
        if isinstance(found, str):
            return Refusal(found)
        if m.x.dtype not in ("float32", "float64"):
            return Refusal(f"x is {m.x.dtype}: unpacked, it would be rounded between scale and shift")
        assert found.k is not None
        assert found.shift is not None
        if not (np.isfinite(found.k).all() and np.isfinite(found.shift).all()):
            return Refusal("its scale or shift is not finite")
        with np.errstate(all="ignore"):
            far = np.abs(exact(m.mean)) / np.sqrt(exact(m.var) + m.root.op.values["epsilon"])
        far = np.where(exact(m.scale) == 0, 0.0, far)
        if far.size and far.max() > FAR:
            worst = int(far.argmax())
            return Refusal(
                f"mean / standard deviation is {far[worst]:.0f} in channel {worst}: x * k + shift would cancel"
            )
        return Plan(partial(self._unpacked, k=found.k, shift=found.shift))

    @staticmethod
    def _unpacked(m: Match, **parts: Array) -> Value:
        shape = (-1, *[1] * (m.x.rank - 2))
        k, shift = (
            m.graph.constant(v.reshape(shape), f"{m.root.name}.{name}", f"unpacked {m.root.name}", dtype=m.x.dtype)
            for name, v in parts.items()
        )
        return ops.add(ops.mul(m.x, k), shift)


RULES: tuple[Rewrite, ...] = (UnpackBatchNorm(),)
