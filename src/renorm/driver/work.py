"""The least that a kernel must do: floating-point operations and bytes, read off its tensor expressions.

Every stage is counted once per element that its consumers ask for, however a schedule recomputes or blocks it: a
convolution costs 2 * results * (channels * kernel) operations. Bytes are those of the elements that are read of each
parameter and of the results, each once, however often the kernel goes over them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

from renorm import te
from renorm.core import dtypes
from renorm.core.dims import Dim, Sizes, integer, size, substitute
from renorm.expr.nodes import ARITHMETIC, Binary, Call, Expr, Load, OpenVar, Reduce, Var
from renorm.expr.rewrite import children
from renorm.runtime.report import WorkRecord
from renorm.te.tensor import producers_first

_FREE = frozenset({"if_then_else", "likely", "isnan", "isinf"})  # intrinsics that compute nothing


def work(
    outs: Sequence[te.Tensor],
    nominal: Mapping[te.Tensor, Dim] | None = None,
    dim: Callable[[Any], Dim] = lambda extent: extent,
    typical: Sizes = MappingProxyType({}),
) -> WorkRecord:
    """Of a kernel with these results. nominal: operations to count for a tensor in place of what it and everything
    before it take. dim: an extent as one of the network, whose symbols are typically so large, which decides whether a
    tensor is read as a whole."""
    given, count = nominal or {}, _Count(dim, typical)
    asked: dict[te.Tensor, Dim] = {t: count.size(t.shape) for t in outs}
    hidden = set[te.Tensor]()  # counted by a nominal figure
    flops: Dim = 0
    read: Dim = 0
    for op in reversed(producers_first(t.op for t in outs)):
        t = op.tensor
        points = count.least(count.size(t.shape), asked.get(t, 0))
        if isinstance(op, te.ExternOp):  # what its loops compute the op says; others compare and move
            flops += 0 if t in hidden else given.get(t, 0)
            for source in op.input_tensors:
                asked[source] = count.size(source.shape)
            continue
        if not isinstance(op, te.ComputeOp):
            read += points * dtypes.itemsize(t.dtype)
            continue
        steps = points * count.size(a.extent for a in op.reduce_axis)
        if t in given:
            flops += given[t]
        elif t not in hidden:
            flops += _operations(op.body) * steps
        extents = {a.var: a.extent for a in (*op.axis, *op.reduce_axis)}
        for load in _loads(op.body):
            source = load.source
            if isinstance(source, te.Tensor):
                asked[source] = asked.get(source, 0) + count.least(steps, count.distinct(load, source, extents))
                if t in given or t in hidden:
                    hidden.add(source)
    written = sum(count.size(t.shape) * dtypes.itemsize(t.dtype) for t in outs)
    return WorkRecord(flops, read + written, bool(given))


@dataclass(frozen=True)
class _Count:
    """Products of extents, numbers or open."""

    dim: Callable[[Any], Dim]
    typical: Sizes
    known: dict[tuple[Hashable, ...], Dim] = field(default_factory=dict[tuple[Hashable, ...], Dim])

    def size(self, extents: Iterable[Any]) -> Dim:
        return size(map(self.dim, extents))

    def least(self, a: Dim, b: Dim) -> Dim:
        """Return the one of two that is typically less."""
        return a if integer(substitute(a, self.typical)) <= integer(substitute(b, self.typical)) else b

    def distinct(self, load: Load, source: te.Tensor, extents: Mapping[Var, Any]) -> Dim:
        """Return how many elements a load can read at most: an index takes no more values than the axes in it."""
        axes = [tuple(x for x in _nodes(i) if isinstance(x, Var) and not isinstance(x, OpenVar)) for i in load.indices]
        name = source, *axes
        if name not in self.known:
            found: Dim = 1
            for of_index, extent in zip(axes, source.shape):
                found *= self.least(self.dim(extent), self.size(extents.get(v, extent) for v in of_index))
            self.known[name] = found
        return self.known[name]


def steps(outs: Sequence[te.Tensor]) -> int:
    """Elements that are computed and added up for these results, of every stage all of them: what bounds the time of
    integers and copies too."""
    stages = producers_first(t.op for t in outs)
    computed = sum(
        op.tensor.size * prod(a.extent for a in op.reduce_axis) for op in stages if isinstance(op, te.ComputeOp)
    )
    return computed + sum(
        t.size for op in stages if isinstance(op, te.ExternOp) for t in (op.tensor, *op.input_tensors)
    )


def _nodes(body: Expr) -> Iterator[Expr]:
    """Each node of an expression once."""
    seen, stack = set[int](), [body]
    while stack:
        e = stack.pop()
        if id(e) not in seen:
            seen.add(id(e))
            yield e
            stack.extend(children(e))


def _operations(body: Expr) -> int:
    """Floating-point operations for one element, or for one step of its reduction."""
    count = 0
    for e in _nodes(body):
        if not dtypes.is_float(e.dtype):
            continue
        if isinstance(e, Call):
            count += 2 if e.name == "fma" else e.name not in _FREE
        elif isinstance(e, Binary):
            count += e.op in ARITHMETIC
        elif isinstance(e, Reduce):
            count += 1
    return count


def _loads(body: Expr) -> list[Load]:
    return [e for e in _nodes(body) if isinstance(e, Load)]
