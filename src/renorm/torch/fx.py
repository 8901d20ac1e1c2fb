"""Calls of layers in graphs of torch.fx, which takes only torch's own layers for one node each."""

from __future__ import annotations

from typing import Any

from torch import fx, nn


def is_inner_node(module: nn.Module, x: object) -> bool:
    """Return whether torch.fx writes down what is done with x, and has `module` inside of what it traces. It knows
    neither shape nor dtype of x."""
    return isinstance(x, fx.Proxy) and getattr(x.tracer, "root", None) is not module


def node_of(module: nn.Module, *operands: Any) -> Any:
    """Return the result of `module` as a stand-in: what its forward decides, it decides when the graph is run."""
    tracer = operands[0].tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(module), operands, {})
