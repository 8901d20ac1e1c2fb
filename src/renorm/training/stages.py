"""A network cut into stages, one for each pass over the data: stage p computes what pass p measures, of values that
earlier stages left.

What a stage leaves has all norms before it measured, and stays what it is. Where norms that share statistics stand
before each other, a stage also computes what is not final, with statistics of the batch, and leaves nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from renorm.graph.ir import Graph, Node, Value
from renorm.ops.batch_norm_parts import BatchMoments
from renorm.passes.context import Context
from renorm.passes.dead_code import RemoveDeadCode
from renorm.training.layers import Layer

Array = np.ndarray[Any, Any]


class Stages:
    """graph: the whole network, extents fixed and constants computed. passes: the layers that each measures. alive:
    names of the values that stage p is given by those before it; of the first, the inputs of the network."""

    def __init__(self, graph: Graph, passes: Sequence[Sequence[Layer]]):
        self.graph, self.passes = graph, passes
        self._measured_in = {name: p for p, layers in enumerate(passes) for x in layers for name in x.nodes}
        self.alive = [tuple(v.name for v in graph.inputs), *self._left()]

    def stage(self, p: int, known: Mapping[Layer, tuple[Array, Array]]) -> Graph:
        """Stage p as a network. Its outputs: count, mean and squared distances of what each norm of pass p reads,
        then the values of `left(p)`. Norms of layers in `known` have those statistics, all others those of their
        batch."""
        made = self.graph.copy()
        made.outputs = []
        norms = self._normalizing(made, known)
        values = {v.name: v for v in made.values()}
        for name in self.alive[p] if p else ():
            if values[name].producer is not None:
                given = made.input_for(values[name])
                made.replace(values[name], given)
                values[name] = given
        measured = [
            v for layer in self.passes[p] for n in layer.nodes for v in made.apply(BatchMoments(), [norms[n].inputs[0]])
        ]
        made.outputs = [*measured, *(values[name] for name in self.left(p))]
        RemoveDeadCode().run(made, Context())
        if p:
            made.inputs = [values[name] for name in self.alive[p] if values[name].users]
        return made

    def left(self, p: int) -> tuple[str, ...]:
        """Names of the values that stage p makes and later stages read."""
        return tuple(name for name in self.alive[p + 1] if name not in self.alive[p])

    def _normalizing(self, graph: Graph, known: Mapping[Layer, tuple[Array, Array]]) -> dict[str, Node]:
        """Give the norms of all layers their statistics: the new nodes, by the names of the norms."""
        by_name, norms = {n.name: n for n in graph.nodes}, dict[str, Node]()
        for layer in [x for layers in self.passes for x in layers]:
            for name in layer.nodes:
                node = by_name[name]
                op, statistics = node.op.with_attributes(training_mode=True), node.inputs[3:]
                if layer in known:
                    op, statistics = node.op, [graph.constant(array, name) for array in known[layer]]
                result = node.output.name
                y = graph.apply(op, [*node.inputs[:3], *statistics], before=node)
                graph.replace(node.output, y)
                graph.swap_names(node.output, y)
                norms[name] = y.producer
                assert y.name == result
        return norms

    def _left(self) -> list[tuple[str, ...]]:
        """Return the values that are alive after each stage: those that are final there and read later."""
        final = self._final()
        last = self._read(final)
        return [tuple(v.name for v in final if final[v] <= p < last[v]) for p in range(len(self.passes))]

    def _final(self) -> dict[Value, int]:
        """Return the first stage in which each value can be computed with all norms before it measured."""
        final = dict.fromkeys(self.graph.inputs, 0)
        for node in self.graph.nodes:
            since = max((final.get(v, 0) for v in node.inputs if v is not None), default=0)
            if node.name in self._measured_in:
                since = max(since, self._measured_in[node.name] + 1)
            final.update(dict.fromkeys(node.outputs, since))
        return final

    def _read(self, final: Mapping[Value, int]) -> dict[Value, int]:
        """Return the last stage in which each value is read: measured, or by a node that is computed there."""
        last, wanted = dict[Value, int](), dict[Value, set[int]]()  # wanted: for what which passes measure
        for v in [*(v for node in reversed(self.graph.nodes) for v in node.outputs), *self.graph.inputs]:
            measured = {p for n in v.users if n.inputs[0] is v and (p := self._measured_in.get(n.name, -1)) >= 0}
            wanted[v], stages = set(measured), set(measured)
            for node in v.users:
                for_ = set[int]().union(*(wanted[r] for r in node.outputs))
                since = final[node.output]
                wanted[v] |= for_
                stages |= {min(p, since) for p in for_}
            last[v] = max(stages, default=0)
        return last
