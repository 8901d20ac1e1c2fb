"""A target whose code generator interprets: what it claims is computed in float64 and rounded once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import renorm
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.graph.parse import parse

Array = np.ndarray[Any, Any]


class Interpreted(renorm.ExternalCode):
    """What it is called with is checked against the contract each time."""

    loader = "interpreted"

    def __init__(self, graph: Graph):
        self.graph = graph
        self.calls = 0

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.calls += 1
        for v, a in zip((*self.graph.inputs, *self.graph.outputs), (*inputs, *outputs), strict=True):
            assert (v.dtype, v.shape) == (a.dtype.name, a.shape)
            assert a.flags.c_contiguous
            assert a.flags.aligned
        assert all(y.flags.writeable for y in outputs)
        assert not any(x.flags.writeable for x in inputs)
        assert not any(np.shares_memory(x, y) for x in inputs for y in outputs)
        for y, made in zip(outputs, interpret.run(self.graph, inputs), strict=True):
            y[...] = made

    @property
    def source(self) -> str:
        return str(self.graph)

    def save(self) -> bytes:
        constants = {v.name: (v.dtype, v.data.tolist()) for v in self.graph.constants.values() if v.data is not None}
        return json.dumps({"text": str(self.graph), "constants": constants}).encode()


def load(data: bytes) -> Interpreted:
    held = json.loads(data)
    constants = {name: np.array(values, dtype) for name, (dtype, values) in held["constants"].items()}
    return Interpreted(parse(held["text"], constants))


renorm.register_loader("interpreted", load)


def target(
    supports: Sequence[Any], codegen: Callable[[Graph], renorm.ExternalCode | str] = Interpreted, kind: str = "my_npu"
) -> renorm.Target:
    return renorm.Target(kind, base="llvm", supports=supports, codegen=codegen)


def conv_norm(x: Any, w: Any, b: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    return renorm.ops.batch_norm(renorm.ops.conv(x, w, b), scale, bias, mean, var)


def conv_norm_relu(x: Any, w: Any, b: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    return renorm.ops.relu(conv_norm(x, w, b, scale, bias, mean, var))
