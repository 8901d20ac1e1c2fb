"""Slices of channels, which norms read where they lie, and which are not kept for the backward pass.

    split(x, [a, b], 1) -> slice(x, 1, 0, a), slice(x, 1, a, a + b), where a norm reads one
    slice(f(u, v)) -> f(slice(u), slice(v)), f pointwise: the gradient of what follows norms that stand side by side

What the backward part reads of such a slice is made again there (`recomputation.py`).
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from renorm.frontends.torch.reader import overload
from renorm.torch.calls import COPY, Calls, is_norm, is_pointwise, is_random

FOR_NORMS = "renorm_for_norms"  # in what is known of slices that norms read
_SLICE = torch.ops.aten.slice.Tensor
_SPLITS = ("split_with_sizes.default", "split.Tensor")


def slice_for_norms(joint: fx.GraphModule) -> None:
    """Give norms of a joint graph that read some of an image's channels slices of their own."""
    for node in [n for n in joint.graph.nodes if overload(n) in _SPLITS and _axis(n) == 1]:
        if all(overload(u) == "getitem" for u in node.users) and any(map(_is_for_norms, node.users)):
            _slice_split(joint.graph, node)
    for node in [n for n in joint.graph.nodes if _takes_channels(n) and _is_for_norms(n)]:
        node.meta[FOR_NORMS] = True
    for node in reversed([n for n in joint.graph.nodes if is_pointwise(n)]):
        if all(map(_takes_channels, node.users)) and any(FOR_NORMS in u.meta for u in node.users):
            _slice_operands(joint.graph, node)


def _axis(node: fx.Node) -> int | None:
    """Return along which axis a call slices images of fixed extents."""
    given: Any = node.args
    x, at = given[0].meta.get("val"), 1 if node.target is _SLICE else 2
    if not isinstance(x, Tensor) or x.dim() not in (4, 5) or not all(isinstance(n, int) for n in x.shape):
        return None
    axis: Any = given[at] if len(given) > at else node.kwargs.get("dim", 0)
    return axis % x.dim()


def _takes_channels(node: fx.Node) -> bool:
    """Return whether a call takes channels side by side of an image."""
    return node.target is _SLICE and _axis(node) == 1 and len(node.args) < 5


def _is_for_norms(node: fx.Node) -> bool:
    """Return whether norms alone read a slice, or copies of it."""
    return bool(node.users) and all(is_norm(u) or (overload(u) == COPY and _is_for_norms(u)) for u in node.users)


def _slice_split(graph: fx.Graph, node: fx.Node) -> None:
    ends = [0, *accumulate(x.shape[1] for x in node.meta["val"])]
    for part in [*node.users]:
        index: Any = part.args[1]
        made = Calls(graph, part, part, is_again=False)(_SLICE, node.args[0], 1, ends[index], ends[index + 1])
        part.replace_all_uses_with(made)
        graph.erase_node(part)
    graph.erase_node(node)


def _slice_operands(graph: fx.Graph, node: fx.Node) -> None:
    """Have a pointwise call compute what is taken of it alone, in place of all."""
    x, operands = node.meta["val"], node.all_input_nodes
    if is_random(node) or not isinstance(x, Tensor) or any(n.meta["val"].shape != x.shape for n in operands):
        return
    for part in [*node.users]:
        calls = Calls(graph, part, part, is_again=False)
        taken = {n: calls(_SLICE, n, *part.args[1:]) for n in operands}
        for made in taken.values():
            made.meta[FOR_NORMS] = True
        args, kwargs = map_arg((node.args, node.kwargs), taken.__getitem__)
        part.replace_all_uses_with(calls(node.target, *args, **kwargs))
        graph.erase_node(part)
    graph.erase_node(node)
