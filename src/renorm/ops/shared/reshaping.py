"""Changes of shape that importers put round an op: ONNX flattens where our ops name axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.dims import is_static
from renorm.ops.shared import builders


def flattened(x: Any, axis: int) -> Any:
    """`x` as a matrix: axes before `axis` are rows, the others columns."""
    return builders.find("flatten")(x, axis=axis)


def reshaped(x: Any, *shape: int) -> Any:
    """`x` in another shape; one extent may be -1."""
    return builders.find("reshape")(x, np.asarray(shape, np.int64))


def reshaped_like(y: Any, x: Any) -> Any:
    """`y` in the shape of `x`, which may be symbolic."""
    return reshaped(y, *x.shape) if is_static(x.shape) else builders.find("reshape")(y, builders.find("shape")(x))
