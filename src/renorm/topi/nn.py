"""Layers of networks, under the names that TVM's users know."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm import te
from renorm.core import dims, dtypes
from renorm.expr.nodes import Expr, call, cast, select
from renorm.te import tag
from renorm.topi import reduction
from renorm.topi.elementwise import elementwise
from renorm.topi.elementwise import relu as relu
from renorm.topi.linear import matmul
from renorm.topi.transform import pad as pad
from renorm.topi.transform import reshape


def leaky_relu(x: te.Tensor, alpha: float) -> te.Tensor:
    """x where it is positive, alpha * x elsewhere."""
    return elementwise(lambda e: select(e < 0, e * alpha, e), x)


def prelu(x: te.Tensor, slope: te.Tensor, axis: int = 1) -> te.Tensor:
    """x where it is positive, slope * x elsewhere; slope has one element per index of `axis`."""
    at = dims.normalize_axis(axis, len(x.shape))
    return te.compute(x.shape, lambda *i: select(x[i] < 0, x[i] * slope[i[at]], x[i]), name="prelu", tag=tag.BROADCAST)


def flatten(x: te.Tensor) -> te.Tensor:
    """[n, ...] -> [n, product of the rest]."""
    return reshape(x, (x.shape[0], prod(x.shape[1:])))


def dense(x: te.Tensor, weight: te.Tensor, bias: te.Tensor | None = None) -> te.Tensor:
    """x[n, k] times weight[m, k] transposed, plus bias[m]."""
    product = matmul(x, weight, transp_b=True)
    return product if bias is None else product + bias


def softmax(x: te.Tensor, axis: int = -1) -> te.Tensor:
    """e^x over its sum along `axis`; the maximum is subtracted first, so that nothing overflows."""
    shifted = _shifted(x, axis)
    exponent = elementwise(lambda e: call("exp", e), shifted, name="T_softmax_exp")
    total = reduction.sum(exponent, axis, True)
    return elementwise(lambda e, t: e / t, exponent, total, name="T_softmax_norm", dtype=x.dtype)


def log_softmax(x: te.Tensor, axis: int = -1) -> te.Tensor:
    """The logarithm of softmax."""
    shifted = _shifted(x, axis)
    total = reduction.sum(elementwise(lambda e: call("exp", e), shifted, name="T_softmax_exp"), axis, True)
    return elementwise(lambda e, t: e - call("log", t), shifted, total, name="T_log_softmax", dtype=x.dtype)


def _shifted(x: te.Tensor, axis: int) -> te.Tensor:
    wide = dtypes.compute_dtype(x.dtype)
    greatest = reduction.reduce("max", x, axis, True)
    return elementwise(lambda e, m: e - m, x, greatest, name="T_softmax_shift", dtype=wide)


def batch_norm_inference(
    x: te.Tensor,
    scale: te.Tensor,
    bias: te.Tensor,
    running_mean: te.Tensor,
    running_var: te.Tensor,
    epsilon: float = 1e-5,
    axis: int = 1,
) -> te.Tensor:
    """(x - running_mean) / sqrt(running_var + epsilon) * scale + bias, each per index of `axis`."""
    at = dims.normalize_axis(axis, len(x.shape))

    def element(*i: Expr) -> Expr:
        value, g, b, m, v = (
            cast(dtypes.compute_dtype(x.dtype), e)
            for e in (x[i], scale[i[at]], bias[i[at]], running_mean[i[at]], running_var[i[at]])
        )
        return cast(x.dtype, (value - m) / call("sqrt", v + epsilon) * g + b)

    return te.compute(x.shape, element, name="T_batch_norm", tag=tag.BROADCAST)


def conv2d_nchw(
    x: te.Tensor,
    weight: te.Tensor,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
) -> te.Tensor:
    """x[n, c, h, w] with weight[o, c, kh, kw]; padding is (h, w), or (top, left, bottom, right)."""
    (sh, sw), (dh, dw), padded = _pair(stride), _pair(dilation), _pair(padding)
    top, left, bottom, right = padded if len(padded) == 4 else (*padded, *padded)
    n, c, h, w = x.shape
    o, _, kh, kw = weight.shape
    out_h = dims.static([dims.convolution_extent(h, kh, sh, dh, top, bottom)])[0]
    out_w = dims.static([dims.convolution_extent(w, kw, sw, dw, left, right)])[0]
    source = pad(x, (0, 0, top, left), (0, 0, bottom, right), name="pad_temp") if any((top, left, bottom, right)) else x
    rc, ry, rx = (te.reduce_axis((0, extent), name=axis) for extent, axis in ((c, "rc"), (kh, "ry"), (kw, "rx")))
    return te.compute(
        (n, o, out_h, out_w),
        lambda b, f, y, z: te.sum(
            source[b, rc, y * sh + ry * dh, z * sw + rx * dw] * weight[f, rc, ry, rx], axis=[rc, ry, rx]
        ),
        name="conv2d_nchw",
        tag="conv",
    )


def _pair(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


def global_pool(x: te.Tensor, pool_type: str = "avg") -> te.Tensor:
    """The mean ("avg") or the maximum ("max") of each [h, w] plane of x[n, c, h, w], extents kept as 1."""
    return reduction.mean(x, (2, 3), True) if pool_type == "avg" else reduction.max(x, (2, 3), True)


def scale_shift_nchw(x: te.Tensor, scale: te.Tensor, shift: te.Tensor) -> te.Tensor:
    """x * scale + shift, each per channel."""
    return te.compute(
        x.shape, lambda n, c, h, w: x[n, c, h, w] * scale[c] + shift[c], name="ScaleShift", tag=tag.BROADCAST
    )
