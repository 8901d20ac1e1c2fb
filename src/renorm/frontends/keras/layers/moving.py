"""Layers that move elements: reshapes, transposes, pads, crops, repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim, size
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.keras.call import Call, Made, Tensor
from renorm.frontends.keras.layers.table import reads
from renorm.frontends.orders import First
from renorm.graph.ir import Value


def reshape(c: Call, x: Tensor, target: Sequence[Any]) -> Made:
    """Return x, whose batch stays, in another shape, in which one extent may be -1. Where one of both shapes has
    channels alone beside the batch, channels first are the same elements."""
    shape = x.value.shape
    is_vector = x.is_first and all(d == 1 for d in shape[2:])
    own: list[Dim] = [d if isinstance(d, int) else -1 for d in target]
    if own.count(-1) > 1:
        raise InvalidModel(f"the target shape {list(target)} leaves several extents open")
    if -1 in own:
        known, total = size(d for d in own if d != -1), size(shape[1:])
        rest = total // known if known != 0 else 0
        if rest * known != total:
            raise UnsupportedOp(f"{list(shape[1:])} elements do not fill the shape {list(target)}")
        own[own.index(-1)] = rest
    made = (shape[0], *own)
    value = x.value if is_vector else x.stored()
    if len(own) > 1 and all(d == 1 for d in own[:-1]) and (is_vector or len(shape) == 2):
        return First(c.reshaped(value, (shape[0], own[-1], *own[:-1])))
    return c.reshaped(value, made)


@reads("Reshape")
def _reshape(c: Call, x: Tensor) -> Made:
    target = c.option("target_shape")
    if not isinstance(target, (list, tuple)):
        raise InvalidModel(f"target_shape is {target!r}")
    return reshape(c, x, target)


@reads("Flatten")
def _flatten(c: Call, x: Tensor) -> Made:
    value = x.value
    if value.rank == 1:
        return c.reshaped(value, (*value.shape, 1))
    if c.is_first and value.rank > 2:  # Keras brings channels behind first
        last = x.stored()
        moved = ops.transpose(last, perm=(0, *range(2, last.rank), 1))
        return c.reshaped(moved, (last.shape[0], size(last.shape[1:])))
    return reshape(c, x, (-1,))


@reads("Permute")
def _permute(c: Call, x: Tensor) -> Made:
    return ops.transpose(x.stored(), perm=(0, *c.counts("dims", x.value.rank - 1)))


@reads("RepeatVector")
def _repeat_vector(c: Call, x: Tensor) -> Made:
    value = x.stored()
    rows = c.reshaped(value, (value.shape[0], 1, value.shape[1]))
    return c.expanded(rows, (value.shape[0], c.count("n"), value.shape[1]))


def _pairs(c: Call, name: str, n: int) -> list[tuple[int, int]]:
    """Return (before, after) for each of n axes, as Keras has them: one number, one for each axis, or pairs."""
    given = c.option(name)
    held = list(given) if isinstance(given, (list, tuple)) else [given] * n
    if n == 1 and len(held) == 2 and all(isinstance(h, int) for h in held):
        held = [held]
    found = [(p, p) if isinstance(p, int) else tuple(p) for p in held]
    if len(found) != n or not all(len(p) == 2 and all(isinstance(k, int) and k >= 0 for k in p) for p in found):
        raise InvalidModel(f"{name} is {given!r}, expected pairs for {n} axes")
    return [(p[0], p[1]) for p in found]


def _zero_padding(n: int) -> Any:
    def read(c: Call, x: Tensor) -> Made:
        image, pairs = c.image(x, n), _pairs(c, "padding", n)
        pads = [0, 0, *(before for before, _ in pairs), 0, 0, *(after for _, after in pairs)]
        return c.of_image(ops.pad(image, np.array(pads, np.int64)))

    return read


def _cropping(n: int) -> Any:
    def read(c: Call, x: Tensor) -> Made:
        image = c.image(x, n)
        for axis, (before, after) in enumerate(_pairs(c, "cropping", n), 2):
            if before or after:
                image = c.sliced(image, axis, before, image.shape[axis] - after)
        return c.of_image(image)

    return read


for _n in (1, 2, 3):
    reads(f"ZeroPadding{_n}D")(_zero_padding(_n))
    reads(f"Cropping{_n}D")(_cropping(_n))


@reads("CenterCrop")
def _center_crop(c: Call, x: Tensor) -> Made:
    image = c.image(x, 2)
    y: Value = c.cast(image, c.dtype)
    for axis, wanted in ((2, c.count("height")), (3, c.count("width"))):
        rest = image.shape[axis] - wanted
        if isinstance(rest, int) and rest < 0:
            raise UnsupportedOp("it is larger than the image, which Keras resizes", do="resize the image before it")
        y = c.sliced(y, axis, rest // 2, rest // 2 + wanted)
    return c.of_image(y)
