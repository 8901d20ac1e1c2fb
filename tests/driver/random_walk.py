"""A network that grows node by node: what a generator of random networks draws from and builds with."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

Array = np.ndarray[Any, Any]
OPSETS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 17, 17, 18, 21)


class Walk:
    """A network that grows. shapes: of float values that moves may read."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.rng.choice(OPSETS))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.inputs: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, int] = {}
        self.current = ""
        self.serial = 0

    # draws

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def size(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shapes[self.current]

    def axis(self, axis: int) -> int:
        """`axis` of the current value; counted from the end at times, which opsets allow since 11."""
        return axis - len(self.shape) if self.opset >= 11 and self.chance(0.3) else axis

    # building

    def fresh(self, stem: str) -> str:
        self.serial += 1
        return f"{stem}_{self.serial}"

    def const(self, array: Any, dtype: str = "float32") -> str:
        """An initializer, or now and then a Constant node."""
        name = self.fresh("c")
        array = np.asarray(array, dtype)
        if self.chance(0.1):
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name)))
        self.constants[name] = array
        return name

    def weight(self, *shape: int, fan: int | None = None) -> str:
        """Numbers whose sums over `fan` products stay near 1."""
        fan = fan or max(1, prod(shape[1:]))
        return self.const(self.rng.standard_normal(shape) / np.sqrt(fan))

    def near(self, center: float, *shape: int) -> str:
        return self.const(center + 0.3 * self.rng.standard_normal(shape))

    def positive(self, *shape: int) -> str:
        return self.const(self.rng.uniform(0.4, 2.0, shape))

    def node(self, kind: str, inputs: list[str], results: int = 1, **attributes: Any) -> str:
        """Adds a node; its first result becomes the current value. Shapes come from ONNX."""
        outputs = [self.fresh(kind.lower()) for _ in range(results)]
        made = helper.make_node(kind, inputs, outputs, name=self.fresh(f"/{kind}"), **attributes)
        given = [
            helper.make_tensor_value_info(n, self.types[n], self.shapes[n])
            for n in dict.fromkeys(inputs)
            if n and n not in self.constants
        ]
        held = [numpy_helper.from_array(self.constants[n], n) for n in dict.fromkeys(inputs) if n in self.constants]
        results_of = [helper.make_empty_tensor_value_info(n) for n in outputs]
        graph = helper.make_graph([made], "g", given, results_of, held)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        inferred = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        for info in inferred.graph.output:
            kind_of = info.type.tensor_type
            assert kind_of.HasField("shape"), made
            assert all(d.HasField("dim_value") for d in kind_of.shape.dim), made
            self.shapes[info.name] = tuple(d.dim_value for d in kind_of.shape.dim)
            self.types[info.name] = kind_of.elem_type
        self.nodes.append(made)
        self.current = outputs[0]
        return outputs[0]

    def raw(self, kind: str, inputs: list[str], shape: tuple[int, ...], dtype: int, **attributes: Any) -> str:
        """A node whose result's shape ONNX cannot tell alone (it depends on a shape chain): given here."""
        name = self.fresh(kind.lower())
        self.nodes.append(helper.make_node(kind, inputs, [name], name=self.fresh(f"/{kind}"), **attributes))
        self.shapes[name], self.types[name] = shape, dtype
        if dtype == TensorProto.FLOAT:
            self.current = name
        return name

    def input(self, *shape: int) -> str:
        name = self.fresh("x")
        self.inputs[name] = self.shapes[name] = shape
        self.types[name] = TensorProto.FLOAT
        self.current = name
        return name

    # forms that changed with opsets

    def axes_node(self, kind: str, axes: list[int], *, since: int, **attributes: Any) -> str:
        """An op whose axes were an attribute before opset `since` and are an input from then on."""
        if self.opset < since:
            return self.node(kind, [self.current], axes=axes, **attributes)
        return self.node(kind, [self.current, self.const(axes, "int64")], **attributes)

    def squeeze(self, *axes: int) -> str:
        return self.axes_node("Squeeze", list(axes), since=13)

    def unsqueeze(self, *axes: int) -> str:
        return self.axes_node("Unsqueeze", list(axes), since=13)

    def reshape(self, *shape: int) -> str:
        return self.node("Reshape", [self.current, self.const(shape, "int64")])

    def transpose(self, *perm: int) -> str:
        return self.node("Transpose", [self.current], perm=list(perm))

    def clip(self, low: float, high: float) -> str:
        if self.opset < 11:
            return self.node("Clip", [self.current], min=low, max=high)
        return self.node("Clip", [self.current, self.const(low), self.const(high)])

    def pad(self, pads: list[int], mode: str) -> str:
        if self.opset < 11:
            return self.node("Pad", [self.current], pads=pads, mode=mode)
        return self.node("Pad", [self.current, self.const(pads, "int64")], mode=mode)

    def slice(self, starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> str:
        if self.opset < 10:
            if any(s != 1 for s in steps):
                return self.current
            return self.node("Slice", [self.current], starts=starts, ends=ends, axes=axes)
        return self.node("Slice", [self.current, *(self.const(v, "int64") for v in (starts, ends, axes, steps))])

    def split(self, axis: int, sizes: list[int]) -> list[str]:
        source, n = [self.current], len(sizes)
        if self.opset < 13:
            first = self.node("Split", source, n, axis=axis, split=sizes)
        elif self.opset >= 18 and len(set(sizes)) == 1 and self.chance(0.5):
            first = self.node("Split", source, n, axis=axis, num_outputs=n)
        else:
            first = self.node("Split", [*source, self.const(sizes, "int64")], n, axis=axis)
        return list(self.nodes[-1].output) if first else []
