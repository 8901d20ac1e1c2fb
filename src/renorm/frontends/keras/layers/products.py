"""Layers that multiply with weights: convolutions, dense ones, embeddings."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.keras.call import Call, Made, Tensor
from renorm.frontends.keras.layers.activating import activated
from renorm.frontends.keras.layers.table import reads
from renorm.frontends.keras.weights import Array
from renorm.frontends.orders import First
from renorm.graph.ir import Value


def variables(c: Call, *names: str) -> dict[str, Array]:
    """Return kernels, and the bias where the layer has one."""
    return c.own(*names, *(["bias"] if c.option("use_bias", True) else []))


def bias(c: Call, held: dict[str, Array]) -> list[Value]:
    return [c.constant(held["bias"].reshape(-1), "bias")] if "bias" in held else []


# --- convolutions -----------------------------------------------------------------------------------------------------


def _padding(c: Call, n: int, kernel: tuple[int, ...], dilations: tuple[int, ...]) -> dict[str, Any]:
    padding = c.choice("padding", ("valid", "same", "causal"), "valid")
    if padding == "causal" and n == 1:
        return {"pads": ((kernel[0] - 1) * dilations[0], 0)}
    return {"auto_pad": "SAME_UPPER" if padding == "same" else "VALID"}


def _outwards(n: int) -> tuple[int, ...]:
    """Return the order of axes in which a kernel [*K, I, O] is [O, I, *K]."""
    return (n + 1, n, *range(n))


def _window(c: Call, n: int, kernel: tuple[int, ...]) -> dict[str, Any]:
    dilations = c.counts("dilation_rate", n)
    return {"strides": c.counts("strides", n), "dilations": dilations, **_padding(c, n, kernel, dilations)}


def _conv(n: int) -> Any:
    def read(c: Call, x: Tensor) -> Made:
        held, image, group = variables(c, "kernel"), c.image(x, n), c.count("groups", 1)
        kernel = held["kernel"]
        w = c.weight(kernel, "kernel", _outwards(n))
        y = ops.conv(image, w, *bias(c, held), group=group, **_window(c, n, kernel.shape[:n]))
        return activated(c, c.of_image(y))

    return read


def _depthwise(c: Call, n: int, kernel: Array, name: str) -> tuple[Value, int]:
    """Return [*K, C, M], the M results of each of C channels side by side, as the weight of C groups."""
    if kernel.ndim != n + 2:
        raise InvalidModel(f"{name} has shape {list(kernel.shape)}, expected {n + 2} axes")
    *window, channels, many = kernel.shape
    perm = (n, n + 1, *range(n))
    return c.weight(kernel, name, perm, (channels * many, 1, *window)), channels


def _depthwise_conv(n: int) -> Any:
    def read(c: Call, x: Tensor) -> Made:
        held = variables(c, "kernel")
        kernel = held["kernel"]
        w, channels = _depthwise(c, n, kernel, "kernel")
        y = ops.conv(c.image(x, n), w, *bias(c, held), group=channels, **_window(c, n, kernel.shape[:n]))
        return activated(c, c.of_image(y))

    return read


def _separable_conv(n: int) -> Any:
    def read(c: Call, x: Tensor) -> Made:
        held = variables(c, "depthwise_kernel", "pointwise_kernel")
        deep = held["depthwise_kernel"]
        w, channels = _depthwise(c, n, deep, "depthwise_kernel")
        y = ops.conv(c.image(x, n), w, group=channels, **_window(c, n, deep.shape[:n]))
        y = ops.conv(y, c.weight(held["pointwise_kernel"], "pointwise_kernel", _outwards(n)), *bias(c, held))
        return activated(c, c.of_image(y))

    return read


def cut(kernel: int, stride: int, dilation: int, is_same: bool, extra: int | None) -> tuple[int, int]:
    """Return how many elements of a transposed convolution's whole result are cut off before and after; less than 0
    where zeros are added. extra: output_padding."""
    reach = (kernel - 1) * dilation + 1
    if not is_same:
        return 0, -(max(reach, stride) - reach if extra is None else extra)
    total = stride + reach - 2 if extra is None else reach + reach % 2 - 2 + extra
    left = min(total // 2 + total % 2, reach - 1)
    return reach - 1 - left, reach - 1 - (total - left)


def _conv_transpose(n: int) -> Any:
    def read(c: Call, x: Tensor) -> Made:
        held = variables(c, "kernel")
        kernel = held["kernel"]
        w = c.weight(kernel, "kernel", _outwards(n))
        strides, dilations = c.counts("strides", n), c.counts("dilation_rate", n)
        extra = [None] * n if c.option("output_padding") is None else [*c.counts("output_padding", n)]
        is_same = c.choice("padding", ("valid", "same"), "valid") == "same"
        cuts = [cut(k, s, d, is_same, e) for k, s, d, e in zip(kernel.shape, strides, dilations, extra)]
        pads = (*(before for before, _ in cuts), *(max(after, 0) for _, after in cuts))
        rest = [max(-after, 0) for _, after in cuts]
        y = ops.conv_transpose(
            c.image(x, n), w, *bias(c, held), strides=strides, dilations=dilations, pads=pads, output_padding=rest
        )
        return activated(c, c.of_image(y))

    return read


for _n in (1, 2, 3):
    reads(f"Conv{_n}D", f"Convolution{_n}D")(_conv(_n))
    reads(f"Conv{_n}DTranspose", f"Convolution{_n}DTranspose")(_conv_transpose(_n))
    reads(f"DepthwiseConv{_n}D")(_depthwise_conv(_n))
    reads(f"SeparableConv{_n}D", f"SeparableConvolution{_n}D")(_separable_conv(_n))


# --- dense ------------------------------------------------------------------------------------------------------------


@reads("Dense", keeps_mask=True)
def _dense(c: Call, x: Tensor) -> Made:
    """x w + b along the last axis: of a matrix one Gemm, of an image with channels first a convolution."""
    held = variables(c, "kernel")
    kernel = held["kernel"]
    if kernel.ndim != 2:
        raise InvalidModel(f"kernel has shape {list(kernel.shape)}, expected 2 axes")
    rank = x.value.rank
    if x.is_first and rank > 3:
        w = c.weight(kernel, "kernel", (1, 0), (*kernel.shape[::-1], *[1] * (rank - 2)))
        return activated(c, First(ops.conv(x.first(), w, *bias(c, held))))
    w = c.constant(kernel, "kernel")
    if rank == 2:
        return activated(c, ops.gemm(x.stored(), w, *bias(c, held)))
    return activated(c, _added(ops.matmul(x.stored(), w), bias(c, held)))


def _added(y: Value, biases: list[Value]) -> Value:
    return ops.add(y, biases[0]) if biases else y


@reads("EinsumDense")
def _einsum_dense(c: Call, x: Tensor) -> Made:
    equation, axes = str(c.option("equation", "")).replace(" ", ""), c.option("bias_axes")
    held = c.own("kernel", *(["bias"] if axes else []))
    kernel, value = held["kernel"], x.stored()
    return activated(c, einsum_dense(c, equation, value, kernel, held.get("bias")))


def einsum_dense(c: Call, equation: str, x: Value, kernel: Array, added: Array | None) -> Value:
    """Return an einsum of x and a kernel, as one product with a matrix where the axes that are summed are the last of
    x, and those that come of the kernel the last of the result."""
    found = re.fullmatch(r"(\.\.\.|)(\w+),(\w+)->(\.\.\.|)(\w+)", equation)
    if found is None or found[1] != found[4]:
        raise UnsupportedOp(f"the equation {equation!r}")
    own, of_kernel, result = found[2], found[3], found[5]
    summed = [a for a in of_kernel if a not in result]
    free = [a for a in of_kernel if a in result]
    lead = own[: len(own) - len(summed)]
    if len(of_kernel) != kernel.ndim:
        raise InvalidModel(f"kernel has shape {list(kernel.shape)}, which the equation {equation!r} does not fit")
    sizes = dict(zip(of_kernel, kernel.shape))
    last = own[len(lead) :]
    if sorted(last) == sorted(summed) and result.startswith(lead) and sorted(result[len(lead) :]) == sorted(free):
        order = [*last, *result[len(lead) :]]
        w = kernel.transpose([of_kernel.index(a) for a in order])
        rows = int(np.prod([sizes[a] for a in last]))
        before = x.shape[: x.rank - len(last)]
        flat = c.reshaped(x, (*before, rows))
        y = ops.matmul(flat, c.constant(np.ascontiguousarray(w.reshape(rows, -1)), "kernel"))
        if added is not None:
            spread = np.broadcast_to(added, tuple(sizes[a] for a in result[len(lead) :]))
            y = ops.add(y, c.constant(np.ascontiguousarray(spread.reshape(-1)), "bias"))
        return c.reshaped(y, (*before, *(sizes[a] for a in result[len(lead) :])))
    y = ops.einsum([x, c.constant(kernel, "kernel")], equation=equation)
    return y if added is None else ops.add(y, c.constant(added, "bias"))


# --- rows of a table --------------------------------------------------------------------------------------------------


@reads("Embedding")
def _embedding(c: Call, x: Tensor) -> Any:
    indices = x.stored()
    whole = indices if indices.dtype in ("int32", "int64") else ops.cast(indices, to="int32")
    y = c.tensor(ops.gather(c.constant(c.own("embeddings")["embeddings"], "embeddings"), whole, axis=0))
    if c.option("mask_zero"):
        zero = c.scalar(0, indices.dtype)
        y.mask = ops.logical_not(ops.equal(indices, zero))
    return y
