"""An ONNX model that is built and computed at once: each node is written, and what it means is said by PyTorch in
float64, so that nothing of renorm stands in the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from onnx import ModelProto, helper, numpy_helper
from torch.nn import functional as F

torch.set_num_threads(1)

Tensor = torch.Tensor


class Inapplicable(Exception):
    """A step does not fit what stands before it: another case has to be drawn."""


class Network:
    """values: the name of each value of the model with its numbers; constants: the same for initializers.

    Numbers of constants and inputs are those of `dtype`, all arithmetic is float64. dynamic: "", "batch", or "all" for
    inputs of unknown extents, channels apart. special: NaN and infinities are in the data.
    """

    def __init__(self, dtype: str, opset: int, seed: int, dynamic: str = "", special: bool = False):
        self.dtype, self.opset, self.dynamic, self.special = dtype, opset, dynamic, special
        self.rng = np.random.default_rng(seed)
        self.values: dict[str, Tensor] = {}
        self.inputs: dict[str, np.ndarray[Any, Any]] = {}
        self.fixed: set[str] = set()
        self.initializers: list[Any] = []
        self.constants: set[str] = set()
        self.nodes: list[Any] = []
        self.outputs: list[str] = []
        self.parameters: dict[Any, str] = {}
        self.is_sharing = False

    # --- values -------------------------------------------------------------------------------------------------------

    def input(self, name: str, shape: Sequence[int], is_fixed: bool = False) -> str:
        """is_fixed: its extents are known, whatever `dynamic` says."""
        self.fixed |= {name} if is_fixed else set()
        self.inputs[name] = self.rng.standard_normal(shape).astype(self.dtype)
        if self.special and not is_fixed:
            places = self.rng.permutation(self.inputs[name].size)[:3]
            self.inputs[name].reshape(-1)[places] = (np.nan, np.inf, -np.inf)[: len(places)]
        self.values[name] = torch.from_numpy(self.inputs[name].astype(np.float64))
        return name

    def constant(self, name: str, elements: Any, dtype: str = "") -> str:
        array = np.asarray(elements)
        name, floats = self.free(name), array.dtype.kind == "f"
        array = array.astype(dtype or self.dtype) if floats else array.astype(np.int64)
        self.initializers.append(numpy_helper.from_array(array, name))
        self.constants.add(name)
        self.values[name] = torch.from_numpy(array.astype(np.float64) if floats else array)
        return name

    def parameter(self, name: str, elements: Any, dtype: str = "") -> str:
        """A constant of a norm; where norms share theirs, an earlier one of the same name, type and shape."""
        key = name, np.shape(elements), dtype
        found = self.parameters.get(key) if self.is_sharing else None
        self.parameters[key] = found or self.constant(name, elements, dtype)
        return self.parameters[key]

    def shape(self, v: str) -> list[int]:
        return list(self.values[v].shape)

    def free(self, name: str) -> str:
        taken, n = set(self.values), 1
        found = name
        while found in taken:
            n, found = n + 1, f"{name}.{n + 1}"
        return found

    def apply(
        self, op: str, operands: Sequence[str], means: Tensor, name: str = "", extra: Sequence[str] = (), **said: Any
    ) -> str:
        """A node whose first result is `means`; extra: names of further results; said: attributes that are not None."""
        y = self.free(f"{name or op.lower()}.y")
        if means.numel() == 0:
            raise Inapplicable(f"{op} leaves nothing")
        if means.numel() > 100_000:
            raise Inapplicable("an image of that size is not added in the place of a norm")
        said = {k: v for k, v in said.items() if v is not None}
        self.nodes.append(helper.make_node(op, operands, [y, *extra], name=y.removesuffix(".y"), **said))
        self.values[y] = means
        return y

    def also(self, v: str) -> None:
        """The value is an output of the graph."""
        if v not in self.outputs:
            self.outputs.append(v)

    def largest(self, v: str) -> float:
        """The largest number of a value, or of what its activation reads, where terms may cancel: what its error is
        relative to."""
        node = next((n for n in self.nodes if n.output[0] == v), None)
        before = node.input[0] if node is not None and node.op_type in ("Relu", "Tanh") else v
        return float(self.values[before].abs().max())

    # --- the model ----------------------------------------------------------------------------------------------------

    def model(self) -> ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))

        def shape(name: str, extents: Sequence[int]) -> list[Any]:
            free = {"": (), "batch": (0,), "all": (0, *range(2, len(extents)))}[self.dynamic]
            free = () if name in self.fixed else free
            return [(f"{name}{a}" if a else "N") if a in free else e for a, e in enumerate(extents)]

        ends = [helper.make_tensor_value_info(n, kind, shape(n, a.shape)) for n, a in self.inputs.items()]
        results = [
            helper.make_tensor_value_info(n, kind, [None if self.dynamic else e for e in self.shape(n)])
            for n in self.outputs
        ]
        graph = helper.make_graph(self.nodes, "case", ends, results, self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def expected(self) -> list[np.ndarray[Any, Any]]:
        """The outputs in float64."""
        return [self.values[v].numpy() for v in self.outputs]


# --- what the windowed ops mean ---------------------------------------------------------------------------------------


def conv(x: Tensor, w: Tensor, b: Tensor | None, a: dict[str, Any]) -> Tensor:
    """ONNX Conv with pads [before.., after..]."""
    rank = x.ndim - 2
    pads = a["pads"]
    padded = F.pad(x, around(pads, rank))
    reach = [d * (k - 1) + 1 for d, k in zip(a["dilations"], w.shape[2:])]
    if any(e < r for e, r in zip(padded.shape[2:], reach)):
        raise Inapplicable("the window does not fit")
    f = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return f(padded, w, b, stride=a["strides"], dilation=a["dilations"], groups=a["group"])


def conv_transpose(x: Tensor, w: Tensor, b: Tensor | None, a: dict[str, Any]) -> Tensor:
    """ONNX ConvTranspose; PyTorch computes it without padding, for it refuses some output paddings."""
    rank = x.ndim - 2
    f = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    whole = f(x, w, None, stride=a["strides"], dilation=a["dilations"], groups=a["group"])
    extra = a["output_padding"]
    whole = F.pad(whole, list(chain.from_iterable((0, e) for e in reversed(extra))))
    pads = a["pads"]
    at = [slice(pads[i], whole.shape[2 + i] - pads[rank + i]) for i in range(rank)]
    if any(s.stop <= s.start for s in at):
        raise Inapplicable("padding leaves nothing")
    y = whole[(slice(None), slice(None), *at)]
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def around(pads: Sequence[int], rank: int) -> list[int]:
    """ONNX pads of spatial axes as PyTorch has them: last axis first, before and after together."""
    return list(chain.from_iterable((pads[i], pads[rank + i]) for i in reversed(range(rank))))
