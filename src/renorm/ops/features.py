"""Ops of ai.onnx.ml that prepare features of numbers for a network."""

from __future__ import annotations

from math import floor
from typing import Any

import numpy as np

from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import OperandError
from renorm.graph.attributes import Float
from renorm.graph.op import OnnxNode
from renorm.ops.shared.composite import Composite, apply

_NUMBERS = ("float32", "float64", "int32", "int64")


def _checked(node: OnnxNode, x: Any) -> None:
    if x.dtype not in _NUMBERS:
        raise OperandError(f"{node.op_type} of {x.type}: it takes {', '.join(_NUMBERS)}")


class Binarizer(Composite):
    """y = 1 where x > threshold, else 0, of x's type."""

    takes = "x"
    threshold = Float(0.0)
    onnx = {"ai.onnx.ml::Binarizer": 1}

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        (x,) = operands
        _checked(node, x)
        dtype = numpy_dtype(x.dtype)
        threshold = self.threshold
        if dtype.kind == "i":  # what is above a number is above its floor; beyond the type, all or none are
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            if threshold < low:
                return apply("cast", apply("equal", x, x), to=x.dtype)
            threshold = high if threshold >= high else floor(threshold)
        return apply("cast", apply("greater", x, np.asarray(threshold, dtype)), to=x.dtype)


class ArrayFeatureExtractor(Composite):
    """y[.., k] = x[.., indices[k]], of x of one axis a row."""

    takes = "x, indices"
    onnx = {"ai.onnx.ml::ArrayFeatureExtractor": 1}

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, indices = operands
        _checked(node, x)
        flat = apply("reshape", indices, np.asarray([-1], np.int64))
        y = apply("gather", x, flat, axis=-1)
        return apply("unsqueeze", y, axes=(0,)) if x.rank == 1 else y
