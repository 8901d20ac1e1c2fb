"""Random ONNX networks of the kinds that exporters write: image networks of rank 3 to 5, rows, and sequences.

`network(seed)` gives the same model and inputs for the same seed. A network is a walk: each move takes a value that
is already there, applies a block (a convolution with its norm, attention, a shape chain ...) and leaves its result
for the moves behind it. Shapes come from ONNX's own shape inference, node by node, so that nothing here says twice
what an op does. Numbers stay near 1 and statistics are taken over several values, so that float32 runtimes agree
to about 1e-6.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference
from tests.driver.random_moves import IMAGE, ROWS, SEQUENCE, Move, head
from tests.driver.random_vision import VISION
from tests.driver.random_walk import Walk

Array = np.ndarray[Any, Any]
IR = {7: 3, 8: 3, 9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10}
LARGEST = 6000  # elements of one value; one network in LARGE_EVERY has ten times as many, for whole tiles of registers
LARGE_EVERY = 6


@dataclass(frozen=True)
class RandomNetwork:
    """seed: gives this network again. feeds: an array for each input. norms: how many normalizations there are."""

    seed: int
    model: onnx.ModelProto
    feeds: dict[str, Any]
    norms: int

    def __str__(self) -> str:
        """The nodes, one per line."""
        graph = self.model.graph
        shapes = {t.name: list(t.dims) for t in graph.initializer}
        lines = [f"seed {self.seed}, opset {self.model.opset_import[0].version}"]
        lines += [f"input {n}: {a.dtype}{list(a.shape)}" for n, a in self.feeds.items()]
        for node in graph.node:
            attributes = ", ".join(f"{a.name}={_shown(a)}" for a in node.attribute)
            operands = ", ".join(f"{n}{shapes.get(n, '')}" for n in node.input)
            lines.append(f"{', '.join(node.output)} = {node.op_type}({operands}) {attributes}")
        return "\n".join([*lines, f"outputs {', '.join(o.name for o in graph.output)}"])


def _shown(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return list(value.dims) if isinstance(value, onnx.TensorProto) else value


NORMS = frozenset(
    {
        "BatchNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "GroupNormalization",
        "RMSNormalization",
        "MeanVarianceNormalization",
        "LpNormalization",
        "LRN",
    }
)


def network(seed: int) -> RandomNetwork:
    """The network of a seed: 4 to 12 moves, then one or more outputs."""
    w = Walk(seed)
    is_large = seed % LARGE_EVERY == LARGE_EVERY - 1
    n = 0 if w.chance(0.02) else w.pick(1, 1, 2, 3)
    kind = w.pick("image", "image", "image", "image", "sequence", "rows")
    if kind == "image":
        rank = w.pick(1, 2, 2, 2, 2, 3)
        most = {1: 40, 2: 15, 3: 7}[rank] * (2 if is_large else 1)
        spatial = [w.size(1, most) if is_large or w.chance(0.15) else w.size(4, 8) for _ in range(rank)]
        w.input(n, w.pick(1, 2, 3, 4, 6, 8, 12, 16, 17, *((32, 40) if is_large else ())), *spatial)
    elif kind == "sequence":
        w.input(n, w.size(1, 65 if is_large else 17), w.pick(4, 6, 8, 12, 16, 24, *((48, 66) if is_large else ())))
    else:
        w.input(n, w.size(1, 40))
    values = [w.current]
    for _ in range(w.size(3, 10)):
        # the newest value, or an older one: values then have second readers
        w.current = values[-1] if w.chance(0.85) else w.pick(*values)
        moves = {2: ROWS, 3: SEQUENCE if kind == "sequence" else IMAGE}.get(len(w.shape), IMAGE)
        if kind == "image" and len(w.shape) > 2 and w.chance(0.06):
            head(w)
        else:
            _try(w, w.pick(*moves), LARGEST * (10 if is_large else 1))
        if w.current != values[-1]:
            values.append(w.current)
    outputs = list(dict.fromkeys([values[-1], *(v for v in values[1:-1] if w.chance(0.12))]))
    if len(values) == 1:
        w.node("Relu", [values[0]])
        outputs = [w.current]
    return _finish(w, seed, outputs, dynamic=w.chance(0.25))


def vision(seed: int) -> RandomNetwork:
    """A network of what transformers of images are made of: 2 to 5 moves, then one or more outputs."""
    w = Walk(seed)
    h, wide = (w.pick(2, 4, 4, 5, 6, 8) for _ in range(2))
    w.input(w.pick(1, 1, 2), w.pick(1, 3, 4, 8, 12, 16, 20), h, wide)
    values = [w.current]
    for _ in range(w.size(2, 5)):
        w.current = values[-1] if w.chance(0.9) else w.pick(*values)
        _try(w, w.pick(*VISION), 2 * LARGEST)
        if w.current != values[-1]:
            values.append(w.current)
    if len(values) == 1:
        w.node("Relu", [values[0]])
        values.append(w.current)
    outputs = list(dict.fromkeys([values[-1], *(v for v in values[1:-1] if w.chance(0.15))]))
    return _finish(w, seed, outputs, dynamic=w.chance(0.25))


def _try(w: Walk, move: Move, largest: int) -> None:
    """Applies a move, and takes it back where values would grow too large or too small to say anything."""
    before = w.current, len(w.nodes), set(w.shapes)
    try:
        move(w)
    except (shape_inference.InferenceError, AssertionError):
        if before[0] and 0 not in w.shapes[before[0]]:
            raise
        w.current = before[0]  # some moves say nothing of an empty batch
        del w.nodes[before[1] :]
        return
    made = [s for name, s in w.shapes.items() if name not in before[2]]
    if any(prod(s) > largest or 0 in s[1:] for s in made):
        w.current = before[0]
        del w.nodes[before[1] :]


def _finish(w: Walk, seed: int, outputs: list[str], *, dynamic: bool) -> RandomNetwork:
    if w.chance(0.9):  # files with nodes that nothing reads are rare
        needed = set(outputs)
        for node in reversed(list(w.nodes)):
            if needed.isdisjoint(node.output):
                w.nodes.remove(node)
            else:
                needed.update(node.input)
    read = {name for node in w.nodes for name in node.input}
    made = {name for node in w.nodes for name in node.output}
    initializers = [numpy_helper.from_array(a, n) for n, a in w.constants.items() if n in read and n not in made]
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", *s[1:]] if dynamic else s)
        for n, s in w.inputs.items()
    ]
    if w.opset < 9 and w.chance(0.5):  # files of IR version 3 list their initializers among the inputs
        inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in initializers]
    results = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * len(w.shapes[n]) if dynamic else w.shapes[n])
        for n in outputs
    ]
    graph = helper.make_graph(w.nodes, f"random_{seed}", inputs, results, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", w.opset)])
    model.ir_version = max(4, IR.get(w.opset, 10)) if len(inputs) == len(w.inputs) else 3
    onnx.checker.check_model(model)
    feeds = {n: w.rng.standard_normal(s).astype(np.float32) for n, s in w.inputs.items()}
    norms = sum(node.op_type in NORMS for node in w.nodes)
    return RandomNetwork(seed, model, feeds, norms)
