"""Layers that do nothing at inference, and those that mark time steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.frontends.keras.call import Call, Tensor
from renorm.frontends.keras.layers.masks import where_masked
from renorm.frontends.keras.layers.table import reads

_KEEPING = (
    "ActivityRegularization", "AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise", "Identity",
)  # fmt: skip
_LOSING = (
    "AugMix", "AutoContrast", "CutMix", "MixUp", "RandAugment", "RandomBrightness", "RandomColorDegeneration",
    "RandomColorJitter", "RandomContrast", "RandomElasticTransform", "RandomErasing", "RandomFlip",
    "RandomGaussianBlur", "RandomGrayscale", "RandomHue", "RandomInvert", "RandomPerspective", "RandomPosterization",
    "RandomRotation", "RandomSaturation", "RandomSharpness", "RandomShear", "RandomTranslation", "RandomZoom",
    "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "StochasticDepth",
)  # fmt: skip


def _same(c: Call, x: Tensor, *_: Any, **__: Any) -> Any:
    return x


def _unmarked(c: Call, x: Tensor, *_: Any, **__: Any) -> Any:
    """A copy without a mask, which these layers do not hand on."""
    return x if x.mask is None else c.tensor(x.stored())


reads(*_KEEPING)(_same)
reads(*(name for name in _LOSING if name != "AutoContrast"))(_unmarked)


@reads("Masking")
def _masking(c: Call, x: Tensor) -> Any:
    """Steps count where one of their elements is another number than `mask_value`; others become 0."""
    value = x.stored()
    number = c.graph.constant(
        np.asarray(c.number("mask_value", 0.0), dtypes.numpy_dtype(value.dtype)), f"{c.name}.number"
    )
    differs = ops.cast(ops.logical_not(ops.equal(value, number)), to="int32")
    mask = ops.greater(ops.reduce_max(differs, axes=(value.rank - 1,), keepdims=False), np.asarray(0, np.int32))
    return c.tensor(where_masked(c, value, mask), mask)
