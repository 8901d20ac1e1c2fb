"""Departures of quantized networks from what files say: node by node, each on the integers that the runtime itself
made before.

    python -m benchmarks.quantized_departures FILE        of inputs that are drawn
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
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
QUANTIZERS = ("quantize_linear", "dynamic_quantize_linear")


def departures(file: Path, given: Mapping[str, Array]) -> dict[str, list[tuple[str, float]]]:
    """Return for renorm and ONNX Runtime the quantized tensors that they compute otherwise than the definition does
    from the quantized tensors before, and by how many steps at most. All of these are outputs of what is run; where
    none of them departs then, ONNX Runtime is asked for one after the other, which leaves it more to optimize."""
    shapes = {name: array.shape for name, array in given.items()}
    graph, model = renorm.read(file, shapes=shapes), onnx.load(file)
    written = {name for node in model.graph.node for name in node.output}
    held = {v.name: v for n in graph.nodes for v in n.outputs if v.dtype in quantization.BYTES and v.name in written}
    own = graph.copy()
    values = {v.name: v for n in own.nodes for v in n.outputs}
    own.outputs = [values[name] for name in held]
    if not held:  # all integers are inside of operators
        return {}
    made = {v.name: onnx.ValueInfoProto(name=v.name) for v in held.values()}
    outputs = list(model.graph.output)
    del model.graph.output[:]
    model.graph.output.extend(made.values())
    runs = {
        "renorm": renorm.compile(own, threads=1).run(*given.values()),
        "ONNX Runtime": reference(model.SerializeToString()).run([*held], dict(given)),
    }
    found = {name: _local(graph, given, dict(zip(held, results))) for name, results in runs.items()}
    if not any(found.values()):
        exact = dict(zip(held, interpret.run(own, given)))
        places = {v.name: _place(v) for n in graph.nodes for v in n.outputs}
        found["ONNX Runtime"] = [(places[n], apart) for n, apart in islice(_alone(model, outputs, given, exact), 1)]
    return found


def _alone(
    model: onnx.ModelProto, outputs: Sequence[onnx.ValueInfoProto], given: Mapping[str, Array], exact: Mapping[str, Any]
) -> Iterator[tuple[str, float]]:
    """Yield the tensors that ONNX Runtime computes otherwise where each alone is read beside the outputs."""
    for name, defined in exact.items():
        del model.graph.output[:]
        model.graph.output.extend([*outputs, onnx.ValueInfoProto(name=name)])
        (result,) = reference(model.SerializeToString()).run([name], dict(given))
        if apart := float(differing(defined, result, 1.0).max(initial=0)):
            yield name, apart


def _place(value: Any) -> str:
    """Return a quantized tensor and the operator that makes what is quantized."""
    node, before = value.producer, value.producer.inputs[0].producer
    return f"{before.op.name if node.op.name in QUANTIZERS and before is not None else node.op.name} {value.name}"


def _local(graph: Any, given: Mapping[str, Array], results: Mapping[str, Array]) -> list[tuple[str, float]]:
    env, found = interpret.known(graph, given), list[tuple[str, float]]()
    for node in graph.nodes:
        interpret.compute([node], env)
        for v in node.outputs:
            if v.name in results:
                apart = float(differing(env[v], results[v.name], 1.0).max(initial=0))
                found += [(_place(v), apart)] if apart else []
                env[v] = results[v.name]
    return found


if __name__ == "__main__":
    path = Path(sys.argv[1])
    for who, places in departures(path, random_inputs(renorm.read(path).inputs)).items():
        print(who, *(f"  {place}: {steps:g}" for place, steps in places), sep="\n")
