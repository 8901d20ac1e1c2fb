"""Operators with a window: convolutions, transposed ones, pooling, resizing. All of them want channels first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.errors import InvalidModel
from renorm.frontends.tflite.call import Call, Reader
from renorm.frontends.tflite.tensors import First
from renorm.graph.ir import Value


def _auto_pad(call: Call) -> str:
    """SAME has the more elements behind where their number is odd."""
    return "SAME_UPPER" if call.option("padding", 0) == _padding(call, "SAME") else "VALID"


def _padding(call: Call, name: str) -> int:
    assert call.options is not None
    return call.options.schema.enums["Padding"][name]


def _per_axis(call: Call, form: str, axes: Iterable[str] = "hw") -> tuple[int, ...]:
    found = tuple(int(call.option(form.format(a), 1)) for a in axes)
    if min(found) < 1:
        raise InvalidModel(f"{form.format('*')} {list(found)} must be at least 1")
    return found


def _weight(call: Call, index: int, perm: tuple[int, ...]) -> Value:
    """A weight with its axes in the order of the graph's ops; transposed now where it is constant."""
    held = call.stored(index)
    if held.rank != len(perm):
        raise InvalidModel(f"weight {held.name!r} has {held.rank} axes, expected {len(perm)}")
    if held.data is None:
        return ops.transpose(held, perm=perm)
    return call.graph.constant(np.ascontiguousarray(held.data.transpose(perm)), held.name, held.source)


def _conv(call: Call, x: Value, w: Value, group: int, axes: str = "hw") -> First:
    window = {
        "strides": _per_axis(call, "stride_{}", axes),
        "dilations": _per_axis(call, "dilation_{}_factor", axes),
        "auto_pad": _auto_pad(call),
    }
    return First(ops.conv(x, w, call.bias(2), group=group, **window))


def conv_2d(call: Call) -> First:
    x, w = call.first(0), _weight(call, 1, (0, 3, 1, 2))
    channels, per_group = x.shape[1], w.shape[1]
    if not isinstance(channels, int) or not isinstance(per_group, int) or not per_group or channels % per_group:
        raise InvalidModel(f"{channels} channels of {x.name!r} are no multiple of the weight's {per_group}")
    return _conv(call, x, w, channels // per_group)


def depthwise_conv_2d(call: Call) -> First:
    """The weight is [1, H, W, C * multiplier]; results of one channel stand side by side."""
    x, w = call.first(0), _weight(call, 1, (3, 0, 1, 2))
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise InvalidModel(f"the number of channels of {x.name!r} is not known")
    return _conv(call, x, w, channels)


def conv_3d(call: Call) -> First:
    return _conv(call, call.first(0), _weight(call, 1, (4, 3, 0, 1, 2)), 1, "dhw")


def transpose_conv(call: Call) -> First:
    """Inputs: the result's shape, the weight [O, H, W, I], x, and a bias from version 3 on."""
    shape = call.integers(0, "the shape of its result")
    x, w = call.first(2), _weight(call, 1, (3, 0, 1, 2))
    strides = _per_axis(call, "stride_{}")
    extents, kernel = [int(str(d)) for d in x.shape[2:]], [int(str(d)) for d in w.shape[2:]]
    if len(shape) != 4:
        raise InvalidModel(f"the shape of its result has {len(shape)} elements, expected 4")
    before, behind, rest = list[int](), list[int](), list[int]()
    for out, extent, k, stride in zip(shape[1:3], extents, kernel, strides):
        full = (extent - 1) * stride + k
        is_same = call.option("padding", 0) == _padding(call, "SAME")
        cut = max(full - out, 0) if is_same else 0
        before.append(cut // 2)
        behind.append(cut - cut // 2)
        rest.append(out - (full - cut))
    if min(rest) < 0:
        raise InvalidModel(f"the shape of its result, {shape}, cuts what VALID leaves whole")
    y = ops.conv_transpose(
        x, w, call.bias(3), strides=strides, pads=(*before, *behind), output_padding=tuple(rest),
    )  # fmt: skip
    return First(y)


def _pool(apply: Callable[..., Value]) -> Reader:
    def read(call: Call) -> First:
        window = {
            "kernel_shape": _per_axis(call, "filter_{}", ("height", "width")),
            "strides": _per_axis(call, "stride_{}"),
            "auto_pad": _auto_pad(call),
        }
        return First(apply(call.first(0), **window))

    return read


def _resize(mode: str) -> Reader:
    def read(call: Call) -> First:
        x, sizes = call.first(0), call.integers(1, "its new size")
        if call.option("align_corners", False):
            rule, nearest = "align_corners", "round_prefer_ceil"
        elif call.option("half_pixel_centers", False):
            rule, nearest = ("half_pixel", "") if mode == "linear" else ("tf_half_pixel_for_nn", "floor")
        else:
            rule, nearest = "asymmetric", "floor"
        more: dict[str, Any] = {"nearest_mode": nearest} if mode == "nearest" else {}
        whole = np.asarray(sizes, np.int64)
        return First(ops.resize(x, sizes=whole, axes=(2, 3), mode=mode, coordinate_transformation_mode=rule, **more))

    return read


def _blocks(apply: Callable[..., Value]) -> Reader:
    return lambda call: First(apply(call.first(0), blocksize=int(call.option("block_size", 0))))


OPERATORS: dict[str, Reader] = {
    "AVERAGE_POOL_2D": _pool(lambda x, **window: ops.average_pool(x, **window)),
    "CONV_2D": conv_2d,
    "CONV_3D": conv_3d,
    "DEPTH_TO_SPACE": _blocks(lambda x, **size: ops.depth_to_space(x, **size)),
    "DEPTHWISE_CONV_2D": depthwise_conv_2d,
    "L2_POOL_2D": _pool(lambda x, **window: ops.sqrt(ops.average_pool(ops.mul(x, x), **window))),
    "MAX_POOL_2D": _pool(lambda x, **window: ops.max_pool(x, **window)),
    "RESIZE_BILINEAR": _resize("linear"),
    "RESIZE_NEAREST_NEIGHBOR": _resize("nearest"),
    "SPACE_TO_DEPTH": _blocks(lambda x, **size: ops.space_to_depth(x, **size)),
    "TRANSPOSE_CONV": transpose_conv,
}
