"""The blocks that random networks are made of: each takes the current value of a walk and leaves its result there."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from tests.driver.random_walk import Walk

Move = Callable[[Walk], None]


def _spatial(w: Walk) -> tuple[int, ...]:
    return w.shape[2:]


def activation(w: Walk) -> None:
    kind = w.pick("Relu", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Clip", "PRelu", "HardSwish", "Silu", "Gelu")
    x = w.current
    if kind == "Clip":
        w.clip(0.0, 6.0)
    elif kind == "PRelu":
        w.node("PRelu", [x, w.const(w.rng.uniform(0, 0.5, w.pick((1,), (w.shape[1], *[1] * (len(w.shape) - 2)))))])
    elif kind == "HardSwish":
        w.node("Add", [x, w.const(3.0)])
        w.clip(0.0, 6.0)
        w.node("Mul", [x, w.node("Div", [w.current, w.const(6.0)])])
    elif kind == "Silu":
        w.node("Mul", [x, w.node("Sigmoid", [x])])
    elif kind == "Gelu":
        gelu(w)
    elif kind == "LeakyRelu":
        w.node(kind, [x], alpha=0.1)
    else:
        w.node(kind, [x])


def gelu(w: Walk) -> None:
    if w.opset < 9:
        w.node("Tanh", [w.current])
        return
    x = w.current
    w.node("Erf", [w.node("Div", [x, w.const(np.sqrt(2.0))])])
    one = w.node("Add", [w.current, w.const(1.0)])
    w.node("Mul", [w.node("Mul", [x, one]), w.const(0.5)])


def batch_norm(w: Walk) -> None:
    c = w.shape[1]
    attributes: dict[str, Any] = {"epsilon": w.pick(1e-5, 1e-3)}
    if w.opset < 9 and w.chance(0.3):
        attributes["spatial"] = 1
    if w.chance(0.5):
        attributes["momentum"] = 0.9
    parameters = [w.near(1, c), w.near(0, c), w.near(0, c), w.positive(c)]
    w.node("BatchNormalization", [w.current, *parameters], **attributes)


def norm(w: Walk) -> None:
    """Any norm; those over a slice only where a slice holds several values."""
    rank = len(w.shape)
    c, last = (w.shape[1], w.shape[-1]) if rank > 1 else (1, 1)
    kinds = ["batch"] * 3 if rank >= 2 else []
    if rank >= 3 and prod(_spatial(w)) >= 4:
        kinds += ["instance", "group"]
    if last >= 4:
        kinds += ["layer", "rms"]
    if rank == 4 and c >= 4:
        kinds += ["channels_last", "lrn"]
    kind = w.pick(*kinds) if kinds else ""
    if kind == "batch":
        batch_norm(w)
    elif kind == "instance":
        w.node("InstanceNormalization", [w.current, w.near(1, c), w.near(0, c)], epsilon=1e-3)
    elif kind == "group":
        group_norm(w)
    elif kind == "layer":
        layer_norm(w)
    elif kind == "rms":
        x = w.current
        squares = w.node("Mul", [x, x]) if w.chance(0.5) else w.node("Pow", [x, w.const(2.0)])
        w.current = squares
        mean = w.axes_node("ReduceMean", [-1], since=18, keepdims=1)
        root = w.node("Sqrt", [w.node("Add", [mean, w.const(1e-3)])])
        w.node("Mul", [w.node("Div", [x, root]), w.near(1, last)])
    elif kind == "channels_last":
        w.transpose(0, 2, 3, 1)
        layer_norm(w)
        w.transpose(0, 3, 1, 2)
    elif kind == "lrn":
        w.node("LRN", [w.current], size=3)


def group_norm(w: Walk) -> None:
    c, shape, x = w.shape[1], w.shape, w.current
    groups = w.pick(*[g for g in (1, 2, 3, 4) if c % g == 0])
    tail = [1] * (len(shape) - 2)
    if w.opset >= 21 and w.chance(0.6):  # the one of opset 18 is deprecated, and ONNX's checker refuses it
        w.raw("GroupNormalization", [x, w.near(1, c), w.near(0, c)], shape, TensorProto.FLOAT, num_groups=groups)
        return
    # torch's export: instance norm of groups
    w.reshape(0, groups, -1)
    w.node("InstanceNormalization", [w.current, w.const(np.ones(groups)), w.const(np.zeros(groups))], epsilon=1e-3)
    w.reshape(*shape)
    w.node("Mul", [w.current, w.near(1, c, *tail)])
    w.node("Add", [w.current, w.near(0, c, *tail)])


def layer_norm(w: Walk) -> None:
    n, x = w.shape[-1], w.current
    if w.opset >= 17 and w.chance(0.6):
        axis = w.pick(-1, len(w.shape) - 1)
        if len(w.shape) >= 3 and w.chance(0.3):
            axis, last = -2, w.shape[-2:]
            w.node("LayerNormalization", [x, w.near(1, *last), w.near(0, *last)], axis=axis, epsilon=1e-3)
            return
        operands = [x, w.near(1, n), *([w.near(0, n)] if w.chance(0.7) else [])]
        w.node("LayerNormalization", operands, axis=axis, epsilon=1e-3)
        return
    mean = w.axes_node("ReduceMean", [-1], since=18, keepdims=1)
    centered = w.node("Sub", [x, mean])
    w.node("Pow", [centered, w.const(2.0)])
    variance = w.axes_node("ReduceMean", [-1], since=18, keepdims=1)
    root = w.node("Sqrt", [w.node("Add", [variance, w.const(1e-3)])])
    w.node("Div", [centered, root])
    w.node("Mul", [w.current, w.near(1, n)])
    w.node("Add", [w.current, w.near(0, n)])


def norm_and_activation(w: Walk) -> None:
    if w.chance(0.7):
        norm(w)
    if w.chance(0.7):
        activation(w)
    if w.chance(0.15):
        batch_norm(w)


def conv(w: Walk) -> None:
    """A convolution with what stands around it."""
    if w.chance(0.2):
        batch_norm(w)
        if w.chance(0.5):
            w.node("Relu", [w.current])
    c, spatial = w.shape[1], _spatial(w)
    rank = len(spatial)
    per_axis = [w.pick(1, 3, 3, 5, 7) for _ in spatial] if w.chance(0.3) else [w.pick(1, 1, 3, 3, 3, 5, 7)] * rank
    dilations = [w.pick(1, 1, 1, 2, 3) for _ in spatial]
    strides = [w.pick(1, 1, 2, 3) for _ in spatial] if w.chance(0.4) else [1] * rank
    form = w.pick("depthwise", "groups", "plain", "plain", "plain")
    groups = c if form == "depthwise" else w.pick(*[g for g in (1, 2, 3, 4) if c % g == 0]) if form == "groups" else 1
    out = (
        groups * w.pick(1, 1, 2)
        if form == "depthwise"
        else groups * -(-w.pick(2, 3, 5, 7, 8, 12, 16, 19, 33) // groups)
    )
    attributes: dict[str, Any] = {"kernel_shape": per_axis, "strides": strides, "group": groups}
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, per_axis)]
    auto = w.pick("", "", "", "SAME_UPPER", "SAME_LOWER", "VALID")
    if auto == "VALID" and any(r > e for r, e in zip(reach, spatial)):
        auto = "SAME_UPPER"
    if auto:
        attributes["auto_pad"] = auto
        if auto.startswith("SAME"):
            dilations = [1] * rank
    elif w.chance(0.6):
        attributes["pads"] = [(r - 1) // 2 for r in reach] * 2
    else:
        attributes["pads"] = [w.size(0, r - 1) for r in reach * 2]
    if not auto:
        pads = attributes["pads"]
        if any(e + pads[i] + pads[rank + i] < reach[i] for i, e in enumerate(spatial)):
            attributes["pads"] = [r - 1 for r in reach] * 2
    if any(d != 1 for d in dilations) or w.chance(0.5):
        attributes["dilations"] = dilations
    operands = [w.current, w.weight(out, c // groups, *per_axis)]
    if w.chance(0.5):
        operands.append(w.near(0, out))
    w.node("Conv", operands, **attributes)
    norm_and_activation(w)


def conv_transpose(w: Walk) -> None:
    c, spatial = w.shape[1], _spatial(w)
    rank = len(spatial)
    kernel = [w.pick(1, 2, 3, 4, 5) for _ in spatial] if w.chance(0.4) else [w.pick(2, 3, 4)] * rank
    strides = [w.pick(1, 2, 2, 3) for _ in spatial]
    dilations = [w.pick(1, 1, 1, 2) for _ in spatial]
    groups = w.pick(*[g for g in (1, 1, 2, 3, c) if c % g == 0])
    out = groups * w.pick(1, 2, 3, 5, 8)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "group": groups}
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel)]
    if w.chance(0.15):
        attributes["auto_pad"] = w.pick("SAME_UPPER", "SAME_LOWER")
        attributes["dilations"] = [1] * rank
    else:
        attributes["pads"] = [w.size(0, (r - 1) // 2) for r in reach * 2]
        attributes["output_padding"] = [w.size(0, s - 1) for s in strides]
        if min((e - 1) * s + r - 2 * ((r - 1) // 2) for e, s, r in zip(spatial, strides, reach)) < 1:
            attributes["pads"] = [0] * 2 * rank
    operands = [w.current, w.weight(c, out // groups, *kernel, fan=c // groups * prod(kernel))]
    if w.chance(0.5):
        operands.append(w.near(0, out))
    w.node("ConvTranspose", operands, **attributes)
    norm_and_activation(w)


def pool(w: Walk) -> None:
    spatial = _spatial(w)
    rank = len(spatial)
    kernel = [min(w.pick(2, 2, 3, 3, 5), e) for e in spatial]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": [w.pick(1, 2, 2, 3) for _ in spatial]}
    kind = w.pick("MaxPool", "AveragePool")
    if w.chance(0.2):
        attributes["auto_pad"] = w.pick("SAME_UPPER", "SAME_LOWER", "VALID")
        attributes["strides"] = [min(s, k) for s, k in zip(attributes["strides"], kernel)]  # ORT: no negative pads
    elif w.chance(0.6):
        attributes["pads"] = [w.size(0, k // 2) for k in kernel] * 2
    if w.opset >= 10 and "auto_pad" not in attributes and w.chance(0.5):
        before = attributes.get("pads", [0] * 2 * rank)
        steps = attributes["strides"]
        # runtimes differ where the last window would begin in the padding behind
        last = [-(-(e + 2 * p - k) // s) * s for e, k, p, s in zip(spatial, kernel, before, steps)]
        attributes["ceil_mode"] = int(all(at < e + p for at, e, p in zip(last, spatial, before)))
    if kind == "AveragePool" and w.chance(0.5):
        attributes["count_include_pad"] = 1
    if kind == "AveragePool" and "auto_pad" in attributes:
        attributes.pop("count_include_pad", None)
    if kind == "MaxPool" and w.opset >= 10 and not {"auto_pad", "ceil_mode"} & set(attributes) and w.chance(0.2):
        attributes["dilations"] = [2 if 2 * k - 1 <= e else 1 for k, e in zip(kernel, spatial)]
    w.node(kind, [w.current], **attributes)
    assert len(w.shape) == rank + 2
    if w.chance(0.3):
        norm_and_activation(w)


def residual(w: Walk) -> None:
    """x + f(x), with a projection where shapes differ."""
    x, shape = w.current, w.shape
    conv(w)
    if w.shape != shape:
        w.current = x
        c = shape[1]
        w.node("Conv", [x, w.weight(c, c, *[3] * (len(shape) - 2))], pads=[1] * 2 * (len(shape) - 2))
        if w.chance(0.7):
            batch_norm(w)
    w.node(w.pick("Add", "Add", "Add", "Sub", "Mul"), w.pick([x, w.current], [w.current, x]))
    if w.chance(0.7):
        w.node("Relu", [w.current])
    if w.chance(0.3):
        batch_norm(w)


def squeeze_and_excite(w: Walk) -> None:
    """Channels weighed by what a small network says of their means."""
    x, c, rank = w.current, w.shape[1], len(w.shape) - 2
    hidden = w.size(1, 6)
    if w.chance(0.5):
        w.node("GlobalAveragePool", [x])
    else:
        w.axes_node("ReduceMean", list(range(2, rank + 2)), since=18, keepdims=1)
    if w.chance(0.5):
        w.node("Conv", [w.current, w.weight(hidden, c, *[1] * rank), w.near(0, hidden)])
        w.node("Relu", [w.current])
        w.node("Conv", [w.current, w.weight(c, hidden, *[1] * rank), w.near(0, c)])
    else:
        w.node("Flatten", [w.current], axis=1)
        w.node("Gemm", [w.current, w.weight(hidden, c), w.near(0, hidden)], transB=1)
        w.node("Relu", [w.current])
        w.node("MatMul", [w.current, w.weight(hidden, c)])
        if w.chance(0.5):
            w.node("Add", [w.current, w.near(0, c)])
        w.reshape(*w.pick((-1, c), (0, c)), *[1] * rank)
    w.node("Mul", [x, w.node("Sigmoid", [w.current])])


def branches(w: Walk) -> None:
    """Two branches put side by side; a norm over both."""
    x = w.current
    made = []
    for _ in range(w.size(1, 2)):
        w.current = x
        w.node("Conv", [x, w.weight(w.size(1, 9), w.shape[1], *[1] * (len(w.shape) - 2))])
        if w.chance(0.5):
            batch_norm(w)
        if w.chance(0.5):
            activation(w)
        made.append(w.current)
    w.node("Concat", [*made, x] if w.chance(0.6) or len(made) == 1 else made, axis=w.axis(1))
    norm_and_activation(w)


def shuffle(w: Walk) -> None:
    """ShuffleNet: channels dealt out anew."""
    n, c, *spatial = w.shape
    groups = w.pick(*[g for g in (2, 3, 4, 1) if c % g == 0])
    w.reshape(w.pick(n, 0), groups, c // groups, *spatial)
    w.transpose(0, 2, 1, *range(3, 3 + len(spatial)))
    w.reshape(n, c, *spatial)


def split_and_join(w: Walk) -> None:
    """Channels split, one part worked on, and joined again."""
    c = w.shape[1]
    if c < 2:
        return
    first = w.size(1, c - 1) if w.opset < 18 or c % 2 else c // 2
    a, b = w.split(1, [first, c - first])
    w.current = b
    if w.chance(0.7):
        w.node("Conv", [b, w.weight(c - first, c - first, *[1] * (len(w.shape) - 2))])
        norm_and_activation(w)
        if w.shape[2:] != w.shapes[a][2:]:
            return
    w.node("Concat", w.pick([a, w.current], [w.current, a]), axis=1)


def slice_or_pad(w: Walk) -> None:
    rank = len(w.shape)
    if w.chance(0.5):
        axis = w.size(1, rank - 1)
        extent = w.shape[axis]
        if extent >= 2:
            start = w.size(0, extent // 2)
            end = w.pick(extent, -1, 2**31 - 1, start + 1) if extent - start > 1 else extent
            w.slice([start], [end], [w.axis(axis)], [w.pick(1, 1, 2)])
    else:
        mode = w.pick("constant", "reflect", "edge")
        most = [min(3, e - 1) if mode == "reflect" else 3 for e in _spatial(w)]
        w.pad([0, 0, *(w.size(0, m) for m in most), 0, 0, *(w.size(0, m) for m in most)], mode)
    if w.chance(0.5):
        conv(w)


def resize(w: Walk) -> None:
    rank = len(w.shape) - 2
    if rank != 2:
        return
    scales = [1.0, 1.0, *(w.pick(2.0, 2.0, 3.0) for _ in range(2))]
    mode = w.pick("nearest", "linear")
    if w.opset < 9:
        w.node("Upsample", [w.current], scales=scales, mode="nearest")
    elif w.opset == 9:
        w.node("Upsample", [w.current, w.const(scales)], mode="nearest")
    elif w.opset == 10:
        w.node("Resize", [w.current, w.const(scales)], mode="nearest")
    else:
        how = w.pick("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel")
        attributes = {"mode": mode, "coordinate_transformation_mode": how}
        if mode == "nearest":
            attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        none = w.const([]) if w.opset < 13 else ""
        if w.chance(0.5):
            w.node("Resize", [w.current, none, w.const(scales)], **attributes)
        else:
            sizes = [*w.shape[:2], *(w.size(1, 2 * e) if mode == "linear" else 2 * e for e in _spatial(w))]
            w.node("Resize", [w.current, none, none, w.const(sizes, "int64")], **attributes)


def reduce(w: Walk) -> None:
    """A reduction over some axes, kept as extents of 1 and joined to what it was taken of."""
    x, rank = w.current, len(w.shape)
    axes = sorted({w.size(1, rank - 1) for _ in range(w.size(1, 2))})
    kind = w.pick("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare")
    since = 13 if kind == "ReduceSum" else 18
    w.axes_node(kind, [w.axis(a) for a in axes], since=since, keepdims=1)
    w.node("Tanh", [w.current])
    if w.chance(0.8):
        w.node(w.pick("Add", "Sub", "Mul"), w.pick([x, w.current], [w.current, x]))


def softmax(w: Walk) -> None:
    rank = len(w.shape)
    axis = w.size(1, rank - 1)
    kind = w.pick("Softmax", "Softmax", "LogSoftmax")
    w.node(kind, [w.current], axis=w.axis(axis))


def arithmetic(w: Walk) -> None:
    """With constants of all shapes that broadcast; scalars on either side."""
    rank = len(w.shape)
    shape = w.pick((), (1,), (w.shape[-1],), (w.shape[1], *[1] * (rank - 2)), tuple(w.pick(1, e) for e in w.shape))
    other = w.positive(*shape)
    kind = w.pick("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow")
    if kind == "Pow":
        w.node("Abs", [w.current])
        w.node("Pow", [w.node("Add", [w.current, w.const(0.5)]), w.const(w.pick(0.5, 2.0, 3.0))])
        w.node("Tanh", [w.current])
        return
    if kind in ("Max", "Min") and w.opset < 8:
        kind = "Add"
    w.node(kind, [other, w.current] if kind not in ("Div",) and w.chance(0.3) else [w.current, other])


def unary(w: Walk) -> None:
    kind = w.pick(
        "Neg", "Abs", "Exp", "Sqrt", "Softplus", "Softsign", "HardSigmoid", "Floor", "Reciprocal", "Selu", "Sin"
    )
    if kind in ("Sqrt", "Reciprocal", "Exp"):
        w.node("Sigmoid", [w.current])
    w.node(kind if kind != "Floor" else "Neg", [w.current])


def shape_chain(w: Walk) -> None:
    """x.view(x.size(0), ..) as exporters write it."""
    x, shape = w.current, w.shape
    if 0 in shape:  # -1 would say nothing
        return
    dims = w.raw("Shape", [x], (len(shape),), TensorProto.INT64)
    form = w.pick("flatten", "swap", "expand")
    index = w.const(0, "int64")
    batch = w.raw("Gather", [dims, index], (), TensorProto.INT64, axis=0)
    w.current = batch
    batch = w.unsqueeze(0)
    if form == "flatten":
        target = w.raw("Concat", [batch, w.const([-1], "int64")], (2,), TensorProto.INT64, axis=0)
        w.raw("Reshape", [x, target], (shape[0], prod(shape[1:])), TensorProto.FLOAT)
        w.raw("Reshape", [w.current, dims], shape, TensorProto.FLOAT)
    elif form == "swap":
        rest = w.const([prod(shape[2:]), shape[1]], "int64")
        target = w.raw("Concat", [batch, rest], (3,), TensorProto.INT64, axis=0)
        flat = (shape[0], prod(shape[2:]), shape[1])
        w.raw("Reshape", [x, target], flat, TensorProto.FLOAT)
        if flat[-1] >= 4:
            layer_norm(w)
        w.raw("Reshape", [w.current, dims], shape, TensorProto.FLOAT)
    elif w.opset >= 9:
        ones = w.raw("ConstantOfShape", [dims], shape, TensorProto.FLOAT, value=helper.make_tensor("v", 1, [1], [0.5]))
        w.node("Add", [x, ones])
    else:
        w.current = x


def no_op(w: Walk) -> None:
    kind = w.pick("Identity", "Dropout", "Cast", "Transpose")
    if kind == "Cast":
        w.node("Cast", [w.current], to=TensorProto.FLOAT)
    elif kind == "Transpose":
        perm = w.rng.permutation(len(w.shape))
        w.transpose(*(int(p) for p in perm))
        w.transpose(*(int(p) for p in np.argsort(perm)))
    else:
        w.node(kind, [w.current])


def shared_weight(w: Walk) -> None:
    """One weight read by two convolutions, one of them with a norm behind it."""
    c, rank = w.shape[1], len(w.shape) - 2
    weight = w.weight(c, c, *[3] * rank)
    w.node("Conv", [w.current, weight], pads=[1] * 2 * rank)
    batch_norm(w)
    w.node("Relu", [w.current])
    w.node("Conv", [w.current, weight], pads=[1] * 2 * rank)
    if w.chance(0.5):
        batch_norm(w)


def head(w: Walk) -> None:
    """To rows: pooled or flattened."""
    rank = len(w.shape) - 2
    how = w.pick("pool", "max", "mean", "flatten")
    if how == "mean":
        w.axes_node("ReduceMean", list(range(2, 2 + rank)), since=18, keepdims=0)
    else:
        if how != "flatten":
            w.node("GlobalAveragePool" if how == "pool" else "GlobalMaxPool", [w.current])
        w.node("Flatten", [w.current], axis=1)


def gemm(w: Walk) -> None:
    k, n = w.shape[1], w.pick(1, 2, 3, 7, 10, 16, 17, 33, 48)
    if w.chance(0.5):
        transposed = w.pick(0, 1)
        operands = [w.current, w.weight(n, k, fan=k) if transposed else w.weight(k, n, fan=k)]
        bias = w.pick((), (1,), (n,), (1, n), None)
        if bias is not None or w.opset < 11:
            operands.append(w.near(0, *(bias or ())))
        w.node("Gemm", operands, transB=transposed, alpha=w.pick(1.0, 0.5), beta=w.pick(1.0, 2.0))
    else:
        w.node("MatMul", [w.current, w.weight(k, n, fan=k)])
        if w.chance(0.6):
            w.node("Add", w.pick([w.current, (b := w.near(0, n))], [b, w.current]))
    if w.chance(0.4) and w.shape[1] > 1:
        batch_norm(w)
    if w.chance(0.6):
        activation(w)


def attention(w: Walk) -> None:
    """Self-attention of one or more heads on [batch, length, width]."""
    x, (n, length, width) = w.current, w.shape
    heads = w.pick(*[h for h in (1, 2, 3, 4) if width % h == 0])
    depth = width // heads
    parts = []
    for _ in range(3):
        w.node("MatMul", [x, w.weight(width, width, fan=width)])
        if w.chance(0.5):
            w.node("Add", [w.near(0, width), w.current])
        w.reshape(n, length, heads, depth)
        w.transpose(0, 2, 1, 3)
        parts.append(w.current)
    q, k, v = parts
    w.current = k
    w.transpose(0, 1, 3, 2)
    w.node("MatMul", [q, w.current])
    w.node("Div", [w.current, w.const(np.sqrt(depth))])
    if w.chance(0.3):
        w.node("Add", [w.current, w.const(np.triu(np.full((length, length), -1e4), 1))])
    w.node("Softmax", [w.current], axis=-1 if w.opset >= 13 else 3)
    w.node("MatMul", [w.current, v])
    w.transpose(0, 2, 1, 3)
    w.reshape(n, length, width)
    if w.chance(0.7):
        w.node("Add", [w.node("MatMul", [w.current, w.weight(width, width, fan=width)]), x])
    if width >= 4:
        layer_norm(w)


def feed_forward(w: Walk) -> None:
    x, width = w.current, w.shape[-1]
    hidden = w.size(1, 20)
    w.node("MatMul", [x, w.weight(width, hidden, fan=width)])
    w.node("Add", [w.current, w.near(0, hidden)])
    gelu(w) if w.chance(0.6) else activation(w)
    w.node("MatMul", [w.current, w.weight(hidden, width, fan=hidden)])
    w.node("Add", [w.current, x])
    if width >= 4:
        layer_norm(w)


def products_of_values(w: Walk) -> None:
    """x @ x^T and its like, no side constant."""
    x, rank = w.current, len(w.shape)
    w.transpose(*range(rank - 2), rank - 1, rank - 2)
    gram = w.node("MatMul", [x, w.current])
    w.node("MatMul", [w.node("Softmax", [gram], axis=-1 if w.opset >= 13 else rank - 1), x])


IMAGE: list[Move] = [
    *[conv] * 6, *[conv_transpose] * 2, *[pool] * 2, *[residual] * 2, norm, activation, squeeze_and_excite, branches,
    shuffle, split_and_join, slice_or_pad, resize, reduce, softmax, arithmetic, unary, shape_chain, no_op,
    shared_weight,
]  # fmt: skip
SEQUENCE: list[Move] = [
    *[attention] * 3, *[feed_forward] * 3, products_of_values, norm, activation, reduce, softmax, arithmetic, unary,
    shape_chain, no_op,
]  # fmt: skip
ROWS: list[Move] = [*[gemm] * 4, activation, arithmetic, softmax, no_op, reduce]
