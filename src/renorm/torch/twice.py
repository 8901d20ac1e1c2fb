"""Gradients that can be differentiated again, by torch's own operations.

Kernels compute gradients, not the gradients of gradients. Where autograd is to follow the backward pass (create_graph,
as for a penalty on gradients), it is given one that is made of what it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
