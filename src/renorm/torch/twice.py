"""Gradients that can be differentiated again, by torch's own operations.

Kernels compute gradients, not the gradients of gradients. Where autograd is to follow the backward pass (create_graph,
as for a penalty on gradients), it is given one that is made of what it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def gradients(
    function: Callable[..., Tensor], operands: Sequence[Tensor | None], wanted: Sequence[bool], dy: Tensor
) -> list[Tensor | None]:
    """Of function(*operands), where they are wanted, as functions of the operands and of dy."""
    with torch.enable_grad():
        # views: an operand may be computed from another, and no gradient takes that way
        own = [t if t is None or not is_wanted else t.view_as(t) for t, is_wanted in zip(operands, wanted)]
        chosen = [t for t, is_wanted in zip(own, wanted) if is_wanted and t is not None]
        found = iter(torch.autograd.grad(function(*own), chosen, dy, create_graph=True))
    return [next(found) if is_wanted else None for is_wanted in wanted]


def of_batch_norm(backward: Callable[..., Any]) -> Callable[..., Any]:
    """`backward` of a batch norm, where autograd need not follow it or the batch is masked or that of several ranks.
    ctx keeps x, weight, the result behind a ReLU and, frozen, running statistics; settings; the dtype of a bias."""

    @wraps(backward)
    def chosen(ctx: Any, dy: Tensor) -> Any:
        settings = ctx.settings
        if not torch.is_grad_enabled() or settings.comm is not None or settings.mask is not None:
            return backward(ctx, dy)
        x, weight, y, *running = ctx.saved_tensors
        mean, var = running or (None, None)
        wanted, bias = ctx.needs_input_grad, None
        if ctx.bias is not None:  # no gradient needs its value
            bias = torch.zeros(x.shape[1], dtype=ctx.bias, requires_grad=True)

        def by_torch(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
            return torch.batch_norm(x, weight, bias, mean, var, mean is None, 0.0, settings.epsilon, False)

        passed = dy if y is None else torch.where(y <= 0, 0.0, dy)
        found = gradients(by_torch, (x, weight, bias), wanted[:3], passed)
        return (*found, passed if wanted[3] else None, *[None] * (len(wanted) - 4))

    return chosen
