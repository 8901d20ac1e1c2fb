"""Layers that make one tensor of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.errors import UnsupportedOp
from renorm.frontends.keras.call import Call, Made, Tensor
from renorm.frontends.keras.layers.masks import merged, where_masked
from renorm.frontends.keras.layers.norms import unit
from renorm.frontends.keras.layers.operations import operands
from renorm.frontends.keras.layers.table import reads
from renorm.frontends.orders import aligned
from renorm.graph.ir import Value


def _ranked(c: Call, given: Sequence[Tensor]) -> list[Tensor]:
    """Return operands of one dtype and rank: those of fewer axes get such of one element behind the batch."""
    tensors = operands(c, given)
    rank = max(t.value.rank for t in tensors)
    made = list[Tensor]()
    for t in tensors:
        value = t.value
        if value.rank < rank:
            own = t.stored()
            made.append(c.tensor(c.reshaped(own, (*own.shape[:1], *[1] * (rank - own.rank), *own.shape[1:]))))
        else:
            made.append(t)
    return made


def _one_by_one(op: Callable[[Value, Value], Value]) -> Any:
    def read(c: Call, inputs: Sequence[Tensor]) -> Made:
        view = aligned(_ranked(c, inputs))
        y = view.values[0]
        for v in view.values[1:]:
            y = op(y, v)
        return view.result(y)

    return read


reads("Add", "Merge", keeps_mask=True)(_one_by_one(ops.add))
reads("Subtract", keeps_mask=True)(_one_by_one(ops.sub))


@reads("Multiply", keeps_mask=True)
def _multiply(c: Call, inputs: Sequence[Tensor]) -> Made:
    """Read a product, to which steps that do not count are 1; those that count in no operand become 0."""
    product = _one_by_one(ops.mul)
    if all(t.mask is None for t in inputs):
        return product(c, inputs)
    counting = [t if t.mask is None else c.tensor(where_masked(c, t.stored(), t.mask, 1)) for t in inputs]
    y, mask = c.tensor(product(c, counting)), merged(c.graph, inputs)
    return y.stored() if mask is None else where_masked(c, y.stored(), mask)


def _extreme(op: Callable[[list[Value]], Value]) -> Any:
    def read(c: Call, inputs: Sequence[Tensor]) -> Made:
        if any(t.mask is not None for t in inputs):
            raise UnsupportedOp(f"{c.layer.kind} of masked sequences")
        view = aligned(_ranked(c, inputs))
        return view.result(op([*view.values]))

    return read


reads("Maximum")(_extreme(ops.max))
reads("Minimum")(_extreme(ops.min))


@reads("Average", keeps_mask=True)
def _average(c: Call, inputs: Sequence[Tensor]) -> Made:
    view = aligned(_ranked(c, inputs))
    return view.result(ops.mean([*view.values]))


@reads("Concatenate")
def _concatenate(c: Call, inputs: Sequence[Tensor]) -> Any:
    view = aligned(operands(c, inputs))
    axis = c.count("axis", -1)
    whole = view.values[0] if len(inputs) == 1 else ops.concat([*view.values], axis=view.place(axis))
    y = c.tensor(view.result(whole))
    rank, masks = view.values[0].rank, [t.mask for t in inputs]
    if any(m is not None for m in masks):
        if axis % rank == rank - 1 and all(m is not None and m is masks[0] for m in masks):
            y.mask = masks[0]  # a step counts where it counts in one of them
        elif axis % rank == 1:
            parts = [_all_true(c, t.stored()) if t.mask is None else t.mask for t in inputs]
            y.mask = ops.concat(parts, axis=1)
        else:
            y.mask = reduce(ops.logical_or, [_all_true(c, t.stored()) if t.mask is None else t.mask for t in inputs])
    return y


def _all_true(c: Call, x: Value) -> Value:
    true = c.graph.constant(np.asarray(True, dtypes.numpy_dtype("bool")), f"{c.name}.mask")
    return c.expanded(true, x.shape[:2])


@reads("Dot")
def _dot(c: Call, inputs: Sequence[Tensor]) -> Made:
    """Products of rows of two batches along one axis of each."""
    if len(inputs) != 2:
        raise UnsupportedOp(f"a dot of {len(inputs)} tensors")
    values = [t.stored() for t in inputs]
    given = c.option("axes")
    held = list(given) if isinstance(given, (list, tuple)) else [given, given]
    axes = [int(a) % v.rank for a, v in zip(held, values)]
    if c.option("normalize"):
        values = [unit(c, v, [a]) for v, a in zip(values, axes)]
    letters = iter("acdefghijklmnopq")
    parts = list[str]()
    for v, axis in zip(values, axes):
        parts.append("".join("b" if a == 0 else "z" if a == axis else next(letters) for a in range(v.rank)))
    result = "".join(a for part in parts for a in part if a not in "bz")
    y = ops.einsum(values, equation=f"{parts[0]},{parts[1]}->b{result}")
    return c.reshaped(y, (*y.shape, 1)) if y.rank == 1 else y


@reads("CustomScaleLayer")
def _scaled_sum(c: Call, inputs: Sequence[Tensor]) -> Made:
    """Of Keras' own InceptionResNetV2: the first, and so many times the second."""
    view = aligned(inputs)
    a, b = view.values
    return view.result(ops.add(a, ops.mul(b, c.scalar(c.number("scale"), b.dtype))))


@reads("LayerScale")
def _layer_scale(c: Call, x: Tensor) -> Made:
    """Of Keras' own ConvNeXt: a factor for each channel."""
    return c.joined([x, c.held(c.own("gamma")["gamma"])], ops.mul)
