"""A tensor cut or padded to a shape, around its middle."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core import shapes
from renorm.core.errors import OperandError
from renorm.graph.attributes import Ints
from renorm.graph.op import OnnxNode
from renorm.ops.shared.composite import Composite, apply
from renorm.ops.shared.told import numbers


class CenterCropPad(Composite):
    """y = the middle of x where it is longer than shape says, x in the middle of zeros where it is shorter, along each
    of axes; what is odd is one more at the end."""

    takes = "x, shape"
    onnx = {"CenterCropPad": 18}
    axes = Ints(None)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        (x, _), wanted = operands, numbers(node, 1, "shape") or []
        axes = range(x.rank) if self.axes is None else self.axes
        if len(axes) != len(wanted):
            raise OperandError(
                f"CenterCropPad({x.type}): shape {wanted} is not one extent for each of axes {list(axes)}"
            )
        cuts, pads = list[tuple[int, int, int]](), np.zeros((2, x.rank), np.int64)
        for given, extent in zip(axes, wanted):
            axis = shapes.normalize_axis(given, x.rank)
            own = x.shape[axis]
            if not isinstance(own, int):
                raise OperandError(f"CenterCropPad({x.type}): axis {axis} must be known", do="give shapes=")
            if own > extent:
                first = (own - extent) // 2
                cuts.append((axis, first, first + extent))
            before = max(extent - own, 0) // 2
            pads[:, axis] = before, max(extent - own, 0) - before
        y = x
        if cuts:
            along, starts, ends = (np.array(given) for given in zip(*cuts))
            y = apply("slice", y, starts, ends, along)
        return apply("pad", y, pads.reshape(-1)) if pads.any() else y
