"""Departures of quantized networks from what files say: node by node, each on the integers that the runtime itself
made before.

    python -m benchmarks.quantized_departures FILE        of inputs that are drawn
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import renorm
from benchmarks.quantized import differing, reference
from renorm.core.random_inputs import random_inputs
from renorm.graph import interpret
from renorm.ops.shared import quantization

Array = np.ndarray[Any, Any]


def departures(file: Path, given: Mapping[str, Array]) -> dict[str, list[tuple[str, float]]]:
    """Return for renorm and ONNX Runtime the quantized tensors that they compute otherwise than the definition does
    from the quantized tensors before, and by how many steps at most. All of these are outputs of what is run."""
    shapes = {name: array.shape for name, array in given.items()}
    graph, model = renorm.read(file, shapes=shapes), onnx.load(file)
    written = {name for node in model.graph.node for name in node.output}
    held = {v.name: v for n in graph.nodes for v in n.outputs if v.dtype in quantization.BYTES and v.name in written}
    own = graph.copy()
    values = {v.name: v for n in own.nodes for v in n.outputs}
    own.outputs = [values[name] for name in held]
    made = {v.name: onnx.ValueInfoProto(name=v.name) for v in held.values()}
    del model.graph.output[:]
    model.graph.output.extend(made.values())
    runs = {
        "renorm": renorm.compile(own, threads=1).run(*given.values()),
        "ONNX Runtime": reference(model.SerializeToString()).run([*held], dict(given)),
    }
    return {name: _local(graph, given, dict(zip(held, results))) for name, results in runs.items()}


def _local(graph: Any, given: Mapping[str, Array], results: Mapping[str, Array]) -> list[tuple[str, float]]:
    env, found = interpret.known(graph, given), list[tuple[str, float]]()
    for node in graph.nodes:
        interpret.compute([node], env)
        for v in node.outputs:
            if v.name in results:
                apart = float(differing(env[v], results[v.name], 1.0).max(initial=0))
                found += [(f"{node.op.name} {v.name}", apart)] if apart else []
                env[v] = results[v.name]
    return found


if __name__ == "__main__":
    path = Path(sys.argv[1])
    for who, places in departures(path, random_inputs(renorm.read(path).inputs)).items():
        print(who, *(f"  {place}: {steps:g}" for place, steps in places), sep="\n")
