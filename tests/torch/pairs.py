"""A layer of torch and ours with the same parameters, run side by side."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from renorm.core.tolerance import tolerance
from renorm.torch.modules import OURS

LAYERS = 16  # that a layer with its backward pass, run twice, may count for
FLOATS = ("float64", "float32", "float16", "bfloat16")
TOLERANCE = {getattr(torch, dtype): tolerance(dtype, LAYERS) for dtype in FLOATS}


def pair(kind: str, *args: Any, **settings: Any) -> tuple[Any, Any]:
    """(torch's, ours); parameters are random, the same in every call."""
    theirs, draw = getattr(torch.nn, kind)(*args, **settings), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.randn(p.shape, dtype=torch.float64, generator=draw))
    ours = OURS[type(theirs)](*args, **settings)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def close(ours: Any, theirs: Any, dtype: Any, what: str = "") -> None:
    """Raises AssertionError where they differ by more than the tolerance of `dtype` of the largest value."""
    assert ours.shape == theirs.shape, what
    assert ours.dtype == theirs.dtype, what
    a, b = ours.detach().double(), theirs.detach().double()
    bound = TOLERANCE[dtype] * max(1.0, b.abs().max().item() if b.numel() else 0.0)
    torch.testing.assert_close(a, b, rtol=0.0, atol=bound, equal_nan=True, msg=lambda m: f"{what}: {m}")


def exact(module: Any, x: Any) -> tuple[Any, Any]:
    """The same layer and input in float64."""
    return copy.deepcopy(module).double(), x.detach().double()


def agree(theirs: Any, ours: Any, x: Any, steps: int = 2) -> None:
    """Runs both, forward and backward: results, gradients and state must be those of torch in float64. Where the dtype
    of x is narrow torch computes in float64 on the rounded operands."""
    oracle, _ = exact(theirs, x)
    ours.zero_grad()
    oracle.zero_grad()
    for step in range(steps):
        mine = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        wide = x.detach().double().requires_grad_()
        y, expected = ours(mine), oracle(wide)
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(step)).to(y.dtype)
        y.backward(dy)
        expected.backward(dy.double())
        assert [s for s, d in zip(y.stride(), y.shape) if d > 1] == [s for s, d in zip(mine.stride(), y.shape) if d > 1]
        close(y, expected.to(y.dtype), x.dtype, "y")
        close(mine.grad, wide.grad.to(x.dtype), x.dtype, "dx")
        for (name, p), q in zip(ours.named_parameters(), oracle.parameters(), strict=True):
            close(p.grad, q.grad.to(p.dtype), x.dtype, f"gradient of {name}")
    for (name, b), c in zip(ours.named_buffers(), oracle.buffers(), strict=True):
        close(b.double(), c.double(), x.dtype, name)
