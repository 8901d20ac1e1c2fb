"""Keep inputs and statistics of norms for the backward pass, which their own gradients read, and not their results.

A call that reads a norm's result element by element reads the input in its place, and computes the result on the way:
as many bytes are moved, and fewer kept. The activation of a batch norm, which a convolution's gradient reads, may be
made once more in front of that: an image is read and written, and one less is kept.

    y = norm(x), z = silu(y); in the backward pass silu'(y) -> silu'((x - mean) * invstd * scale + bias)
    w' = convolution_backward(dy, z, w) -> convolution_backward(dy, silu((x - mean) * invstd * scale + bias), w)
"""

from __future__ import annotations

import operator
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from renorm.frontends.torch.reader import overload

RECOMPUTED = "renorm_recomputed"  # in what is known of a call that PyTorch would not make
_ATEN = torch.ops.aten
_UNTAGGED = {  # calls that PyTorch does not say are pointwise, and are
    "hardswish", "hardswish_backward", "hardsigmoid_backward", "hardtanh_backward", "leaky_relu_backward",
    "elu_backward", "softplus_backward", "mish_backward", "native_dropout_backward",
}  # fmt: skip
_NORM = re.compile("(batch|instance|group|layer|rms)_norm")
_BATCH = ("_native_batch_norm_legit_functional", "_native_batch_norm_legit.no_stats")


def is_norm(node: fx.Node) -> bool:
    """Return whether a call is a normalization, or the gradient of one."""
    return node.op == "call_function" and _NORM.search(overload(node)) is not None


def is_batch_norm(node: fx.Node) -> bool:
    """Return whether a call is a batch norm of training, or its gradient."""
    return overload(node).removesuffix(".default") in (*_BATCH, "native_batch_norm_backward")


def is_group_norm(node: fx.Node) -> bool:
    """Return whether a call is a group norm of training, or its gradient."""
    return overload(node) in ("native_group_norm.default", "native_group_norm_backward.default")


def is_pointwise(node: fx.Node) -> bool:
    """Return whether a call computes each element of its result from few others."""
    is_tagged = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
    return is_tagged or overload(node).partition(".")[0] in _UNTAGGED


def keep_inputs_of_norms(joint: fx.GraphModule, forward_outputs: int, keeps_activations: bool) -> None:
    """Have the backward part of a joint graph read no results of norms, and if wanted no activations of batch norms."""
    for node in [n for n in joint.graph.nodes if n.op == "call_function"]:
        if overload(node) == "detach.default":  # values and their detached selves would both be kept
            node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op == "call_function")
    joint.graph.eliminate_dead_code()
    forward, places = _forward(joint, forward_outputs), {n: i for i, n in enumerate(joint.graph.nodes)}
    for norm in [n for n in forward if is_norm(n)]:
        _widen(norm)
        for y in [u for u in norm.users if overload(u) == "getitem" and u.args[1] == 0]:
            behind = _behind(y, forward, places)
            if all(map(is_pointwise, behind)):
                _make_again(joint.graph, norm, y, y, behind)
            z = _activation(y, forward) if is_batch_norm(norm) and not keeps_activations else None
            if z is not None:
                _make_again(joint.graph, norm, y, z, _behind(z, forward, places))
    joint.graph.eliminate_dead_code()
    joint.graph.lint()
    joint.recompile()


def _behind(x: fx.Node, forward: Container[fx.Node], places: Mapping[fx.Node, int]) -> list[fx.Node]:
    """Return the calls of the backward part that read x, in the order of the graph."""
    return sorted([u for u in x.users if u not in forward and u.op == "call_function"], key=places.__getitem__)


def _make_again(graph: fx.Graph, norm: fx.Node, y: fx.Node, value: fx.Node, behind: Sequence[fx.Node]) -> None:
    """Have calls read what is made in front of them of a norm's input. value: y, its result, or an activation of y."""
    made = _again(graph, norm, y, behind[0]) if behind else None
    if made is None:
        return
    if value is not y:
        made = _Calls(graph, behind[0], value)(value.target, made, *value.args[1:], **value.kwargs)
    for user in behind:
        user.replace_input_with(value, made)


def _activation(y: fx.Node, forward: Container[fx.Node]) -> fx.Node | None:
    """Return the one call of the forward part that reads a norm's result, where it computes each element of it, and
    nobody is given what it makes."""
    users = [u for u in y.users if u in forward]
    if len(users) != 1 or not is_pointwise(users[0]) or users[0].all_input_nodes != [y]:
        return None
    is_random = torch.Tag.nondeterministic_seeded in getattr(users[0].target, "tags", ())
    return None if is_random or any(u.op == "output" for u in users[0].users) else users[0]


def _widen(norm: fx.Node) -> None:
    """State that statistics of 16-bit floats are float32, as kernels have them, renorm's and most of PyTorch's: what
    PyTorch states depends on parameters, and is wrong where a batch norm has none."""
    held = norm.meta["val"]
    if not isinstance(held, (list, tuple)):
        return
    results = list(held)
    for i in (1, 2):
        if i < len(results) and isinstance(of := results[i], Tensor) and of.dtype.itemsize == 2:
            results[i] = of.float()
    norm.meta["val"] = tuple(results)
    for user in norm.users:
        if overload(user) == "getitem":
            index: Any = user.args[1]
            user.meta["val"] = results[index]


def _forward(joint: fx.GraphModule, outputs: int) -> dict[fx.Node, None]:
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


class _Calls:
    """Appends calls in front of a node, with what PyTorch says of their results."""

    def __init__(self, graph: fx.Graph, before: fx.Node, like: fx.Node):
        self._graph, self._before, self._like = graph, before, like

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self._graph.inserting_before(self._before):
            made = self._graph.call_function(target, args, kwargs)
        given = map_arg((args, kwargs), lambda n: n.meta["val"])
        made.meta = {k: v for k, v in self._like.meta.items() if k in ("nn_module_stack", "stack_trace", "seq_nr")}
        made.meta |= {"val": target(*given[0], **given[1]), RECOMPUTED: True}
        return made


def _again(graph: fx.Graph, norm: fx.Node, y: fx.Node, before: fx.Node) -> fx.Node | None:
    """Return y of a norm, made of its input and its statistics in front of a node; None for a norm of another kind."""
    call, name = _Calls(graph, before, norm), overload(norm).removesuffix(".default")
    x, of = norm.args[0], y.meta["val"]
    held = x.meta["val"] if isinstance(x, fx.Node) else None
    if not isinstance(held, Tensor) or not isinstance(of, Tensor):
        return None
    if name in _BATCH and held.dim() > 1:
        scale, bias, around = norm.args[1], norm.args[2], [-1, *[1] * (held.dim() - 2)]
        mean, invstd = (_on(graph, call, norm, i, around) for i in (1, 2))
    elif name == "native_layer_norm":
        _, shape, scale, bias, _ = norm.args
        mean, invstd, around = _result(graph, norm, 1), _result(graph, norm, 2), shape
    elif name == "native_group_norm":
        given: Any = norm.args
        _, scale, bias, batch, channels, _, groups, _ = given
        around = [-1, *[1] * (held.dim() - 2)]
        mean, invstd = (_of_channels(graph, call, norm, i, batch, channels, groups, around) for i in (1, 2))
    else:
        return None
    wide = torch.float64 if held.dtype is torch.float64 else torch.float32
    made = x if held.dtype is wide else call(_ATEN._to_copy.default, x, dtype=wide)
    made = call(_ATEN.mul.Tensor, call(_ATEN.sub.Tensor, made, mean), invstd)
    for target, parameter in ((_ATEN.mul.Tensor, scale), (_ATEN.add.Tensor, bias)):
        if parameter is not None:
            made = call(target, made, call(_ATEN.view.default, parameter, around))
    return made if of.dtype is made.meta["val"].dtype else call(_ATEN._to_copy.default, made, dtype=of.dtype)


def _result(graph: fx.Graph, norm: fx.Node, index: int) -> fx.Node:
    """Return a result of a node."""
    for user in norm.users:
        if overload(user) == "getitem" and user.args[1] == index:
            return user

    with graph.inserting_after(norm):
        made = graph.call_function(operator.getitem, (norm, index))
    made.meta = {**{k: v for k, v in norm.meta.items() if k != "val"}, "val": norm.meta["val"][index]}
    return made


def _on(graph: fx.Graph, call: _Calls, norm: fx.Node, index: int, around: Sequence[int]) -> fx.Node:
    return call(_ATEN.view.default, _result(graph, norm, index), around)


def _of_channels(
    graph: fx.Graph, call: _Calls, norm: fx.Node, index: int, batch: Any, channels: Any, groups: int, around: Any
) -> fx.Node:
    """Return a statistic of groups [N, G] as one of channels [N, C, 1, ..]."""
    of_groups = call(_ATEN.view.default, _result(graph, norm, index), [batch, groups, 1])
    spread = call(_ATEN.expand.default, of_groups, [batch, groups, channels // groups])
    return call(_ATEN.reshape.default, spread, [batch, channels, *around[1:]])
