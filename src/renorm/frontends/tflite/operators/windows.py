"""Operators with a window: convolutions, pooling, resizing. All of them want channels first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.conversion import limits
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.core.shapes import same_padding
from renorm.frontends.orders import First, to_stored
from renorm.frontends.tflite.call import OperatorCall
from renorm.frontends.tflite.emission import Emission
from renorm.frontends.tflite.operator import Operator
from renorm.frontends.tflite.tensors import Array
from renorm.graph.ir import Value
from renorm.ops.shared.window import Windowed

_AWAY = np.float32(1 + 2e-6)  # by which halves, as means of integers are, round away from zero, as kernels have it


def _auto_pad(call: OperatorCall) -> str:
    """SAME has the more elements after where their number is odd."""
    return "SAME_UPPER" if call.option("padding", 0) == padding_number(call, "SAME") else "VALID"


def padding_number(call: OperatorCall, name: str) -> int:
    if call.options is None:
        raise InvalidModel("it has no options")
    return call.options.schema.enums["Padding"][name]


def per_axis(call: OperatorCall, form: str, axes: Iterable[str] = "hw") -> tuple[int, ...]:
    found = tuple(int(call.option(form.format(a), 1)) for a in axes)
    if min(found) < 1:
        raise InvalidModel(f"{form.format('*')} {list(found)} must be at least 1")
    return found


def turned_weight(call: OperatorCall, index: int, perm: tuple[int, ...]) -> Value:
    """Return a weight with its axes in the order of the graph's ops; transposed now where it is constant."""
    held = call.stored(index)
    if held.rank != len(perm):
        raise InvalidModel(f"weight {held.name!r} has {held.rank} axes, expected {len(perm)}")
    return call.weight(index, perm)


def _conv(call: OperatorCall, x: Value, w: Value, group: int, axes: str = "hw") -> First:
    window = {
        "strides": per_axis(call, "stride_{}", axes),
        "dilations": per_axis(call, "dilation_{}_factor", axes),
        "auto_pad": _auto_pad(call),
    }
    return First(of_16_bits(call, ops.conv(x, w, call.bias(2), group=group, **window), 0, 1))


def of_16_bits(call: OperatorCall, y: Value, x: int, w: int) -> Value:
    """Return a convolution of operands x and w, of 16 bits as LiteRT scales it: by fractions of 15 bits."""
    (first, second), out = (call.tensor(i).scale for i in (x, w)), call.outputs[0]
    if out.dtype != "int16" or out.scale is None or first is None or second is None:
        return y
    fraction = np.frexp(first.scale.astype(np.float64) * second.scale / out.scale.scale)[0]
    near = np.minimum(np.floor(fraction * 32768 + 0.5), 32767) / (fraction * 32768)
    return ops.mul(y, near.astype(np.float32).reshape(-1, *[1] * (y.rank - 2)))


def conv_2d(call: OperatorCall) -> First:
    x, w = call.first(0), turned_weight(call, 1, (0, 3, 1, 2))
    channels, per_group = x.shape[1], w.shape[1]
    if not isinstance(channels, int) or not isinstance(per_group, int) or not per_group or channels % per_group:
        raise InvalidModel(f"{channels} channels of {x.name!r} are no multiple of the weight's {per_group}")
    return _conv(call, x, w, channels // per_group)


def depthwise_conv_2d(call: OperatorCall) -> First:
    """The weight is [1, H, W, C * multiplier]; results of one channel stand side by side."""
    x, w = call.first(0), turned_weight(call, 1, (3, 0, 1, 2))
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise InvalidModel(f"the number of channels of {x.name!r} is not known")
    return _conv(call, x, w, channels)


def conv_3d(call: OperatorCall) -> First:
    return _conv(call, call.first(0), turned_weight(call, 1, (4, 3, 0, 1, 2)), 1, "dhw")


def _pool(call: OperatorCall) -> First:
    window = {
        "kernel_shape": per_axis(call, "filter_{}", ("height", "width")),
        "strides": per_axis(call, "stride_{}"),
        "auto_pad": _auto_pad(call),
    }
    if call.kind == "L2_POOL_2D":
        x = call.first(0)
        return First(ops.sqrt(ops.average_pool(ops.mul(x, x), **window)))
    if call.kind == "AVERAGE_POOL_2D" and call.zero is not None:
        mean = ops.average_pool(ops.cast(call.first(0), to="float32"), **window)
        return First(ops.cast(ops.round(ops.mul(mean, _AWAY)), to=str(call.zero.dtype)))
    return First(call.op(call.first(0), **window))


def _resize(call: OperatorCall) -> First:
    x, sizes = call.first(0), call.integers(1, "its new size")
    mode = "linear" if call.kind == "RESIZE_BILINEAR" else "nearest"
    if call.option("align_corners", False):
        rule, nearest = "align_corners", "round_prefer_ceil"
    elif call.option("half_pixel_centers", False):
        rule, nearest = ("half_pixel", "") if mode == "linear" else ("tf_half_pixel_for_nn", "floor")
    else:
        rule, nearest = "asymmetric", "floor"
    more: dict[str, Any] = {"nearest_mode": nearest} if mode == "nearest" else {}
    whole = call.shape_of((*x.shape[:2], *sizes))  # ONNX Runtime misreads `axes` between transpositions
    return First(ops.resize(x, sizes=whole, mode=mode, coordinate_transformation_mode=rule, **more))


def _blocks(call: OperatorCall) -> First:
    return First(call.op(call.first(0), blocksize=int(call.option("block_size", 0))))


# --- written ----------------------------------------------------------------------------------------------------------


def step(values: tuple[int, ...], form: str) -> dict[str, int]:
    return {form.format(a): v for a, v in zip("hw", values)}


@dataclass(frozen=True)
class _Window:
    """A window as the formats can say it. x: the tensor that it runs over, padded already where SAME and VALID do not
    say how."""

    x: int
    padding: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]


def _window(e: Emission, kernel: Sequence[int], pad_value: float | None = 0.0) -> _Window:
    """pad_value: of what is padded explicitly; None where the op has no such value."""
    x, op = e.operand(0), e.node.op
    assert isinstance(op, Windowed)
    if x.rank != 4:
        raise UnsupportedOp(f"{op.name} over {x.rank - 2} spatial axes is not written, only over 2")
    if op.values.get("ceil_mode"):
        raise UnsupportedOp("ceil_mode is not one the formats have")
    enum = e.subgraph.schema.enums["Padding"]
    strides, dilations = op.along("strides", 2), op.along("dilations", 2)
    at = e.subgraph.last(x)
    if op.auto_pad == "SAME_UPPER":
        return _Window(at, enum["SAME"], strides, dilations)
    if op.auto_pad == "SAME_LOWER":
        raise UnsupportedOp("auto_pad = SAME_LOWER is not one the formats have", do="write the pads")
    pads = op.explicit_pads(2)
    if not any(before or after for before, after in pads):
        return _Window(at, enum["VALID"], strides, dilations)
    extents = x.shape[2:]
    if all(isinstance(d, int) for d in extents):
        same = [
            same_padding(int(str(d)), k, s, f, lower=False) for d, k, s, f in zip(extents, kernel, strides, dilations)
        ]
        if same == pads:
            return _Window(at, enum["SAME"], strides, dilations)
    if pad_value is None:
        raise UnsupportedOp(f"pads {list(op.values['pads'])} are neither SAME nor VALID")
    return _Window(padded(e, at, x, pads, pad_value), enum["VALID"], strides, dilations)


def padded(e: Emission, at: int, x: Value, pads: Sequence[tuple[int, int]], value: float) -> int:
    """Return a tensor of x, channels last, with elements around its spatial axes."""
    form = e.subgraph
    extents = [d + before + after if isinstance(d, int) else d for d, (before, after) in zip(x.shape[2:], pads)]
    made = form.tensor(x.dtype, (x.shape[0], *extents, x.shape[1]), f"{e.node.name}.padded", of=x)
    rows = form.constant(np.asarray([(0, 0), *pads, (0, 0)], np.int32), "pads")
    if value == 0:
        form.operator("PAD", [at, rows], [made])
    else:
        form.operator("PADV2", [at, rows, form.constant(np.asarray([value], x.dtype), of=x)], [made])
    return made


def _conv_written(e: Emission) -> None:
    x, w = e.operand(0), e.operand(1)
    kernel = [int(str(d)) for d in w.shape[2:]]
    window = _window(e, kernel)
    group, channels, count = e.attribute("group"), x.shape[1], int(str(w.shape[0]))
    bias = e.bias(2, count)
    fields: dict[str, Any] = {
        "padding": window.padding,
        **step(window.strides, "stride_{}"),
        **step(window.dilations, "dilation_{}_factor"),
    }
    if group == channels and group > 1:
        weight = e.weight(1, (1, 2, 3, 0))
        version = 2 if any(d > 1 for d in window.dilations) else 1
        fields["depth_multiplier"] = count // group
        e.operator([window.x, weight, bias], True, kind="DEPTHWISE_CONV_2D", version=version, **fields)
        return
    weight = e.weight(1, to_stored(4)) if e.counts else e.subgraph.last(w)
    e.operator([window.x, weight, bias], True, version=1 if group == 1 else 6, **fields)


def _pool_written(e: Emission) -> None:
    kernel, is_average = e.attribute("kernel_shape"), e.node.op.name == "average_pool"
    counts = is_average and e.attribute("count_include_pad")
    dtype = e.result.dtype
    smallest = float(np.finfo(np.float32).min) if dtypes.is_float(dtype) else float(limits(dtype)[0])
    least = None if is_average else smallest
    window = _window(e, kernel, 0.0 if counts else least)
    is_same = window.padding == e.number("Padding", "SAME")
    if any(d != 1 for d in window.dilations) or (counts and is_same):
        raise UnsupportedOp("the formats have no such pooling: its window is dilated, or counts what is padded")
    fields: dict[str, Any] = {"padding": window.padding, **step(window.strides, "stride_{}")}
    e.operator([window.x], True, filter_height=kernel[0], filter_width=kernel[1], **fields)


def _rounded(extents: Sequence[Any], sizes: Sequence[Any], scales: Array) -> bool:
    """Return whether new extents are not exactly old ones times scales."""
    return any(not isinstance(d, int) or d * float(s) != n for d, n, s in zip(extents, sizes, scales))


def _resize_written(e: Emission) -> None:
    x, mode, rule = e.operand(0), e.attribute("mode"), e.attribute("coordinate_transformation_mode")
    sizes = e.result.shape[2:]
    if x.rank != 4 or x.shape[:2] != e.result.shape[:2] or not all(isinstance(d, int) for d in sizes):
        raise UnsupportedOp("only the two spatial axes are resized, to extents that are known")
    scales = e.optional(2)
    if scales is not None and (scales.data is None or _rounded(x.shape[-2:], sizes, scales.data[-2:])):
        raise UnsupportedOp("the formats resize by the ratio of extents, not by a scale beside them")
    nearest = e.attribute("nearest_mode") if mode == "nearest" else ""
    corners, centers = {"align_corners": True}, {"half_pixel_centers": True}
    rules = {
        ("align_corners", "round_prefer_ceil"): corners,
        ("tf_half_pixel_for_nn", "floor"): centers,
        ("asymmetric", "floor"): {},
        ("align_corners", ""): corners,
        ("half_pixel", ""): centers,
        ("asymmetric", ""): {},
    }
    fields = rules.get((rule, nearest))
    if fields is None or mode == "cubic" or e.attribute("antialias"):
        raise UnsupportedOp(f"resizing by {mode}, {rule} {nearest} is not one the formats have")
    kind = "RESIZE_BILINEAR" if mode == "linear" else "RESIZE_NEAREST_NEIGHBOR"
    inputs = [e.subgraph.last(x), e.subgraph.integers([int(str(d)) for d in sizes], "size")]
    e.operator(inputs, True, kind=kind, version=3 if fields else 1, **fields)


def _blocks_written(e: Emission) -> None:
    if e.node.op.values.get("mode", "DCR") != "DCR":
        raise UnsupportedOp("mode CRD is not one the formats have")
    e.operator([e.subgraph.last(e.operand(0))], True, block_size=e.attribute("blocksize"))


# --- both -------------------------------------------------------------------------------------------------------------

OPERATORS = [
    Operator("AVERAGE_POOL_2D", "average_pool", _pool, _pool_written, picks=[0], fuses=True),
    Operator("CONV_2D", "conv", conv_2d, _conv_written, fuses=True),
    Operator("CONV_3D", read=conv_3d),
    Operator("DEPTH_TO_SPACE", "depth_to_space", _blocks, _blocks_written, picks=[0]),
    Operator("DEPTHWISE_CONV_2D", read=depthwise_conv_2d),
    Operator("L2_POOL_2D", read=_pool),
    Operator("MAX_POOL_2D", "max_pool", _pool, _pool_written, picks=[0], fuses=True),
    Operator("RESIZE_BILINEAR", read=_resize),
    Operator("RESIZE_NEAREST_NEIGHBOR", "resize", _resize, _resize_written, picks=[0]),
    Operator("SPACE_TO_DEPTH", "space_to_depth", _blocks, _blocks_written, picks=[0]),
]
