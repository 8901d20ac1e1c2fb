"""Attention, raised: a product with a softmax of products becomes one op, whose kernel keeps no table of scores.

    softmax(a @ b) @ v,   a @ b with numbers that scale it, masks that are added or chosen by, and views of batches

Exporters put the scale on queries, on keys, on both or on scores, and transpose keys in one step or two. What is nearly
an attention stays in pieces, with a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim, Shape, is_static, size
from renorm.core.shapes import spreads
from renorm.graph.ir import Node, Value
from renorm.graph.rewrite import Match, Plan, Refusal, Rewrite
from renorm.ops.attention import Attention
from renorm.ops.shared.reshaping import reshaped_to
from renorm.passes.norm_patterns import number, with_numbers
from renorm.passes.simplify import VIEWS

_ALL = 1e30  # beside which scores are nothing
_DEPTH = 12  # nodes in a row between a softmax and the product that it reads


@dataclass(frozen=True)
class Mask:
    """What becomes of scores: factor * value is added; or, where `value` holds truth values, those that it does not
    take (that it takes, where it is inverted) become `instead`. shape: of the value, as a view of scores has it."""

    value: Value
    shape: Shape
    factor: float = 1.0
    instead: float | None = None
    is_inverted: bool = False


@dataclass(frozen=True)
class Scores:
    """scale * a @ b with masks, the innermost one first. nodes: the way to the product. lead: axes before the last two,
    where masks are; of several views the last one."""

    a: Value
    b: Value
    scale: float
    nodes: tuple[Node, ...]
    lead: tuple[Dim, ...]
    masks: tuple[Mask, ...] = field(default=())


def scores_of(v: Value, factor: float = 1.0, depth: int = _DEPTH) -> Scores | None:
    """`factor` times `v` as scores."""
    node = v.producer
    if node is None or not depth or v.rank < 2:
        return None
    name, inputs = node.op.name, [x for x in node.inputs if x is not None]
    if name == "matmul" and all(x.rank > 1 for x in inputs):
        return Scores(inputs[0], inputs[1], factor, (node,), v.shape[:-2])
    if name in VIEWS and inputs[0].shape[-2:] == v.shape[-2:]:
        inner = scores_of(inputs[0], factor, depth - 1)
        return inner and replace(inner, nodes=(node, *inner.nodes))
    for inner, mask in _steps(node, inputs, v, factor, depth):
        if mask is None:
            return replace(inner, nodes=(node, *inner.nodes))
        lead = v.shape[:-2]
        seen = [(m, _in_view(m.shape, inner.lead, lead)) for m in inner.masks]
        masks = [replace(m, shape=shape) for m, shape in seen if shape is not None]
        if len(masks) == len(seen):
            return replace(inner, nodes=(node, *inner.nodes), lead=lead, masks=(*masks, mask))
    return None


def _in_view(shape: Shape, lead: Shape, view: Shape) -> Shape | None:
    """Return the shape that a mask of scores has beside a view of them, whose axes before the last two are `view`, not
    `lead`. It has all elements along axes that become others, or one: None where it has some."""
    if lead == view or len(shape) < 2:
        return shape
    own, made = [*(1,) * (len(lead) + 2 - len(shape)), *shape], list[Dim]()
    for before, after in _groups(lead, view):
        held = tuple(own.pop(0) for _ in before)
        if size(before) != size(after) or held not in (before, (1,) * len(before)):
            return None
        made += after if held == before else (1,) * len(after)
    return (*made, *own)


def _groups(a: Shape, b: Shape) -> list[tuple[Shape, Shape]]:
    """Return axes of two shapes of as many elements, in groups that become each other: the fewest of `a` in each."""
    found, i, j = [((), ())], 0, 0
    for end in range(1, len(a) + 1):
        at = next((k for k in range(j, len(b) + 1) if size(b[:k]) == size(a[:end])), None)
        if at is not None:
            found, i, j = [*found, (a[i:end], b[j:at])], end, at
    return [*found[:-1], (found[-1][0], (*found[-1][1], *b[j:]))]


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
                yield inner, Mask(mask, mask.shape, factor)
    elif name == "where":
        taken, x, y = inputs
        for kept, other in ((x, y), (y, x)):
            fill = number(other)
            if fill is not None and kept.shape == v.shape and (inner := scores_of(kept, factor, depth - 1)):
                yield inner, Mask(taken, taken.shape, 1.0, fill * factor, kept is y)


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
        if found is None:
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
    if weights.shape[:-2] == lead == found.lead:
        if k.rank != scores.rank or k.shape[:-2] != v.shape[:-2]:
            return f"keys {k.type} and values {v.type} are of other batches"
        if any(part not in (1, whole) for part, whole in zip(k.shape, lead)) and not _serve(k.shape[:-2], lead):
            return f"keys {k.type} do not serve queries {found.a.type}"
    elif k.shape[:-2] != lead or v.shape[:-2] != weights.shape[:-2]:
        return f"keys {k.type} and values {v.type} are spread over batches of scores {scores.type}"
    for mask in found.masks:
        if not spreads(mask.shape, (*found.lead, *scores.shape[-2:])):
            return f"mask {mask.value.type} does not broadcast to scores {scores.type}"
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


def _joined(masks: Sequence[Mask], dtype: str) -> tuple[Value | None, dict[str, float]]:
    """One mask of all, and the attributes that say what it means."""
    parts = [m.value if m.shape == m.value.shape else reshaped_to(m.value, m.shape) for m in masks]
    first = masks[0] if len(masks) == 1 else None
    if first is not None and first.instead is None:
        return parts[0], {"weight": first.factor}
    if first is not None and first.instead is not None:
        return ops.logical_not(parts[0]) if first.is_inverted else parts[0], {"masked": first.instead}
    whole: Value | None = None
    for mask, part in zip(masks, parts):
        if mask.instead is not None:
            nothing, instead = (np.asarray(c, dtype) for c in (0.0, mask.instead))
            part = ops.where(part, *((instead, nothing) if mask.is_inverted else (nothing, instead)))
        elif mask.factor != 1:
            part = ops.mul(part, np.asarray(mask.factor, dtype))
        whole = part if whole is None else ops.add(whole, part)
    return whole, {}


def _made(m: Match, op: Attention, found: Scores, keys: tuple[Value, tuple[int, ...], float]) -> Value:
    x, order, of_keys = keys
    q, of_queries = _unscaled(found.a)
    k = x if order == tuple(range(x.rank)) else ops.transpose(x, perm=order)
    operands = [q, k, m.v]
    if m.weights.shape[:-2] == found.lead == found.nodes[-1].output.shape[:-2]:
        parts = [_ungrouped(t) for t in operands[1:]]
        if parts[0].shape[:-2] == parts[1].shape[:-2]:
            operands[1:] = parts
    else:
        operands = [reshaped_to(t, (*found.lead, *t.shape[-2:])) for t in operands]
    mask, meaning = _joined(found.masks, q.dtype)
    op = op.with_attributes(scale=found.scale * of_keys * of_queries, **meaning)
    y = op(*operands, *([] if mask is None else [mask]))
    return y if y.shape == m.root.output.shape else reshaped_to(y, m.root.output.shape)


RULES: tuple[Rewrite, ...] = (RaiseAttention(),)
