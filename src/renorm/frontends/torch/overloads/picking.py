"""Overloads that read elements at computed places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from renorm import ops
from renorm.core.shapes import normalize_axis
from renorm.frontends.torch.call import Call, Given
from renorm.frontends.torch.overloads.counting import places
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value


@reads("embedding")
def _embedding(c: Call, weight: Value, indices: Value, *_: Any, **__: Any) -> Any:
    return ops.gather(weight, indices, axis=0)


@reads("index_select")
def _index_select(c: Call, x: Value, dim: int, index: Value) -> Any:
    if x.rank == 0:
        return x
    index = c.reshaped(index, (1,)) if index.rank == 0 else index
    return ops.gather(x, index, axis=normalize_axis(dim, x.rank))


@reads("gather")
def _gather(c: Call, x: Value, dim: int, index: Value, **_: Any) -> Any:
    if x.rank == 0:
        return c.reshaped(x, index.shape)
    if index.rank != x.rank:  # nothing is asked for
        return c.filled(0, x.dtype, index.shape)
    axis = normalize_axis(dim, x.rank)
    part = x
    for a in range(x.rank):  # other axes may be longer than those of the indices
        if a != axis and x.shape[a] != index.shape[a]:
            part = c.sliced(part, a, 0, index.shape[a])
    held = index if index.dtype in ("int64", "int32") else c.cast(index, "int64")
    return ops.gather_elements(part, held, axis=axis)


@reads("take")
def _take(c: Call, x: Value, index: Value) -> Any:
    return ops.gather(c.flat(x), index, axis=0)


@reads("index.Tensor", "_unsafe_index.Tensor")
def _index(c: Call, x: Value, indices: Sequence[Given]) -> Any:
    """Indices of several axes broadcast; the axes they take stand where the first of these was, or in front where they
    were not side by side."""
    given = [(a, c.cast(i, "int64")) for a, i in enumerate(_places(indices)) if i is not None]
    axes = [a for a, _ in given]
    if len(given) == 1:
        return ops.gather(x, given[0][1], axis=axes[0])
    others = [a for a in range(x.rank) if a not in axes]
    moved = ops.transpose(x, perm=(*axes, *others)) if axes != list(range(len(axes))) else x
    rank = max(i.rank for _, i in given)
    spread = c.spread([i for _, i in given])
    found = ops.gather_nd(moved, ops.concat([ops.unsqueeze(i, axes=(rank,)) for i in spread], axis=rank))
    if axes == list(range(axes[0], axes[0] + len(axes))) and axes[0]:
        before = axes[0]
        perm = (*range(rank, rank + before), *range(rank), *range(rank + before, found.rank))
        return ops.transpose(found, perm=perm)
    return found


def _places(indices: Sequence[Given]) -> Iterator[Given]:
    """Yield indices, for truth values those of each of their axes."""
    for i in indices:
        if i is not None and i.dtype in ("bool", "uint8"):
            yield from places(i)
        else:
            yield i
