"""Layers that resize images, and the one that scales their elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.dims import Dim
from renorm.core.errors import UnsupportedOp
from renorm.frontends.keras.call import Call, Made, Tensor
from renorm.frontends.keras.layers.table import reads
from renorm.graph.ir import Value

_REPEATED: dict[str, Any] = {
    "mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor",
}  # fmt: skip
_NEAREST: dict[str, Any] = {
    "mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil",
}  # fmt: skip
_LINEAR: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
_SMOOTH: dict[str, Any] = {"antialias": True, "exclude_outside": True}


def _resized(c: Call, x: Value, sizes: Sequence[Dim], **how: Any) -> Value:
    whole = c.integers([*x.shape[:2], *sizes])  # ONNX Runtime misreads `axes` between transpositions
    return ops.resize(x, None, None, whole, **how)


def _interpolation(c: Call, default: str, nearest: dict[str, Any]) -> dict[str, Any]:
    name = str(c.option("interpolation", default)).lower()
    if name not in ("nearest", "bilinear"):
        raise UnsupportedOp(
            f"interpolation {name}, which backends of Keras compute differently", do="use bilinear or nearest"
        )
    return nearest if name == "nearest" else _LINEAR


def _up_sampling(n: int) -> Any:
    def read(c: Call, x: Tensor) -> Made:
        image = c.image(x, n)
        sizes = [d * k for d, k in zip(image.shape[2:], c.counts("size", n, 2))]
        how = _interpolation(c, "nearest", _REPEATED) if n == 2 else _REPEATED
        return c.of_image(_resized(c, image, sizes, **how))

    return read


for _n in (1, 2, 3):
    reads(f"UpSampling{_n}D")(_up_sampling(_n))


@reads("Resizing")
def _resizing(c: Call, x: Tensor) -> Made:
    image = c.image(x, 2)
    if c.option("crop_to_aspect_ratio") or c.option("pad_to_aspect_ratio"):
        raise UnsupportedOp("it keeps the aspect ratio", do="crop or pad the image before it")
    if not dtypes.is_float(image.dtype):
        raise UnsupportedOp(f"it resizes {image.dtype}", do="scale images to floating point before they are resized")
    how = _interpolation(c, "bilinear", _NEAREST)
    if c.option("antialias") and how is _LINEAR:
        how = {**how, **_SMOOTH}
    return c.of_image(_resized(c, image, [c.count("height"), c.count("width")], **how))


@reads("Rescaling", keeps_mask=True)
def _rescaling(c: Call, x: Tensor) -> Made:
    """x * scale + offset, numbers or one for each channel."""
    dtype = dtypes.numpy_dtype(c.dtype)
    scale, offset = (np.asarray(c.option(name, n), dtype) for name, n in (("scale", 1.0), ("offset", 0.0)))
    y = c.converted(x, c.dtype)
    for array, op, nothing in ((scale, ops.mul, 1), (offset, ops.add, 0)):
        if not np.all(array == nothing):
            y = c.tensor(c.joined([y, c.held(array)], op))
    return y.value if not y.is_first else c.each(y, lambda v: v)
