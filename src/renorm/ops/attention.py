"""Attention: mixtures of values, weighted by how alike queries and keys are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim, take
from renorm.core.dtypes import FLOATS
from renorm.core.errors import OperandError
from renorm.core.gpu import NARROW
from renorm.core.shapes import spreads
from renorm.core.target import Target
from renorm.graph.attributes import Bool, Float, Type
from renorm.graph.ir import Node, Value
from renorm.graph.op import REDUCTION, OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, boolean, f16, f32, f64
from renorm.ops.shared import onnx_attention
from renorm.ops.shared.attending import Weighing, attended
from renorm.ops.shared.attending_in_pairs import attended_in_pairs, pays, suits
from renorm.ops.shared.attending_nodes import AFTER_SOFTCAP, mixture, scores
from renorm.ops.shared.precision import rounded

PANELS: dict[str, Any] = {"multiplied_as": "bfloat16", "in_panels": True}


class Attention(OpDef):
    """y[.., i, e] = sum over j of w[.., i, j] * v[.., j, e], w = softmax over j of s[.., i, j],
    s[.., i, j] = p[.., i, j] + weight * mask[.., i, j], p = scale * sum over d of q[.., i, d] * k[.., j, d]. Of a mask
    of truth values, keys that it does not take score `masked` instead. softcap: p is softcap * tanh(p / softcap),
    unless it is 0.

    Axes before the last two are those of q. Of the last one of them, the heads, k and v may have a part, of which each
    serves as many heads side by side; of others 1. The mask broadcasts. Without keys y is 0. nan_is_zero: weights that
    are no numbers, as those of a query that takes no key, are 0; empty_is_zero: only those of such a query.

    multiplied_as: a dtype that q, k, v and the exponentials of scores, less the greatest one, are rounded to; w are
    these exponentials over their sum. in_panels: whether they are copied side by side as a matrix unit reads them.
    """

    signature = "q: T[...], k: T[...], v: T[...], mask?: M[...] -> y: T[...]"
    types = {"T": FLOATS, "M": (*FLOATS, "bool")}
    fusion = REDUCTION
    reads_views = True
    scheduled_as = "attention"
    is_product = True
    factors = 3
    scale = Float(1.0)
    weight = Float(1.0)
    masked = Float(-math.inf)
    softcap = Float(0.0)
    nan_is_zero = Bool(False)
    empty_is_zero = Bool(False)
    multiplied_as = Type(None)
    in_panels = Bool(False)
    onnx = {"Attention": 23}

    def wants_digits(self, index: int) -> str | None:
        return "scores take it as it is, and exponentials make relative errors of absolute ones" if index == 3 else None

    def infer(self, q: Operand, k: Operand, v: Operand, mask: Operand | None) -> tuple[Dim, ...]:
        what = f"attention({q}, {k}, {v})"
        if q.rank < 2 or not q.rank == k.rank == v.rank:
            raise OperandError(f"{what}: operands are matrices, with as many axes before them in each")
        pairs = [("elements of a query and of a key", q.shape[-1], k.shape[-1])]
        pairs += [("axes of keys and values", a, b) for a, b in zip(k.shape[:-1], v.shape[:-1])]
        for name, a, b in pairs:
            if a != b and isinstance(a, int) and isinstance(b, int):
                raise OperandError(f"{what}: {name} differ: {a} and {b}")
            take(a, "==", b)
        for axis, (whole, part) in enumerate(zip(q.shape[:-2], k.shape[:-2])):
            if part == 1 or part == whole:
                continue
            if not isinstance(part, int) or not isinstance(whole, int):
                take(part, "==", whole)
            elif axis < q.rank - 3 or not part or whole % part:
                raise OperandError(f"{what}: {part} heads of keys for {whole} of queries")
        scores = (*q.shape[:-1], k.shape[-2])
        if mask is not None and not spreads(mask.shape, scores):
            raise OperandError(f"{what}: mask {mask} does not broadcast to scores {list(scores)}")
        if self.multiplied_as not in (None, *NARROW):
            raise OperandError(f"{what}: nothing multiplies {self.multiplied_as} and sums float32")
        if self.in_panels and (self.multiplied_as != "bfloat16" or not suits(q.shape, k.shape, v.shape)):
            raise OperandError(f"{what}: panels are of bfloat16, and 16 rows and columns of each are known at least")
        return (*q.shape[:-1], v.shape[-1])

    def read_once(self, node: Node) -> Value | None:
        """Return a mask of all scores."""
        q, k, _, mask = node.operand_types()
        if q is None or k is None or mask is None:
            return None
        return node.inputs[3] if mask.shape == (*q.shape[:-1], k.shape[-2]) else None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        return onnx_attention.read(node)

    def to_onnx(self, node: Node, opset: int) -> tuple[str, dict[str, Any], list[Any]] | None:
        says = opset >= 23 and node.output.rank == 4 and self.empty_is_zero and not self.nan_is_zero
        is_plain = self.weight == 1 and self.masked == -math.inf and self.multiplied_as is None
        attributes = {"scale": self.scale, **({"softcap": self.softcap} if self.softcap else {})}
        return ("Attention", attributes, list(node.inputs)) if says and is_plain else None

    def in_onnx(self, node: Node) -> Any:
        """Before opset 23, and what its op does not say."""
        if self.multiplied_as or node.output.rank != 4:
            return None
        q, k, v, mask = node.operands
        s = scores(q, k, None, self.scale, self.softcap, AFTER_SOFTCAP)
        return mixture(s, v, mask, self.weight, self.masked, self.nan_is_zero, self.empty_is_zero)

    def rounded(self, node: Node, dtype: str, machine: Target) -> OpDef | None:
        q, k, v = (x.shape for x in node.inputs[:3] if x is not None)
        if machine.is_gpu:
            return self.with_attributes(multiplied_as=dtype)
        return self.with_attributes(multiplied_as=dtype, in_panels=True) if pays(q, k, v) else None

    def compute(self, q: te.Tensor, k: te.Tensor, v: te.Tensor, mask: te.Tensor | None) -> te.Tensor:
        return (attended_in_pairs if self.in_panels else attended)(q, k, v, Weighing(mask, **self.values))

    def reference(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        each = q.shape[-3] // k.shape[-3] if q.ndim > 2 and k.shape[-3] else 1
        k, v = (np.repeat(t, each, -3) if q.ndim > 2 else t for t in (k, v))
        q, k, v = (rounded(t, self.multiplied_as) for t in (q, k, v))
        scores = (self.scale * (q @ k.swapaxes(-1, -2))).astype(np.longdouble)
        scores = self.softcap * np.tanh(scores / self.softcap) if self.softcap else scores
        if mask is not None:
            scores = np.where(mask, scores, self.masked) if mask.dtype == bool else scores + self.weight * mask
        most = np.max(scores, -1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - (np.where(np.isneginf(most), 0, most) if self.empty_is_zero else most))
        powers = rounded(powers, self.multiplied_as)
        total = powers.sum(-1, keepdims=True)
        weights = powers / np.where(total == 0, 1, total)
        return (np.where(np.isnan(weights), 0, weights) if self.nan_is_zero else weights).astype(np.float64) @ v

    samples = [
        Sample(f32[2, 3, 37, 20], f32[2, 3, 29, 20], f32[2, 3, 29, 33], scale=0.25),
        Sample(f32[2, 3, 2, 20], f32[2, 3, 29, 20], f32[2, 3, 29, 33], f32[3, 1, 29], scale=-0.5),
        Sample(f32[2, 6, 5, 8], f32[2, 3, 7, 8], f32[2, 3, 7, 8], f32[2, 1, 5, 7], weight=0.5),
        Sample(f32[2, 5, 3, 8], f32[1, 1, 7, 8], f32[1, 1, 7, 8], boolean[5, 3, 7]),
        Sample(f32[2, 5, 8], f32[2, 7, 8], f32[2, 7, 8], boolean[2, 1, 7], masked=-1e9),
        Sample(
            f32[5, 4],
            f32[3, 4],
            f32[3, 6],
            boolean[5, 3].of([[True] * 3, [False] * 3, [True] * 3, [False] * 3, [False, True, True]]),
        ),
        Sample(
            f32[2, 6, 4], f32[2, 3, 4], f32[2, 3, 6], boolean[2, 6, 1].of([[[True], [False]] * 3] * 2), nan_is_zero=True
        ),
        Sample(f32[2, 1, 3, 4], f32[2, 1, 3, 4], f32[2, 1, 3, 6], f32[1, 3].of([[-math.inf] * 3]), empty_is_zero=True),
        Sample(f32[1, 2, 9, 4], f32[1, 2, 3, 4], f32[1, 2, 3, 6], boolean[9, 3], scale=0.5, empty_is_zero=True),
        Sample(f32[2, 4], f32[3, 4], f32[3, 6], f32[3].of([-math.inf, 0, -math.inf])),
        Sample(f32[6, 4], f32[2, 4], f32[2, 6], f32[6, 2].of([[math.nan, 0], [-math.inf] * 2, [math.inf, 0]] * 2)),
        Sample(f32[2, 5, 3], f32[2, 0, 3], f32[2, 0, 3]),
        Sample(f32[2, 0, 3], f32[2, 5, 3], f32[2, 5, 3]),
        Sample(f64[2, 9, 3], f64[2, 5, 3], f64[2, 5, 3]),
        Sample(f16[2, 9, 30], f16[2, 40, 30], f16[2, 40, 30], f16[9, 40], scale=0.2),
        Sample(bf16[2, 3, 30], bf16[2, 40, 30], bf16[2, 40, 30]),
        Sample(f32[2, 4, 9, 8], f32[2, 2, 7, 8], f32[2, 2, 7, 5], f32[9, 7], scale=2.0, softcap=1.5),
        Sample(f16[2, 3, 8], f16[2, 37, 8], f16[2, 37, 8], boolean[3, 37], softcap=0.75),
        Sample(bf16[1, 4, 19, 32], bf16[1, 2, 37, 32], bf16[1, 2, 37, 40], bf16[19, 37], **PANELS),
        Sample(bf16[2, 20, 32], bf16[2, 50, 32], bf16[2, 50, 16], softcap=3.0, **PANELS),
        Sample(bf16[4, 19, 32], bf16[2, 37, 32], bf16[2, 37, 40], bf16[19, 37], scale=0.2, multiplied_as="bfloat16"),
        Sample(
            f32[2, 3, 37, 20], f32[2, 3, 29, 20], f32[2, 3, 29, 33], scale=0.25, multiplied_as="tf32", tolerance=1e-3
        ),
        Sample(f16[2, 2, 32], f16[2, 50, 32], f16[2, 50, 16], softcap=3.0, multiplied_as="float16"),
    ]
    rejects = [
        Reject(f32[5, 4], f32[7, 3], f32[7, 2], because="differ: 4 and 3"),
        Reject(f32[5, 4], f32[7, 4], f32[6, 2], because="differ: 7 and 6"),
        Reject(f32[5, 4], f32[1, 7, 4], f32[7, 2], because="as many axes"),
        Reject(f32[6, 5, 4], f32[4, 7, 4], f32[4, 7, 2], because="4 heads of keys for 6"),
        Reject(f32[5, 4], f32[7, 4], f32[7, 2], f32[5, 6], because="does not broadcast to scores [5, 7]"),
        Reject(f32[5, 4], f32[7, 4], f32[7, 2], because="16 rows and columns of each are known", **PANELS),
        Reject(f32[16, 16], f32[16, 16], f32[16, 16], because="panels are of bfloat16", in_panels=True),
        Reject(f32[5, 4], f32[7, 4], f32[7, 2], because="nothing multiplies int8", multiplied_as="int8"),
        Reject(f32[5, 4], f64[7, 4], f32[7, 2], because="k is float64 but q is float32"),
    ]
