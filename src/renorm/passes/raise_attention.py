"""Attention, raised: a product with a softmax of products becomes one op, whose kernel keeps no table of scores.

    softmax(a @ b) @ v,   a @ b with numbers that scale it, masks that are added or chosen by, and views of batches

Exporters put the scale on queries, on keys, on both or on scores, and transpose keys in one step or two. What is nearly
an attention stays in pieces, with a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim, Shape, is_static
from renorm.core.shapes import regrouping
from renorm.graph.ir import Node, Value
from renorm.graph.rewrite import Match, Plan, Refusal, Rewrite
from renorm.ops.attention import Attention
from renorm.ops.shared.reshaping import extents_of, reshaped_to
from renorm.passes.norm_patterns import number, with_numbers
from renorm.passes.simplify import VIEWS

_ALL = 1e30  # beside which scores are nothing
_DEPTH = 12  # nodes in a row between a softmax and the product that it reads


@dataclass(frozen=True)
class Mask:
    """What becomes of scores: factor * value is added; or, where `value` holds truth values, those that it does not
    take (that it takes, where it is inverted) become `instead`. view: the shape of scores that it is spread over."""

    value: Value
    view: Shape
    factor: float = 1.0
    instead: float | None = None
    is_inverted: bool = False


@dataclass(frozen=True)
class Scores:
    """scale * a @ b with masks, the innermost one first. nodes: the way to the product."""

    a: Value
    b: Value
    scale: float
    nodes: tuple[Node, ...]
    masks: tuple[Mask, ...] = field(default=())

    @property
    def view(self) -> Shape:
        """The last shape in which masks see rows of queries and columns of keys; without one that of the product."""
        own = self.nodes[-1].output.shape
        return next((m.view for m in self.masks[::-1] if m.view[-2:] == own[-2:]), own)


def scores_of(v: Value, factor: float = 1.0, depth: int = _DEPTH) -> Scores | None:
    """`factor` times `v` as scores."""
    node = v.producer
    if node is None or not depth:
        return None
    name, inputs = node.op.name, [x for x in node.inputs if x is not None]
    if name == "matmul" and all(x.rank > 1 for x in inputs):
        return Scores(inputs[0], inputs[1], factor, (node,))
    if name in VIEWS:
        inner = scores_of(inputs[0], factor, depth - 1)
        return inner and replace(inner, nodes=(node, *inner.nodes))
    for inner, mask in _steps(node, inputs, v, factor, depth):
        masks = inner.masks if mask is None else (*inner.masks, mask)
        return replace(inner, nodes=(node, *inner.nodes), masks=masks)
    return None


def _steps(
    node: Node, inputs: Sequence[Value], v: Value, factor: float, depth: int
) -> Iterator[tuple[Scores, Mask | None]]:
    """Readings of a node that scales scores, or masks them."""
    name = node.op.name
    if name in ("mul", "div"):
        for x, c in with_numbers(node):
            if c and (inner := scores_of(x, factor * c if name == "mul" else factor / c, depth - 1)):
                yield inner, None
    elif name == "add":
        for x, mask in (inputs, inputs[::-1]):
            if x.shape == v.shape and (inner := scores_of(x, factor, depth - 1)):
                yield inner, Mask(mask, v.shape, factor)
    elif name == "where":
        taken, x, y = inputs
        for kept, other in ((x, y), (y, x)):
            fill = number(other)
            if fill is not None and kept.shape == v.shape and (inner := scores_of(kept, factor, depth - 1)):
                yield inner, Mask(taken, v.shape, 1.0, fill * factor, kept is y)


def _unscaled(v: Value) -> tuple[Value, float]:
    """A value, and a number that it is times."""
    factor = 1.0
    while v.producer is not None and v.producer.op.name in ("mul", "div"):
        found = next(with_numbers(v.producer), None)
        if found is None or not found[1]:
            break
        factor = factor * found[1] if v.producer.op.name == "mul" else factor / found[1]
        v = found[0]
    return v, factor


def _keys(b: Value) -> tuple[Value, tuple[int, ...], float] | None:
    """What keys, transposed, are made of: (x, order, factor), keys being factor * transpose(x, order) with the last
    axis last. None where memory holds them otherwise."""
    b, outer = _unscaled(b)
    node = b.producer
    if node is None or node.op.name != "transpose" or node.inputs[0] is None:
        return None
    x, inner = _unscaled(node.inputs[0])
    perm = node.op.values["perm"]
    order = [*range(x.rank)][::-1] if perm is None else list(perm)
    order[-2:] = order[:-3:-1]
    return (x, tuple(order), outer * inner) if order[-1] == x.rank - 1 else None


def _weights(v: Value) -> tuple[Value, list[Node], bool]:
    """What a softmax gave, the nodes behind it, and whether they make 0 of weights that are no numbers."""
    nodes, is_zero = list[Node](), False
    while (node := v.producer) is not None:
        x = node.inputs[-1]
        if node.op.name == "where" and number(node.inputs[1]) == 0 and (test := _is_nan(node.inputs[0], x)):
            nodes, is_zero = [*nodes, node, test], True
        elif node.op.name in VIEWS and node.inputs[0] is not None and node.inputs[0].shape[-2:] == v.shape[-2:]:
            x = node.inputs[0]
            nodes.append(node)
        else:
            break
        assert x is not None
        v = x
    return v, nodes, is_zero


def _is_nan(v: Value | None, x: Value | None) -> Node | None:
    """Return the node that tells where `x` is no number, if `v` is that."""
    node = None if v is None else v.producer
    return node if node is not None and node.op.name == "isnan" and node.inputs[0] is x else None


class RaiseAttention(Rewrite):
    """softmax(scale * q @ transpose(k) + mask) @ v -> attention(q, k, v, mask)"""

    def pattern(self, weights: Any, v: Any) -> Any:
        return ops.matmul(weights, v)

    def plan(self, m: Match) -> Plan | Refusal | None:
        w, outside, nan_is_zero = _weights(m.weights)
        v, softmax = m.v, w.producer
        if softmax is None or softmax.op.name != "softmax" or v.rank < 2 or w.rank < 2:
            return None
        if softmax.op.values["axis"] not in (-1, w.rank - 1):
            return None
        found = None if softmax.inputs[0] is None else scores_of(softmax.inputs[0])
        if found is None or softmax.output.shape[-2:] != found.view[-2:]:
            return None
        keys = _keys(found.b)
        if keys is None:
            return Refusal("keys do not lie one behind the other in memory")
        reason = _mismatch(found, found.b, v, m.weights)
        if reason is not None:
            return Refusal(reason)
        op = Attention(nan_is_zero=nan_is_zero)
        return Plan(lambda m: _made(m, op, found, keys), nodes=[m.root, *outside, softmax, *found.nodes])


def _mismatch(found: Scores, k: Value, v: Value, weights: Value) -> str | None:
    """Return why what is read is no attention of one batch."""
    scores = found.nodes[-1].output
    lead = scores.shape[:-2]
    if found.a.shape[:-2] != lead:
        return f"queries {found.a.type} are spread over batches of scores {scores.type}"
    if weights.shape[:-2] == lead == found.view[:-2]:
        if k.rank != scores.rank or k.shape[:-2] != v.shape[:-2]:
            return f"keys {k.type} and values {v.type} are of other batches"
        if any(part not in (1, whole) for part, whole in zip(k.shape, lead)) and not _serve(k.shape[:-2], lead):
            return f"keys {k.type} do not serve queries {found.a.type}"
    elif k.shape[:-2] != lead or v.shape[:-2] != weights.shape[:-2]:
        return f"keys {k.type} and values {v.type} are spread over batches of scores {scores.type}"
    for mask in found.masks:
        if not is_static(mask.value.shape) and _is_shifted(mask.value):
            return f"mask {mask.value.type} is shifted by a padding of open extents, which products do as they store"
    if len(found.masks) > 1 and any(m.instead > -_ALL for m in found.masks if m.instead is not None):
        return "one of several masks puts a number in the place of scores that others are added to"
    return None


def _is_shifted(v: Value, depth: int = _DEPTH) -> bool:
    """Return whether rows of other lengths put a value into place, with a padding between them."""
    node = v.producer
    if node is None or not depth or node.op.name not in (*VIEWS, "slice", "pad") or node.inputs[0] is None:
        return False
    return node.op.name == "pad" or _is_shifted(node.inputs[0], depth - 1)


def _serve(part: Sequence[Dim], whole: Sequence[Dim]) -> bool:
    """Return whether heads of keys serve several heads of queries each."""
    a, b = part[-1], whole[-1]
    alike = all(p in (1, w) for p, w in zip(part[:-1], whole[:-1]))
    return alike and isinstance(a, int) and isinstance(b, int) and a > 0 and b % a == 0


def _ungrouped(x: Value) -> Value:
    """Heads of keys or of values of which reshape(expand(x)) made several each; the value itself where none did."""
    shape, seen = x.shape, x
    while seen.producer is not None and seen.producer.op.name in VIEWS and seen.producer.inputs[0] is not None:
        seen = seen.producer.inputs[0]
    node = seen.producer
    if node is None or node.op.name != "expand" or node.inputs[0] is None or len(shape) < 3:
        return x
    inner = node.inputs[0]
    if seen.rank < 4 or inner.rank != seen.rank or seen.shape[-2:] != shape[-2:]:
        return x
    heads, each = inner.shape[-4:-2]
    is_each = each == 1 and (*inner.shape[:-3], seen.shape[-3], *shape[-2:]) == seen.shape
    is_whole = isinstance(heads, int) and shape[-3] == seen.shape[-3] * heads
    return reshaped_to(inner, (*shape[:-3], heads, *shape[-2:])) if is_each and is_whole else x


def _joined(found: Scores, dtype: str) -> tuple[Value | None, dict[str, float]]:
    """One mask of all, in the view of scores that the op has, and the attributes that say what it means."""
    if len(found.masks) == 1:
        (mask,) = found.masks
        part = _in_view(mask.value, mask.view, found.view)
        if mask.instead is None:
            return part, {"weight": mask.factor}
        return ops.logical_not(part) if mask.is_inverted else part, {"masked": mask.instead}
    whole: Value | None = None
    for view, masks in groupby(found.masks, key=lambda m: m.view):
        part = _in_view(reduce(ops.add, [_added(m, dtype) for m in masks]), view, found.view)
        whole = part if whole is None else ops.add(whole, part)
    return whole, {}


def _added(mask: Mask, dtype: str) -> Value:
    """Return what a mask adds to scores."""
    if mask.instead is not None:
        nothing, instead = (np.asarray(c, dtype) for c in (0.0, mask.instead))
        return ops.where(mask.value, *((instead, nothing) if mask.is_inverted else (nothing, instead)))
    return mask.value if mask.factor == 1 else ops.mul(mask.value, np.asarray(mask.factor, dtype))


def _in_view(x: Value, before: Shape, after: Shape) -> Value:
    """Return what broadcasts to `after` as `x` does to `before`, a shape of as many elements: along axes that become
    others, `x` is 1 everywhere, or is spread."""
    if before == after:
        return x
    own = (*(1,) * (len(before) - x.rank), *x.shape)
    spread, made = list[Dim](), list[Dim]()
    for old, new in regrouping(before, after):
        is_one = all(own[axis] == 1 for axis in old)
        spread += [own[axis] if is_one or len(old) == len(new) == 1 else before[axis] for axis in old]
        made += [1 if is_one else after[axis] for axis in new]
    if (*spread,) != own:
        x = ops.expand(x, extents_of(x.graph, tuple(spread)))
    return x if x.shape == tuple(made) else reshaped_to(x, tuple(made))


def _made(m: Match, op: Attention, found: Scores, keys: tuple[Value, tuple[int, ...], float]) -> Value:
    x, order, of_keys = keys
    q, of_queries = _unscaled(found.a)
    k = x if order == tuple(range(x.rank)) else ops.transpose(x, perm=order)
    operands = [q, k, m.v]
    if m.weights.shape[:-2] == found.view[:-2] == found.nodes[-1].output.shape[:-2]:
        parts = [_ungrouped(t) for t in operands[1:]]
        if parts[0].shape[:-2] == parts[1].shape[:-2]:
            operands[1:] = parts
    else:
        operands = [reshaped_to(t, (*found.view[:-2], *t.shape[-2:])) for t in operands]
    mask, meaning = _joined(found, q.dtype)
    op = op.with_attributes(scale=found.scale * of_keys * of_queries, **meaning)
    y = op(*operands, *([] if mask is None else [mask]))
    return y if y.shape == m.root.output.shape else reshaped_to(y, m.root.output.shape)


RULES: tuple[Rewrite, ...] = (RaiseAttention(),)
