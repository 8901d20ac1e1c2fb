"""The blocks of transformers of images, and of networks between these and convolutions, as exporters write them: each
takes the image that a walk is at, [n, c, h, w], and leaves one there."""

from __future__ import annotations

from math import prod

import numpy as np
from tests.driver.random_moves import Move, activation, conv, gelu, layer_norm, norm, pool
from tests.driver.random_walk import Walk

FEW = (1, 2, 3, 4)


def _to_rows(w: Walk) -> None:
    """[n, c, h, w] -> [n, h * w, c], in one of two ways."""
    n, c, *spatial = w.shape
    if w.chance(0.5):
        w.reshape(n, c, prod(spatial))
        w.transpose(0, 2, 1)
    else:
        w.transpose(0, 2, 3, 1)
        w.reshape(n, prod(spatial), c)


def _to_image(w: Walk, shape: tuple[int, ...]) -> None:
    """[n, h * w, c] -> [n, c, h, w], in one of two ways."""
    n, _, h, wide = shape
    c = w.shape[-1]
    if w.chance(0.5):
        w.transpose(0, 2, 1)
        w.reshape(n, c, h, wide)
    else:
        w.reshape(n, h, wide, c)
        w.transpose(0, 3, 1, 2)


def _linear(w: Walk, x: str, to: int) -> str:
    width = w.shapes[x][-1]
    w.node("MatMul", [x, w.weight(width, to, fan=width)])
    return w.node("Add", [w.current, w.near(0, to)]) if w.chance(0.6) else w.current


def _softmax(w: Walk) -> str:
    return w.node("Softmax", [w.current], axis=-1 if w.opset >= 13 else len(w.shape) - 1)


def _reduced(w: Walk, kind: str, *axes: int) -> str:
    return w.axes_node(kind, [*axes], since=13 if kind == "ReduceSum" else 18, keepdims=1)


def _cut(w: Walk, x: str, axis: int, start: int, end: int, step: int = 1) -> str:
    if w.opset < 10:
        assert step == 1
        return w.node("Slice", [x], axes=[axis], starts=[start], ends=[end])
    return w.node("Slice", [x, *(w.const([k], "int64") for k in (start, end, axis, step))])


def _rolled(w: Walk, axis: int, by: int) -> None:
    """Roll an axis, as torch.roll is exported."""
    x, extent = w.current, w.shape[axis]
    by %= extent
    if by:
        w.node("Concat", [_cut(w, x, axis, extent - by, extent), _cut(w, x, axis, 0, extent - by)], axis=axis)


def _heads(w: Walk, x: str, heads: int) -> str:
    n, length, width = w.shapes[x]
    w.current = x
    w.reshape(n, length, heads, width // heads)
    return w.transpose(0, 2, 1, 3)


def _attended(w: Walk, x: str, source: str, image: tuple[int, ...], seen: tuple[int, ...]) -> None:
    """Attend from rows `x` to those of `source`, [n, h * w, c]. image, seen: (h, w) of both."""
    n, rows, width = w.shapes[x]
    keys = w.shapes[source][1]
    heads = w.pick(*[h for h in FEW if width % h == 0])
    depth = width // heads
    if x == source and w.chance(0.4):  # one projection
        _linear(w, x, 3 * width)
        w.reshape(n, rows, 3, heads, depth)
        w.transpose(2, 0, 3, 1, 4)
        whole, parts = w.current, list[str]()
        for i in range(3):
            _cut(w, whole, 0, i, i + 1)
            parts.append(w.squeeze(0))
        q, k, v = parts
    else:
        q, k, v = (_heads(w, _linear(w, t, width), heads) for t in (x, source, source))
    if w.chance(0.2):  # turned by their positions
        q, k = (_turned(w, t) for t in (q, k))
    where = w.pick("queries", "both", "scores")
    scale = depth**-0.5
    if where == "queries":
        q = w.node("Mul", [q, w.const(scale)])
    if where == "both":
        q = w.node("Mul", [q, w.const(np.sqrt(scale))])
    w.current = k
    k = w.transpose(0, 1, 3, 2)
    if where == "both":
        k = w.node("Mul", [k, w.const(np.sqrt(scale))])
    w.node("MatMul", [q, k])
    if where == "scores":
        w.node(*w.pick(("Mul", [w.current, w.const(scale)]), ("Div", [w.current, w.const(1 / scale)])))
    if w.chance(0.1):  # talking heads
        w.transpose(0, 2, 3, 1)
        _linear(w, w.current, heads)
        w.transpose(0, 3, 1, 2)
    for _ in range(w.pick(0, 1, 1, 2)):
        _masked(w, q, (n, heads, rows, keys), image, seen)
    w.node("MatMul", [_softmax(w), v])
    w.transpose(0, 2, 1, 3)
    w.reshape(n, rows, width)
    if w.chance(0.7):
        _linear(w, w.current, width)


def _turned(w: Walk, x: str) -> str:
    """Return x * cos + [-x2, x1] * sin, halves of a vector being x1 and x2."""
    depth = w.shapes[x][-1]
    if depth % 2:
        return x
    angles = w.rng.uniform(0, 6, (w.shapes[x][-2], depth))
    first, second = _cut(w, x, 3, 0, depth // 2), _cut(w, x, 3, depth // 2, depth)
    w.node("Concat", [w.node("Neg", [second]), first], axis=3)
    turned = w.node("Mul", [w.current, w.const(np.sin(angles))])
    return w.node("Add", [w.node("Mul", [x, w.const(np.cos(angles))]), turned])


def _masked(w: Walk, q: str, shape: tuple[int, ...], image: tuple[int, ...], seen: tuple[int, ...]) -> None:
    """Add something to scores: numbers of each head, of windows, or of rows and columns between queries and keys."""
    scores, (n, heads, rows, keys) = w.current, shape
    kind = w.pick("heads", "windows", "positions", "positions", "chosen")
    if kind == "heads":
        w.node("Add", [scores, w.near(0, *w.pick((1, heads, rows, keys), (heads, rows, keys), (rows, keys), (keys,)))])
    elif kind == "windows":
        windows = w.pick(*[d for d in (1, 2, 3, 4, 6) if n % d == 0])
        w.reshape(n // windows, windows, heads, rows, keys)
        low = w.pick(-100.0, -1e9)
        hidden = (w.rng.random((windows, 1, rows, keys)) < 0.3) & (np.arange(keys) > 0)
        w.node("Add", [w.current, w.const(np.where(hidden, low, 0))])
        w.reshape(n, heads, rows, keys)
    elif kind == "chosen" and w.opset >= 9:
        taken = (w.rng.random(w.pick((rows, keys), (1, 1, 1, keys))) < 0.7) | (np.arange(keys) == 0)
        w.node("Where", [w.const(taken, "bool"), scores, w.const(w.pick(-1e9, -3.4e38))])
    else:
        depth = w.shapes[q][-1]
        lead = (n, heads) if w.chance(0.7) else (n * heads,)
        w.current = scores
        w.reshape(*lead, *image, *seen)
        apart = w.current
        for axis, extent in enumerate(seen) if w.chance(0.8) else [(0, seen[0])]:
            w.node("MatMul", [q, w.weight(depth, extent, fan=depth)])
            w.reshape(*lead, *image, *((extent, 1) if axis == 0 else (1, extent)))
            apart = w.node("Add", [apart, w.current])
        w.current = apart
        w.reshape(n, heads, rows, keys)


def spatial_attention(w: Walk) -> None:
    """Attend from all pixels to all, or to those of a smaller image."""
    shape, image = w.shape, w.current
    _to_rows(w)
    x = w.current
    if w.chance(0.4):
        layer_norm(w)
    normed = source = w.current
    seen = shape[2:]
    if min(seen) >= 2 and w.chance(0.5):
        w.current = image
        if w.chance(0.5):
            w.node("Conv", [image, w.weight(shape[1], shape[1], 2, 2)], strides=[2, 2], kernel_shape=[2, 2])
        else:
            w.node("AveragePool", [image], kernel_shape=[2, 2], strides=[2, 2])
        seen = w.shape[2:]
        _to_rows(w)
        source = w.current
    _attended(w, normed, source, shape[2:], seen)
    w.node("Add", [x, w.current])
    _to_image(w, shape)


def window_attention(w: Walk) -> None:
    """Attend in windows, that may be shifted."""
    n, c, h, wide = w.shape
    a, b = (w.pick(*[d for d in (1, 2, 3, 4, 5) if e % d == 0]) for e in (h, wide))
    w.transpose(0, 2, 3, 1)
    x, by = w.current, (w.pick(0, 0, 1, 2), w.pick(0, 1))
    for axis, shift in zip((1, 2), by):
        _rolled(w, axis, -shift)
    w.reshape(n, h // a, a, wide // b, b, c)
    w.transpose(0, 1, 3, 2, 4, 5)
    w.reshape(n * (h // a) * (wide // b), a * b, c)
    _attended(w, w.current, w.current, (a, b), (a, b))
    w.reshape(n, h // a, wide // b, a, b, c)
    w.transpose(0, 1, 3, 2, 4, 5)
    w.reshape(n, h, wide, c)
    for axis, shift in zip((1, 2), by):
        _rolled(w, axis, shift)
    w.node("Add", [x, w.current])
    if c >= 4:
        layer_norm(w)
    w.transpose(0, 3, 1, 2)


def channel_attention(w: Walk) -> None:
    """Attend from channels of a head to each other (cross-covariance), queries and keys of length 1."""
    shape = w.shape
    _to_rows(w)
    x, (n, rows, width) = w.current, w.shape
    heads = w.pick(*[h for h in FEW if width % h == 0])
    parts = list[str]()
    for _ in range(3):
        _heads(w, _linear(w, x, width), heads)
        parts.append(w.transpose(0, 1, 3, 2))
    q, k, v = parts
    unit = list[str]()
    for t in (q, k):
        w.current = t
        _reduced(w, "ReduceL2", 3)
        w.clip(1e-6, 1e9)
        unit.append(w.node("Div", [t, w.current]))
    w.current = unit[1]
    w.node("MatMul", [unit[0], w.transpose(0, 1, 3, 2)])
    w.node("Mul", [w.current, w.positive(heads, 1, 1)])
    w.node("MatMul", [_softmax(w), v])
    w.transpose(0, 3, 1, 2)
    w.reshape(n, rows, width)
    w.node("Add", [x, _linear(w, w.current, width)])
    _to_image(w, shape)


def linear_attention(w: Walk) -> None:
    """Add relu(q) @ (relu(k)' @ v) / (relu(q) @ sum of relu(k)), all of one convolution."""
    n, c, h, wide = w.shape
    heads = w.pick(*[k for k in FEW if c % k == 0])
    x, depth = w.current, c // heads
    w.node("Conv", [x, w.weight(3 * c, c, 1, 1)])
    w.reshape(n, heads, 3 * depth, h * wide)
    w.transpose(0, 1, 3, 2)
    whole = w.current
    q, k, v = (_cut(w, whole, 3, i * depth, (i + 1) * depth) for i in range(3))
    q, k = w.node("Relu", [q]), w.node("Relu", [k])
    w.current = k
    kt = w.transpose(0, 1, 3, 2)
    top = w.node("MatMul", [q, w.node("MatMul", [kt, v])])
    w.current = kt
    sums = _reduced(w, "ReduceSum", 3)
    w.node("Add", [w.node("MatMul", [q, sums]), w.const(1.0)])
    w.node("Div", [top, w.current])
    w.transpose(0, 1, 3, 2)
    w.reshape(n, c, h, wide)
    w.node("Add", [x, w.current])


def pixelwise(w: Walk) -> None:
    """Add a depthwise convolution, and layers on channels that lie last (ConvNeXt)."""
    x, (_, c, _, _) = w.current, w.shape
    k = w.pick(1, 3, 3, 5, 7)
    w.node("Conv", [x, w.weight(c, 1, k, k), w.near(0, c)], group=c, pads=[k // 2] * 4, kernel_shape=[k, k])
    w.transpose(0, 2, 3, 1)
    if c >= 4:
        layer_norm(w)
    if w.chance(0.8):
        _linear(w, w.current, w.pick(c, 2 * c, 4 * c))
        gelu(w)
        if w.chance(0.4):
            _global_response(w, (1, 2), 3)
        _linear(w, w.current, c)
    if w.chance(0.5):
        w.node("Mul", [w.current, w.near(0.5, c)])
    w.transpose(0, 3, 1, 2)
    w.node("Add", [x, w.current])


def _global_response(w: Walk, pixels: tuple[int, int], channels: int) -> None:
    """Make x + x * gamma * g / mean(g) + beta, g being the lengths of channels."""
    x = w.current
    c, rank = w.shape[channels], len(w.shape)
    g = _reduced(w, "ReduceL2", *pixels)
    _reduced(w, "ReduceMean", channels)
    w.node("Div", [g, w.node("Add", [w.current, w.const(0.1)])])
    shape = tuple(c if axis == channels else 1 for axis in range(rank))
    w.node("Mul", [w.near(0, *shape), w.node("Mul", [x, w.current])])
    w.node("Add", [w.node("Add", [w.near(0, *shape), w.current]), x])


def global_response(w: Walk) -> None:
    _global_response(w, (2, 3), 1)


def shuffled(w: Walk) -> None:
    """Make pixels of channels, or channels of pixels."""
    n, c, h, wide = w.shape
    if c % 4 == 0 and w.chance(0.5):
        w.reshape(n, c // 4, 2, 2, h, wide)
        w.transpose(0, 1, 4, 2, 5, 3)
        w.reshape(n, c // 4, 2 * h, 2 * wide)
    elif h % 2 == 0 and wide % 2 == 0:
        w.reshape(n, c, h // 2, 2, wide // 2, 2)
        w.transpose(0, 1, 3, 5, 2, 4)
        w.reshape(n, 4 * c, h // 2, wide // 2)


def merged(w: Walk) -> None:
    """Merge patches of four into one, of twice the channels (Swin)."""
    c, h, wide = w.shape[1:]
    if h % 2 or wide % 2 or w.opset < 10:
        return
    x = w.transpose(0, 2, 3, 1)
    parts = [_cut(w, _cut(w, x, 1, i, h, 2), 2, j, wide, 2) for j in (0, 1) for i in (0, 1)]
    w.node("Concat", parts, axis=3)
    layer_norm(w)
    _linear(w, w.current, w.pick(c, 2 * c))
    w.transpose(0, 3, 1, 2)


def mixed(w: Walk) -> None:
    """Mix rows."""
    shape = w.shape
    _to_rows(w)
    x, (_, rows, width) = w.current, w.shape
    if width >= 4:
        layer_norm(w)
    w.transpose(0, 2, 1)
    _linear(w, w.current, w.size(2, 12))
    gelu(w)
    _linear(w, w.current, rows)
    w.node("Add", [x, w.transpose(0, 2, 1)])
    _to_image(w, shape)


def coordinates(w: Walk) -> None:
    """Multiply by gates of rows and of columns, made together."""
    x, (_, c, h, wide) = w.current, w.shape
    rows = _reduced(w, "ReduceMean", 3)
    w.current = x
    _reduced(w, "ReduceMean", 2)
    columns = w.transpose(0, 1, 3, 2)
    w.node("Concat", [rows, columns], axis=2)
    hidden = w.size(2, 6)
    w.node("Conv", [w.current, w.weight(hidden, c, 1, 1)])
    norm(w)
    activation(w)
    both = w.current
    gates = list[str]()
    for start, end, is_turned in ((0, h, False), (h, h + wide, True)):
        _cut(w, both, 2, start, end)
        if is_turned:
            w.transpose(0, 1, 3, 2)
        gates.append(w.node("Sigmoid", [w.node("Conv", [w.current, w.weight(c, hidden, 1, 1)])]))
    w.node("Mul", [w.node("Mul", [x, gates[0]]), gates[1]])


def context(w: Walk) -> None:
    """Add to each channel, or multiply it by, what all pixels tell it, weighed by a softmax over them."""
    x, (n, c, h, wide) = w.current, w.shape
    w.node("Conv", [x, w.weight(1, c, 1, 1)])
    w.reshape(n, 1, h * wide)
    _softmax(w)
    weights = w.unsqueeze(3)
    w.current = x
    w.reshape(n, 1, c, h * wide)
    w.node("MatMul", [w.current, weights])
    w.reshape(n, c, 1, 1)
    w.node("Conv", [w.current, w.weight(c, c, 1, 1)])
    w.node(w.pick("Add", "Mul"), [x, w.current])


def shifted(w: Walk) -> None:
    for axis in (2, 3):
        _rolled(w, axis, w.pick(0, 1, -1, 2))


def modulated(w: Walk) -> None:
    """Add queries times a sum of contexts, each with its gate, of one projection (focal modulation)."""
    x, (_, c, _, _) = w.current, w.shape
    w.node("Conv", [x, w.weight(2 * c + 2, c, 1, 1)])
    whole = w.current
    q, held, gates = (_cut(w, whole, 1, a, b) for a, b in ((0, c), (c, 2 * c), (2 * c, 2 * c + 2)))
    total = ""
    for level in range(2):
        w.node("Conv", [held, w.weight(c, 1, 3, 3)], group=c, pads=[1] * 4)
        gelu(w)
        held = w.current
        w.node("Mul", [held, _cut(w, gates, 1, level, level + 1)])
        total = w.node("Add", [total, w.current]) if total else w.current
    w.node("Conv", [total, w.weight(c, c, 1, 1)])
    w.node("Add", [x, w.node("Mul", [q, w.current])])


VISION: list[Move] = [
    *[spatial_attention] * 4, *[window_attention] * 3, channel_attention, linear_attention, *[pixelwise] * 3,
    global_response, shuffled, merged, mixed, coordinates, context, shifted, modulated, conv, pool, norm, activation,
]  # fmt: skip
