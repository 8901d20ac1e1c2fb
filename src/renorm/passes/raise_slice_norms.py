"""Norms of slices, raised: c / sqrt(mean(c * c) + epsilon) -> layer, instance, group, RMS norm for c = x - mean, or x.

Which of them is told by the axes, and by how the constants run that follow: per channel, or over what is normalized.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.graph.deferred import fits, largest
from renorm.graph.ir import Node, Value
from renorm.graph.rewrite import Match, Plan, Refusal, Rewrite, node_of
from renorm.passes.affine import exact
from renorm.passes.norm_patterns import Standard, mean_of, standard_of

Admits = Callable[[str], bool]
"""Whether an op may come: where the graph goes into a file, whether its format has the op."""


@dataclass(frozen=True)
class RaiseStandard(Rewrite):
    """c / sqrt(mean(c * c) + epsilon) * k -> norm(x) * k

    Where the norm is not over the last axes, as that over the channels of an image, these are moved there and back.
    """

    op: str
    admits: Admits

    def pattern(self, a: Any, b: Any) -> Any:
        return getattr(ops, self.op)(a, b)

    def pieces(self, root: Node) -> Sequence[Node]:
        """Return the nodes of the norm that ends at a node; none where there is none."""
        found = standard_of(root)
        return [] if found is None else [*dict.fromkeys([root, *found.nodes])]

    def kind(self, root: Node) -> str:
        """Return the norm that it is, or nearly is."""
        found = standard_of(root)
        assert found is not None
        return _kind(found, root)

    def plan(self, m: Match) -> Plan | Refusal | None:
        found = standard_of(m.root)
        if found is None:
            return None
        if (found.problem or _over(found)) and any(n is not m.root and standard_of(n) for n in found.nodes):
            return None  # a factor of it says the same
        kind = _kind(found, m.root)
        reason = found.problem or _over(found)
        if reason is None and found.epsilon < 0:
            reason = f"epsilon is {found.epsilon:g}"
        if reason is None and not self.admits(kind):
            reason = f"the format has no {kind} at this version"
        if reason is not None:
            return Refusal(reason)

        def make(m: Match) -> Value:
            y = _made(found, kind, m)
            for v, power in found.rest:
                y = ops.mul(y, v) if power > 0 else ops.div(y, v)
            return y

        return Plan(make, nodes=self.pieces(m.root))


def _over(found: Standard) -> str | None:
    if 0 in found.moment.axes and not _is_last(found):
        return f"it is over axes {found.moment.axes} of {found.moment.x.rank}, and norms do not mix samples"
    return None


def _is_last(found: Standard) -> bool:
    """Return whether the axes are the last ones."""
    return found.moment.axes == tuple(range(found.moment.axes[0], found.moment.x.rank))


def _kind(found: Standard, root: Node) -> str:
    """The op that says it."""
    x, first = found.moment.x, found.moment.axes[0]
    if found.moment.mean is None:
        return "rms_norm"
    if not _is_last(found) or x.rank < 3 or first > 2 or not first or not isinstance(x.shape[1], int):
        return "layer_norm"
    if x.dtype == "float64" and first == 2:
        return "layer_norm"  # of float64 ONNX Runtime has this one only
    along = _variation(found, root)
    if along == {1}:
        return "instance_norm" if first == 2 else "group_norm"
    return "instance_norm" if not along and first == 2 and x.rank > 3 else "layer_norm"


def _variation(found: Standard, root: Node) -> set[int]:
    """The axes along which constants run that scale and shift the result."""
    constants, y = [v for v, _ in found.rest], root.output
    for _ in range(2):
        reader = next(iter(y.readers)) if len(y.readers) == 1 else None
        if reader is None or reader.op.name not in ("mul", "div", "add", "sub"):
            break
        constants += [v for v in reader.inputs if v is not None and v is not y]
        y = reader.output
    rank = found.moment.x.rank
    return {
        rank - v.rank + a
        for v in constants
        if v.is_constant and v.rank <= rank
        for a, d in enumerate(v.shape)
        if d != 1
    }


def _made(found: Standard, kind: str, m: Match) -> Value:
    x = found.moment.x
    factor = found.moment.factor  # of a sum of squares, the number of its elements
    epsilon, size = found.epsilon / factor, found.sign / sqrt(factor)
    name = m.root.name if not found.rest else None

    def constant(value: float, *shape: Any) -> Value:
        extents = shape if all(isinstance(d, int) for d in shape) else ()
        return m.graph.constant(np.full(extents, value), f"{kind}.constant", f"raised {m.root.name}", dtype=x.dtype)

    if kind in ("rms_norm", "layer_norm"):
        build = ops.rms_norm if kind == "rms_norm" else ops.layer_norm
        axes = found.moment.axes
        order = (*(a for a in range(x.rank) if a not in axes), *axes)
        x = x if _is_last(found) else ops.transpose(x, perm=order)
        y = build(x, constant(size, *x.shape[-len(axes) :]), axis=-len(axes), epsilon=epsilon, name=name)
        return y if _is_last(found) else ops.transpose(y, perm=tuple(np.argsort(order).tolist()))
    parameters = constant(size, x.shape[1]), constant(0.0, x.shape[1])
    if kind == "instance_norm":
        return ops.instance_norm(x, *parameters, epsilon=epsilon, name=name)
    return ops.group_norm(x, *parameters, num_groups=1, epsilon=epsilon, name=name)


class Uncentre(Rewrite):
    """x * f + (b - mean(x) * f) -> (x - mean(x)) * f + b"""

    def pattern(self, x: Any, f: Any, b: Any, mean: Any) -> Any:
        return ops.add(ops.mul(x, f, name="scaled"), ops.sub(b, ops.mul(mean, f, name="moved")))

    def plan(self, m: Match) -> Plan | None:
        found = mean_of(m.mean)
        is_mean = found is not None and found.x is m.x
        return Plan(self.rewrite) if is_mean and m.scaled.output.shape == m.x.shape == m.root.output.shape else None

    def rewrite(self, m: Match) -> Value:
        return ops.add(ops.mul(ops.sub(m.x, m.mean), m.f), m.b)


class UncentreWithoutShift(Uncentre):
    """x * f - mean(x) * f -> (x - mean(x)) * f"""

    def pattern(self, x: Any, f: Any, mean: Any) -> Any:
        return ops.sub(ops.mul(x, f, name="scaled"), ops.mul(mean, f, name="moved"))

    def rewrite(self, m: Match) -> Value:
        return ops.mul(ops.sub(m.x, m.mean), m.f)


_AFFINE = {"mul": "rms_norm layer_norm", "add": "layer_norm", "sub": "layer_norm", "div": "rms_norm layer_norm"}


@dataclass(frozen=True)
class TakeAffine(Rewrite):
    """norm(x, scale, bias) * k -> norm(x, scale * k, bias * k), norm(x, scale, bias) + c -> norm(x, scale, bias + c)

    For constants over several of the axes that are normalized; those per channel fold anyway.
    """

    norm: str
    op: str
    constants = ("scale", "c")

    def pattern(self, x: Any, scale: Any, bias: Any, c: Any) -> Any:
        return getattr(ops, self.op)(node_of(self.norm, x, scale, bias, name="norm"), c)

    def plan(self, m: Match) -> Plan | Refusal | None:
        norm, bias = m.norm, m.bound.get("bias")
        inside = -norm.op.values["axis"] if norm.op.values["axis"] < 0 else m.x.rank - norm.op.values["axis"]
        outside = m.c.shape[: max(0, m.c.rank - inside)]
        is_constant = bias is None or bias.is_constant
        if not is_constant or m.root.output.shape != m.x.shape or any(d != 1 for d in outside) or inside < 2:
            return None
        taken = self._taken(m)
        if not all(v is None or fits(largest(v), m.scale.dtype) for v in taken):
            return Refusal(f"scale or bias of {m.norm.name!r} would go beyond {m.scale.dtype}")

        def make(m: Match) -> Value:
            made = [
                m.graph.constant(v, f"{m.norm.name}.{what}", m.norm.name, dtype=m.scale.dtype)
                for what, v in zip(("scale", "bias"), taken)
                if v is not None
            ]
            return m.norm.op(m.x, *made, name=m.norm.name)

        return Plan(make)

    def _taken(self, m: Match) -> tuple[Any, Any]:
        """Scale and bias with the constant in them."""
        scale, bias, c = exact(m.scale), m.bound.get("bias"), exact(m.c)
        inside = -m.norm.op.values["axis"] if m.norm.op.values["axis"] < 0 else m.x.rank - m.norm.op.values["axis"]
        c = c.reshape(c.shape[max(0, c.ndim - inside) :])
        shift = None if bias is None else exact(bias)
        if self.op in ("mul", "div"):
            with np.errstate(all="ignore"):
                k = c if self.op == "mul" else 1 / c
                return scale * k, None if shift is None else shift * k
        c = c if self.op == "add" else -c
        return scale, c if shift is None else shift + c


@dataclass(frozen=True)
class NormOfNarrow(Rewrite):
    """cast(norm(cast(x), scale, bias)) -> norm(x, scale, bias) for x of float16 or bfloat16, whose norms compute wide

    Constants must be such of the narrow type already.
    """

    norm: str

    def pattern(self, x: Any, scale: Any, bias: Any) -> Any:
        norm = node_of(self.norm, ops.cast(x, to="float32", name="wide"), scale, bias, name="norm")
        return node_of("cast", norm, name="narrow")

    def plan(self, m: Match) -> Plan | None:
        parameters = [v for v in m.norm.inputs[1:] if v is not None]
        are_narrow = m.x.dtype in ("float16", "bfloat16") and m.root.output.dtype == m.x.dtype and all(
            v.data is not None and np.array_equal(_narrow(v, m.x.dtype).astype(np.float32), v.data) for v in parameters
        )  # fmt: skip
        return Plan(self.rewrite) if are_narrow else None

    def rewrite(self, m: Match) -> Value:
        parameters = [
            None if v is None else m.graph.constant(_narrow(v, m.x.dtype), v.name, v.source) for v in m.norm.inputs[1:]
        ]
        return m.norm.op(m.x, *parameters, name=m.norm.name)


def _narrow(v: Value, dtype: str) -> Any:
    assert v.data is not None
    with np.errstate(all="ignore"):
        return v.data.astype(dtypes.numpy_dtype(dtype))


_NORMS = ("rms_norm", "layer_norm", "instance_norm", "group_norm")


def rules(admits: Admits) -> tuple[Rewrite, ...]:
    return (
        Uncentre(),
        UncentreWithoutShift(),
        RaiseStandard("mul", admits),
        RaiseStandard("div", admits),
        *(TakeAffine(norm, op) for op, norms in _AFFINE.items() for norm in norms.split()),
        *(NormOfNarrow(norm) for norm in _NORMS),
    )
