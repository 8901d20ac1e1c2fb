"""Backward passes that can be differentiated once: a derivative of what they give is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Gradients = tuple[Tensor | None, ...]


class _Given(torch.autograd.Function):
    """The first `count` tensors. On its way to the others, on which these depend, autograd comes by here."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.detach() for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Gradients:
        raise RuntimeError(
            "a second derivative through a batch norm over several ranks, or with a mask: renorm has first ones"
        )


def once_differentiable(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """`backward(ctx, *gradients)` of an autograd.Function that computes with arrays, which autograd does not see.

    Like torch.autograd.function.once_differentiable, which misses two cases where numbers come out wrong without an
    error: the gradient that comes in is a constant, or torch.autograd.grad asks for operands of the layer only.
    """

    def once(ctx: Any, *gradients: Tensor) -> Gradients:
        with torch.no_grad():
            results = backward(ctx, *gradients)
        if not torch.is_grad_enabled():  # no create_graph=True
            return results
        of = [t for t in (*gradients, *ctx.saved_tensors) if t is not None and t.requires_grad]
        known = [r for r in results if r is not None]
        given: Any = _Given.apply(len(known), *known, *of)
        linked = iter(given)
        return tuple(None if r is None else next(linked) for r in results)

    return once
