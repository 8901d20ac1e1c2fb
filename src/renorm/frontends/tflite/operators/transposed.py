"""Transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.orders import First
from renorm.frontends.tflite.call import OperatorCall
from renorm.frontends.tflite.emission import Emission
from renorm.frontends.tflite.operator import Operator
from renorm.frontends.tflite.operators.windows import of_16_bits, padding_number, per_axis, step, turned_weight
from renorm.graph.ir import Value
from renorm.ops.conv_transpose import ConvTranspose


def transpose_conv(call: OperatorCall) -> First:
    """Inputs: the result's shape, the weight [O, H, W, I], x, and a bias from version 3 on."""
    shape = call.extents(0, "the shape of its result")
    y = _transposed(call, call.first(2), turned_weight(call, 1, (3, 0, 1, 2)), call.bias(3), shape[1:-1], "hw")
    return First(of_16_bits(call, y.value, 2, 1))


def transpose_conv_3d(call: OperatorCall) -> First:
    """Inputs as above, the weight [D, H, W, O, I]."""
    shape = call.extents(0, "the shape of its result")
    return _transposed(call, call.first(2), turned_weight(call, 1, (4, 3, 0, 1, 2)), call.bias(3), shape[1:-1], "dhw")


def _transpose_conv_with_bias(call: OperatorCall) -> First:
    """As MediaPipe has it: x, the weight [O, H, W, I], a bias; of padding SAME strides times as large, of VALID whole.
    Its options are the integers padding (1 SAME, 2 VALID), and strides along width and height."""
    held = call.table["custom_options"]
    padding, *strides = np.frombuffer(b"" if held is None else bytes(held)[:12], "<i4")
    x, w = call.first(0), turned_weight(call, 1, (3, 0, 1, 2))
    both = [int(s) for s in reversed(strides)]
    if padding not in (1, 2) or len(both) != 2 or min(both) < 1:
        raise InvalidModel(f"padding {padding}, strides {both}")
    sizes = [(d if padding == 1 else d - 1) * s + (0 if padding == 1 else k)
             for d, s, k in zip(x.shape[2:], both, w.shape[2:])]  # fmt: skip
    return _transposed(call, x, w, call.bias(2), sizes, "hw", both, padding == 1)


def _transposed(
    call: OperatorCall, x: Value, w: Value, bias: Value | None, sizes: Sequence[Dim], axes: str,
    strides: Sequence[int] = (), is_same: bool | None = None,
) -> First:  # fmt: skip
    """sizes: of the result along spatial axes. strides, is_same: as the options say where they are left out."""
    strides = strides or per_axis(call, "stride_{}", axes)
    is_same = call.option("padding", 0) == padding_number(call, "SAME") if is_same is None else is_same
    if len(sizes) != len(axes):
        raise InvalidModel(f"the shape of its result has {len(sizes) + 2} elements, expected {len(axes) + 2}")
    before, after, rest = list[int](), list[int](), list[int]()
    for out, extent, k, stride in zip(sizes, x.shape[2:], w.shape[2:], strides):
        full = (extent - 1) * stride + k
        beyond = full - out  # also where both are open
        if not isinstance(beyond, int):
            raise UnsupportedOp(f"its result has extent {out} of {extent}, which are not known", do="give shapes")
        cut = max(beyond, 0) if is_same else 0
        before.append(cut // 2)
        after.append(cut - cut // 2)
        rest.append(cut - beyond)
    if min(rest) < 0:
        raise InvalidModel(f"the extents of its result, {list(sizes)}, cut what VALID leaves whole")
    return First(ops.conv_transpose(x, w, bias, strides=strides, pads=(*before, *after), output_padding=tuple(rest)))


# --- written ----------


def _conv_transpose_written(e: Emission) -> None:
    """Where SAME and VALID cut off other elements, VALID leaves all of them and a slice cuts."""
    x, w, b = e.operand(0), e.operand(1), e.optional(2)
    op, y = e.node.op, e.node.output
    assert isinstance(op, ConvTranspose)
    if x.rank != 4 or op.group != 1 or any(d != 1 for d in op.along("dilations", x.rank - 2)):
        raise UnsupportedOp("TRANSPOSE_CONV has 2 spatial axes, one group and no dilation")
    if not (x.type.is_static and y.type.is_static):
        raise UnsupportedOp(f"the shape of {y.name!r} is not known", do="give shapes of the inputs")
    enum, strides = e.subgraph.schema.enums["Padding"], op.along("strides", 2)
    kernel, extents, wanted = ([int(str(d)) for d in v.shape[2:]] for v in (w, x, y))
    full = [(n - 1) * s + k for n, s, k in zip(extents, strides, kernel)]
    before = [int(str(lo)) for _, lo, _ in op.results(extents, kernel)]
    weight = e.subgraph.constant(e.data(1, "its weight").transpose(1, 2, 3, 0), w.name)
    n, channels = int(str(x.shape[0])), int(str(y.shape[1]))
    version = 4 if e.activation != "NONE" else 3 if b is not None else 1
    fields: dict[str, Any] = {**step(strides, "stride_{}")}

    def given(spatial: Sequence[int]) -> list[int]:
        shape = e.subgraph.integers((n, *spatial, channels), "shape")
        return [shape, weight, e.subgraph.last(x), *([] if b is None else [e.subgraph.plain(b)])]

    def fits(spatial: Sequence[int], padding: str) -> bool:
        """Return whether a convolution of that result with that padding would have x's extents, as the formats ask."""
        less = [k - 1 if padding == "VALID" else 0 for k in kernel]
        return all(-(-(o - k) // s) == n for o, k, s, n in zip(spatial, less, strides, extents))

    halves = [max(f - o, 0) // 2 for f, o in zip(full, wanted)]
    for padding, cut in (("VALID", [0, 0]), ("SAME", halves)):
        if before == cut and fits(wanted, padding):
            e.operator(given(wanted), True, version=version, padding=enum[padding], **fields)
            return
    ends = [max(f, lo + o) for f, lo, o in zip(full, before, wanted)]
    if not fits(ends, "VALID"):
        raise UnsupportedOp(f"output_padding {list(op.along('output_padding', 2, 0, 0))} is not below the strides")
    made = e.subgraph.tensor(y.dtype, (n, *ends, channels), f"{e.node.name}.whole")
    e.subgraph.operator(e.kind, given(ends), [made], version, e.activation, padding=enum["VALID"], **fields)
    begin, size = e.subgraph.integers((0, *before, 0), "begin"), e.subgraph.integers((n, *wanted, channels), "size")
    e.operator([made, begin, size], True, kind="SLICE")


OPERATORS = [
    Operator("CONV_3D_TRANSPOSE", read=transpose_conv_3d),
    Operator("CUSTOM 'Convolution2DTransposeBias'", read=_transpose_conv_with_bias),
    Operator("TRANSPOSE_CONV", "conv_transpose", transpose_conv, _conv_transpose_written, fuses=True),
]
