"""Matrices that embed words and score them: memory holds them once, as the product reads them.

A language model looks rows of a matrix up for its words, and multiplies with the same matrix, turned, at its end: 39 of
124 million parameters of GPT-2 small. In the product's form the elements of a row lie a vector apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from renorm import ops
from renorm.core.dims import static
from renorm.graph.ir import Graph, Node, Value
from renorm.ops.gather import Gather
from renorm.ops.gemm import Gemm
from renorm.ops.matmul import Matmul
from renorm.passes.context import Context

LARGE = 1 << 16  # elements of a matrix that is worth it


@dataclass(frozen=True)
class ReadTied:
    """gather(w, i) -> transpose(gather(w', i, axis = 1)), where w' = transpose(w) is multiplied, and w is not"""

    def run(self, graph: Graph, context: Context) -> None:
        if context.target.machine_target.is_gpu or context.precision == "bfloat16":  # products read rounded weights
            return
        products = [n for n in graph.nodes if type(n.op) in (Gemm, Matmul) and not n.op.values.get("transB")]
        weights = dict.fromkeys(n.inputs[1] for n in products)
        multiplied = [w for w in weights if w is not None and _is_matrix(w)]
        for node in [n for n in graph.nodes if _looks_up(n) and not context.kept(n)]:
            words, at = node.inputs
            if words is None or at is None or not all(_looks_up(u) for u in words.readers):
                continue
            turned = next((w for w in multiplied if _is_turned(w, words)), None)
            if turned is not None:
                with graph.at(node, node.origin):
                    found = ops.gather(turned, at, axis=1)
                    graph.replace(node.output, ops.transpose(found, perm=(*range(1, found.rank), 0)))


def _is_matrix(v: Value) -> bool:
    """Return whether a value is a large constant of two axes."""
    return v.is_constant and v.rank == 2 and v.dtype == "float32" and prod(static(v.shape)) >= LARGE


def _looks_up(node: Node) -> bool:
    words = node.inputs[0] if isinstance(node.op, Gather) and node.op.axis in (0, -2) else None
    return words is not None and _is_matrix(words)


def _is_turned(a: Value, b: Value) -> bool:
    """Return whether one matrix is the other, turned: a row of it first, which tells most apart."""
    if a.shape != b.shape[::-1] or a.dtype != b.dtype or a.data is None or b.data is None:
        return False
    return np.array_equal(a.data[0], b.data[:, 0]) and np.array_equal(a.data, b.data.T)
