"""A sample of an op as a graph of one node, and the ways to run it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core import dtypes
from renorm.core.difference import largest
from renorm.core.dims import static
from renorm.core.tolerance import tolerance
from renorm.graph import interpret
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.op import OpDef, Sample
from renorm.graph.types import Spec
from renorm.ops import schedules
from renorm.tir import interpret as loops

Array = np.ndarray[Any, Any]

LAYERS = 4  # that one op may count for
OTHERS = 1e-10  # what ONNX Runtime's norms of float64 keep of its digits


class OneNode:
    """graph: inputs for operands that are given at run time, constants for those known at compile time. arrays: its
    inputs."""

    def __init__(self, op: type[OpDef], sample: Sample, shapes: dict[int, Any] | None = None):
        self.op, self.sample = op(**sample.attributes), sample
        rng = np.random.default_rng(zlib.crc32(f"{op.name} {sample.attributes}".encode()))
        self.graph, self.arrays, self._shapes = Graph(op.name), list[Array](), shapes or {}
        specs = op.arrange([o for given in sample.operands for o in (given if isinstance(given, list) else [given])])
        operands: list[Any] = []
        for parameter, given in zip(op.parsed.operands, specs):
            if isinstance(given, list):
                operands.append([self._value(f"{parameter.name}{i}", s, False, rng) for i, s in enumerate(given)])
            else:
                operands.append(None if given is None else self._value(parameter.name, given, parameter.is_static, rng))
        self.graph.apply(self.op, operands)
        self.node: Node = self.graph.nodes[0]
        self.graph.outputs = list(self.node.outputs)

    def _value(self, name: str, spec: Spec, is_static: bool, rng: np.random.Generator) -> Value:
        array = spec.draw(rng)
        if is_static:
            return self.graph.constant(array, name)
        shape = [self._shapes.get(d, d) if isinstance(d, int) else d for d in spec.type.shape]
        self.arrays.append(array)
        return self.graph.input(name, spec.type.dtype, shape)

    def reference(self) -> list[Array]:
        """Results by NumPy in float64."""
        env = interpret.evaluate(self.graph, self.arrays)
        return [env[v] for v in self.graph.outputs]

    def tensors(self) -> tuple[dict[Value, te.Tensor], list[te.Tensor]]:
        """Placeholders of the inputs, and the op's compute of them."""
        given = {v: te.placeholder(static(v.shape), v.dtype, name=v.name) for v in self.graph.inputs}

        def view(v: Value | None, is_static: bool) -> Any:
            return None if v is None else v.data if is_static else given[v]

        operands = [
            [view(v, p.is_static) for v in o] if isinstance(o, list) else view(o, p.is_static)
            for p, o in zip(self.node.op.parsed.operands, self.node.operands)
        ]
        results = self.op.compute(*operands)
        return given, list(results) if isinstance(results, (list, tuple)) else [results]

    def kernel(self, schedule_for: Any = None) -> Any:
        """The loop kernel; schedule_for: a target, or None for the default schedule."""
        given, outs = self.tensors()
        schedule = te.create_schedule([o.op for o in outs])
        if schedule_for is not None:
            schedule = schedules.schedule(self.op, schedule, outs, schedule_for) or schedule
        return te.lower(schedule, [*given.values(), *outs], name=self.op.name)

    def run(self, kernel: Any, execute: Callable[[Any, list[Array]], None] = loops.run) -> list[Array]:
        """What a loop kernel computes when `execute` runs it. Memory that it does not write shows as NaN, or 1."""
        outputs = [
            np.full(static(v.shape), np.nan if dtypes.is_float(v.dtype) else 1, dtypes.numpy_dtype(v.dtype))
            for v in self.graph.outputs
        ]
        with np.errstate(all="ignore"):
            execute(kernel, [*(np.ascontiguousarray(a).copy() for a in self.arrays), *outputs])
        return outputs

    def agrees(self, results: Sequence[Array], expected: Sequence[Array], is_ours: bool = True) -> None:
        """Raise AssertionError where a result differs: floats by more than the sample's tolerance, or else that of
        LAYERS layers of their dtype, others at all. is_ours: False for another runtime, which no sample holds to more
        digits than that, nor to all of float64."""
        assert len(results) == len(expected)
        for v, got, wanted in zip(self.graph.outputs, results, expected):
            assert dtypes.from_numpy(got.dtype) == v.dtype
            assert got.shape == wanted.shape
            if not dtypes.is_float(v.dtype):
                np.testing.assert_array_equal(got, wanted)
                continue
            allowed, own = tolerance(v.dtype, LAYERS), self.sample.tolerance
            if not is_ours:
                allowed = max(own or 0.0, allowed, OTHERS)
            elif own is not None:
                allowed = own
            with np.errstate(over="ignore"):
                rounded = wanted.astype(got.dtype).astype(np.float64)  # beyond float16 means infinity
            np.testing.assert_allclose(got.astype(np.float64), rounded, rtol=allowed, atol=allowed * largest(rounded))
