"""Losses over classes, as networks in training have them: read as gathers, products and sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import OperandError
from renorm.graph.attributes import Int, String
from renorm.graph.op import OnnxNode
from renorm.ops.shared.composite import Composite, apply

_REDUCTIONS = ("mean", "sum", "none")


class NegativeLogLikelihoodLoss(Composite):
    """loss[n, d..] = -x[n, target[n, d..], d..] * w, w = weight[target[n, d..]] or 1; 0 where the target is
    ignore_index. Its sum, or sum(loss) / sum(w): a target that is ignored has the weight 0."""

    takes = "x, target, weight?"
    onnx = {"NegativeLogLikelihoodLoss": 12}
    reduction = String("mean", among=_REDUCTIONS)
    ignore_index = Int(None)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        return self.loss(*operands)

    def loss(self, x: Any, target: Any, weight: Any) -> Any:
        """Return the loss of log-probabilities."""
        if target.rank != x.rank - 1:
            raise OperandError(f"{target.type} has no class for each of {x.type}: ranks differ by one")
        zero, kept = np.asarray(0, numpy_dtype(x.dtype)), None
        if self.ignore_index is not None:
            index = np.asarray(self.ignore_index, numpy_dtype(target.dtype))
            kept = apply("logical_not", apply("equal", target, index))
            target = apply("where", kept, target, np.zeros_like(index))
        chosen = apply("gather_elements", x, apply("unsqueeze", target, axes=(1,)), axis=1)
        loss = apply("neg", apply("squeeze", chosen, axes=(1,)))
        if weight is not None:
            weight = apply("gather", weight, target)
            loss = apply("mul", loss, weight)
        if kept is not None:
            one = np.asarray(1, numpy_dtype(x.dtype))
            weight = apply("where", kept, one if weight is None else weight, zero)
            loss = apply("where", kept, loss, zero)
        if self.reduction == "none":
            return loss
        if self.reduction == "mean" and weight is None:
            return apply("reduce_mean", loss, keepdims=False)
        total = apply("reduce_sum", loss, keepdims=False)
        if self.reduction == "sum":
            return total
        return apply("div", total, apply("reduce_sum", weight, keepdims=False))


class SoftmaxCrossEntropyLoss(NegativeLogLikelihoodLoss):
    """The negative log-likelihood of the softmax over axis 1, whose logarithm is the second result."""

    takes = "scores, labels, weights?"
    onnx = {"SoftmaxCrossEntropyLoss": 12}

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        scores, labels, weights = operands
        logarithms = apply("log_softmax", scores, axis=1)
        return [self.loss(logarithms, labels, weights), logarithms]
