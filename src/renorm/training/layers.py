"""The batch norms of a network whose stored statistics can be estimated anew, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.graph.ir import Graph, Node, Value

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Layer:
    """Norms that share scale, bias and statistics; most often one. nodes: their names; mean, var: as they are stored,
    one element per channel. source: what the file has for each node."""

    nodes: tuple[str, ...]
    mean: Array
    var: Array
    epsilon: float
    source: tuple[Any, ...]

    @property
    def name(self) -> str:
        return self.nodes[0]


def find(graph: Graph, source_of: Callable[[Node], Any]) -> tuple[list[Layer], list[tuple[str, str]]]:
    """Return the layers of a graph whose constants are computed, and the batch norms that are none, with a sentence
    why. source_of: what a file has for a node, with the names that it reads as `input`."""
    found, skipped = dict[tuple[str, ...], Layer](), list[tuple[str, str]]()
    for node in graph.nodes:
        if not node.op.name.startswith("batch_norm"):
            continue
        source, why = source_of(node), _why_not(node)
        if why or source is None:
            skipped.append((node.name, why or "the file has no BatchNormalization of that name"))
            continue
        key = tuple(source.input[1:5])
        other = found.get(key)
        nodes, sources = (other.nodes, other.source) if other else ((), ())
        mean, var = (np.asarray(_constant(node, i).data) for i in (3, 4))
        epsilon = float(node.op.values["epsilon"])
        found[key] = Layer((*nodes, node.name), mean, var, epsilon, (*sources, source))
    return [*found.values()], skipped


def _why_not(node: Node) -> str:
    if node.op.name != "batch_norm" or node.op.values["training_mode"]:
        return "it is in training mode: its statistics come from the batch"
    unknown = [v for v in node.inputs[3:5] if v is not None and not v.is_constant]
    return (
        f"its {'mean' if unknown[0] is node.inputs[3] else 'var'} {unknown[0].name!r} is no constant" if unknown else ""
    )


def _constant(node: Node, index: int) -> Value:
    v = node.inputs[index]
    assert v is not None
    return v


def passes(graph: Graph, layers: Sequence[Layer]) -> list[list[Layer]]:
    """Layers in the order in which they can be measured, those of one pass together: what stands before a layer was
    measured in an earlier pass. Layers that stand before each other, since their norms take turns, share a pass."""
    before, number = _before(graph, layers), dict[int, int]()
    for k in sorted(range(len(layers)), key=lambda k: len(before[k] | {k})):  # fewer stand before what is earlier
        number[k] = max((number[j] + 1 for j in before[k] if j != k and k not in before[j]), default=0)
    order: list[list[Layer]] = [[] for _ in range(1 + max(number.values(), default=-1))]
    for k, layer in enumerate(layers):
        order[number[k]].append(layer)
    return order


def _before(graph: Graph, layers: Sequence[Layer]) -> list[set[int]]:
    """For each layer those whose statistics its data depend on."""
    place = {name: k for k, layer in enumerate(layers) for name in layer.nodes}
    reached, found = dict[Value, frozenset[int]](), [set[int]() for _ in layers]
    nothing = frozenset[int]()
    for node in graph.nodes:
        mine = nothing.union(*(reached.get(v, nothing) for v in node.inputs if v is not None))
        if node.name in place:
            found[place[node.name]] |= mine
            mine |= {place[node.name]}
        reached.update((v, mine) for v in node.outputs)
    changed = any(len(layer.nodes) > 1 for layer in layers)
    while changed:  # through layers of several norms
        wider = [b.union(*(found[j] for j in b)) for b in found]
        changed, found = wider != found, wider
    return found
