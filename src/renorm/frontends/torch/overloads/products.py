"""Overloads that multiply: matrices, convolutions, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import UnsupportedOp
from renorm.frontends.torch.call import Call, Given, of_each
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value


@reads("linear")
def _linear(c: Call, x: Value, weight: Value, bias: Given = None) -> Any:
    """x w' + b. Of a matrix that is one Gemm, of more axes a product with a constant, turned once."""
    if x.rank == 2 and weight.rank == 2:
        return ops.gemm(x, weight, *([] if bias is None else [bias]), transB=True)
    y = ops.matmul(x, ops.transpose(weight, perm=(1, 0)) if weight.rank == 2 else weight)
    return y if bias is None else ops.add(y, bias)


@reads("addmm")
def _addmm(c: Call, added: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if c.dtype not in ("float32", "float64", "float16", "bfloat16"):
        return ops.add(_times(c, added, beta), _times(c, ops.matmul(a, b), alpha))
    return ops.gemm(a, b, added, alpha=float(alpha), beta=float(beta))


@reads("baddbmm")
def _baddbmm(c: Call, added: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _plus(c, added, _times(c, ops.matmul(a, b), alpha), beta)


@reads("addbmm")
def _addbmm(c: Call, added: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = ops.reduce_sum(ops.matmul(a, b), axes=(0,), keepdims=False)
    return _plus(c, added, _times(c, product, alpha), beta)


def _plus(c: Call, added: Value, product: Value, beta: Any) -> Value:
    """Return beta * added + product; what is added counts for nothing, NaN or not, where beta is 0."""
    return product if beta == 0 else ops.add(_times(c, added, beta), product)


def _times(c: Call, x: Value, factor: Any) -> Value:
    return x if factor == 1 else ops.mul(x, c.number(factor, x.dtype))


@reads("mm", "bmm", "matmul", "mv", "dot", "vdot", "linalg_matmul")
def _matmul(c: Call, a: Value, b: Value) -> Any:
    return ops.matmul(a, b)


@reads("outer", "ger")
def _outer(c: Call, a: Value, b: Value) -> Any:
    return ops.mul(c.reshaped(a, (*a.shape, 1)), b)


@reads("einsum")
def _einsum(c: Call, equation: str, operands: Sequence[Value], *_: Any, **__: Any) -> Any:
    return ops.einsum([c.cast(x, c.dtype) for x in operands], equation=equation)


@reads("bilinear")
def _bilinear(c: Call, a: Value, b: Value, weight: Value, bias: Given = None) -> Any:
    y = ops.einsum([a, weight, b], equation="...i,oij,...j->...o")
    return y if bias is None else ops.add(y, bias)


# --- convolutions -----------------------------------------------------------------------------------------------------


@reads("conv1d", "conv2d", "conv3d", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def _conv(
    c: Call,
    x: Value,
    weight: Value,
    bias: Given = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    n = weight.rank - 2
    dilations, kernel = of_each(n, dilation), weight.shape[2:]
    if isinstance(padding, str):
        total = [d * (_known(k) - 1) if padding == "same" else 0 for d, k in zip(dilations, kernel)]
        pads = [*(t // 2 for t in total), *(t - t // 2 for t in total)]
    else:
        pads = of_each(n, padding) * 2
    y = ops.conv(
        c.batched(x, n),
        weight,
        *([] if bias is None else [bias]),
        strides=of_each(n, stride),
        pads=pads,
        dilations=dilations,
        group=groups,
    )
    return c.reshaped(y, c.shape)


def _known(k: Dim) -> int:
    if not isinstance(k, int):
        raise UnsupportedOp(f"a window of {k} elements, which is open")
    return k


@reads("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def _conv_transpose(
    c: Call,
    x: Value,
    weight: Value,
    bias: Given = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    n = weight.rank - 2
    y = ops.conv_transpose(
        c.batched(x, n),
        weight,
        *([] if bias is None else [bias]),
        strides=of_each(n, stride),
        pads=of_each(n, padding) * 2,
        output_padding=of_each(n, output_padding),
        dilations=of_each(n, dilation),
        group=groups,
    )
    return c.reshaped(y, c.shape)


@reads("convolution", "_convolution")
def _convolution(
    c: Call,
    x: Value,
    weight: Value,
    bias: Given,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Any:
    if transposed:
        return _conv_transpose(c, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _conv(c, x, weight, bias, stride, padding, dilation, groups)


# --- attention --------------------------------------------------------------------------------------------------------


@reads("scaled_dot_product_attention")
def _attention(
    c: Call,
    q: Value,
    k: Value,
    v: Value,
    attn_mask: Given = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if dropout_p:
        raise UnsupportedOp("attention with dropout draws weights", do="export the module after .eval()")
    held = q.shape[-1]
    if scale is None and not isinstance(held, int):
        raise UnsupportedOp(f"queries hold {held} elements, of which the scale is made", do="give scale=")
    factor = 1 / math.sqrt(held) if scale is None and isinstance(held, int) else scale
    mask = _causal(c, q, k) if is_causal else attn_mask
    lead = c.shape[:-2]
    own = [_led(c, t, lead, enable_gqa and t is not q) for t in (q, k, v)]
    return ops.attention(*own, *([] if mask is None else [mask]), scale=factor, empty_is_zero=True)


def _led(c: Call, x: Value, lead: Sequence[Dim], has_parts: bool) -> Value:
    """Return an operand with the axes before matrices that the result has; of heads it may have a part."""
    own = (*lead[:-1], x.shape[-3]) if has_parts else tuple(lead)
    return c.expanded(x, (*own, *x.shape[-2:]))


def _causal(c: Call, q: Value, k: Value) -> Value:
    """Return where keys stand no later than queries."""
    rows, keys = (x.shape[-2] for x in (q, k))
    if isinstance(rows, int) and isinstance(keys, int):
        return c.graph.constant(np.tril(np.ones((rows, keys), numpy_dtype("bool"))), "causal")
    return ops.less_or_equal(c.positions(keys), c.reshaped(c.positions(rows), (rows, 1)))


@reads("_scaled_dot_product_flash_attention_for_cpu")
def _flash(
    c: Call,
    q: Value,
    k: Value,
    v: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Given = None,
    scale: float | None = None,
) -> Any:
    return [_attention(c, q, k, v, attn_mask, dropout_p, is_causal, scale=scale), None]
