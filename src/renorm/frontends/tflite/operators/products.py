"""Products of matrices."""

from __future__ import annotations

import numpy as np

from renorm import ops
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.tflite import quantized
from renorm.frontends.tflite.call import OperatorCall
from renorm.frontends.tflite.emission import Emission
from renorm.frontends.tflite.operator import Operator
from renorm.frontends.tflite.tensors import Array
from renorm.graph.ir import Value


def fully_connected(call: OperatorCall) -> Value:
    """x [.., I] or anything of whole rows of I elements, weight [O, I] -> [.., O], or [rows, O]."""
    if call.option("weights_format", 0):
        raise UnsupportedOp("its weight is shuffled for one kind of processor", do="export it with plain weights")
    x, w, b = call.stored(0), call.stored(1), call.bias(2)
    if w.rank != 2:
        raise InvalidModel(f"weight {w.name!r} has {w.rank} axes, expected 2")
    width = w.shape[1]
    if x.rank == 2 and x.shape[1] == width:
        return ops.gemm(x, call.weight(1, (0, 1)), b, transB=True)
    if call.option("keep_num_dims", False) and x.shape[-1] == width:
        y = ops.matmul(x, call.weight(1, (1, 0)))
        return y if b is None else ops.add(y, b)
    rows = np.asarray([-1, int(str(width))], np.int64)
    x = quantized.moved(x, lambda v: ops.reshape(v, shape=rows))
    return ops.gemm(x, call.weight(1, (0, 1)), b, transB=True)


def batch_matmul(call: OperatorCall) -> Value:
    a, b = (_turned(call, i, f"adjoint_{side}") for i, side in enumerate(("lhs", "rhs")))
    return ops.matmul(a, b)


def _turned(call: OperatorCall, index: int, option: str) -> Value:
    """Return an operand, with its last two axes exchanged where an option says so."""
    axes = [*range(call.stored(index).rank)]
    if call.option(option, False):
        axes[-2:] = axes[:-3:-1]
    return call.weight(index, tuple(axes))


# --- written ----------------------------------------------------------------------------------------------------------


def _gemm(e: Emission) -> None:
    """A weight and a bias that are constant, alpha and beta in them; otherwise a product and a sum."""
    a, b, c = e.operand(0), e.operand(1), e.optional(2)
    if e.counts:
        _counted(e, (0, 1) if e.attribute("transB") else (1, 0))
        return
    alpha, beta = float(e.attribute("alpha")), float(e.attribute("beta"))
    width = int(str(e.result.shape[1]))
    is_bias = c is None or (c.data is not None and c.data.size in (1, width) and (c.rank < 2 or c.shape[0] == 1))
    held = e.subgraph.elements(b)
    if held is None or e.attribute("transA") or not is_bias:
        if alpha != 1 or (c is not None and beta != 1):
            raise UnsupportedOp("a product of computed matrices with alpha or beta is not written")
        fields = {"adjoint_lhs": e.attribute("transA"), "adjoint_rhs": e.attribute("transB")}
        inputs = [e.subgraph.plain(a), e.subgraph.plain(b)]
        if c is None and e.activation == "NONE":
            e.operator(inputs, kind="BATCH_MATMUL", **fields)
            return
        made = e.subgraph.tensor(e.result.dtype, e.result.shape, f"{e.node.name}.product")
        e.subgraph.operator("BATCH_MATMUL", inputs, [made], **fields)
        other = e.subgraph.plain(c) if c is not None else e.subgraph.constant(np.zeros(1, a.dtype))
        e.operator([made, other], kind="ADD")
        return
    weight = held if e.attribute("transB") else held.T
    bias = None
    if c is not None and c.data is not None:
        bias = np.broadcast_to(c.data.reshape(-1).astype(np.float64) * beta, (width,)).astype(c.data.dtype)
    _fully_connected(
        e, a, weight if alpha == 1 else (weight.astype(np.float64) * alpha).astype(weight.dtype), bias, b.name
    )


def _fully_connected(e: Emission, x: Value, weight: Array, bias: Array | None, name: str) -> None:
    inputs = [
        e.subgraph.plain(x),
        e.subgraph.constant(weight, name),
        None if bias is None else e.subgraph.constant(bias, "bias"),
    ]
    version = 6 if bias is None else 5 if x.rank > 2 else 1
    e.operator(inputs, kind="FULLY_CONNECTED", version=version, keep_num_dims=x.rank > 2)


def _counted(e: Emission, perm: tuple[int, int]) -> None:
    a, width = e.operand(0), int(str(e.result.shape[-1]))
    inputs = [e.subgraph.plain(a), e.weight(1, perm), e.bias(2, width)]
    e.operator(inputs, kind="FULLY_CONNECTED", version=5, keep_num_dims=a.rank > 2)


def _matmul(e: Emission) -> None:
    a, b = e.operand(0), e.operand(1)
    if a.rank < 2 or b.rank < 2:
        raise UnsupportedOp("products of vectors are not written", do="give each operand two axes")
    if e.counts:
        _counted(e, (1, 0))
        return
    held = e.subgraph.elements(b)
    if held is not None and b.rank == 2:
        _fully_connected(e, a, held.T, None, b.name)
        return
    e.operator([e.subgraph.plain(a), e.subgraph.plain(b)])


OPERATORS = [
    Operator("BATCH_MATMUL", "matmul", batch_matmul, _matmul),
    Operator("FULLY_CONNECTED", "gemm", fully_connected, _gemm, fuses=True),
]
