"""Random numbers: uniform and normal ones, and events of given probability."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from renorm import te
from renorm.core.dtypes import ALL, numpy_dtype
from renorm.core.errors import OperandError
from renorm.graph.attributes import Float, Type
from renorm.graph.ir import Node
from renorm.graph.op import OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, boolean, f16, f32, f64, i64
from renorm.ops.shared import random_numbers
from renorm.ops.shared.composite import Composite, apply

_FLOATS = ("float16", "float32", "float64", "bfloat16")
_SEEDS = 1 << 24  # whole numbers that float32 has


class Random(OpDef):
    """Base of random_uniform_like and random_normal_like. Numbers depend on seed and place alone: they are the same in
    each run."""

    types = {"T": ALL}
    scheduled_as = "given_loops"
    dtype = Type(None)
    seed = Float(0.0)
    is_normal: ClassVar[bool] = False

    def terms(self) -> tuple[float, float]:
        """Return what is added to a number, and what it is multiplied with."""
        raise NotImplementedError(f"{self.name} has no terms")

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        return super().from_onnx(seeded(node))

    def to_onnx(self, node: Node, opset: int) -> Any:
        """A node without a seed draws others."""
        op_type, attributes, operands = super().to_onnx(node, opset) or ("", {}, [])
        return op_type, {**attributes, "seed": self.seed}, operands

    def infer(self, x: Operand) -> TensorType:
        dtype = self.dtype or x.dtype
        if dtype not in _FLOATS:
            raise OperandError(f"{self.name}: numbers of {dtype} are not drawn", do=f"give dtype: {', '.join(_FLOATS)}")
        return TensorType(dtype, x.shape)

    def compute(self, x: te.Tensor) -> te.Tensor:
        body = random_numbers.filled(self.seed, self.is_normal, *self.terms())
        rounds = random_numbers.rounds(x.shape)
        return te.extern(x.shape, [], body, name="drawn", dtype=self.dtype or x.dtype, rounds=rounds)

    def reference(self, x: Any) -> Any:
        low, span = self.terms()
        return random_numbers.reference(self.seed, np.shape(x), self.is_normal) * span + low

    samples = [
        Sample(f32[3, 5]),
        Sample(i64[2, 1, 1030], dtype="float32", seed=7),
        Sample(f64[7], seed=0.5),
        Sample(boolean[()], dtype="float64"),
        Sample(f16[2, 3, 4], seed=3),
        Sample(f32[5], dtype="bfloat16"),
        Sample(bf16[0, 3]),
    ]
    rejects = [Reject(i64[3], because="numbers of int64 are not drawn")]


class RandomUniformLike(Random):
    """y = numbers from low to high, of the shape of x, and of its dtype unless one is given."""

    signature = "x: T[*S] -> y: T[*S]"
    low = Float(0.0)
    high = Float(1.0)
    onnx = {"RandomUniformLike": 1}

    def terms(self) -> tuple[float, float]:
        return self.low, self.high - self.low

    samples = [*Random.samples, Sample(f32[3, 4], low=-2, high=1.5)]


class RandomNormalLike(Random):
    """y = normal numbers with a mean and a standard deviation, of the shape of x, and of its dtype unless one is
    given."""

    signature = "x: T[*S] -> y: T[*S]"
    mean = Float(0.0)
    scale = Float(1.0)
    onnx = {"RandomNormalLike": 1}
    is_normal = True

    def terms(self) -> tuple[float, float]:
        return self.mean, self.scale

    samples = [*Random.samples, Sample(f32[3, 4], mean=-2, scale=1.5)]


class Drawn(OpDef):
    """Random numbers of a shape that the file states: a constant, as they are the same in each run."""

    takes: ClassVar[str] = ""
    onnx = {"RandomUniform": 1, "RandomNormal": 1}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        given = dict(seeded(node).attributes)
        shape, dtype = given.pop("shape", ()), given.pop("dtype", "float32")
        like = RandomNormalLike if node.op_type == "RandomNormal" else RandomUniformLike
        return like(**given).reference(np.empty(shape)).astype(numpy_dtype(dtype))


class Bernoulli(Composite):
    """y = 1 with the probability x, 0 otherwise."""

    takes = "x"
    onnx = {"Bernoulli": 15}
    dtype = Type(None)
    seed = Float(0.0)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        return super().from_onnx(seeded(node))

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        (x,) = operands
        return apply(
            "cast", apply("less", apply("random_uniform_like", x, seed=self.seed), x), to=self.dtype or x.dtype
        )


def seeded(node: OnnxNode) -> OnnxNode:
    """Return a node with a seed: one of its name, where it states none."""
    node.assumed.append(f"{node.op_type} draws the same numbers in each run")
    if "seed" in node.attributes:
        return node
    return replace(node, attributes={**node.attributes, "seed": float(zlib.crc32(node.name.encode()) % _SEEDS)})
