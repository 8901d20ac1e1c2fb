"""Errors of layers whose algorithm rounds differently (Winograd), each compiled by itself, beside the direct algorithm
in float64 on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.difference import relative_error
from renorm.driver.analysis import analyze
from renorm.driver.compile import compile
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.ops.tiled import Tiled

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Rounding:
    """node: as the network names it; algorithm: its label. l2: norm of the error relative to the norm of the result;
    largest: the largest error relative to the largest element."""

    node: str
    algorithm: str
    l2: float
    largest: float


def roundings(source: Graph, compiled: Graph, inputs: Mapping[str, Array], **options: Any) -> tuple[Rounding, ...]:
    """Return one record for each node that `precision="exact"` would have computed otherwise, in their order. A node
    reads what the network, computed in float64, gives it to read, rounded to float32.

    source: with fixed extents; compiled: what the passes made of it. options: `target`, `opt_level` and `keep` that it
    was compiled with.
    """
    tiled, found = [n for n in compiled.nodes if isinstance(n.op, Tiled)], list[Rounding]()
    if not tiled:
        return ()
    direct = analyze(source, **options, precision="exact")[0]
    values, nodes = interpret.evaluate(direct, inputs), {n.name: n for n in direct.nodes}
    for node in tiled:
        x = nodes[node.name].inputs[0]
        assert x is not None
        given = values[x].astype(np.float32)
        expected = interpret.apply(nodes[node.name], {**values, x: given.astype(np.float64)})[0]
        alone = Graph(node.name)
        constants = [None if v is None else alone.constant(v.data) for v in node.inputs[1:]]
        alone.outputs = [alone.apply(node.op, [alone.input("x", x.dtype, x.shape), *constants])]
        (got,) = compile(alone, target=options.get("target", "llvm"), opt_level=2).run(given)
        l2 = float(np.linalg.norm(got - expected) / (np.linalg.norm(expected) or 1.0))
        found.append(Rounding(node.name, node.op.label(node.operand_types()), l2, relative_error(got, expected)))
    return tuple(found)
