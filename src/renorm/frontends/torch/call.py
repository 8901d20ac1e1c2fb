"""One call of an ATen overload, as the function sees it that reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from renorm import ops
from renorm.core import dtypes
from renorm.core.dims import Dim, Shape, Sym, Symbol, is_static, size, static, symbols_of
from renorm.core.errors import UnsupportedOp
from renorm.core.shapes import normalize_axis
from renorm.frontends.building import Building
from renorm.frontends.counted import computed
from renorm.frontends.torch.extents import Extents
from renorm.graph.ir import Value

Number = bool | int | float | Sym
Operand = Value | Number
Given = Value | None  # None: left out


def dtype_name(dtype: torch.dtype) -> str:
    """Return how the project calls a dtype. Raises UnsupportedOp for complex numbers and the like."""
    name = str(dtype).removeprefix("torch.")
    if name not in dtypes.BY_NAME:
        raise UnsupportedOp(f"elements are {name}, which renorm has no kernels for")
    return name


@dataclass(frozen=True)
class Call(Building):
    """results: what PyTorch says of the results: fake tensors, None for one that is none. read: which of several are
    read. given: what it says of the tensors that the call reads."""

    extents: Extents
    results: Sequence[Any]
    read: frozenset[int] = frozenset()
    given: Sequence[Any] = ()

    def type(self, index: int = 0) -> tuple[str, Shape]:
        """Return dtype and shape of a result."""
        made = self.results[index]
        return dtype_name(made.dtype), self.extents.shape(made.shape)

    @property
    def dtype(self) -> str:
        """The dtype of the result, whose extents data may decide."""
        return dtype_name(self.results[0].dtype)

    @property
    def shape(self) -> Shape:
        return self.type()[1]

    def integers(self, elements: Sequence[Dim | Value]) -> Value:
        """Return a vector of such numbers; those that may be negative, and so no extents, are given as values."""
        if not any(isinstance(e, Value) for e in elements):
            return super().integers([e for e in elements if not isinstance(e, Value)])
        parts = [self.reshaped(e, (1,)) if isinstance(e, Value) else self.integers([e]) for e in elements]
        return parts[0] if len(parts) == 1 else ops.concat(parts, axis=0)

    def told(self, elements: np.ndarray[Any, Any]) -> Value:
        """Return whole numbers as what an op is told; what data decide is computed of the values that tell it."""
        counted = {s for d in elements.flat for s in symbols_of(d)}.intersection(self.extents.counts)
        if not counted:
            return super().told(elements)
        counts = {s: self._count(s) for s in sorted(counted)}
        found = [computed(self.graph, d, counts) for d in elements.flat]
        return self.reshaped(found[0], ()) if elements.ndim == 0 else ops.concat(found, axis=0)

    def _count(self, symbol: Symbol) -> Value:
        """Return an extent that data decide, as a value of one element."""
        value, axis = self.extents.counts[symbol]
        if axis is None:
            return self.reshaped(value, (1,))
        return ops.slice(ops.shape(value), np.array([axis]), np.array([axis + 1]))

    def number(self, x: Operand, dtype: str) -> Value:
        """Return a scalar; of a number that data decide its value."""
        if isinstance(x, Value):
            return self.cast(self.reshaped(x, ()), dtype)
        if isinstance(x, Sym):
            return self.cast(self.told(np.array(x, object)), dtype)
        return self.graph.constant(np.asarray(x).astype(dtypes.numpy_dtype(dtype)), "number")

    def operand(self, x: Operand, dtype: str) -> Value:
        """Return an operand with elements of that dtype."""
        return self.cast(x, dtype) if isinstance(x, Value) else self.number(x, dtype)

    def promoted(self, *operands: Operand) -> list[Value]:
        """Return operands in the dtype that PyTorch computes with for them."""
        held = [_like(x) for x in operands]
        dtype = held[0].dtype if isinstance(held[0], torch.Tensor) else torch.get_default_dtype()
        dtype = dtype_name(_common(held) if len(held) > 1 else dtype)
        return [self.operand(x, dtype) for x in operands]

    def batched(self, x: Value, n: int) -> Value:
        """Return an image of n axes without a batch as a batch of one."""
        return x if x.rank == n + 2 else self.reshaped(x, (1, *x.shape))

    def flat(self, x: Value) -> Value:
        """Return elements in a row."""
        return self.reshaped(x, (size(x.shape),))

    def spread(self, values: Sequence[Value]) -> list[Value]:
        """Return values in the shape that they broadcast to."""
        shape: list[Dim] = [1] * max(v.rank for v in values)
        for v in values:
            for a, n in enumerate(v.shape, len(shape) - v.rank):
                shape[a] = n if shape[a] == 1 else shape[a]
        return [self.expanded(v, tuple(shape)) for v in values]

    def filled(self, number: Operand, dtype: str, shape: Shape) -> Value:
        """Return a tensor of equal elements."""
        scalar = self.number(number, dtype)
        if is_static(shape) and scalar.data is not None and np.prod(static(shape)) <= 64:
            return self.graph.constant(np.full(static(shape), scalar.data), "full")
        return ops.expand(scalar, self.integers(shape))

    def ones(self, channels: Dim, dtype: str, number: float = 1.0) -> Value:
        """Return the scale, or the bias, of a norm that has none."""
        if not isinstance(channels, int):
            raise UnsupportedOp(f"the number of channels, {channels}, is open")
        return self.graph.constant(np.full(channels, number, dtypes.numpy_dtype(dtype)), "norm")


def power_of(product: Callable[[Any, Any], Any], x: Any, n: int) -> Any:
    """Return the product of n times x, n > 0: of x, x x, (x x)(x x), ... those that n is the sum of."""
    squares = accumulate(range(n.bit_length() - 1), lambda y, _: product(y, y), initial=x)
    return reduce(product, (y for i, y in enumerate(squares) if n >> i & 1))


def of_each(n: int, given: Any) -> list[int]:
    """Return one number for each of n axes, of which one may stand for all."""
    held = [given] if isinstance(given, int) else list(given)
    return held * n if len(held) == 1 else held


def axes_of(x: Value, axes: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the axes that an argument names, counted from the front; all where it names none."""
    if axes is None:
        return tuple(range(x.rank))
    given = [axes] if isinstance(axes, int) else axes
    return tuple(normalize_axis(a, x.rank) for a in given) if x.rank else ()


def _like(x: Operand) -> Any:
    """Return what PyTorch's promotion sees of an operand: a tensor without elements, or a number."""
    if isinstance(x, Value):
        return torch.empty([1] * x.rank, dtype=getattr(torch, x.dtype), device="meta")
    return 1 if isinstance(x, Sym) else x


def _common(held: Sequence[Any]) -> torch.dtype:
    found = torch.result_type(held[0], held[1])
    for x in held[2:]:
        found = torch.result_type(torch.empty([1], dtype=found, device="meta"), x)
    return found
