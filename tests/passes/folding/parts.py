"""Steps that take channels apart, by a split or by slices, and put them together again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from tests.passes.folding.network import Inapplicable, Network, conv
from tests.passes.folding.steps import batch_norm, factors, spatial, step
from tests.passes.folding.verdict import Link, Map, fork

BRANCHES = ("straight", "straight", "conv", "conv_norm", "norm", "Relu", "Tanh")
# what a map does on each: going back from behind it, and forwards from in front of it
_BACK = {"straight": "carries", "norm": "carries", "Relu": "scaled", "Tanh": "blocks"}


def cut(net: Network, v: str, sizes: Sequence[int], by: str) -> list[str]:
    """Parts of the channels. by: "split", or "slices"."""
    x = net.values[v]
    parts = torch.split(x, list(sizes), 1)
    if by == "slices":
        return [_slice(net, v, end - n, end, y) for n, end, y in zip(sizes, accumulate(sizes), parts)]
    old = net.opset < 13
    operands = [v] if old else [v, net.constant("sizes", np.array(sizes))]
    more = list[str]()
    for y in parts[1:]:
        more.append(net.free("split.part"))
        net.values[more[-1]] = y
    first = net.apply("Split", operands, parts[0], extra=more, axis=1, split=list(sizes) if old else None)
    return [first, *more]


def _slice(net: Network, v: str, start: int, end: int, y: torch.Tensor) -> str:
    if net.opset < 10:
        return net.apply("Slice", [v], y, starts=[start], ends=[end], axes=[1])
    return net.apply("Slice", [v, *(net.constant("bounds", np.array([b])) for b in (start, end, 1))], y)


def pointwise(net: Network, v: str, m: int) -> str:
    """A convolution of one pixel, with a bias."""
    rank, x = spatial(net, v), net.values[v]
    w = net.constant("weight", net.rng.standard_normal((m, x.shape[1], *[1] * rank)))
    b = net.constant("bias", net.rng.standard_normal(m))
    one = {"group": 1, "strides": [1] * rank, "dilations": [1] * rank, "pads": [0] * 2 * rank}
    return net.apply("Conv", [v, w, b], conv(x, net.values[w], net.values[b], one))


def branch(net: Network, v: str, kind: str) -> tuple[str, Map | None]:
    """One way of a fork, and the norm that stands in it alone."""
    c = net.shape(v)[1]
    if kind.startswith("conv"):
        v = pointwise(net, v, c)
    if kind.endswith("norm"):
        v, k, shift = batch_norm(net, v, factors(net, c, "any"), net.rng.standard_normal(c), 1e-3)
        return v, Map(k, shift) if kind == "norm" else None
    if kind in ("Relu", "Tanh"):
        v = net.apply(kind, [v], {"Relu": torch.relu, "Tanh": torch.tanh}[kind](net.values[v]))
    return v, None


@step
def apart(net: Network, v: str, by: str, branches: Sequence[str], uneven: bool, join: str, turned: bool):
    """Channels taken apart, led different ways, and joined. uneven: the first part has one channel; join: "Concat",
    "Add" or "Sub"; turned: in the other order."""
    spatial(net, v)
    net.is_sharing = False
    c, ways = net.shape(v)[1], len(branches)
    sums = join != "Concat"
    if c < ways or (sums and c % ways) or branches.count("Relu") > 1 or (join == "Sub" and ways != 2):
        raise Inapplicable("channels cannot be taken apart like that")
    sizes = [c // ways] * ways
    sizes[-1] += c - sum(sizes)
    if uneven and not sums:
        sizes = [1] * (ways - 1) + [c - ways + 1]
    made = [branch(net, part, kind) for part, kind in zip(cut(net, v, sizes, by), branches, strict=True)]
    parts = [name for name, _ in made][:: -1 if turned else 1]
    means = [net.values[name] for name in parts]
    inner = tuple(one for _, one in made if one is not None)
    does = [_BACK.get(kind, "takes") for kind in branches]
    if not sums:
        y = net.apply("Concat", parts, torch.cat(means, 1), axis=1)
        # a norm inside goes back through the split, or on through the concat
        return y, [Link("apart", fork(does), fork(does), inner=inner, local=branches.count("conv_norm"))]
    y = parts[0]
    for name, mean in zip(parts[1:], means[1:]):
        y = net.apply(join, [y, name], net.values[y] - mean if join == "Sub" else net.values[y] + mean)
    front = "takes" if set(does) == {"takes"} else "blocks"  # a sum has another map than its terms
    local = branches.count("conv_norm")
    return y, [Link("apart", fork(does), front, inner=inner, local=local, adds=ways - 1)]


@step
def part(net: Network, v: str, index: int, by: str = "split", other: str = "Relu", uneven: bool = False):
    """One of two parts of the channels; the other one goes to an output, is one, or is convolved."""
    c = net.shape(v)[1]
    if c < 2:
        raise Inapplicable("one channel cannot be split")
    first = 1 if uneven else c // 2
    pieces = cut(net, v, [first, c - first], by)
    made, rest = pieces[index % 2], pieces[1 - index % 2]
    if other == "conv":
        net.also(pointwise(net, rest, 2))
    else:
        net.also(rest if other == "output" else net.apply("Relu", [rest], torch.relu(net.values[rest])))
    # in front, the other part has the map, too
    return made, [Link("split", "carries", "carries" if other == "conv" else "blocks")]
