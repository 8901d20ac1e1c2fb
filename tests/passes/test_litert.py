"""Quantized operators as LiteRT computes them, to the last integer, where it rounds more than once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.frontends.tflite_files import File, litert

import renorm
from renorm.frontends.tflite import read
from renorm.graph import interpret
from renorm.passes.context import Context
from renorm.passes.litert import FollowLiteRT

X, BYTES = (3, 14, 11, 13), ("int8", "uint8")
A, B = (0.05, 7), (0.11, -20)  # steps and zero points
WINDOW = {"stride_h": 2, "stride_w": 1, "filter_height": 2, "filter_width": 4}


def i(*values: int) -> Any:
    return np.asarray(values, np.int32)


@dataclass
class Case:
    """data: shapes of inputs, which have steps A and B. shape, to: of the result. differs: whether the definition gives
    other integers, and not only where numbers are a digit of float32 beside a half."""

    kind: str
    options: str = ""
    data: Sequence[tuple[int, ...]] = (X,)
    to: tuple[float, int] = B
    shape: tuple[int, ...] = X
    others: Sequence[Any] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    version: int = 2
    dtypes: Sequence[str] = BYTES
    differs: bool = True

    def content(self, dtype: str, rng: np.random.Generator) -> tuple[bytes, list[Any]]:
        """The file, and inputs."""
        file, turn = File(), 128 if dtype == "uint8" else 0
        given = [file.tensor(f"x{k}", shape, dtype, scale=([of[0]], [of[1] + turn], 0))
                 for k, (shape, of) in enumerate(zip(self.data, (A, B)))]  # fmt: skip
        beside = [file.constant(f"c{k}", held) for k, held in enumerate(self.others)]
        y = file.tensor("y", self.shape, dtype, scale=([self.to[0]], [self.to[1] + turn], 0))
        file.operator(self.kind, [*given, *beside], [y], self.options, self.version, **self.fields)
        return file.written(given, [y]), [(rng.integers(-128, 128, s) + turn).astype(dtype) for s in self.data]


CASES = [
    Case("ADD", "AddOptions", [X, X], (0.21, -5), differs=False),
    Case("ADD", "AddOptions", [X, (3, 1, 1, 13)], (0.0731, -128), differs=False),
    Case("SUB", "SubOptions", [X, X], (0.0731, 9), version=3, differs=False),
    Case("SQUARED_DIFFERENCE", "SquaredDifferenceOptions", [X, X], (0.31, -128), dtypes=BYTES[:1]),
    Case("LEAKY_RELU", "LeakyReluOptions", fields={"alpha": 0.3}),
    Case("LEAKY_RELU", "LeakyReluOptions", to=A, fields={"alpha": 0.01}),
    Case("HARD_SWISH", "HardSwishOptions", to=(0.043, -121), version=1),
    Case("HARD_SWISH", "HardSwishOptions", to=(0.21, 3), version=1),
    Case("BATCH_MATMUL", "BatchMatMulOptions", [(3, 5, 14, 11), (3, 5, 11, 13)], (0.77, 2), (3, 5, 14, 13),
         dtypes=BYTES[:1]),
    Case("BATCH_MATMUL", "BatchMatMulOptions", [(5, 17, 9), (5, 15, 9)], (0.31, 0), (5, 17, 15),
         fields={"adjoint_rhs": True}, dtypes=BYTES[:1]),
    Case("RELU", to=(0.12, -128)),
    Case("RELU6", to=(0.11, -90)),
    Case("MEAN", "ReducerOptions", to=(0.01, 5), shape=(3, 1, 1, 13), others=[i(1, 2)], fields={"keep_dims": True},
         differs=False),
    Case("MEAN", "ReducerOptions", [(3, 2, 2, 50)], A, (3, 50), [i(1, 2)], differs=False),
    Case("RESIZE_BILINEAR", "ResizeBilinearOptions", to=A, shape=(3, 28, 22, 13), others=[i(28, 22)],
         fields={"half_pixel_centers": True}, version=3),
]  # fmt: skip


def xnnpack(content: bytes, *xs: Any) -> Any:
    """What LiteRT computes by default."""
    runtime = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    made = runtime.Interpreter(model_content=content, num_threads=1)
    made.allocate_tensors()
    for detail, x in zip(made.get_input_details(), xs, strict=True):
        made.set_tensor(detail["index"], x)
    made.invoke()
    return made.get_tensor(made.get_output_details()[0]["index"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_integers_are_those_of_litert(case: Case) -> None:
    for dtype in case.dtypes:
        content, xs = case.content(dtype, np.random.default_rng(2))
        expected = xnnpack(content, *xs)
        for level in (0, 3):
            (found,) = renorm.compile(content, opt_level=level, threads=1).run(*xs)
            np.testing.assert_array_equal(found, expected, err_msg=f"{dtype}, level {level}")
        (defined,) = interpret.run(read(content), xs)
        apart = np.abs(defined.astype(int) - expected.astype(int))
        assert apart.max() <= 1
        assert apart.any() or not case.differs


@pytest.mark.parametrize("kind", ["MEAN", "AVERAGE_POOL_2D"])
def test_means_of_16_bits_are_those_of_litert(kind: str) -> None:
    is_mean, to = kind == "MEAN", 0.0009 if kind == "MEAN" else 0.001
    file = File()
    x = file.tensor("x", X, "int16", scale=([0.001], [0], 0))
    others = [file.constant("axes", i(1, 2))] if is_mean else []
    y = file.tensor("y", (), "int16", scale=([to], [0], 0))
    options, fields = ("ReducerOptions", {}) if is_mean else ("Pool2DOptions", {"padding": 1, **WINDOW})
    file.operator(kind, [x, *others], [y], options, 2 if is_mean else 3, **fields)
    content, rng = file.written([x], [y]), np.random.default_rng(4)
    given = rng.integers(-32768, 32768, X).astype(np.int16)
    (expected,) = litert(content, given)
    (found,) = renorm.compile(content, threads=1).run(given)
    np.testing.assert_array_equal(found, expected)


def test_convolutions_of_16_bits_are_scaled_as_those_of_litert() -> None:
    """By a fraction of 15 bits: at the ends of the range that is a step. Sums of float32 decide few."""
    file, rng = File(), np.random.default_rng(6)
    x = file.tensor("x", (2, 9, 7, 5), "int16", scale=([0.0003], [0], 0))
    scales = rng.uniform(0.001, 0.004, 6)
    w = file.constant("w", rng.integers(-127, 128, (6, 3, 3, 5)).astype(np.int8), (scales, [0] * 6, 0))
    b = file.constant("b", rng.integers(-(10**6), 10**6, 6), (scales * 0.0003, [0] * 6, 0))
    y = file.tensor("y", (), "int16", scale=([0.0007], [0], 0))
    file.operator("CONV_2D", [x, w, b], [y], "Conv2DOptions", 4, stride_h=1, stride_w=1)
    content, given = file.written([x], [y]), rng.integers(-32768, 32768, (2, 9, 7, 5)).astype(np.int16)
    (expected,) = litert(content, given)
    (found,) = renorm.compile(content, threads=1).run(given)
    apart = np.abs(found.astype(int) - expected.astype(int))
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.01


def test_other_graphs_stay_as_they_are() -> None:
    content, _ = CASES[0].content("int8", np.random.default_rng(0))
    graph = read(content)
    del graph.metadata["tflite"]
    before = [n.op.name for n in graph.nodes]
    FollowLiteRT().run(graph, Context())
    assert [n.op.name for n in graph.nodes] == before
