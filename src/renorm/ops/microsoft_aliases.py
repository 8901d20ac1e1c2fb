"""Operators that ONNX Runtime had before ONNX did, and that mean the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from renorm.graph import registry
from renorm.graph.op import OnnxNode
from renorm.ops.shared.composite import NEWEST, Composite, read_as
from renorm.ops.shared.reshaping import reshaped


class OfOnnx(Composite):
    """What the op of the same name of ONNX is, in all that both say."""

    takes = ""
    onnx = {"com.microsoft::Trilu": 1, "com.microsoft::GatherND": 1, "com.microsoft::Pad": 1}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        op = registry.find_onnx(node.op_type, NEWEST)
        assert op is not None
        return op.from_onnx(replace(node, opset=NEWEST))


class ExpandDims(Composite):
    """y = x with one more axis, of one element."""

    takes = "x, axis"
    onnx = {"com.microsoft::ExpandDims": 1}

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, axis = operands
        return read_as(node, "Unsqueeze", [x, reshaped(axis, -1)], {})
