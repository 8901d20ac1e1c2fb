"""Parts of images that are channels_last, on rows of pixels, which is how such images lie in memory.

    x [N, C, *S], in memory [N, *S, C] -> [N * S, C];  what a channel has, [C, 1, 1] or [1, C, 1, 1] -> [C]

Calls that compute each element alone, and batch norms, whose statistics are of axis 1, give the same on both. Group
norms are told how many samples there are; renorm's readers take rows of them (`frontends/torch/overloads/norms.py`).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from renorm.frontends.torch.pairs import is_complex
from renorm.frontends.torch.reader import overload
from renorm.torch.calls import is_batch_norm, is_group_norm, is_pointwise

_COPIES = ("detach", "alias", "clone", "_to_copy")
_VIEWS = ("view", "_unsafe_view", "reshape")


def of_pixels(calls: fx.Graph) -> fx.Graph | None:
    """Return a part's calls on rows of pixels: nodes of the same names, of rank 2 where they were images. None where
    most of what the part reads is not channels_last, extents are open or zero, elements are complex, whose parts would
    be one more axis, or a call looks at more than a pixel."""
    given = [x for n in calls.nodes if n.op == "placeholder" and isinstance(x := n.meta.get("val"), Tensor)]
    rows = _Rows(max((x.dim() for x in given), default=0))
    if rows.rank not in (4, 5) or any(is_complex(n.meta.get("val")) for n in calls.nodes):
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
        of[node] = made.node_copy(node, of.__getitem__)
        of[node].kwargs = {k: v for k, v in of[node].kwargs.items() if k != "memory_format"}
        of[node].meta["val"] = rows.of(node.meta.get("val"))
    return made


class _Rows:
    """Give rows of pixels for the images of a part, which are of one rank."""

    def __init__(self, rank: int):
        self.rank = rank

    def has_pixels(self, x: Any) -> bool:
        return isinstance(x, Tensor) and x.dim() == self.rank and not self.is_of_channels(x)

    def is_of_channels(self, x: Any) -> bool:
        """Return whether each channel has one number: [C, 1, 1], [1, C, 1, 1]."""
        if not isinstance(x, Tensor) or x.dim() not in (self.rank - 1, self.rank):
            return False
        return all(n == 1 for n in (*x.shape[: 1 - self.rank], *x.shape[2 - self.rank :]))

    def _is_of_images(self, x: Any) -> bool:
        return self.has_pixels(x) or self.is_of_channels(x)

    def of(self, held: Any) -> Any:
        """Return what PyTorch says of a result, on rows."""
        if isinstance(held, (tuple, list)):
            return tuple(map(self.of, held))
        if self.has_pixels(held):
            return held.movedim(1, -1).flatten(0, -2)
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
            return bool(given) and all(x.shape == held.shape or self.is_of_channels(x) for x in given)
        return len({self.is_of_channels(x) for x in (*given, held)}) == 1

    def is_nothing(self, node: fx.Node) -> bool:
        """Return whether a call only has the numbers of channels stand along another axis."""
        if overload(node).partition(".")[0] not in _VIEWS:
            return False
        given = node.all_input_nodes[0].meta.get("val")
        both = (given, node.meta["val"])
        return all(isinstance(x, Tensor) and (x.dim() == 1 or self.is_of_channels(x)) for x in both)
