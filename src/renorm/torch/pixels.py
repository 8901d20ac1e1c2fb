"""Parts of images that are channels_last, on rows of pixels, which is how such images lie in memory.

    x [N, C, *S], in memory [N, *S, C] -> [N * S, C];  what a channel has, [C, 1, 1] or [1, C, 1, 1] -> [C]
    what a channel of a sample has, [N, C, 1, 1] -> [N, C], of which each of the sample's rows reads one

Calls that compute each element alone, and batch norms, whose statistics are of axis 1, give the same on both. Group
norms are told how many samples there are; renorm's readers take rows of them (`frontends/torch/overloads/norms.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from renorm.frontends.torch.pairs import is_complex
from renorm.frontends.torch.reader import overload
from renorm.torch.calls import is_batch_norm, is_group_norm, is_pointwise

_ATEN = torch.ops.aten
_COPIES = ("detach", "alias", "clone", "_to_copy")
_VIEWS = ("view", "_unsafe_view", "reshape")


def of_pixels(calls: fx.Graph) -> fx.Graph | None:
    """Return a part's calls on rows of pixels: nodes of the same names, of rank 2 where they were images. None where
    most of what the part reads is not channels_last, extents are open or zero, elements are complex, whose parts would
    be one more axis, it has constants or bodies, or a call looks at more than a pixel."""
    given = [x for n in calls.nodes if n.op == "placeholder" and isinstance(x := n.meta.get("val"), Tensor)]
    rows = _Rows(max(given, key=lambda x: (x.dim(), x.numel()), default=Tensor()))
    if rows.rank not in (4, 5) or any(n.op == "get_attr" or is_complex(n.meta.get("val")) for n in calls.nodes):
        return None
    if not all(isinstance(n, int) and n > 0 for x in given for n in x.shape):
        return None
    images = [x for x in given if rows.has_pixels(x)]
    last = sum(x.numel() for x in images if x.stride(1) == 1)
    if 2 * last <= sum(x.numel() for x in images):
        return None
    made, of = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in calls.nodes:
        if node.op == "call_function" and not rows.may_run(node):
            return None
        if rows.is_nothing(node):
            of[node] = of[node.all_input_nodes[0]]
            continue
        of[node] = made.node_copy(node, rows.reading(node, of, made))
        of[node].kwargs = {k: v for k, v in of[node].kwargs.items() if k != "memory_format"}
        of[node].meta["val"] = rows.of(node.meta.get("val"))
    return made


class _Rows:
    """Give rows of pixels for the images of a part, which are of one rank. largest: of what it reads."""

    def __init__(self, largest: Tensor):
        self.rank, self._pixels = largest.dim(), prod(largest.shape[2:])

    def has_pixels(self, x: Any) -> bool:
        is_image = isinstance(x, Tensor) and x.dim() == self.rank
        return is_image and not self.is_of_channels(x) and not self._is_of_samples(x)

    def is_of_channels(self, x: Any) -> bool:
        """Return whether each channel has one number: [C, 1, 1], [1, C, 1, 1]."""
        if not isinstance(x, Tensor) or x.dim() not in (self.rank - 1, self.rank):
            return False
        return all(n == 1 for n in (*x.shape[: 1 - self.rank], *x.shape[2 - self.rank :]))

    def _is_of_samples(self, x: Any) -> bool:
        """Return whether each channel of a sample has one number, and more than one pixel."""
        is_like_images = isinstance(x, Tensor) and x.dim() == self.rank and x.shape[0] > 1
        return is_like_images and self._pixels > 1 and all(n == 1 for n in x.shape[2:])

    def _is_of_images(self, x: Any) -> bool:
        return self.has_pixels(x) or self.is_of_channels(x) or self._is_of_samples(x)

    def of(self, held: Any) -> Any:
        """Return what PyTorch says of a result, on rows."""
        if isinstance(held, (tuple, list)):
            return tuple(map(self.of, held))
        if self.has_pixels(held):
            return held.movedim(1, -1).flatten(0, -2)
        if self._is_of_samples(held):
            return held.flatten(1)
        return held.reshape(-1) if self.is_of_channels(held) else held

    def may_run(self, node: fx.Node) -> bool:
        """Return whether a call gives the same on rows."""
        name, held = overload(node).partition(".")[0], node.meta.get("val")
        given = [x for n in node.all_input_nodes if isinstance(x := n.meta.get("val"), Tensor) and x.dim()]
        if name == "getitem":
            return True
        if is_batch_norm(node) or is_group_norm(node):
            return self.has_pixels(given[0])
        if name in ("slice", "cat"):  # of channels, which are axis 1 of rows as well
            return node.args[1:2] == (1,) and all(map(self.has_pixels, given))
        if name in _VIEWS:
            return self.is_nothing(node) or not any(map(self._is_of_images, (*given, held)))
        if not (is_pointwise(node) or name in _COPIES or not given):
            return False
        if isinstance(held, Tensor) and self.has_pixels(held):
            return bool(given) and all(x.shape == held.shape or self._is_read_by_rows(x, held) for x in given)
        if isinstance(held, Tensor) and self._is_of_samples(held):
            return all(x.shape == held.shape or self.is_of_channels(x) for x in given)
        return len({self.is_of_channels(x) for x in (*given, held)}) == 1 and not any(map(self._is_of_samples, given))

    def _is_read_by_rows(self, x: Tensor, image: Tensor) -> bool:
        is_of_its = self._is_of_samples(x) and x.shape[0] == image.shape[0] and x.shape[1] in (1, image.shape[1])
        return self.is_of_channels(x) or is_of_its

    def is_nothing(self, node: fx.Node) -> bool:
        """Return whether a call only has the numbers of channels, or of those of samples, stand along other axes."""
        if overload(node).partition(".")[0] not in _VIEWS:
            return False
        both = [x for x in (node.all_input_nodes[0].meta.get("val"), node.meta["val"]) if isinstance(x, Tensor)]
        if all(x.dim() == 1 or self.is_of_channels(x) for x in both):
            return True
        return both[0].shape[:2] == both[1].shape[:2] and all(x.dim() == 2 or self._is_of_samples(x) for x in both)

    def reading(self, node: fx.Node, of: Mapping[fx.Node, fx.Node], graph: fx.Graph) -> Callable[[fx.Node], fx.Node]:
        """Return what a call reads in place of each operand: of a sample's numbers its rows', where it gives rows."""
        held: Any = node.meta.get("val")

        def read(x: fx.Node) -> fx.Node:
            if not (self.has_pixels(held) and self._is_of_samples(x.meta.get("val"))):
                return of[x]
            (batch, channels), pixels, found = x.meta["val"].shape[:2], prod(held.shape[2:]), of[x]
            for target, shape in (
                (_ATEN.view.default, [batch, 1, channels]),
                (_ATEN.expand.default, [batch, pixels, channels]),
                (_ATEN.reshape.default, [batch * pixels, channels]),
            ):
                given, found = found.meta["val"], graph.call_function(target, (found, shape))
                found.meta["val"] = target(given, shape)
            return found

        return read
