"""Max pooling undone: elements back where they were the greatest."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.dims import Dim, is_static, size
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import OperandError
from renorm.graph.attributes import Ints
from renorm.graph.op import OnnxNode
from renorm.ops.shared.composite import Composite, apply
from renorm.ops.shared.reshaping import extents_of, reshaped, reshaped_to
from renorm.ops.shared.told import numbers


class MaxUnpool(Composite):
    """y = 0, but y at positions[i] = x[i], which are numbers of all elements that a pool read. Where output_shape says
    more, there are zeros after these along each axis."""

    takes = "x, positions, output_shape?"
    onnx = {"MaxUnpool": 9}
    kernel_shape = Ints()
    pads = Ints(None)
    strides = Ints(None)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, positions, _ = operands
        rank, pads = x.rank - 2, self.pads or (0,) * (2 * (x.rank - 2))
        strides = self.strides or (1,) * rank
        if rank < 1 or not rank == len(self.kernel_shape) == len(strides) == len(pads) / 2:
            raise OperandError(f"MaxUnpool: kernel_shape, strides and pads are not those of the axes of {x.type}")
        ends = zip(x.shape[2:], strides, pads[:rank], pads[rank:], self.kernel_shape, strict=True)
        spatial: list[Dim] = [(d - 1) * stride - before - after + k for d, stride, before, after, k in ends]
        read, asked = (*x.shape[:2], *spatial), numbers(node, 2, "output_shape")
        pool = positions.producer
        if asked is not None and pool is not None and pool.op.name.startswith("max_pool"):
            whole = pool.inputs[0]  # of which positions are numbers: the kernel may not reach its end
            read = whole.shape if whole is not None and whole.shape == tuple(asked) else read
        count = (size(read),)
        length = np.asarray(count, np.int64) if is_static(count) else extents_of(x.graph, count)
        zero = x.graph.constant(np.zeros(1, numpy_dtype(x.dtype)), "zero")
        zeros = apply("expand", zero, length)
        flat = apply("scatter_elements", zeros, reshaped(positions, -1), reshaped(x, -1))
        y = reshaped_to(flat, read)
        if asked is None or tuple(asked) == read:
            return y
        more = [a - d if isinstance(d, int) else -1 for a, d in zip(asked, read)]
        if len(asked) != len(read) or min(more) < 0:
            raise OperandError(f"MaxUnpool: output_shape {asked} is less than {list(map(str, read))}, of the kernel")
        return apply("pad", y, np.array([0] * len(more) + more))
