"""f(x) = g(h(x)): a call as the calls that PyTorch makes of it, for overloads, and forms of them, without a reader."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from renorm.frontends.torch.overloads import TABLE


def tensors_of(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that a node reads, each once."""
    return [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]


def calls_instead(node: fx.Node) -> fx.GraphModule | None:
    """Return a graph with the results of a node, of `tensors_of(node)`: what PyTorch decomposes it to, but calls that
    have readers, where these are not of what consists of others by PyTorch's definition. None where PyTorch has
    nothing to decompose it to."""
    target = node.target
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return None
    known = decomposition_table.get(target)
    if known is None and not torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd"):
        return None
    tensors = tensors_of(node)

    def call(*given: Tensor) -> Any:
        at = dict(zip(tensors, given))
        args, named = fx.map_arg((node.args, node.kwargs), lambda n: at[n] if n in at else n.meta["val"])
        return target(*args, **named)

    table = _without_readers() | ({target: known} if known is not None else {})
    try:
        return make_fx(functionalize(call), decomposition_table=table)(*(n.meta["val"] for n in tensors))
    except Exception:  # a decomposition may raise whatever it meets: what the reader said is what the caller is told
        return None


@cache
def _without_readers() -> dict[OpOverload, Callable[..., Any]]:
    return {
        op: made
        for op, made in decomposition_table.items()
        if isinstance(op, OpOverload) and str(op).removeprefix("aten.") not in TABLE
    }
