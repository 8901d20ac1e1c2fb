"""Statistics beside their data: what a reduction over planes needs is computed tile by tile where tiles are made.

A kernel that makes a result in blocks of channels finishes it in tiles (`blocks.finished_tile`); a tile is then still
in a cache, and its mean, or mean and squares, cost no reading of memory. What is left of a normalization is
elementwise, and joins whoever copies its result anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import is_static, static
from renorm.core.target import Target
from renorm.graph import registry
from renorm.graph.ir import Graph, Group, Node, Value
from renorm.graph.op import BROADCAST, INJECTIVE
from renorm.graph.rewrite import Match, Plan, Refusal, Rewrite, node_of
from renorm.ops.norm_terms import NormTerms
from renorm.ops.schedules import blocks, cpu_tiles
from renorm.ops.shared.tile_statistics import counts
from renorm.ops.tile_moments import TileMeans, TileMoments
from renorm.passes.context import Context
from renorm.passes.layouts import Regions, layout_of_blocks
from renorm.passes.rewriting import ApplyRules

LEAST = 1 << 14  # elements of a sample below which all of this takes less time than one more kernel


@dataclass(frozen=True)
class StatisticsOfTiles:
    """norm(x) -> (x - centre) * factor + shift, mean(x) -> mean(tile_means(x)) where whatever makes x finishes tiles"""

    def run(self, graph: Graph, context: Context) -> None:
        layout = layout_of_blocks(context)
        norms = [n for n in graph.nodes if n.op.name in ("instance_norm", "group_norm")]
        if context.multiplies:
            return  # a matrix unit finishes tiles of other sizes, and who reads pairs takes no norm into its kernel
        if layout is None or not (norms or any(n.op.name in _MEANS for n in graph.nodes)):
            return
        regions = Regions(graph, [Group("", [n]) for n in graph.nodes], context, layout, norms)
        blocked = frozenset(v for n in graph.nodes for v in n.outputs if regions.is_blocked(v))
        norms_of = (InstanceNormToTerms, GroupNormToTerms, PartOfInstanceNormToTerms, InstanceBatchNormToTerms)
        rules = (*norms_of, MeanToTileMeans, PoolToTileMeans)
        target = context.target.machine_target
        ApplyRules([rule(target, blocked) for rule in rules]).run(graph, context)


Tile = tuple[int, ...]
"""Extents of a tile along the spatial axes of x."""

_MEANS = ("global_average_pool", "reduce_mean")


class _OfTiles(Rewrite, ABC):
    """Base of rules for an op that reduces over planes of x. blocked: values that will lie in blocks of channels."""

    fate = "unpacked"

    def __init__(self, target: Target, blocked: Collection[Value]):
        self.target, self.blocked = target, blocked

    def plan(self, m: Match) -> Plan | Refusal | None:
        if not self.is_of_planes(m):
            return None
        if m.x not in self.blocked:
            return Refusal(f"{m.x.name!r} does not lie in blocks of channels")
        tile = self.tile(m)
        if tile is None:
            return Refusal(f"no kernel computes {m.x.name!r} in tiles of whole channels")
        reason = self.why_slower(m)
        return Plan(partial(self.of_tiles, tile=tile)) if reason is None else Refusal(reason)

    def is_of_planes(self, m: Match) -> bool:
        """Return whether the op reduces over planes of x that are worth a second kernel."""
        x = m.x
        return is_static(x.shape) and x.rank > 2 and x.dtype == "float32" and prod(static(x.shape[1:])) >= LEAST

    def tile(self, m: Match) -> Tile | None:
        return tile_of(m.graph, m.x, self.target)

    def why_slower(self, m: Match) -> str | None:
        """Return why tiles would save nothing; None where they do."""
        is_alone = all(u in m.nodes for u in m.x.readers) and not m.graph.is_output(m.x)
        return f"nobody else reads {m.x.name!r}" if is_alone else None

    @abstractmethod
    def of_tiles(self, m: Match, tile: Tile) -> Value:
        """Build what comes instead."""


class _NormToTerms(_OfTiles):
    """Base of rules for normalizations, of which an elementwise op is left."""

    def why_slower(self, m: Match) -> str | None:
        """A norm reads its elements again, whoever else does."""
        if not is_copied(m.root.output) and 4 * prod(static(m.x.shape[2:])) <= self.target.cache_bytes:
            return "what is read twice stays in the cache, and nobody copies the result"
        return None

    def normalized(
        self, m: Match, tile: Tile, scale: Any, bias: Any, groups: int, epsilon: float, channels: int = 0
    ) -> Value:
        """(x - centre) * factor + shift, where the first `channels` have statistics (0: all)."""
        extents = static(m.x.shape[2:])
        moments = TileMoments(tile=tile)(m.x)
        terms = NormTerms(tile=tile, extents=extents, num_groups=groups, channels=channels, epsilon=epsilon)
        centre, factor, shift = terms(moments, scale, bias)
        return ops.add(ops.mul(ops.sub(m.x, centre), factor), shift)


class InstanceNormToTerms(_NormToTerms):
    """instance_norm(x, scale, bias) -> (x - centre) * factor + shift, with terms from moments of tiles of x"""

    def pattern(self, x: Any, scale: Any, bias: Any) -> Any:
        return ops.instance_norm(x, scale, bias)

    def of_tiles(self, m: Match, tile: Tile) -> Value:
        return self.normalized(m, tile, m.scale, m.bias, static(m.x.shape)[1], m.root.op.values["epsilon"])


class GroupNormToTerms(_NormToTerms):
    """group_norm(x, scale, bias) -> (x - centre) * factor + shift, with terms from moments of tiles of x

    Whole, it takes rows only, and its neighbours would have to give up their blocks: where whatever makes x finishes no
    tiles, they are read once more.
    """

    def tile(self, m: Match) -> Tile:
        return super().tile(m) or cpu_tiles.rows(static(m.x.shape), self.target.lanes(4))

    def why_slower(self, m: Match) -> None:
        return None

    def pattern(self, x: Any, scale: Any, bias: Any) -> Any:
        return node_of("group_norm", x, scale, bias)

    def of_tiles(self, m: Match, tile: Tile) -> Value:
        values = m.root.op.values
        return self.normalized(m, tile, m.scale, m.bias, values["num_groups"], values["epsilon"])


class PartOfInstanceNormToTerms(_NormToTerms):
    """concat(instance_norm(x[:, :k], scale, bias), x[:, k:]) -> (x - centre) * factor + shift, with terms from moments
    of tiles of x, and 0, 1, 0 from channel k on"""

    constants = ("scale", "bias")

    def pattern(self, x: Any, scale: Any, bias: Any) -> Any:
        normal = ops.instance_norm(node_of("slice", x, name="first"), scale, bias)
        return node_of("concat", [normal, node_of("slice", x, name="second")])

    def is_of_planes(self, m: Match) -> bool:
        if not super().is_of_planes(m) or m.root.op.values["axis"] not in (1, 1 - m.x.rank):
            return False
        k, channels = m.first.output.shape[1], static(m.x.shape)[1]
        return [_channels(n) for n in (m.first, m.second)] == [(0, k), (k, channels)]

    def affine(self, m: Match, count: int) -> tuple[Any, Any]:
        """By what the other `count` channels are multiplied, and what is added."""
        return np.ones(count, m.scale.data.dtype), np.zeros(count, m.scale.data.dtype)

    def of_tiles(self, m: Match, tile: Tile) -> Value:
        norm, (k, count) = m.instance_norm, (static(n.output.shape)[1] for n in (m.first, m.second))
        scale, bias = (
            m.graph.constant(np.concatenate([v.data, w]), v.name, v.source)
            for v, w in zip((m.scale, m.bias), self.affine(m, count), strict=True)
        )
        return self.normalized(m, tile, scale, bias, k, norm.op.values["epsilon"], k)


class InstanceBatchNormToTerms(PartOfInstanceNormToTerms):
    """concat(instance_norm(x[:, :k], scale, bias), x[:, k:] * a + b) -> (x - centre) * factor + shift, with terms from
    moments of tiles of x, and 0, a, b from channel k on"""

    constants = ("scale", "bias", "a", "b")

    def pattern(self, x: Any, scale: Any, bias: Any, a: Any, b: Any) -> Any:
        normal = ops.instance_norm(node_of("slice", x, name="first"), scale, bias)
        return node_of("concat", [normal, ops.add(ops.mul(node_of("slice", x, name="second"), a), b)])

    def is_of_planes(self, m: Match) -> bool:
        per_channel = (m.second.output.shape[1], *[1] * (m.x.rank - 2))
        return super().is_of_planes(m) and all(v.shape in (per_channel, (1, *per_channel)) for v in (m.a, m.b))

    def affine(self, m: Match, count: int) -> tuple[Any, Any]:
        return m.a.data.reshape(-1), m.b.data.reshape(-1)


class PoolToTileMeans(_OfTiles):
    """global_average_pool(x) -> mean(tile_means(x))"""

    fate = ""

    def pattern(self, x: Any) -> Any:
        return ops.global_average_pool(x)

    def of_tiles(self, m: Match, tile: Tile) -> Value:
        x = m.x
        parts, extents, shape = TileMeans(tile=tile)(x), static(x.shape[2:]), static(m.root.output.shape)
        tiles = counts(extents, tile)
        if prod(tiles) == 1:
            return ops.reshape(parts, np.array(shape, np.int64))
        sizes = [np.minimum(t, e - np.arange(n) * t) / e for t, e, n in zip(tile, extents, tiles)]
        shares = np.ones(())
        for share in sizes:
            shares = np.multiply.outer(shares, share)
        weighted = ops.mul(parts, m.graph.constant(shares[..., None].astype(x.dtype), "shares"))
        mean = registry.find("reduce_sum")(axes=tuple(range(1, 1 + len(tiles))), keepdims=False)(weighted)
        return mean if mean.shape == shape else ops.reshape(mean, np.array(shape, np.int64))


class MeanToTileMeans(PoolToTileMeans):
    """reduce_mean(x) over all spatial axes -> mean(tile_means(x))"""

    def pattern(self, x: Any) -> Any:
        return node_of("reduce_mean", x)

    def is_of_planes(self, m: Match) -> bool:
        axes = m.root.op.values["axes"]
        return super().is_of_planes(m) and axes is not None and {a % m.x.rank for a in axes} == set(range(2, m.x.rank))


def tile_of(graph: Graph, x: Value, target: Target) -> Tile | None:
    """The tiles in which the kernel that makes `x` finishes it; None where it does not finish whole tiles."""
    maker = _maker(graph, x)
    return blocks.finished_tile(maker, target) if maker is not None else None


def _maker(graph: Graph, x: Value) -> Node | None:
    """The node that elementwise nodes after it, up to x, will join in its kernel: the last one of several."""
    found, chain, waiting = list[Node](), set[Node](), [x]
    while waiting:
        node = waiting.pop().producer
        if node is None or node in chain or node in found or node.output.shape != x.shape:
            continue
        if node.op.fusion_of(node.operand_types()) > BROADCAST:
            found.append(node)
        elif node.output is x or all(u in chain for u in node.output.readers):
            chain.add(node)
            waiting += [u for u in node.inputs if u is not None]
    found = [n for n in found if n.output is x or all(u in chain for u in n.output.readers)]
    return max(found, key=graph.position_of, default=None)


def is_copied(v: Value) -> bool:
    """Return whether elementwise nodes before `v` cost no pass over memory: its only reader, after more of them, copies
    what it reads, or is a kernel of its own that does nothing but move elements."""
    while True:
        if len(v.readers) != 1:
            return False
        (reader,) = v.readers
        kind = reader.op.fusion_of(reader.operand_types())
        if kind <= BROADCAST and reader.output.shape == v.shape:
            v = reader.output
        else:
            return kind == INJECTIVE or blocks.copies(reader)


def _channels(node: Node) -> tuple[int, int] | None:
    """(begin, end) where a slice takes channels begin .. end - 1 of what it reads, and nothing else."""
    x, *bounds = node.inputs
    known = [int(v.data.item()) if v is not None and v.data is not None and v.data.size == 1 else None for v in bounds]
    if x is None or len(known) < 3 or None in known[:3] or known[3:] not in ([], [None], [1]):
        return None
    begin, end, axis = (k or 0 for k in known[:3])
    extent = static(x.shape)[1]
    if axis not in (1, 1 - x.rank) or (len(bounds) > 3 and bounds[3] is not None and known[3] is None):
        return None
    return max(0, begin + extent if begin < 0 else begin), min(extent, end + extent if end < 0 else end)
