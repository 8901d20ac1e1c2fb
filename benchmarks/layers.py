"""Layers: the kernels of several runtimes, brought together where they compute the same nodes of the model.

Each runtime cuts a network into kernels of its own. A layer is the least set of renorm's kernels such that no kernel
of another runtime belongs to two layers, and each layer has some kernel of each; its time is the sum of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from onnx import GraphProto

from benchmarks.kernels import PeerKernel


@dataclass(frozen=True)
class Layer:
    """kernels: of renorm, by their index. us: microseconds of each other runtime."""

    kernels: tuple[int, ...]
    us: dict[str, float]


def layers(graph: GraphProto, ours: Sequence[Iterable[str]], peers: Mapping[str, Sequence[PeerKernel]]) -> list[Layer]:
    """The layers in the order of renorm's kernels. ours: for each of them, names of the nodes that it runs. peers:
    kernels of each other runtime, in the order in which they run."""
    if not ours:
        return []
    model = _Model(graph)
    owner = model.owners(ours)
    sets = _Sets(len(ours))
    runs = {
        runtime: [(k.us, sets.joined(model.found(k.labels, owner))) for k in found] for runtime, found in peers.items()
    }
    placed = {runtime: _placed(kernels) for runtime, kernels in runs.items()}
    for kernels in placed.values():  # where another runtime has nothing it did that work elsewhere
        ahead = [(i, i - 1) for i in range(1, len(ours))]
        for i, other in [*ahead, *((0, i) for i, _ in ahead)]:  # with what runs before it, or the first ones after them
            if kernels and sets.root(i) not in {sets.root(at) for _, at in kernels}:
                sets.joined([i, other])
    members = dict[int, list[int]]()
    for i in range(len(ours)):
        members.setdefault(sets.root(i), []).append(i)
    return [
        Layer(
            tuple(own),
            {runtime: fsum(us for us, at in kernels if sets.root(at) == root) for runtime, kernels in placed.items()},
        )
        for root, own in members.items()
    ]


def _placed(kernels: Sequence[tuple[float, int | None]]) -> list[tuple[float, int]]:
    """Return the kernels, each with a place: what no label places, such as a change of layout, has that of the next
    kernel that is placed, or of the last."""
    after = next((at for _, at in reversed(kernels) if at is not None), None)
    found = list[tuple[float, int]]()
    for us, at in reversed(kernels):
        after = after if at is None else at
        if after is not None:
            found.append((us, after))
    return found


class _Model:
    """Nodes of the model, by the names that kernels give of them."""

    def __init__(self, graph: GraphProto):
        self._graph = graph
        self._writer = {value: i for i, node in enumerate(graph.node) for value in node.output if value}
        self._named = self._writer | {node.name: i for i, node in enumerate(graph.node) if node.name}

    def node(self, label: str) -> int | None:
        """The node whose name, or a result's, the label is, or begins with: /relu_nchwc, /conv/WithoutBiases."""
        ends = [len(label), *(m.start() for m in re.finditer(r"[/_]", label))]
        return next(
            (self._named[label[:end]] for end in sorted(ends, reverse=True) if label[:end] in self._named), None
        )

    def found(self, labels: Iterable[str], owner: Mapping[int, int]) -> list[int]:
        """The kernels of renorm that own the nodes which labels name."""
        return [owner[node] for label in labels if (node := self.node(label)) is not None and node in owner]

    def owners(self, ours: Sequence[Iterable[str]]) -> dict[int, int]:
        """Node -> the kernel that runs it. What was folded goes with what it reads, else with who reads it."""
        owner = {node: i for i, labels in enumerate(ours) for x in labels if (node := self.node(x)) is not None}
        for i, node in enumerate(self._graph.node):
            before = [owner[w] for v in node.input if (w := self._writer.get(v)) in owner]
            if i not in owner and before:
                owner[i] = before[0]
        for i, node in reversed(list(enumerate(self._graph.node))):
            for value in node.input:
                if i in owner and value in self._writer:
                    owner.setdefault(self._writer[value], owner[i])
        return owner


class _Sets:
    """Disjoint sets of the first numbers."""

    def __init__(self, count: int):
        self._parent = list(range(count))

    def root(self, i: int) -> int:
        while self._parent[i] != i:
            i = self._parent[i]
        return i

    def joined(self, members: Sequence[int]) -> int | None:
        """Makes one set of those of the members; one of them, None where there is none."""
        for m in members[1:]:
            a, b = sorted((self.root(m), self.root(members[0])))
            self._parent[b] = a
        return members[0] if members else None
