"""Narrow floats: float16 and bfloat16 are storage; sums and products run in float32 and are rounded once, at the
end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.conversion import converted
from renorm.core.dtypes import compute_dtype
from renorm.expr.extents import same_extent
from renorm.te import tag


def wide(e: Any) -> Any:
    """A scalar expression in the dtype that arithmetic of its dtype runs in."""
    return e.astype(compute_dtype(e.dtype))


def multiplied(e: Any, dtype: str | None) -> Any:
    """A scalar expression as it is multiplied: widened, of a number that this dtype has; None: of any."""
    return wide(e if dtype is None else e.astype(dtype))


def rounded(x: np.ndarray[Any, Any], dtype: str | None) -> np.ndarray[Any, Any]:
    """An array of float64 whose numbers a dtype has; None: all of them."""
    return x if dtype is None else converted(x.astype(np.float32), dtype).astype(np.float64)


def add_channels(t: te.Tensor, b: te.Tensor | None, axis: int = 1) -> te.Tensor:
    """t + b with b[C] spread along all axes but `axis`; `t` where b is None."""
    if b is None:
        return t
    return te.compute(t.shape, lambda *i: t[i] + wide(b[i[axis]]), name="biased", tag=tag.BROADCAST)


def element_of(p: te.Tensor, index: Sequence[Any]) -> Any:
    """Return the element of what broadcasts to a tensor, beside the element of that at `index`."""
    own = index[len(index) - p.ndim :]
    return p[tuple(0 if same_extent(e, 1) else i for i, e in zip(own, p.shape, strict=True))]


def spread(parameter: te.Tensor, index: Sequence[Any]) -> Any:
    """The element of a parameter that broadcasts with the element at `index` of a larger tensor, widened."""
    return wide(element_of(parameter, index))
