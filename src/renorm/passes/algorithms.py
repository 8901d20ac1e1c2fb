"""Algorithms that compute the same with fewer operations and round differently: Winograd's for convolutions. On GPUs
convolutions are products instead, of weights that lie in memory as these read them.

Every convolution that can be computed so is asked what each way costs (passes.convolution_cost). Kernels can transform
weights themselves; where it is faster to have them transformed before, they take up to four times the memory: those
that save most for a byte come first, as long as time that is saved is worth the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heappop, heapreplace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from renorm.core.dims import is_static, static
from renorm.core.dtypes import itemsize
from renorm.core.target import Target
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.layout import Layout
from renorm.graph.op import INJECTIVE
from renorm.graph.rewrite import Match, Plan, Refusal, Rewrite, node_of
from renorm.ops.conv import Conv
from renorm.ops.conv_transpose import ConvTranspose
from renorm.ops.gemm import Gemm
from renorm.ops.implicit_gemm import ImplicitGemm
from renorm.ops.matmul import Matmul
from renorm.ops.merged_top_k import MergedTopK
from renorm.ops.schedules import dot_weights, gpu_stages
from renorm.ops.shared.filtering import has_points, points
from renorm.ops.shared.tiled import Tiled
from renorm.ops.shared.turned_weight import TurnedWeight
from renorm.ops.shared.winograd_weight import TransformedWeight
from renorm.ops.suppression_in_order import SuppressionInOrder
from renorm.ops.top_k import TopK
from renorm.ops.winograd_conv import WinogradConv, WinogradConvTranspose
from renorm.passes.affine import given
from renorm.passes.context import Context
from renorm.passes.convolution_cost import Convolution
from renorm.passes.rewriting import ApplyRules

WORTH = 1.1  # estimated gain below which the direct convolution stays: it rounds less
WORTH_BYTES = 1.05  # estimated gain below which no weight grows
# Of the time of all convolutions, saved at least by as much memory as the process takes. Emerald Rapids: AVX-512, eight
# images, 0.93 of the time for 1.18 of the memory; AVX2, one image, 0.95 to 0.99 for 1.1 to 1.3. What saves less for a
# byte could not be measured
WORTH_MEMORY = 0.16
PROCESS_BYTES = 32 << 20  # of Python with NumPy, 25 MiB, and of renorm's own, estimated
WORTH_JOINING = 0.02  # of the cost of tiles, what is saved at least by planes of them that are one row
TILES = (1, 2, 3, 4)  # results of a tile along one axis
MOST_POINTS = 5  # of an axis beside another one that has some: errors of both multiply
MOST_POINTS_ALONE = 7
# What takes statistics of planes, of which whoever makes x finishes tiles, and whoever reads y computes a part
OF_PLANES = frozenset({"instance_norm", "group_norm", "reduce_mean", "global_average_pool"})
TILED: dict[type, type[Tiled]] = {Conv: WinogradConv, ConvTranspose: WinogradConvTranspose}


@dataclass(frozen=True, eq=False)
class Way:
    """How a convolution is computed by tiles: the op that does it, and whether its kernel transforms weights. spatial:
    extents at which its filters are made, the same as at all others where extents are open. A way is equal to itself
    only: to compare ops takes longer than to choose."""

    op: Tiled
    transforms_weights: bool
    spatial: tuple[int, ...]


class _ByTiles(Rewrite):
    """ways: for each convolution the way that is chosen, or why there is none."""

    constants = ("w",)
    direct: type[Conv | ConvTranspose]

    def __init__(self, ways: Mapping[Node, Way | str]):
        self.ways = ways

    def pattern(self, x: Any, w: Any, b: Any) -> Any:
        return self.direct.matching()(x, w, b)

    def plan(self, m: Match) -> Plan | Refusal | None:
        way = self.ways.get(m.root)
        if way is None or isinstance(way, str):
            return None if way is None else Refusal(way)
        filters = way.op.filters(way.spatial, static(m.w.shape[2:]))
        weight = TransformedWeight(given(m.w), filters, way.op.result_axis)
        if not weight.is_finite(m.w.dtype):
            return Refusal("its transformed weights are not finite")

        def make(m: Match) -> Value:
            w = m.w if way.transforms_weights else m.graph.constant(weight, m.w.name, m.w.source, dtype=m.w.dtype)
            return way.op(m.x, w, m.b)

        return Plan(make)


class ConvToWinograd(_ByTiles):
    """conv(x, w, b) -> winograd_conv(x, w or G w G^T, b) for a constant w of two axes, dilations 1, one group"""

    direct = Conv


class ConvTransposeToWinograd(_ByTiles):
    """conv_transpose(x, w, b) -> winograd_conv_transpose(x, w or G w G^T, b) for a constant w of two axes, dilations 1,
    one group"""

    direct = ConvTranspose


class _Turning(Rewrite):
    """Base of rules by which weights lie in memory as products on a GPU read them."""

    constants = ("w",)

    def __init__(self, context: Context):
        self._context = context

    def turned(self, m: Match, order: Sequence[int]) -> Value:
        """The weight w of a match with its axes in another order."""
        return m.graph.constant(TurnedWeight(given(m.w), order), m.w.name, m.w.source, dtype=m.w.dtype)


class ConvToProduct(_Turning):
    """conv(x, w, b) -> implicit_gemm(x, transposed w, b) for a constant w whose groups are not too narrow"""

    def pattern(self, x: Any, w: Any, b: Any) -> Any:
        return Conv.matching()(x, w, b)

    def plan(self, m: Match) -> Plan | Refusal | None:
        op = m.root.op
        assert isinstance(op, Conv)
        results, depth, *kernel = static(m.w.shape)
        if gpu_stages.is_too_narrow(op.group, results // op.group, depth * prod(kernel)):
            return Refusal("its channels per group are too few for a product of matrices")
        taps, along_terms = range(2, m.w.rank), self._context.tensor_cores_take(m.w.dtype)
        order = (0, *taps, 1) if along_terms else (*taps, 1, 0)
        return Plan(lambda m: ImplicitGemm(**op.values, along_terms=along_terms)(m.x, self.turned(m, order), m.b))


class TurnMatmul(_Turning):
    """matmul(x, w) -> gemm(x, w^T, transB) for constant matrices w that tensor cores take, terms side by side"""

    def pattern(self, x: Any, w: Any) -> Any:
        return Matmul.matching()(x, w)

    def plan(self, m: Match) -> Plan | None:
        is_of_matrices = m.x.rank == m.w.rank == 2 and self._context.tensor_cores_take(m.w.dtype)
        return Plan(lambda m: Gemm(transB=True)(m.x, self.turned(m, (1, 0)))) if is_of_matrices else None


class TurnGemm(_Turning):
    """gemm(x, w, c) -> gemm(x, w^T, c, transB) for constant w that tensor cores take, terms side by side"""

    def pattern(self, x: Any, w: Any, c: Any) -> Any:
        return Gemm.matching(transB=False)(x, w, c)

    def plan(self, m: Match) -> Plan | None:
        values = {**m.root.op.values, "transB": True}
        takes = self._context.tensor_cores_take(m.w.dtype)
        return Plan(lambda m: Gemm(**values)(m.x, self.turned(m, (1, 0)), m.c)) if takes else None


class TopKToMerges(Rewrite):
    """top_k(x, k) -> merged_top_k(x, k): a thread for each element, not for each row"""

    def pattern(self, x: Any, k: Any) -> Any:
        return TopK.matching()(x, k)

    def plan(self, m: Match) -> Plan | None:
        return Plan(self.rewrite) if is_static(m.x.shape) and m.k.is_constant else None

    def rewrite(self, m: Match) -> Sequence[Value]:
        return MergedTopK(**m.root.op.values)(m.x, m.k)


class SuppressionToOrder(Rewrite):
    """non_max_suppression(boxes, scores, ..) -> suppression_in_order(boxes, scores, top_k(scores, n), ..): sorted by a
    thread for each box, not for each class"""

    def pattern(self) -> Any:
        return node_of("non_max_suppression")

    def plan(self, m: Match) -> Plan | None:
        _, scores, *_ = m.root.operands
        return Plan(self.rewrite) if is_static(scores.shape) else None

    def rewrite(self, m: Match) -> Value:
        boxes, scores, *rest = m.root.operands
        _, order = TopK()(scores, np.array([scores.shape[2]]))
        return SuppressionInOrder(**m.root.op.values)(boxes, scores, order, *rest)


@dataclass(frozen=True)
class ChooseAlgorithms:
    """conv(x, w, b) -> winograd_conv(x, w', b) where that is estimated to be faster; nothing for precision "exact", or
    where a matrix unit multiplies what memory holds in fewer digits. On a GPU conv(x, w, b) -> implicit_gemm(x, w', b)
    instead, for any precision: the same sums, which are not rounded more; weights as they are read; and sorts by merges

    worth: what weights that are transformed before save at least: of the time of all convolutions, by each byte that
    they add to those which the process takes.
    """

    worth: float = WORTH_MEMORY

    def run(self, graph: Graph, context: Context) -> None:
        ApplyRules(self._rules(graph, context)).run(graph, context)
        graph.discard_constants()

    def _rules(self, graph: Graph, context: Context) -> tuple[Rewrite, ...]:
        if context.target.machine_target.is_gpu:
            turns = ConvToProduct(context), TurnMatmul(context), TurnGemm(context)
            return *turns, TopKToMerges(), SuppressionToOrder()
        # tiles are transformed in float32: a matrix unit is as fast without them
        if context.precision == "exact" or context.uses_matrix_unit:
            return ()
        plan = self.plan(graph, context)
        return ConvToWinograd(plan), ConvTransposeToWinograd(plan)

    def plan(self, graph: Graph, context: Context) -> dict[Node, Way | str]:
        """For each convolution that could be computed by tiles how, or why it stays direct."""
        target = context.target.machine_target
        beside = _beside_statistics(graph)
        choices = [
            _Choice(n, target, convolution_of(n, context), n not in beside, _speed(n, context))
            for n in graph.nodes
            if _may_change(n) and not context.kept(n)
        ]
        choices = [c for c in choices if c.costs]
        least = self.worth * sum(c.cost for c in choices) / _bytes_held(graph, context)
        waiting = [(-c.density(), i) for i, c in enumerate(choices) if c.better()]
        heapify(waiting)
        while waiting and -waiting[0][0] >= least:
            i = waiting[0][1]
            best = choices[i]
            best.way = best.better()[0]
            if best.better():
                heapreplace(waiting, (-best.density(), i))
            else:
                heappop(waiting)
        return {c.node: c.way or c.reason() for c in choices}


@cache
def _costs(
    op: Conv | ConvTranspose,
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    convolution: Convolution,
    target: Target,
    may_join: bool,
) -> tuple[float, Mapping[Way, int], Mapping[Way, float]]:
    """Return what a convolution costs directly; and for each way by tiles how many products a tile has, and what it
    costs, or at least costs where it is not worth it. may_join: whether tiles of a plane may be one row, as those of
    known extents. Networks have many convolutions that are alike."""
    direct = convolution.direct(target)
    planes: dict[Way, int] = {}
    costs: dict[Way, float] = {}
    for tile in tiles(kernel, op.along("strides", 2)):
        made = TILED[type(op)](**{**op.values, "kernel_shape": kernel}, tile=tile)
        filters = made.filters(spatial, kernel)
        for transforms_weights in (False, True):
            way = Way(made, transforms_weights, spatial)
            cost = convolution.tiled(filters, transforms_weights, target, direct / WORTH)
            if may_join and not transforms_weights and direct > WORTH * cost:
                saved = convolution.saves_as_one_row(filters, target)
                if saved > WORTH_JOINING * cost:
                    in_rows = type(made)(**{**made.values, "joined": True})
                    way, cost = Way(in_rows, False, spatial), cost - saved
            planes[way] = prod(f.products for f in filters)
            costs[way] = cost
    return direct, planes, costs


@dataclass
class _Choice:
    """The algorithm chosen so far for one convolution. speed: how many times as fast as in float32 its sums are made as
    they are defined. may_join: as for _costs, of known extents."""

    node: Node
    target: Target
    convolution: Convolution
    may_join: bool
    speed: float = 1.0
    way: Way | None = None

    def __post_init__(self) -> None:
        x, w = self.node.inputs[:2]
        assert x is not None
        assert w is not None
        op, spatial, kernel = self.node.op, self.convolution.x[2:], static(w.shape[2:])
        assert isinstance(op, (Conv, ConvTranspose))
        may_join = self.may_join and is_static(x.shape[2:])
        direct, self.planes, self.costs = _costs(op, spatial, kernel, self.convolution, self.target, may_join)
        self.direct = direct / self.speed
        free = [way for way in self.costs if way.transforms_weights]
        if free:
            least = min(free, key=lambda way: self.costs[way])
            self.way = least if self.direct > WORTH * self.costs[least] else None

    @property
    def cost(self) -> float:
        return self.costs[self.way] if self.way else self.direct

    def bytes_more(self, way: Way) -> int:
        own = (
            0
            if self.way is None or self.way.transforms_weights
            else self.planes[self.way] - prod(self.convolution.taps)
        )
        return 4 * self.convolution.pairs * (self.planes[way] - prod(self.convolution.taps) - own)

    def better(self) -> list[Way]:
        """Ways worth having with the bytes that they add, that which saves most for a byte first."""
        found = [
            way
            for way, cost in self.costs.items()
            if not way.transforms_weights
            and self.cost > WORTH_BYTES * cost
            and self.direct > WORTH * cost
            and self.bytes_more(way) > 0
        ]
        return sorted(found, key=lambda way: (self.costs[way] - self.cost) / self.bytes_more(way))

    def density(self) -> float:
        way = self.better()[0]
        return (self.cost - self.costs[way]) / self.bytes_more(way)

    def reason(self) -> str:
        times = self.direct / min(self.costs.values())
        if self.better():
            return f"transformed, its weights would be too large for what they save: {times:.2f} times as fast at most"
        return f"by Winograd's tiles it is estimated to be {times:.2f} times as fast at most"


def _bytes_held(graph: Graph, context: Context) -> int:
    """Return what a process takes that runs a network: at least its constants, and the data around one node."""

    def size(v: Value) -> int:
        return itemsize(v.dtype) * prod(context.typical(v.shape))

    data = ({v for v in (*n.inputs, *n.outputs) if v is not None and not v.is_constant} for n in graph.nodes)
    around = max((sum(map(size, values)) for values in data), default=0)
    return PROCESS_BYTES + sum(map(size, graph.constants.values())) + around


def _beside_statistics(graph: Graph) -> set[Node]:
    """Return the nodes of whose results statistics of planes are taken, or whose data are made with some: such tiles
    are finished as parts of a plane, and what is computed as x is copied should be computed once."""

    def leads(n: Node, found: set[Node]) -> bool:
        return n.op.name in OF_PLANES or (n.op.fusion <= INJECTIVE and n in found)

    before, behind = set[Node](), set[Node]()
    for n in graph.nodes:
        if any(v is not None and v.producer is not None and leads(v.producer, behind) for v in n.inputs):
            behind.add(n)
    for n in reversed(graph.nodes):
        if any(leads(u, before) for y in n.outputs for u in y.readers):
            before.add(n)
    return before | behind


def _speed(node: Node, context: Context) -> float:
    """Return how many times as fast as in float32 the sums of a convolution are made as they are defined: in pairs of
    bfloat16 two terms at a time, of what another kernel makes in blocks of channels."""
    target, x = context.target.machine_target, node.inputs[0]
    if context.precision != "bfloat16" or x is None or x.producer is None:
        return 1.0
    lanes = target.lanes(4)
    data = Layout(1, lanes, context.precision)
    is_blocked = data.refuses(x.shape) is None and data.refuses(node.output.shape) is None
    return 2.0 if is_blocked and dot_weights.held(node, 1, data, target) else 1.0


def tiles(kernel: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """Tiles along both axes that need fewer products and round little more."""
    found: list[tuple[int, int]] = []
    for tile in product(TILES, TILES):
        if 1 not in tile and len({*tile}) > 1:
            continue  # squares cost the least of what rounds alike
        axes = list(zip(tile, kernel, strides, strict=True))
        if not all(has_points(*axis) for axis in axes):
            continue
        used = [points(*axis) for axis in axes]
        most = MOST_POINTS if all(used) else MOST_POINTS_ALONE
        # several results of an axis without points would save nothing
        if any(used) and max(used) <= most and all(n or m == 1 for n, m in zip(used, tile, strict=True)):
            found.append(tile)
    return found


def _may_change(node: Node) -> bool:
    op = node.op
    if not isinstance(op, (Conv, ConvTranspose)) or type(op) not in TILED or op.group != 1:
        return False
    x, w = node.inputs[:2]
    if x is None or w is None or not w.is_constant or x.rank != 4 or x.dtype != "float32":
        return False
    # filters depend on padding, and that on extents where it is not stated
    is_stated = op.auto_pad in ("NOTSET", "VALID") and op.values.get("output_shape") is None
    is_known = is_static(x.shape[2:]) or is_stated
    return is_known and set(op.along("dilations", 2)) == {1} and 0 not in (*x.shape, *w.shape)


def convolution_of(node: Node, context: Context) -> Convolution:
    """Return what the cost of a convolution depends on, where open extents are typical ones."""
    (x, w), op = node.inputs[:2], node.op
    assert x is not None
    assert w is not None
    assert isinstance(op, (Conv, ConvTranspose))
    (n, c, h, v), (_, k, p, q) = context.typical(x.shape), context.typical(node.output.shape)
    down, across = static(w.shape[2:])
    strides = op.along("strides", 2)
    return Convolution(
        (n, c, h, v), (n, k, p, q), (down, across), (strides[0], strides[1]), isinstance(op, ConvTranspose)
    )
