"""Graphs of training: around norms renorm runs them, forward and backward, convolutions and products are PyTorch's.

    joint graph ─partition─▶ forward, backward ─cut─▶ parts around norms: norm, activation, residual, casts

What can be made again element by element is not kept for the backward pass (`recomputation.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, fx
from torch._functorch.partitioners import default_partition

from renorm.frontends.torch.reader import overload
from renorm.torch import parts
from renorm.torch.calls import RECOMPUTED, elements, forward_part, is_norm, is_pointwise, results_of
from renorm.torch.convolution_layouts import put_channels_last
from renorm.torch.parts import LOG, calls_of
from renorm.torch.recomputation import keep_what_is_needed
from renorm.torch.slices_of_images import FOR_NORMS, slice_for_norms

LEAST = 4096  # elements of a result that a part is made for
_MOVES = {"view", "_unsafe_view", "reshape", "detach", "alias", "_to_copy", "expand"}


def partition(joint: fx.GraphModule, inputs: Any, **stated: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the forward and the backward graph of a joint one, as AOTAutograd asks for them."""
    put_channels_last(joint)
    for node in calls_of(joint):
        if overload(node) == "detach.default":  # values and their detached selves would both be kept
            (x,) = node.all_input_nodes
            node.replace_all_uses_with(x, delete_user_cb=lambda user: user.op == "call_function")
    slice_for_norms(joint)
    joint.graph.eliminate_dead_code()
    forward = forward_part(joint, stated["num_fwd_outputs"])
    keep_what_is_needed(joint, forward)
    joint.graph.eliminate_dead_code()
    joint.graph.lint()
    joint.recompile()
    return default_partition(joint, inputs, **stated)


def _is_wanted(node: fx.Node) -> bool:
    """Return whether a call may be in a part: a norm, or what computes or moves elements of a large tensor."""
    if is_norm(node):
        return True
    is_around = is_pointwise(node) or overload(node).partition(".")[0] in _MOVES or FOR_NORMS in node.meta
    if overload(node) == "cat.default":  # of what norms make side by side, and that made again; others only copy
        is_around = RECOMPUTED in node.meta or any(map(_is_of_norm, node.all_input_nodes))
    floats = all(x.is_floating_point() for x in results_of(node) if isinstance(x, Tensor))
    return is_around and floats and elements(node, LEAST) >= LEAST


def _is_of_norm(node: fx.Node) -> bool:
    """Return whether a norm gives a value, or a gradient of an image."""
    return overload(node) == "getitem" and node.args[1:] == (0,) and is_norm(node.all_input_nodes[0])


def _is_worth(calls: Sequence[fx.Node]) -> bool:
    """Return whether calls make a part: a norm, or several that compute each element, which become one."""
    return any(map(is_norm, calls)) or sum(map(is_pointwise, calls)) > 1


def cut(calls: fx.GraphModule, options: Mapping[str, Any]) -> fx.GraphModule:
    """Return a graph with parts around its norms as modules that renorm runs."""
    placeholders = sum(n.op == "placeholder" for n in calls.graph.nodes)
    norms = sum(map(is_norm, calls_of(calls)))
    # of norms that read each other each has a part: what one gives another is PyTorch's memory, and let go of
    made, cut_out = parts.cut(calls, [None] * placeholders, options, _is_wanted, _is_worth, is_norm)
    for part in cut_out:  # all were asked for; in the first step their memory would lie behind what the step keeps
        part.wait()
    inside = [n for part in cut_out for n in part.calls]
    LOG.info(
        "%d of %d norms, with %d other calls, in %d parts; %.1f MB less are moved",
        *(sum(map(is_norm, inside)), norms, sum(not is_norm(n) for n in inside), len(cut_out)),
        sum(part.fewer_bytes for part in cut_out) / 1e6,
    )
    return made
