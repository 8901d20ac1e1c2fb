"""Layers that look at windows of an image, or at all of it: pools."""

from __future__ import annotations

from typing import Any

from renorm import ops
from renorm.frontends.keras.call import Call, Made, Tensor
from renorm.frontends.keras.layers.masks import where_masked
from renorm.frontends.keras.layers.table import reads
from renorm.graph.ir import Value


def _pool(n: int, op: Any) -> Any:
    def read(c: Call, x: Tensor) -> Made:
        kernel = c.counts("pool_size", n, 2)
        strides = kernel if c.option("strides") is None else c.counts("strides", n)
        is_same = c.choice("padding", ("valid", "same"), "valid") == "same"
        auto_pad = "SAME_UPPER" if is_same else "VALID"
        return c.of_image(op(c.image(x, n), kernel_shape=kernel, strides=strides, auto_pad=auto_pad))

    return read


def _global_pool(n: int, op: Any) -> Any:
    def read(c: Call, x: Tensor) -> Made:
        if x.mask is not None and n == 1 and op is ops.global_average_pool:
            return _masked_mean(c, x, x.mask)
        image = c.image(x, n)
        y = op(image)
        return c.of_image(y) if c.option("keepdims") else c.reshaped(y, image.shape[:2])

    return read


def _masked_mean(c: Call, x: Tensor, mask: Value) -> Made:
    """The mean over the time steps that count."""
    steps = x.stored()
    if c.is_first:
        steps = ops.transpose(steps, perm=(0, 2, 1))
    keeps = bool(c.option("keepdims"))
    total = ops.reduce_sum(where_masked(c, steps, mask), axes=(1,), keepdims=keeps)
    weights = c.reshaped(ops.cast(mask, to=steps.dtype), (*mask.shape, 1))
    y = ops.div(total, ops.reduce_sum(weights, axes=(1,), keepdims=keeps))
    return ops.transpose(y, perm=(0, 2, 1)) if keeps and c.is_first else y


for _n in (1, 2, 3):
    reads(f"MaxPooling{_n}D", f"MaxPool{_n}D")(_pool(_n, ops.max_pool))
    reads(f"AveragePooling{_n}D", f"AvgPool{_n}D")(_pool(_n, ops.average_pool))
    reads(f"GlobalAveragePooling{_n}D", f"GlobalAvgPool{_n}D")(_global_pool(_n, ops.global_average_pool))
    reads(f"GlobalMaxPooling{_n}D", f"GlobalMaxPool{_n}D")(_global_pool(_n, ops.global_max_pool))
