"""Keep inputs and statistics of norms for the backward pass, which their own gradients read, and not their results.

A call that reads a norm's result element by element reads the input in its place, and computes the result on the way:
as many bytes are moved, and fewer kept. The activation of a batch norm, which a convolution's gradient reads, may be
made once more in front of that: an image is read and written, and one less is kept.

    y = norm(x), z = silu(y); in the backward pass silu'(y) -> silu'((x - mean) * invstd * scale + bias)
    w' = convolution_backward(dy, z, w) -> convolution_backward(dy, silu((x - mean) * invstd * scale + bias), w)
"""

from __future__ import annotations

import operator
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from renorm.frontends.torch.reader import overload
from renorm.torch.calls import BATCH_NORMS, Calls, is_batch_norm, is_norm, is_pointwise, is_random, readers_behind

_ATEN = torch.ops.aten


def keep_inputs_of_norms(joint: fx.GraphModule, forward: Mapping[fx.Node, None], keeps_activations: bool) -> None:
    """Have the backward part of a joint graph read no results of norms, and if wanted no activations of batch norms.
    forward: the other part."""
    places = {n: i for i, n in enumerate(joint.graph.nodes)}
    for norm in [n for n in forward if is_norm(n)]:
        _widen(norm)
        for y in [u for u in norm.users if overload(u) == "getitem" and u.args[1] == 0]:
            behind = readers_behind(y, forward, places)
            if all(map(is_pointwise, behind)):
                _make_again(joint.graph, norm, y, y, behind)
            z = _activation(y, forward) if is_batch_norm(norm) and not keeps_activations else None
            if z is not None:
                _make_again(joint.graph, norm, y, z, readers_behind(z, forward, places))


def _make_again(graph: fx.Graph, norm: fx.Node, y: fx.Node, value: fx.Node, behind: Sequence[fx.Node]) -> None:
    """Have calls read what is made in front of them of a norm's input. value: y, its result, or an activation of y."""
    made = _again(graph, norm, y, behind[0]) if behind else None
    if made is None:
        return
    if value is not y:
        made = Calls(graph, behind[0], value)(value.target, made, *value.args[1:], **value.kwargs)
    for user in behind:
        user.replace_input_with(value, made)


def _activation(y: fx.Node, forward: Container[fx.Node]) -> fx.Node | None:
    """Return the one call of the forward part that reads a norm's result, where it computes each element of it, and
    nobody is given what it makes."""
    users = [u for u in y.users if u in forward]
    if len(users) != 1 or not is_pointwise(users[0]) or users[0].all_input_nodes != [y]:
        return None
    return None if is_random(users[0]) or any(u.op == "output" for u in users[0].users) else users[0]


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


def _again(graph: fx.Graph, norm: fx.Node, y: fx.Node, before: fx.Node) -> fx.Node | None:
    """Return y of a norm, made of its input and its statistics in front of a node; None for a norm of another kind."""
    call, name = Calls(graph, before, norm), overload(norm).removesuffix(".default")
    x, of = norm.args[0], y.meta["val"]
    held = x.meta["val"] if isinstance(x, fx.Node) else None
    if not isinstance(held, Tensor) or not isinstance(of, Tensor):
        return None
    if name in BATCH_NORMS and held.dim() > 1:
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


def _on(graph: fx.Graph, call: Calls, norm: fx.Node, index: int, around: Sequence[int]) -> fx.Node:
    return call(_ATEN.view.default, _result(graph, norm, index), around)


def _of_channels(
    graph: fx.Graph, call: Calls, norm: fx.Node, index: int, batch: Any, channels: Any, groups: int, around: Any
) -> fx.Node:
    """Return a statistic of groups [N, G] as one of channels [N, C, 1, ..]."""
    of_groups = call(_ATEN.view.default, _result(graph, norm, index), [batch, groups, 1])
    spread = call(_ATEN.expand.default, of_groups, [batch, groups, channels // groups])
    return call(_ATEN.reshape.default, spread, [batch, channels, *around[1:]])
