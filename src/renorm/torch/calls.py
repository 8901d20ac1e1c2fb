"""Calls of joint graphs of ATen calls, as AOTAutograd has them: which are norms or views, how large results are, which
the backward part reads, new ones."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from renorm.frontends.torch.reader import overload

COPY = "clone.default"
WRITE = "copy_.default"  # of an input that a graph updates, after all that reads it
RECOMPUTED = "renorm_recomputed"  # in what is known of a call that PyTorch would not make
_UNTAGGED = {  # calls that PyTorch does not say are pointwise, and are
    "hardswish", "hardswish_backward", "hardsigmoid_backward", "hardtanh_backward", "leaky_relu_backward",
    "elu_backward", "softplus_backward", "mish_backward", "native_dropout_backward",
}  # fmt: skip
_NORM = re.compile("(batch|instance|group|layer|rms)_norm")
BATCH_NORMS = ("_native_batch_norm_legit_functional", "_native_batch_norm_legit.no_stats")


def is_norm(node: fx.Node) -> bool:
    """Return whether a call is a normalization, or the gradient of one."""
    return node.op == "call_function" and _NORM.search(overload(node)) is not None


def is_batch_norm(node: fx.Node) -> bool:
    """Return whether a call is a batch norm of training, or its gradient."""
    return overload(node).removesuffix(".default") in (*BATCH_NORMS, "native_batch_norm_backward")


def is_group_norm(node: fx.Node) -> bool:
    """Return whether a call is a group norm of training, or its gradient."""
    return overload(node) in ("native_group_norm.default", "native_group_norm_backward.default")


def is_pointwise(node: fx.Node) -> bool:
    """Return whether a call computes each element of its result from few others."""
    is_tagged = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
    return is_tagged or overload(node).partition(".")[0] in _UNTAGGED


def is_random(node: fx.Node) -> bool:
    """Return whether a call draws numbers: made twice, or of a part, it gives others."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def results_of(node: fx.Node) -> list[Any]:
    """Return what PyTorch says of the results of a node."""
    held = node.meta.get("val")
    return list(held) if isinstance(held, (list, tuple)) else [held]


def elements(node: fx.Node, unknown: int = 0) -> int:
    """Return how many elements the largest result has; of open extents at their hints, and `unknown` without."""
    sizes = (x.numel() for x in results_of(node) if isinstance(x, Tensor))
    return max((n if isinstance(n, int) else n.node.hint or unknown for n in sizes), default=0)


def axes_in_memory(held: Tensor) -> list[int]:
    """Return the axes of a tensor in the order that its memory has when traced, those of one element first, then the
    outermost; C's order where elements share memory (expand), or data decide."""
    ones = [isinstance(n, int) and n == 1 for n in held.shape]
    steps: list[Any] = [n if isinstance(n, int) else n.node.hint for n in held.stride()]
    is_known = all(step or one for step, one in zip(steps, ones))
    return sorted(range(held.dim()), key=lambda a: (not ones[a], -steps[a] if is_known else a))


def is_view(node: fx.Node) -> bool:
    """Return whether a call gives memory of what it reads."""
    if overload(node) == "getitem":
        return is_view(node.all_input_nodes[0])
    schema = node.target._schema if isinstance(node.target, torch._ops.OpOverload) else None
    return schema is not None and not schema.is_mutable and any(r.alias_info for r in schema.returns)


def owner(node: fx.Node) -> fx.Node:
    """Return whose memory a view is of."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def forward_part(joint: fx.GraphModule, outputs: int) -> dict[fx.Node, None]:
    """Return the nodes that the first results are made of, in the order of the graph."""
    (results,) = (n.args[0] for n in joint.graph.nodes if n.op == "output")
    assert isinstance(results, Sequence)
    waiting, found = [r for r in results[:outputs] if isinstance(r, fx.Node)], set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return {n: None for n in joint.graph.nodes if n in found}


class Calls:
    """Appends calls in front of a node, with what PyTorch says of their results. is_again: PyTorch makes them besides,
    where they stand first."""

    def __init__(self, graph: fx.Graph, before: fx.Node, like: fx.Node, is_again: bool = True):
        self._graph, self._before, self._like, self._is_again = graph, before, like, is_again
        self.made = list[fx.Node]()

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self._graph.inserting_before(self._before):
            made = self._graph.call_function(target, args, kwargs)
        given = map_arg((args, kwargs), lambda n: n.meta["val"])
        made.meta = {k: v for k, v in self._like.meta.items() if k in ("nn_module_stack", "stack_trace", "seq_nr")}
        made.meta |= {"val": target(*given[0], **given[1])} | ({RECOMPUTED: True} if self._is_again else {})
        self.made.append(made)
        return made


def readers_behind(x: fx.Node, forward: Container[fx.Node], places: Mapping[fx.Node, int]) -> list[fx.Node]:
    """Return the calls of the backward part that read x, in the order of the graph; none that write it to an input."""
    behind = [u for u in x.users if u not in forward and u.op == "call_function" and overload(u) != WRITE]
    return sorted(behind, key=places.__getitem__)
