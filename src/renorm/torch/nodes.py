"""Calls of layers in graphs of torch.fx, which takes only torch's own layers for one node each."""

from __future__ import annotations

from typing import Any

from torch import fx, nn


def is_stand_in(x: object) -> bool:
    """Whether torch.fx writes down what is done with it; it can say neither its shape nor its dtype."""
    return isinstance(x, fx.Proxy)


def node_of(module: nn.Module, *operands: Any) -> Any:
    """The result of `module` as a stand-in: what its forward decides, it decides when the graph is run."""
    tracer = operands[0].tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(module), operands, {})
