"""f(x) = g(h(x)): a call as the calls that PyTorch makes of it, for overloads, and forms of them, without a reader.

They are calls for all extents that the program leaves open: what PyTorch would decompose for those alone that it has
seen is not decomposed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import decomposition_table
from torch._functorch._aot_autograd.functional_utils import has_data_mutation
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from renorm.core.errors import UnsupportedOp
from renorm.frontends.torch.overloads import PAIRS, TABLE

MOST_HELD = 1 << 20  # elements of a constant that a call of nothing becomes
_SYMBOLS = torch.SymInt, torch.SymFloat, torch.SymBool
_SYMBOLIC = logging.getLogger("torch.fx.experimental.symbolic_shapes")


def tensors_of(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that a node reads, each once."""
    return [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]


def is_made_of_others(node: fx.Node) -> bool:
    """Return whether PyTorch knows what to decompose a call to, which writes to nothing."""
    target = node.target
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return False
    implicit = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    return implicit or target in decomposition_table


def tensor_of_nothing(node: fx.Node) -> Tensor | None:
    """Return what a call of ATen's gives that reads no tensor and no number of a program, such as a window; None of
    others, which may give something else each time, of those that draw numbers, and of many elements."""
    target, held = node.target, node.meta.get("val")
    if node.all_input_nodes or not isinstance(target, OpOverload) or target.namespace != "aten":
        return None
    if target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    if not isinstance(held, Tensor) or held.dtype.is_complex or held.numel() > MOST_HELD:
        return None
    named = {k: torch.device("cpu") if isinstance(v, torch.device) else v for k, v in node.kwargs.items()}
    with unset_fake_temporarily(), torch.no_grad():
        made = target(*node.args, **named)
    return made if isinstance(made, Tensor) else None


def calls_instead(node: fx.Node) -> fx.GraphModule | None:
    """Return a graph with the results of a node, of `tensors_of(node)`: what PyTorch decomposes it to, down to calls
    that have readers; those that it defines by others alone (CompositeImplicitAutograd) it always takes apart. None
    where it has nothing to decompose it to."""
    target = node.target
    if not is_made_of_others(node):
        return None
    assert isinstance(target, OpOverload)
    known, tensors = decomposition_table.get(target), tensors_of(node)

    def call(*given: Tensor) -> Any:
        at = dict(zip(tensors, given))
        args, named = fx.map_arg((node.args, node.kwargs), lambda n: at[n] if n in at else n.meta["val"])
        made = target(*args, **named)
        if any(map(has_data_mutation, given)):  # of batch_norm and the like the schema does not say so
            raise UnsupportedOp(f"{target} writes to what it is given")
        return made

    table = _without_readers() | ({target: known} if known is not None else {})
    try:
        with _no_guards([n.meta["val"] for n in node.all_input_nodes]):
            return make_fx(dispatch_functionalize(call), decomposition_table=table)(*(n.meta["val"] for n in tensors))
    except Exception:  # a decomposition may raise whatever it meets: what the reader said is what the caller is told
        return None


@contextmanager
def _no_guards(held: list[Any]) -> Generator[None]:
    """Inside, nothing is decided by the extents that PyTorch has seen: that would become a guard of the program, which
    would then hold for these alone. Raises where something would be."""
    numbers = [n for x in held for n in ([*x.shape, *x.stride()] if isinstance(x, Tensor) else [x])]
    env = next((n.node.shape_env for n in numbers if isinstance(n, _SYMBOLS)), None)
    was, _SYMBOLIC.disabled = _SYMBOLIC.disabled, True  # it warns of each guard that is refused
    try:
        with nullcontext() if env is None else env.error_on_new_guards():
            yield
    finally:
        _SYMBOLIC.disabled = was


@cache
def _without_readers() -> dict[OpOverload, Callable[..., Any]]:
    known = TABLE.keys() | PAIRS
    return {
        op: made
        for op, made in decomposition_table.items()
        if isinstance(op, OpOverload) and not op._schema.is_mutable and str(op).removeprefix("aten.") not in known
    }
