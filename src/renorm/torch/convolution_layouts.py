"""Convolutions of training read and give channels_last on a CPU, where PyTorch's are faster so.

    convolution(x, w) -> convolution(channels_last(x), w), and its gradient likewise; not where x has few pixels
    results and gradients of the graph: in the order that they had

What lies between convolutions follows, as it keeps the order of what it reads; `pixels.py` reads it so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from renorm.frontends.torch.reader import overload
from renorm.torch.arrays import CHANNELS_LAST
from renorm.torch.calls import is_batch_norm, is_group_norm, is_norm

_CLONE = torch.ops.aten.clone.default
_IMAGES = {"convolution.default": 1, "convolution_backward.default": 2}  # how many of the first operands are
# pixels of a batch, of the smaller image, from which a convolution and its gradients take less time in channels_last:
# below, what they do with weights, which is the same for one image and many, takes longer than it saves. Two threads of
# a Xeon (6, 167), layers of resnet50, float32: 128 pixels 2.0 times as long, 400 1.05, 500 1.4, 1600 0.9, 6300 0.7
LEAST = 1024
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of oneDNN's convolutions


def put_channels_last(joint: fx.GraphModule) -> None:
    """Have convolutions of a joint graph of fixed extents read channels_last, and state of all that follows how it lies
    in memory then. Nothing is done where norms of groups of channels read images, around which parts read no rows."""
    calls = [n for n in joint.graph.nodes if n.op == "call_function"]
    convolutions = [n for n in calls if overload(n) in _IMAGES and _is_onednns(n)]
    if not convolutions or not _has_fixed_extents(joint) or not _are_of_channels(calls):
        return
    change = _Change(joint.graph)
    with torch.no_grad():
        for node in calls:
            change.follow(node, _IMAGES[overload(node)] if node in convolutions else 0)
        change.put_back(joint.graph.output_node())
    joint.graph.lint()
    joint.recompile()


def _is_onednns(node: fx.Node) -> bool:
    x = node.all_input_nodes[0].meta["val"]
    is_on = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return is_on and x.dim() in CHANNELS_LAST and x.device.type == "cpu" and x.dtype in _DTYPES


def _has_fixed_extents(joint: fx.GraphModule) -> bool:
    given = [n.meta.get("val") for n in joint.graph.nodes if n.op == "placeholder"]
    return all(isinstance(n, int) for x in given if isinstance(x, Tensor) for n in x.shape)


def _are_of_channels(calls: list[fx.Node]) -> bool:
    """Return whether norms of images are batch norms, and instance norms, which are group norms of channels; not those
    that PyTorch makes batch norms of views [1, N * C, *S] of, where they update statistics."""

    def is_of_channels(norm: fx.Node) -> bool:
        x = norm.all_input_nodes[0]
        if is_group_norm(norm):
            return norm.args[-2] == x.meta["val"].shape[1]
        return is_batch_norm(norm) and "view" not in overload(x)

    images = [n for n in calls if is_norm(n) and n.all_input_nodes[0].meta["val"].dim() in CHANNELS_LAST]
    return all(map(is_of_channels, images))


class _Change:
    """Follows what lies otherwise in memory than it did, through the calls of a graph in its order."""

    def __init__(self, graph: fx.Graph):
        self._graph = graph
        self._was = dict[fx.Node, Any]()  # what PyTorch said of nodes
        self._clones = dict[tuple[fx.Node, torch.memory_format], fx.Node]()

    def follow(self, node: fx.Node, images: int) -> None:
        """State how the results of a call lie in memory. images: how many of its operands are a convolution's."""
        if images and _pixels(node, images) < LEAST:
            self.put_back(node)
        elif images:
            self._put_last(node, images)
        if not any(x in self._was for x in node.all_input_nodes):
            return
        if node.target is _CLONE and node.kwargs.get("memory_format") is torch.contiguous_format:
            dense = CHANNELS_LAST.get(node.meta["val"].dim(), torch.contiguous_format)  # no more is asked for
            node.kwargs = {"memory_format": dense}
        now = _result(node)
        if now is None:
            self.put_back(node)
        elif _strides(now) != _strides(node.meta["val"]):
            self._was[node], node.meta["val"] = node.meta["val"], now

    def _put_last(self, node: fx.Node, images: int) -> None:
        for x in [x for x in node.args[:images] if isinstance(x, fx.Node)]:
            order = CHANNELS_LAST[x.meta["val"].dim()]
            if not x.meta["val"].is_contiguous(memory_format=order):
                node.replace_input_with(x, clone := self._clone(x, order, node))
                self._was[clone] = x.meta["val"]

    def put_back(self, node: fx.Node) -> None:
        """Have a node read tensors as they lay before."""
        for x in [x for x in node.all_input_nodes if isinstance(self._was.get(x), Tensor)]:
            was, last = self._was[x], CHANNELS_LAST.get(self._was[x].dim())
            is_last = last is not None and not was.is_contiguous() and was.is_contiguous(memory_format=last)
            node.replace_input_with(x, self._clone(x, last if is_last else torch.contiguous_format, node))

    def _clone(self, x: fx.Node, order: Any, before: fx.Node) -> fx.Node:
        if (x, order) not in self._clones:
            with self._graph.inserting_before(before):
                made = self._graph.call_function(_CLONE, (x,), {"memory_format": order})
            kept = {k: v for k, v in before.meta.items() if k in ("nn_module_stack", "stack_trace", "seq_nr")}
            made.meta = {**kept, "val": _CLONE(x.meta["val"], memory_format=order)}
            self._clones[x, order] = made
        return self._clones[x, order]


def _pixels(node: fx.Node, images: int) -> int:
    """Return how many pixels each weight of a convolution, or of its gradient, is multiplied with."""
    seen = [x.meta["val"] for x in (*node.args[:images], node) if isinstance(x, fx.Node)]
    return min(x.numel() // max(1, x.shape[1]) for x in seen if isinstance(x, Tensor))


def _result(node: fx.Node) -> Any:
    """Return what PyTorch says of a call's results; None of a call that cannot read its operands as they lie, or that
    looks at where elements lie."""
    target: Any = node.target
    if overload(node) != "getitem" and (not isinstance(target, torch._ops.OpOverload) or "strided" in overload(node)):
        return None
    try:
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        return target(*args, **kwargs)
    except (RuntimeError, ValueError, KeyError):  # no view of such memory; a constant of which nothing is said
        return None


def _strides(held: Any) -> Any:
    """Return the strides of axes that have them."""
    if isinstance(held, (tuple, list)):
        return [*map(_strides, held)]
    if not isinstance(held, Tensor):
        return None
    return [step for step, n in zip(held.stride(), held.shape) if n != 1]
