"""Products of matrices."""

from __future__ import annotations

import numpy as np

from renorm import ops
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.tflite.call import Call, Reader
from renorm.graph.ir import Value


def fully_connected(call: Call) -> Value:
    """x [.., I] or anything of whole rows of I elements, weight [O, I] -> [.., O], or [rows, O]."""
    if call.option("weights_format", 0):
        raise UnsupportedOp("its weight is shuffled for one kind of processor", do="export it with plain weights")
    x, w, b = call.stored(0), call.stored(1), call.bias(2)
    if w.rank != 2:
        raise InvalidModel(f"weight {w.name!r} has {w.rank} axes, expected 2")
    width = w.shape[1]
    if x.rank == 2 and x.shape[1] == width:
        return ops.gemm(x, w, b, transB=True)
    if call.option("keep_num_dims", False) and x.shape[-1] == width:
        y = ops.matmul(x, _swapped(call, w))
        return y if b is None else ops.add(y, b)
    return ops.gemm(ops.reshape(x, shape=np.asarray([-1, int(str(width))], np.int64)), w, b, transB=True)


def batch_matmul(call: Call) -> Value:
    a, b = call.stored(0), call.stored(1)
    a = _swapped(call, a) if call.option("adjoint_lhs", False) else a
    return ops.matmul(a, _swapped(call, b) if call.option("adjoint_rhs", False) else b)


def _swapped(call: Call, x: Value) -> Value:
    """The last two axes exchanged."""
    if x.data is not None:
        return call.graph.constant(np.ascontiguousarray(x.data.swapaxes(-1, -2)), x.name, x.source)
    return ops.transpose(x, perm=(*range(x.rank - 2), x.rank - 1, x.rank - 2))


OPERATORS: dict[str, Reader] = {"BATCH_MATMUL": batch_matmul, "FULLY_CONNECTED": fully_connected}
