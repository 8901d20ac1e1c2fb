"""Gradients by torch's own operations, which can be differentiated again, and seen.

Kernels compute gradients, not the gradients of gradients. Where autograd is to follow the backward pass (create_graph,
as for a penalty on gradients), it is given one that is made of what it knows; and so is who watches
(reach.is_watched), and who would wait for a kernel (first.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from renorm.torch.first import NotYet
from renorm.torch.reach import is_ours


def gradients(
    function: Callable[..., Tensor], operands: Sequence[Tensor | None], wanted: Sequence[bool], dy: Tensor
) -> list[Tensor | None]:
    """Of function(*operands), where they are wanted; where autograd is to follow, as functions of the operands and of
    dy."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # views: an operand may be computed from another, and no gradient takes that way
        own = [t if t is None or not is_wanted else t.view_as(t) for t, is_wanted in zip(operands, wanted)]
        chosen = [t for t, is_wanted in zip(own, wanted) if is_wanted and t is not None]
        found = iter(torch.autograd.grad(function(*own), chosen, dy, create_graph=again))
    return [next(found) if is_wanted else None for is_wanted in wanted]


def any_bias(x: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """In place of a bias, which no gradient reads."""
    return torch.zeros(shape, dtype=dtype, device=x.device, requires_grad=True)


def of_batch_norm(backward: Callable[..., Any]) -> Callable[..., Any]:
    """`backward` of a batch norm, where nobody need see it, or the batch is masked or that of several ranks.
    ctx keeps x, weight, the result behind a ReLU and, frozen, running statistics; settings; the dtype of a bias."""

    @wraps(backward)
    def chosen(ctx: Any, dy: Tensor) -> Any:
        settings = ctx.settings
        is_only_ours = settings.comm is not None or settings.mask is not None
        if is_only_ours or (not torch.is_grad_enabled() and is_ours(dy)):
            with suppress(NotYet):
                return backward(ctx, dy)
        x, weight, y, *running = ctx.saved_tensors
        mean, var = running or (None, None)
        wanted, bias = ctx.needs_input_grad, None if ctx.bias is None else any_bias(x, x.shape[1:2], ctx.bias)

        def by_torch(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
            return torch.batch_norm(x, weight, bias, mean, var, mean is None, 0.0, settings.epsilon, False)

        passed = dy if y is None else torch.where(y <= 0, 0.0, dy)
        found = gradients(by_torch, (x, weight, bias), wanted[:3], passed)
        return (*found, passed if wanted[3] else None, *[None] * (len(wanted) - 4))

    return chosen
