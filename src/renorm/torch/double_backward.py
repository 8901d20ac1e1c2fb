"""Gradients of gradients.

Kernels compute gradients, not the gradients of gradients. Where autograd is to follow the backward pass (create_graph,
as for a penalty on gradients), it is given one that is made of torch's own operations, which can be differentiated
again, and seen; and so is who watches (eligibility.is_watched), and who would wait for a kernel (kernels.waits). Where
torch has no such operation, over several ranks or with a mask, a derivative of what the backward pass gives is an
error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from renorm.torch.eligibility import is_ours
from renorm.training.kernels import NotYet

Gradients = tuple[Tensor | None, ...]


def gradients(
    function: Callable[..., Tensor], operands: Sequence[Tensor | None], wanted: Sequence[bool], dy: Tensor
) -> list[Tensor | None]:
    """Return the gradients of function(*operands), where they are wanted; where autograd is to follow, as functions of
    the operands and of dy."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # views: an operand may be computed from another, and no gradient takes that way
        own = [t if t is None or not is_wanted else t.view_as(t) for t, is_wanted in zip(operands, wanted)]
        chosen = [t for t, is_wanted in zip(own, wanted) if is_wanted and t is not None]
        found = iter(torch.autograd.grad(function(*own), chosen, dy, create_graph=again))
    return [next(found) if is_wanted else None for is_wanted in wanted]


def any_bias(x: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros in place of a bias, which no gradient reads."""
    return torch.zeros(shape, dtype=dtype, device=x.device, requires_grad=True)


def of_batch_norm(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Return `backward` of a batch norm where nobody need see it, torch's otherwise. ctx keeps x, weight, the result
    after a ReLU and, frozen, running statistics; settings; the dtype of a bias."""

    @wraps(backward)
    def chosen(ctx: Any, dy: Tensor) -> Gradients:
        settings = ctx.settings
        if settings.comm is not None or settings.mask is not None:
            return _once(backward, ctx, dy)
        if not torch.is_grad_enabled() and is_ours(dy):
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


def _once(backward: Callable[..., Gradients], ctx: Any, dy: Tensor) -> Gradients:
    """Return backward(ctx, dy), computed with arrays, which autograd does not see; a derivative of it is an error.

    torch.autograd.function.once_differentiable misses two cases where numbers come out wrong without an error: dy is a
    constant, or torch.autograd.grad asks for operands of the layer only.
    """
    with torch.no_grad():
        results = backward(ctx, dy.resolve_neg())  # arrays over its memory would not see that it is negated
    if not torch.is_grad_enabled():  # no create_graph=True
        return results
    of = [t for t in (dy, *ctx.saved_tensors) if t is not None and t.requires_grad]
    known = [r for r in results if r is not None]
    given: Any = _Given.apply(len(known), *known, *of)
    linked = iter(given)
    return tuple(None if r is None else next(linked) for r in results)
