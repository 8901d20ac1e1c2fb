"""Instance norms as group norms with a group for each channel, which AOTAutograd leaves whole, forward and backward.

instance_norm(x [N, C, *S], scale, bias) -> group_norm(x, C, scale, bias), where no statistics are kept
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_NORMS = (torch.nn.functional.instance_norm, torch.instance_norm)


def as_group_norms(graph: fx.GraphModule) -> None:
    """Rewrite instance norms of a graph of Dynamo's, in place, whose statistics are of what they read alone."""
    for node in [n for n in graph.graph.nodes if n.op == "call_function" and n.target in _NORMS]:
        found = node.normalized_arguments(graph, normalize_to_only_use_kwargs=True)
        given: dict[str, Any] = dict(found.kwargs) if found else {}
        x, is_own = given.get("input"), given.get("running_mean") is None and given.get("use_input_stats", True)
        channels = x.meta["example_value"].shape[1] if isinstance(x, fx.Node) and is_own else None
        if isinstance(channels, torch.SymInt):
            channels = channels.node.maybe_as_int()  # a scale tells; groups of open number no group norm takes
        if channels is None:
            continue
        node.args, node.kwargs = (x, channels, given["weight"], given["bias"], given["eps"]), {}
        node.target = torch.nn.functional.group_norm
    graph.recompile()
