"""Layers of networks, under the names that TVM's users know."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from renorm import te
from renorm.core import dims, dtypes, shapes
from renorm.core.absent_names import missing
from renorm.core.errors import OperandError
from renorm.expr import nodes
from renorm.expr.nodes import Expr, call, select
from renorm.te import tag
from renorm.te.arguments import checked
from renorm.topi import linear, reduction
from renorm.topi.elementwise import elementwise
from renorm.topi.elementwise import relu as relu
from renorm.topi.transform import pad as pad
from renorm.topi.transform import reshape


@checked("topi.nn.")
def leaky_relu(x: te.Tensor, alpha: float) -> te.Tensor:
    """x where it is positive, alpha * x elsewhere."""
    return elementwise(lambda e: select(e < 0, e * alpha, e), x)


@checked("topi.nn.")
def prelu(x: te.Tensor, slope: te.Tensor, axis: int = 1) -> te.Tensor:
    """x where it is positive, slope * x elsewhere; slope has one element per index of `axis`."""
    at = _per_channel("prelu", x, axis, slope=slope)
    return te.compute(x.shape, lambda *i: select(x[i] < 0, x[i] * slope[i[at]], x[i]), name="prelu", tag=tag.BROADCAST)


def _per_channel(name: str, x: te.Tensor, axis: int, **parameters: te.Tensor) -> int:
    """`axis` counted from the front; raises OperandError for parameters without one element per index of it."""
    at = shapes.normalize_axis(axis, len(x.shape))
    wrong = [f"{n} has shape {p.shape}" for n, p in parameters.items() if p.shape != (x.shape[at],)]
    if wrong:
        raise OperandError(f"topi.nn.{name}: axis {at} of {x.name} {x.shape} has {x.shape[at]} channels", wrong)
    return at


@checked("topi.nn.")
def flatten(data: te.Tensor) -> te.Tensor:
    """[n, ...] -> [n, product of the rest]."""
    _rank("flatten", data=(data, 1, 99))
    return reshape(data, (data.shape[0], prod(data.shape[1:])))


@checked("topi.nn.")
def dense(data: te.Tensor, weight: te.Tensor, bias: te.Tensor | None = None, out_dtype: str | None = None) -> te.Tensor:
    """data[n, k] times weight[m, k] transposed, plus bias[m]; in out_dtype, by default that of data + weight."""
    _rank("dense", data=(data, 2, 2), weight=(weight, 2, 2))
    dtype = out_dtype or linear.joint_dtype(data, weight)
    total = linear.product(data, weight, transp_b=True, wide=dtypes.compute_dtype(dtype)).astype(dtype)
    return total if bias is None else total + bias


@checked("topi.nn.")
def softmax(x: te.Tensor, axis: int = -1) -> te.Tensor:
    """e^x over its sum along `axis`; the maximum is subtracted first, so that nothing overflows."""
    _, exponent, total = _exponents(x, axis)
    return elementwise(lambda e, t: e / t, exponent, total, name="T_softmax_norm", dtype=x.dtype)


@checked("topi.nn.")
def log_softmax(x: te.Tensor, axis: int = -1) -> te.Tensor:
    """The logarithm of softmax."""
    shifted, _, total = _exponents(x, axis)
    return elementwise(lambda e, t: e - call("log", t), shifted, total, name="T_log_softmax", dtype=x.dtype)


def _exponents(x: te.Tensor, axis: int) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """Return x less its maximum along `axis`, e to the power of that, and its sum."""
    if not dtypes.is_float(wide := dtypes.compute_dtype(x.dtype)):
        raise OperandError(f"topi.nn: softmax of {x.name}, whose dtype is {x.dtype}", do="cast it to a float first")
    greatest = reduction.reduce("max", x, axis, True)
    shifted = elementwise(lambda e, m: e - m, x, greatest, name="T_softmax_shift", dtype=wide)
    exponent = elementwise(lambda e: call("exp", e), shifted, name="T_softmax_exp")
    return shifted, exponent, reduction.sum(exponent, axis, True)


@checked("topi.nn.")
def batch_norm_inference(
    data: te.Tensor,
    gamma: te.Tensor,
    beta: te.Tensor,
    moving_mean: te.Tensor,
    moving_var: te.Tensor,
    epsilon: float = 1e-5,
    axis: int = 1,
) -> te.Tensor:
    """(data - moving_mean) / sqrt(moving_var + epsilon) * gamma + beta, each per index of `axis`."""
    parameters = {"gamma": gamma, "beta": beta, "moving_mean": moving_mean, "moving_var": moving_var}
    at = _per_channel("batch_norm_inference", data, axis, **parameters)

    def element(*i: Expr) -> Expr:
        value, g, b, m, v = (
            nodes.cast(dtypes.compute_dtype(data.dtype), e) for e in (data[i], *(p[i[at]] for p in parameters.values()))
        )
        return nodes.cast(data.dtype, (value - m) / call("sqrt", v + epsilon) * g + b)

    return te.compute(data.shape, element, name="T_batch_norm", tag=tag.BROADCAST)


@checked("topi.nn.")
def conv2d_nchw(
    Input: te.Tensor,
    Filter: te.Tensor,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    out_dtype: str | None = None,
) -> te.Tensor:
    """Input[n, c, h, w] with Filter[o, c, kh, kw], accumulated in out_dtype, by default that of Input.

    padding: (h, w), (top, left, bottom, right), "VALID" for none, or "SAME" for as much as keeps extents at stride 1.
    """
    _rank("conv2d_nchw", Input=(Input, 4, 4), Filter=(Filter, 4, 4))
    n, c, h, w = Input.shape
    o, taken, kh, kw = Filter.shape
    if c != taken:
        raise OperandError(
            f"topi.nn.conv2d_nchw: {Input.name} {Input.shape} has {c} channels, not {taken}",
            [f"{Filter.name} {Filter.shape}"],
        )
    (sh, sw), (dh, dw) = _pair("stride", stride), _pair("dilation", dilation)
    top, left, bottom, right = _padding(padding, (kh - 1) * dh, (kw - 1) * dw)
    out_h = dims.static([shapes.convolution_extent(h, kh, sh, dh, top, bottom)])[0]
    out_w = dims.static([shapes.convolution_extent(w, kw, sw, dw, left, right)])[0]
    if out_h < 0 or out_w < 0:
        raise OperandError(
            f"topi.nn.conv2d_nchw: {Filter.name} {Filter.shape} does not fit into {Input.name} {Input.shape}"
        )
    is_padded = any((top, left, bottom, right))
    source = pad(Input, (0, 0, top, left), (0, 0, bottom, right), name="pad_temp") if is_padded else Input
    rc, ry, rx = (te.reduce_axis((0, extent), name=axis) for extent, axis in ((c, "rc"), (kh, "ry"), (kw, "rx")))
    dtype = out_dtype or Input.dtype

    def element(b: Expr, f: Expr, y: Expr, x: Expr) -> Expr:
        value = nodes.cast(dtype, source[b, rc, y * sh + ry * dh, x * sw + rx * dw])
        return te.sum(value * nodes.cast(dtype, Filter[f, rc, ry, rx]), axis=[rc, ry, rx])

    return te.compute((n, o, out_h, out_w), element, name="conv2d_nchw", tag="conv")


def _padding(padding: int | str | Sequence[int], height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, bottom, right; height, width: by how much a kernel is larger than one element."""
    if isinstance(padding, str):
        if padding not in ("SAME", "VALID"):
            raise OperandError(f"topi.nn: padding is {padding!r}", ["expected ints, SAME or VALID"])
        tall, wide = (height, width) if padding == "SAME" else (0, 0)
        return (tall + 1) // 2, (wide + 1) // 2, tall // 2, wide // 2
    given = (padding,) * 2 if isinstance(padding, int) else (*padding,)
    if len(given) not in (2, 4) or any(p < 0 for p in given):
        raise OperandError(
            f"topi.nn: padding is {list(given)}", ["expected (h, w) or (top, left, bottom, right), from 0 up"]
        )
    top, left, bottom, right = given if len(given) == 4 else given * 2
    return top, left, bottom, right


def _pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    given = (value, value) if isinstance(value, int) else tuple(value)
    if len(given) != 2 or any(v < 1 for v in given):
        raise OperandError(f"topi.nn: {name} is {list(given)}", ["expected one int or two, from 1 up"])
    return given


def _rank(name: str, **operands: tuple[te.Tensor, int, int]) -> None:
    """Raise OperandError for an operand that has not between so many and so many axes."""
    for operand, (t, least, most) in operands.items():
        if not least <= len(t.shape) <= most:
            expected = f"{least} axes" if least == most else f"{least} axes or more"
            raise OperandError(f"topi.nn.{name}: {operand} is {t.name} {t.shape}", [f"expected {expected}"])


@checked("topi.nn.")
def global_pool(data: te.Tensor, pool_type: str = "avg", layout: str = "NCHW") -> te.Tensor:
    """The mean ("avg") or the maximum ("max") of each [h, w] plane of data[n, c, h, w], extents kept as 1."""
    _rank("global_pool", data=(data, 4, 4))
    if pool_type not in ("avg", "max") or layout not in ("NCHW", "NHWC"):
        raise OperandError(
            f"topi.nn.global_pool: pool_type {pool_type!r}, layout {layout!r}", ["known: avg, max; NCHW, NHWC"]
        )
    planes = (2, 3) if layout == "NCHW" else (1, 2)
    return reduction.mean(data, planes, True) if pool_type == "avg" else reduction.max(data, planes, True)


@checked("topi.nn.")
def scale_shift_nchw(Input: te.Tensor, Scale: te.Tensor, Shift: te.Tensor) -> te.Tensor:
    """Input * Scale + Shift, each per channel."""
    _rank("scale_shift_nchw", Input=(Input, 4, 4))
    _per_channel("scale_shift_nchw", Input, 1, Scale=Scale, Shift=Shift)
    return te.compute(
        Input.shape, lambda n, c, h, w: Input[n, c, h, w] * Scale[c] + Shift[c], name="ScaleShift", tag=tag.BROADCAST
    )


def __getattr__(name: str) -> Any:
    raise missing("topi.nn", name)
