"""In which dtype memory holds what a node reads, besides what values say themselves (`Value.held_dtype`)."""

from __future__ import annotations

from renorm.core import dots, dtypes
from renorm.core.gpu import ROW_LANES
from renorm.graph.ir import Node


def held_weight_dtype(node: Node, index: int) -> str | None:
    """Return in which dtype memory holds operand `index` of a node, where that is a constant weight of a sum of
    products: as the data that it is multiplied with; None: in its own."""
    data, weight = node.inputs[0], node.inputs[index]
    if data is None or weight is None or not weight.is_constant or not node.op.is_product:
        return None
    if dtypes.is_int(data.held_dtype):
        dot = dots.of_data(data.held_dtype)
        return dot.weight if index == 1 and dot is not None and weight.dtype == dot.weight else None
    if node.op.magnifies_weights or data.held_dtype == data.dtype or weight.dtype != "float32":
        return None
    if data.held_dtype == "tf32" and is_lanewise(node):
        return None
    return data.held_dtype if node.op.channel_axis(index, node.operand_types()) is not None else None


def is_lanewise(node: Node) -> bool:
    """Return whether groups of a convolution have fewer result channels than tensor cores multiply."""
    groups = int(node.op.values.get("group", 1))
    if groups == 1:
        return False
    channels = node.output.shape[1]
    return not isinstance(channels, int) or channels < ROW_LANES * groups
