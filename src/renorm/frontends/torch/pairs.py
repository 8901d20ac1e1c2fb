"""z = a + i b: a tensor of complex numbers, which no kernel has, as two tensors of real ones.

What is linear in its elements, as all that moves them is, computes both alike: f(z) = f(a) + i f(b). What multiplies
two of them is f(z, w) = f(a, c) - f(b, d) + i (f(a, d) + f(b, c)). Inputs and results of a program have the parts on a
last axis of two, as torch.view_as_real has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from renorm import ops
from renorm.core.errors import UnsupportedOp
from renorm.frontends.torch.call import Call
from renorm.graph.ir import Value


class Pair(NamedTuple):
    """The real and the imaginary part of one tensor, of equal types."""

    real: Value
    imaginary: Value


@dataclass(frozen=True)
class Half:
    """Hold what PyTorch says of a part of a complex result."""

    dtype: torch.dtype
    shape: Sequence[Any]


def is_complex(x: Any) -> bool:
    """Return whether elements of a tensor are complex numbers."""
    return isinstance(x, torch.Tensor) and x.dtype.is_complex


def half(result: Any) -> Any:
    """Return what is said of each part of a complex result; others as they are."""
    return Half(result.dtype.to_real(), result.shape) if is_complex(result) else result


def of_parts(c: Call) -> Call:
    """Return a call that gives the parts of complex results."""
    return replace(c, results=[half(x) for x in c.results])


def gives_pairs(c: Call) -> bool:
    """Return whether results of a call `of_parts` are complex."""
    return any(isinstance(x, Half) for x in c.results)


def are_among(given: Any) -> bool:
    """Return whether there are complex numbers among arguments."""
    if isinstance(given, (Pair, complex)):
        return True
    if isinstance(given, Mapping):
        return are_among(given.values())
    return isinstance(given, Iterable) and not isinstance(given, str) and any(map(are_among, given))


def parts_of(x: Any) -> tuple[Any, Any]:
    """Return the real part of an operand, and the imaginary one; None: it has none."""
    if isinstance(x, Pair):
        return x.real, x.imaginary
    return (x.real, x.imag) if isinstance(x, complex) else (x, None)


def on_parts(f: Callable[..., Value], *operands: Any) -> Any:
    """Return f of operands, or, of complex ones, of their parts."""
    return Pair(*map(f, *operands)) if isinstance(operands[0], Pair) else f(*operands)


def split(c: Call, x: Value) -> Pair:
    """Return the parts of a tensor that has them on its last axis."""
    axis, shape = x.rank - 1, x.shape[:-1]
    real, imaginary = (c.reshaped(c.sliced(x, axis, i, i + 1), shape) for i in range(2))
    return Pair(real, imaginary)


def joined(x: Pair) -> Value:
    """Return the parts on a last axis."""
    return ops.concat([ops.unsqueeze(v, axes=(v.rank,)) for v in x], axis=x.real.rank)


def each(c: Call, reader: Callable[..., Any], given: Sequence[Any], named: Any, mixed: Sequence[int] = ()) -> Any:
    """Return f(z) = f(a) + i f(b). mixed: places of operands that are complex numbers where they are real, too."""

    def parts(x: Any, i: int, is_mixed: bool) -> Any:
        if isinstance(x, (Pair, complex)):
            return parts_of(x)[i]
        if isinstance(x, (list, tuple)):
            return [parts(v, i, is_mixed) for v in x]
        if is_mixed and i:
            return c.filled(0, x.dtype, x.shape) if isinstance(x, Value) else 0
        return x

    made = [reader(c, *(parts(x, i, at in mixed) for at, x in enumerate(given)), **named) for i in range(2)]
    return [Pair(*p) for p in zip(*made)] if isinstance(made[0], list) else Pair(*made)


def of_two(f: Callable[[Any, Any], Value], x: Any, y: Any) -> Pair:
    """Return f(x, y), which is linear in either."""
    (a, b), (p, q) = parts_of(x), parts_of(y)
    if q is None:
        return Pair(f(a, p), f(b, p))
    if b is None:
        return Pair(f(a, p), f(a, q))
    return Pair(ops.sub(f(a, p), f(b, q)), ops.add(f(a, q), f(b, p)))


def constant(tensor: torch.Tensor) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the parts of a constant, where they lie."""
    for part in torch.view_as_real(tensor.detach().cpu().resolve_conj()).unbind(-1):
        if part.dtype == torch.float16:  # of complex32
            raise UnsupportedOp("elements are complex32, of 16 bits each")
        yield part.numpy()
