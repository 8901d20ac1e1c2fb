"""Fusion: the nodes of a graph are partitioned into groups, each of which runs as one kernel.

Every op says how it may share a kernel (`OpDef.fusion_of`, in TVM's kinds). A group grows from a node to its immediate
post-dominator p, the first node through which every path from it to an output runs, and takes all nodes between, if

    from a reduction, convolution, product   all up to p are elementwise or broadcast, and keep the shape: a tail
    from elementwise .. injective            all between are at most injective, and p is that too, or a reduction
    from slices, permutations, reshapes      p reads operands often, as attention does, and rows stay rows
    from slices with step 1, split axes      p is a normalization with several results, which reads them in their place
    from elementwise, broadcast              p is a normalization with several results, which reads fewer bytes so
    from elementwise, broadcast              p copies what it reads (a convolution that pads), and they are as copied
    from a normalization                     p moves whole axes (a transpose, a concatenation), and all else that it
                                             reads is made for it alone by nodes that are at most injective
    from attention                           p moves axes before the last one, or makes one of the last two

A group has at most one node that is more than injective. Everything leaves a group through one node, which every
member reaches; hence a group is convex, and launching groups in the order of these nodes is possible. Statistics of
tiles of what leaves may join it as a further result: they read nothing else.

Not joined, though it would be legal: what would be computed more than once for it, because a larger result reads it
repeatedly, and what would make one expression too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, prod

from renorm.core.common_ancestor import Ancestry
from renorm.core.dims import Shape
from renorm.core.dtypes import itemsize
from renorm.core.shapes import regrouping
from renorm.core.target import Target
from renorm.graph import registry
from renorm.graph.index_map import Moved, Permuted, Regrouped, Strided
from renorm.graph.ir import External, Graph, Group, Node, Value
from renorm.graph.names import Names
from renorm.graph.op import AFTER_SLICES, BROADCAST, INJECTIVE, OPAQUE, REDUCTION, Fusion
from renorm.ops.schedules import blocks
from renorm.ops.shared.attending import LINE
from renorm.ops.shared.movement import Movement
from renorm.ops.transpose import Transpose
from renorm.passes.aliasing import parts_of
from renorm.passes.context import Claim, Context

_LONGEST = 200  # terms of one inlined expression; residual blocks have fewer than 20
_DEEPEST = 64  # levels of one inlined expression, of the twice as many that the schedule, its indices too, may make
_READ = 64  # values from elsewhere that one kernel reads
_REPEATED = 1.5  # times that one element may be computed; padding computes a border in addition
_LABELS = 10  # labels that a kernel's name lists


@dataclass(frozen=True)
class OneNodePerKernel:
    """node -> kernel {node}, but for what the target runs as one"""

    def run(self, graph: Graph, context: Context) -> None:
        partition = _Partition(graph, dict.fromkeys(graph.nodes, OPAQUE), context.typical)
        partition.claim_all(context.claims)
        partition.make_groups()


@dataclass(frozen=True)
class Fuse:
    """nodes -> kernels {nodes}, each convex and with one exit"""

    def run(self, graph: Graph, context: Context) -> None:
        partition = _Partition(graph, {n: kind_of(n, context) for n in graph.nodes}, context.typical)
        partition.claim_all(context.claims)
        for node in graph.nodes:
            if partition.is_place(node):
                partition.claim([node])
        # backwards: of two producers of a sum the later one takes it, when the other result exists
        for node in reversed(graph.nodes):
            if partition.kinds[node] > INJECTIVE and not node.op.is_statistic:
                partition.grow_tail(node)
        for node in graph.nodes:
            if node.op.is_statistic and not partition.join_statistic(node, context.target.machine_target):
                partition.grow_tail(node)
        for node in reversed(graph.nodes):
            partition.grow_past_moves(node)
        for node in graph.nodes:
            if partition.kinds[node] <= INJECTIVE:
                partition.grow(node)
        partition.make_groups()


def kind_of(node: Node, context: Context) -> Fusion:
    """Return how a node may share a kernel on the target, what a user has overridden included. Behind nodes with
    several results nothing stands in their kernel."""
    kind = registry.fusion_kind(node, context.target)
    return kind if len(node.outputs) == 1 or kind == AFTER_SLICES else OPAQUE


def name_groups(graph: Graph) -> None:
    """Names kernels after what is in them, in launch order; equal names are numbered."""
    names = Names()
    for group in graph.groups:
        labels = [n.op.label(n.operand_types()) for n in group.nodes]
        if len(labels) > _LABELS:
            labels = [*labels[: _LABELS - 1], "and", str(len(labels) - _LABELS + 1), "more"]
        name = labels[0] if len(group.nodes) == 1 else "_".join(["fused", *labels])
        group.name = names.fresh(name)


def _turns(node: Node) -> bool:
    """Return whether another axis is the last one of the result than of the operand."""
    x = node.inputs[0]
    if not isinstance(node.op, Transpose) or x is None:
        return False
    moved = [a for a in node.op.order(x.rank) if x.shape[a] != 1]
    return bool(moved) and moved[-1] != max(moved)


def _maps(node: Node) -> Sequence[object]:
    """Return where the elements of results come from; one unknown where an op does not say."""
    return (node.op.maps(node) if isinstance(node.op, Movement) else []) or [None]


def _is_view(node: Node) -> bool:
    """Return whether elements of the result are some of an operand's, at places that a reader can count."""
    steps = (Permuted, Regrouped, Strided)
    return all(isinstance(m, Moved) and all(isinstance(x, steps) for x in m.steps) for m in _maps(node))


def _take_slices(nodes: Iterable[Node]) -> bool:
    """Return whether nodes take slices with step 1, and besides at most split axes: elements then lie in an operand as
    they do in the result, with others between rows."""
    steps = [(n, x) for n in nodes for m in _maps(n) for x in (m.steps if isinstance(m, Moved) else [None])]
    return any(isinstance(x, Strided) for _, x in steps) and all(_keeps_order(n, x) for n, x in steps)


def _keeps_order(node: Node, step: object) -> bool:
    """Return whether a step of a node takes neighbours, or splits axes."""
    if isinstance(step, Strided):
        return all(s.step in (None, 1) for s in step.slices)
    x = node.inputs[0]
    if not isinstance(step, Regrouped) or x is None:
        return False
    return all(len(old) == 1 for old, _ in regrouping(x.shape, node.output.shape))


def _keeps_rows(node: Node) -> bool:
    """Return whether a node moves axes before the last one, or makes one of the last two, of vectors that are whole."""
    x = node.inputs[0]
    if x is None or not _is_view(node):
        return False
    shape = node.output.shape
    last = x.shape[-1]
    is_whole = isinstance(last, int) and last % LINE == 0
    is_joint = is_whole and len(shape) + 1 == x.rank and shape[:-1] == x.shape[:-2]
    return not _turns(node) if isinstance(node.op, Transpose) else is_joint


@dataclass(eq=False)
class _Set:
    """A group on its way. anchor: its node that is more than injective; exit: the node through which its result
    leaves; has_statistic: whether another result does, made of that. external: as in Group."""

    nodes: list[Node]
    exit: Node
    anchor: Node | None = None
    has_statistic: bool = False
    external: External | None = None


@dataclass
class _Partition:
    graph: Graph
    kinds: dict[Node, Fusion]
    typical: Callable[[Shape], tuple[int, ...]]  # of shapes that may be open
    sets: dict[Node, _Set] = field(default_factory=dict[Node, _Set])

    def __post_init__(self) -> None:
        self._position = {n: i for i, n in enumerate(self.graph.nodes)}
        self._outputs = set(self.graph.outputs)
        self._users = self.graph.user_map()
        self._dominator = self._post_dominators()
        self._formulas = {n: n.op.formula(n.operand_types()) for n in self.graph.nodes}
        for n in self.graph.nodes:
            self.sets[n] = _Set([n], n, n if self.kinds[n] > INJECTIVE else None)

    # --- structure

    def readers(self, node: Node) -> list[Node]:
        return [u for v in node.outputs for u in self._users.get(v, ())]

    def _post_dominators(self) -> dict[Node, Node | None]:
        """The immediate post-dominator of every node; None stands for what lies after the outputs."""
        tree = Ancestry[Node]()
        for node in reversed(self.graph.nodes):
            meet: Node | None = None
            if not any(v in self._outputs for v in node.outputs):
                meet, *others = self.readers(node) or [None]
                for other in others:
                    meet = tree.meet(meet, other)
            tree.add(node, meet)
        return tree.above

    def _between(self, node: Node, end: Node) -> list[Node] | None:
        """Nodes on paths from `node` to `end`, without both; None where they are more than a group may have."""
        found: dict[Node, None] = {}
        waiting = [u for u in self.readers(node) if u is not end]
        while waiting:
            n = waiting.pop()
            if n not in found:
                if len(found) > _LONGEST:
                    return None
                found[n] = None
                waiting += [u for u in self.readers(n) if u is not end]
        return list(found)

    def make_groups(self) -> None:
        """Writes groups to the graph in launch order, nodes in theirs."""
        distinct = sorted(set(self.sets.values()), key=lambda s: self._position[s.exit])
        self.graph.groups = [
            Group("", sorted(s.nodes, key=self._position.__getitem__), external=s.external) for s in distinct
        ]
        self.graph.nodes = [n for g in self.graph.groups for n in g.nodes]
        name_groups(self.graph)

    def claim_all(self, claims: Iterable[Claim]) -> None:
        """Makes groups of what the target runs as one."""
        by_name = {n.name: n for n in self.graph.nodes}
        for claim in claims:
            if claim.nodes[-1] in by_name:  # else nobody needed the result
                self.claim([by_name[name] for name in claim.nodes], claim.external)

    def claim(self, nodes: list[Node], external: External | None = None) -> None:
        """These nodes, in order, of which only the last is read by others, are one group that nothing joins."""
        own = _Set(nodes, nodes[-1], nodes[-1], external=external)
        for n in nodes:
            self.sets[n] = own
            self.kinds[n] = OPAQUE

    def is_place(self, node: Node) -> bool:
        """Return whether others can write their results straight into that of `node`, and no later kernel takes it
        in."""
        end = self._dominator[node]
        if end is not None and (self.kinds[end] <= INJECTIVE or self.kinds[end] == REDUCTION):
            between = self._between(node, end)
            if between is not None and all(self.kinds[n] <= INJECTIVE for n in between):
                return False
        parts = parts_of(node) if self.kinds[node] == INJECTIVE and len(node.inputs) > 1 else []
        return bool(parts) and all(whole is node.output for _, whole, _ in parts)

    # --- growing

    def grow_tail(self, anchor: Node) -> None:
        """Lets elementwise and broadcast nodes after a reduction, convolution or product join its kernel."""
        if self.kinds[anchor] >= AFTER_SLICES:
            return
        while True:
            exit = self.sets[anchor].exit
            end = self._dominator[exit]
            if end is None:
                return
            between = self._between(exit, end)
            if between is None:
                return
            tail, shape = [*between, end], exit.output.shape
            if any(self.kinds[n] > BROADCAST or n.output.shape != shape for n in tail) or not self._join(exit, tail):
                return

    def grow_past_moves(self, anchor: Node) -> None:
        """Lets a normalization write its result where a transpose or a concatenation would put it, and the nodes that
        follow there join. What comes from another kernel is not drawn in: it may write that to its place itself."""
        while (anchor.op.is_normalization or anchor.op.reads_views) and self.kinds[anchor] == REDUCTION:
            exit = self.sets[anchor].exit
            end = self._dominator[exit]
            if end is None or self.readers(exit) != [end]:
                return
            if not (_keeps_rows(end) if anchor.op.reads_views else end.op.moves_axes):
                return
            others = [v.producer for v in end.inputs if v is not None and v is not exit.output]
            free = [n for n in others if n is not None]
            if any(self.sets[n].anchor or self.kinds[n] > INJECTIVE or self.readers(n) != [end] for n in free):
                return
            if not self._join(exit, [end]):
                return
            self.grow_tail(anchor)

    def grow(self, node: Node) -> None:
        """Lets a node that computes each element from few others join the kernel of what reads it."""
        own = self.sets[node]
        if own.exit is not node or own.anchor is not None:
            return
        end = self._dominator[node]
        if end is None:
            return
        between = self._between(node, end)
        if (
            between is None
            or any(self.kinds[n] > INJECTIVE for n in between)
            or self._turns_rows([*own.nodes, *between], end)
            or (end.op.reads_views and not self._is_read_there([*own.nodes, *between], end))
        ):
            return
        moving = max(self.kinds[n] for n in (node, *between)) > BROADCAST
        reads_there = self.kinds[end] == AFTER_SLICES and _take_slices([*own.nodes, *between])
        reads_less = self.kinds[end] == AFTER_SLICES and self._reads_less([*own.nodes, *between], end)
        takes = self.kinds[end] <= INJECTIVE or self.kinds[end] == REDUCTION or reads_there or reads_less
        if takes or (not moving and self._copies(end)):
            self._join(node, [*between, end], reads_less)

    def _reads_less(self, nodes: Sequence[Node], end: Node) -> bool:
        """Return whether a normalization with several results reads fewer bytes of its shape where it computes what
        nodes make for it, each time that it needs that. As many are no gain: the gradient of SiLU after a batch norm's
        takes 1.1 of the time then (AVX-512)."""
        shape = end.outputs[0].shape
        size, small = prod(self.typical(shape)), [n for n in nodes if n.output.shape != shape]
        if any(prod(self.typical(n.output.shape)) >= size for n in small):
            return False
        if any(self.kinds[n] > BROADCAST for n in nodes if n not in small):
            return False

        def of(readers: Iterable[Node]) -> int:
            read = {v for n in readers for v in n.inputs if v is not None}
            return sum(itemsize(v.dtype) for v in read if prod(self.typical(v.shape)) >= size)

        made = sum(itemsize(n.output.dtype) for n in nodes if n not in small)
        return of([*nodes, end]) - made < of([end])

    def _copies(self, node: Node) -> bool:
        """Return whether what elementwise nodes make of the first operand of `node` may be computed as that is
        copied."""
        return self.kinds[node] < OPAQUE and blocks.copies(node) and self.sets[node].anchor is node

    def join_statistic(self, node: Node, target: Target) -> bool:
        """Lets a kernel that finishes its result tile by tile compute statistics of these tiles too; says whether it
        does."""
        x = node.inputs[0]
        if x is None or x.producer is None:
            return False
        own = self.sets[x.producer]
        if own.exit is not x.producer or own.anchor is None or self.kinds[own.anchor] >= AFTER_SLICES:
            return False
        if own.has_statistic or self.readers(own.exit) == [node]:
            return False
        if blocks.finished_tile(own.anchor, target) != node.op.values["tile"]:
            return False
        own.nodes.append(node)
        own.has_statistic = True
        self.sets[node] = own
        return True

    def _join(self, first: Node, others: list[Node], may_repeat: bool = False) -> bool:
        """One group of the groups of all these nodes, where that keeps to the rules; says whether it did. may_repeat:
        the last of them may compute elements as often as it reads them."""
        joined = list(dict.fromkeys(self.sets[n] for n in (first, *others)))
        anchors = [s.anchor for s in joined if s.anchor is not None]
        if len(joined) < 2 or len(anchors) > 1 or any(self.kinds[a] >= OPAQUE for a in anchors):
            return False
        nodes = [n for s in joined for n in s.nodes]
        made = {v for n in nodes for v in n.outputs}
        if len({v for n in nodes for v in n.inputs} - made) > _READ:
            return False
        exit = max((s.exit for s in joined), key=self._position.__getitem__)
        terms, levels = self._measured(nodes, exit)
        if terms > _LONGEST or levels > _DEEPEST:
            return False
        if not may_repeat and self._repetition(nodes, exit) > _REPEATED:
            return False
        union = _Set(nodes, exit, anchors[0] if anchors else None, any(s.has_statistic for s in joined))
        for n in nodes:
            self.sets[n] = union
        return True

    def _measured(self, nodes: Iterable[Node], exit: Node) -> tuple[int, int]:
        """Terms and levels of the expression of one element of the result, everything but the anchor inlined; shared
        parts count each time that they are read, as inlining repeats them."""
        terms, levels = dict[Node, int](), dict[Node, int]()
        for n in sorted(nodes, key=self._position.__getitem__):
            own = self._formulas[n]
            before = [(v.producer, k) for v, k in zip(n.inputs, own.reads) if v is not None and v.producer in terms]
            before = before if self.kinds[n] <= INJECTIVE else []
            terms[n] = 1 + sum(k * terms[p] for p, k in before if p)
            levels[n] = own.levels + max((levels[p] for p, _ in before if p), default=0)
        return terms[exit], levels[exit]

    def _repetition(self, nodes: Iterable[Node], exit: Node) -> float:
        """Return how often the node of a group that is repeated most computes one element: inlining computes it anew
        for each read.

        Readers that need it at the same index share what they compute; LLVM sees that they do.
        """
        members = set(nodes)
        times: dict[Node, float] = {exit: 1.0}
        index: dict[Node, Node] = {exit: exit}  # nodes of one entry are read at the same index
        for n in sorted(members - {exit}, key=self._position.__getitem__, reverse=True):
            readers = [u for u in dict.fromkeys(self.readers(n)) if u in members]
            aligned = all(self.kinds[u] <= BROADCAST and u.output.shape == n.output.shape for u in readers)
            if aligned and len({index[u] for u in readers}) == 1:
                times[n], index[n] = max(times[u] for u in readers), index[readers[0]]
            else:
                times[n], index[n] = sum(times[u] * self._reads(u, n.output) for u in readers), n
        return max((t for n, t in times.items() if self.kinds[n] < INJECTIVE), default=1.0)

    def _turns_rows(self, nodes: Iterable[Node], end: Node) -> bool:
        """Return whether `nodes` put other elements side by side than memory does, before a reduction that writes a
        result as large as what it reads and in that new order: it would read across memory several times, a kernel that
        only turns does so once."""
        x = end.inputs[0]
        if self.kinds[end] != REDUCTION or x is None or end.output.shape != x.shape:
            return False
        behind = self.sets[end].nodes
        return any(_turns(n) for n in nodes) and not any(_turns(n) for n in behind)

    def _is_read_there(self, nodes: Sequence[Node], end: Node) -> bool:
        """Return whether `end`, which reads operands often, may read what `nodes` read in their place."""
        once = end.op.read_once(end)
        made = None if once is None else once.producer
        is_once = made is not None and made in nodes and self.readers(made) == [end]
        return is_once or all(_is_view(n) and not _turns(n) for n in nodes)

    def _reads(self, reader: Node, v: Value) -> float:
        """Return how often `reader` reads each element of `v` to compute its result once, on the average."""
        if self.kinds[reader] > INJECTIVE:
            return 1.0 if reader.op.read_once(reader) is v else inf
        if reader.output.shape == v.shape:
            return 1.0
        whole = [v] if self.kinds[reader] <= BROADCAST else [o for o in dict.fromkeys(reader.inputs) if o is not None]
        return prod(self.typical(reader.output.shape)) / max(1, sum(prod(self.typical(o.shape)) for o in whole))
