"""Keep for the backward pass what calls need of each other's, and make the rest again from that, element by element.

    y = norm(x), z = silu(y); in the backward pass silu'(y) -> silu'((x - mean) * invstd * scale + bias)
    w' = convolution_backward(dy, z, w) -> convolution_backward(dy, silu((x - mean) * invstd * scale + bias), w)
    v = relu(norm(x) + u), u kept: v -> relu((x - mean) * invstd * scale + bias + u)

Of a norm its input and statistics are kept, which its own gradient reads. A call that computes elements of the norm's
result reads the input in its place: as many bytes are moved, and fewer kept. What another call reads, a convolution's
gradient say, is made in front of it: one or two images are read and one is written, and one less is kept. Slices that
norms read where they lie, and copies of what is kept, are always made again.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from renorm.frontends.torch.reader import overload
from renorm.torch.calls import (
    BATCH_NORMS,
    COPY,
    WRITE,
    Calls,
    axes_in_memory,
    elements,
    is_norm,
    is_pointwise,
    is_random,
    is_view,
    owner,
    readers_behind,
)
from renorm.torch.slices_of_images import FOR_NORMS

_ATEN = torch.ops.aten
STEPS = 16  # in which each kernel makes what it reads of what is kept: copies of longer chains grow with their square
MOST = 2  # images that one is made again of: of a chain of residual sums every other one is kept
LEAST = 1 << 18  # elements of what is made again in a kernel of its own: 2^16 made resnet50 (8 images) no smaller
_MADE = (COPY, "_to_copy.default", "cat.default")


def keep_what_is_needed(joint: fx.GraphModule, forward: Mapping[fx.Node, None]) -> None:
    """Have the backward part of a joint graph read nothing that can be made again of what is kept. forward: the other
    part."""
    for norm in filter(is_norm, forward):
        _widen(norm)
    kept = _Kept(joint.graph, forward)
    reader_of = dict[fx.Node, fx.Node]()  # of what is made again, for whom
    for node in reversed([*forward]):  # who reads a value comes first: what that is made of may be made again, too
        if kept.is_kept(node) or all(u in forward for u in node.users):
            continue
        behind, is_short = readers_behind(node, forward, _places(joint.graph)), kept.is_short(node)
        readers = defaultdict[fx.Node | None, list[fx.Node]](list)  # that share what is made
        for user in behind:
            # elements are computed in the kernel that reads them, for an image an image
            readers[reader_of.get(user, user if is_short and is_pointwise(user) else None)].append(user)
        for reader, users in readers.items():
            made, calls = _made_again(joint.graph, node, users[0])
            reader_of |= dict.fromkeys(calls, reader or made)
            for user in users:
                user.replace_input_with(node, made)


def _places(graph: fx.Graph) -> dict[fx.Node, int]:
    return {n: i for i, n in enumerate(graph.nodes)}


class _Kept:
    """Decide in the order of the forward part which of its values are kept; all others can be made again of these."""

    def __init__(self, graph: fx.Graph, forward: Mapping[fx.Node, None]):
        self._forward = forward
        self._written = {owner(n.all_input_nodes[0]) for n in graph.nodes if overload(n) == WRITE}
        self._owners, places = set[fx.Node](), _places(graph)  # whose memory is kept
        for node in forward:
            behind = readers_behind(node, forward, places)
            if behind and (node.op == "placeholder" or not self._is_made_again(node, behind)):
                self._owners.add(owner(node))

    def is_kept(self, node: fx.Node) -> bool:
        """Return whether the backward part reads a value itself: in memory that is kept, and no slice for norms."""
        return node.op == "placeholder" or (owner(node) in self._owners and FOR_NORMS not in node.meta)

    def is_short(self, node: fx.Node) -> bool:
        """Return whether a value is made again of one image at most, in so few steps that each kernel may do so."""
        _, images, steps = self._made_of(node)
        return len(images) <= 1 and steps <= STEPS

    def _readers(self, node: fx.Node) -> list[fx.Node]:
        return [u for u in node.users if u in self._forward]

    def _is_made_again(self, v: fx.Node, behind: Sequence[fx.Node]) -> bool:
        """Return whether the memory of a value that the backward part reads is not kept for that."""
        can, images, _ = self._made_of(v)
        if owner(v) in self._owners or not can:
            return False
        is_of_norm = overload(v) == "getitem" and is_norm(v.all_input_nodes[0])
        is_worth = len(images) <= MOST and elements(v) >= LEAST
        return is_worth or (is_of_norm and all(map(is_pointwise, behind))) or (overload(v) == COPY and len(images) == 1)

    def _made_of(self, v: fx.Node) -> tuple[bool, set[fx.Node], int]:
        """Return whether a value can be made again, what it is made of that is kept and of about its size, and in how
        many steps."""
        waiting, seen, images = [v], set[fx.Node](), set[fx.Node]()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if owner(node) in self._written:
                return False, images, len(seen)  # it has another value by then
            if owner(node) in self._owners:
                images |= {owner(node)} if 2 * elements(node) > elements(v) else set()
            elif node.op == "placeholder" and all(is_norm(u) and u.args[0] is not node for u in self._readers(node)):
                continue  # scale or bias; who computes with another input may write to it before the backward pass
            elif (operands := _operands(node)) and not any(u.op == "output" for u in node.users):
                waiting += operands
            else:
                return False, images, len(seen)
        return True, images, len(seen)


def _operands(node: fx.Node) -> Sequence[fx.Node]:
    """Return what a value is made again of, element by element: of a norm's result its input and parameters."""
    if overload(node) == "getitem" and is_norm(norm := node.all_input_nodes[0]):
        found = _normalization(norm) if node.args[1] == 0 else None
        return [n for n in found or () if isinstance(n, fx.Node)]
    is_of_elements = is_pointwise(node) or is_view(node) or overload(node) in _MADE
    return [] if is_random(node) or not is_of_elements else node.all_input_nodes


def _normalization(norm: fx.Node) -> tuple[Any, Any, Any] | None:
    """Return the input, scale and bias of a norm that can be made again of its statistics."""
    name, given = overload(norm).removesuffix(".default"), [*norm.args]
    x: Any = given[0]
    if name == "native_layer_norm":
        return x, given[2], given[3]
    is_of_channels = name in BATCH_NORMS or name == "native_group_norm"
    return (x, given[1], given[2]) if is_of_channels and x.meta["val"].dim() > 1 else None


def _made_again(graph: fx.Graph, v: fx.Node, before: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """Return what gives a value again in front of a node, of what it was made of, and the calls that do so."""
    call, held = Calls(graph, before, v), v.meta["val"]
    if overload(v) == "getitem" and is_norm(norm := v.all_input_nodes[0]):
        made = _normalized(graph, call, norm, held.dtype)
    else:
        made = call(v.target, *v.args, **v.kwargs)
        made.meta |= {k: x for k, x in v.meta.items() if k == FOR_NORMS}
    if not isinstance(held, Tensor) or (axes := axes_in_memory(held)) == axes_in_memory(made.meta["val"]):
        return made, call.made
    made = call(_ATEN.permute.default, made, axes)  # a view may follow
    made = call(_ATEN.clone.default, made, memory_format=torch.contiguous_format)
    return call(_ATEN.permute.default, made, [axes.index(a) for a in range(len(axes))]), call.made


def _normalized(graph: fx.Graph, call: Calls, norm: fx.Node, dtype: torch.dtype) -> fx.Node:
    """Return the result of a norm, made of its input and its statistics."""
    found, given = _normalization(norm), list[Any](norm.args)
    assert found is not None
    x, scale, bias = found
    held, around = x.meta["val"], [-1, *[1] * (x.meta["val"].dim() - 2)]
    if overload(norm) == "native_layer_norm.default":
        mean, invstd, around = _result(graph, norm, 1), _result(graph, norm, 2), given[1]
    elif overload(norm) == "native_group_norm.default":
        batch, channels, groups = given[3], given[4], given[6]
        mean, invstd = (_of_channels(graph, call, norm, i, batch, channels, groups, around) for i in (1, 2))
    else:
        mean, invstd = (call(_ATEN.view.default, _result(graph, norm, i), around) for i in (1, 2))
    wide = torch.float64 if held.dtype is torch.float64 else torch.float32
    made = x if held.dtype is wide else call(_ATEN._to_copy.default, x, dtype=wide)
    made = call(_ATEN.mul.Tensor, call(_ATEN.sub.Tensor, made, mean), invstd)
    for target, parameter in ((_ATEN.mul.Tensor, scale), (_ATEN.add.Tensor, bias)):
        if parameter is not None:
            made = call(target, made, call(_ATEN.view.default, parameter, around))
    return made if dtype is made.meta["val"].dtype else call(_ATEN._to_copy.default, made, dtype=dtype)


def _widen(norm: fx.Node) -> None:
    """State that statistics of 16-bit floats are float32, as kernels have them, renorm's and most of PyTorch's: what
    PyTorch states depends on parameters, and is wrong where a batch norm has none."""
    held = norm.meta["val"]
    if not isinstance(held, (list, tuple)):
        return
    is_narrow = [i in (1, 2) and isinstance(x, Tensor) and x.dtype.itemsize == 2 for i, x in enumerate(held)]
    results = [x.float() if narrow else x for x, narrow in zip(held, is_narrow)]
    norm.meta["val"] = tuple(results)
    for user in norm.users:
        if overload(user) == "getitem":
            index: Any = user.args[1]
            user.meta["val"] = results[index]


def _result(graph: fx.Graph, norm: fx.Node, index: int) -> fx.Node:
    """Return a result of a node."""
    for user in norm.users:
        if overload(user) == "getitem" and user.args[1] == index:
            return user
    with graph.inserting_after(norm):
        made = graph.call_function(operator.getitem, (norm, index))
    made.meta = {**{k: v for k, v in norm.meta.items() if k != "val"}, "val": norm.meta["val"][index]}
    return made


def _of_channels(
    graph: fx.Graph, call: Calls, norm: fx.Node, index: int, batch: Any, channels: Any, groups: int, around: Any
) -> fx.Node:
    """Return a statistic of groups [N, G] as one of channels [N, C, 1, ..]."""
    if groups == channels:
        return call(_ATEN.view.default, _result(graph, norm, index), [batch, channels, *around[1:]])
    of_groups = call(_ATEN.view.default, _result(graph, norm, index), [batch, groups, 1])
    each = call(operator.floordiv, channels, groups) if isinstance(channels, fx.Node) else channels // groups
    spread = call(_ATEN.expand.default, of_groups, [batch, groups, each])
    return call(_ATEN.reshape.default, spread, [batch, channels, *around[1:]])
