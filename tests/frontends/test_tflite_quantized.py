"""Operators on integers of 8 bits, with steps and zero points of their own: within a step of LiteRT's kernels; where
they only move elements, the same. Which kernels networks get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.frontends.test_tflite_writer import operators
from tests.frontends.tflite_files import File, litert

import renorm
from renorm import ops
from renorm.errors import InvalidModel, UnsupportedOp
from renorm.frontends.tflite import read, write
from renorm.frontends.tflite.flatbuffer import decode
from renorm.frontends.tflite.operators import WRITTEN
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.passes import pipeline
from renorm.targets import find

X = (2, 6, 5, 4)
A, B = (0.05, 7), (0.11, -20)  # steps and zero points
PLAIN = (1.0 / 256, -128)


def i(*values: int) -> Any:
    return np.asarray(values, np.int32)


@dataclass
class Case:
    """data: shapes of inputs. others: operands behind them, integers that stand for no others, or of 8 bits, which have
    the step of the first input. to: step and zero point of results. at: how many of `others` stand before data."""

    kind: str
    options: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    data: Sequence[tuple[int, ...]] = (X,)
    others: Sequence[Any] = ()
    to: tuple[float, int] = A
    at: int = 0
    version: int = 2
    count: int = 1

    def __str__(self) -> str:
        return f"{self.kind}{'' if self.to == A else '_scaled'}"

    def content(self, dtype: str, rng: np.random.Generator) -> tuple[bytes, list[Any]]:
        """The file, and inputs."""
        file, given, beside = File(), list[str](), list[str]()
        turn = 128 if dtype == "uint8" else 0  # of zero points and elements

        def scale(of: tuple[float, int]) -> Any:
            return [of[0]], [of[1] + turn], 0

        for k, shape in enumerate(self.data):
            given.append(file.tensor(f"x{k}", shape, dtype, scale=scale(A)))
        for k, held in enumerate(self.others):
            whole = held.dtype == np.int8
            array = (held.astype(np.int64) + turn).astype(dtype) if whole else held
            beside.append(file.constant(f"c{k}", array, scale(A) if whole else None))
        outs = [file.tensor(f"y{k}", (), dtype, scale=scale(self.to)) for k in range(self.count)]
        names = [*beside[: self.at], *given, *beside[self.at :]]
        file.operator(self.kind, names, outs, self.options, self.version, **self.fields)
        xs = [(rng.integers(-128, 128, shape) + turn).astype(dtype) for shape in self.data]
        return file.written(given, outs), xs


WINDOW = {"stride_h": 2, "stride_w": 1, "filter_height": 2, "filter_width": 3}
PADS = np.asarray([(0, 0), (1, 0), (2, 1), (0, 0)], np.int32)
W = np.random.default_rng(1).integers(-127, 128, X).astype(np.int8)

PICKS = [
    Case("RESHAPE", "ReshapeOptions", others=[i(2, 30, 4)], version=1),
    Case("TRANSPOSE", "TransposeOptions", others=[i(0, 2, 3, 1)]),
    Case("PAD", "PadOptions", others=[PADS]),
    Case("PADV2", "PadV2Options", others=[PADS, np.asarray([-77], np.int8)]),
    Case("MIRROR_PAD", "MirrorPadOptions", others=[PADS]),
    Case("CONCATENATION", "ConcatenationOptions", {"axis": 3}, [X, (2, 6, 5, 3)], others=[W]),
    Case("SLICE", "SliceOptions", others=[i(0, 1, 2, 0), i(2, 3, -1, 3)]),
    Case("STRIDED_SLICE", "StridedSliceOptions", {"shrink_axis_mask": 1},
         others=[i(1, 0, 4, 0), i(2, 6, 0, 4), i(1, 2, -1, 1)]),
    Case("SPLIT", "SplitOptions", {"num_splits": 2}, others=[np.asarray(3, np.int32)], at=1, count=2),
    Case("PACK", "PackOptions", {"axis": 1, "values_count": 2}, [X, X]),
    Case("UNPACK", "UnpackOptions", {"axis": 2, "num": 5}, count=5),
    Case("SQUEEZE", "SqueezeOptions", data=[(2, 1, 3)]),
    Case("EXPAND_DIMS", "ExpandDimsOptions", others=[i(1)], version=1),
    Case("TILE", "TileOptions", others=[i(1, 2, 1, 3)]),
    Case("GATHER", "GatherOptions", {"axis": 2}, others=[i(4, 0, 0)]),
    Case("MAX_POOL_2D", "Pool2DOptions", WINDOW),
    Case("AVERAGE_POOL_2D", "Pool2DOptions", WINDOW),  # halves away from zero
    Case("AVERAGE_POOL_2D", "Pool2DOptions", {**WINDOW, "padding": 1, "filter_height": 3}),
    Case("MAXIMUM", "MaximumMinimumOptions", data=[X, X]),
    Case("MINIMUM", "MaximumMinimumOptions", others=[W]),
    Case("DEPTH_TO_SPACE", "DepthToSpaceOptions", {"block_size": 2}),
    Case("SPACE_TO_DEPTH", "SpaceToDepthOptions", {"block_size": 2}, [(2, 6, 4, 3)]),
    Case("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions", others=[i(7, 9)]),
    Case("REDUCE_MAX", "ReducerOptions", {"keep_dims": True}, others=[i(1, 3)]),
    Case("REVERSE_V2", "ReverseV2Options", others=[i(1)], version=3),
    Case("DYNAMIC_UPDATE_SLICE", "DynamicUpdateSliceOptions", data=[X, (2, 3, 5, 4)], others=[i(0, 2, 0, 0)]),
    Case("SPACE_TO_BATCH_ND", "SpaceToBatchNDOptions", others=[i(2, 3), np.asarray([(1, 1), (0, 1)], np.int32)]),
    Case("BATCH_TO_SPACE_ND", "BatchToSpaceNDOptions", data=[(12, 3, 2, 4)],
         others=[i(2, 3), np.asarray([(1, 0), (0, 1)], np.int32)]),
]  # fmt: skip
ROUNDING = [
    Case("QUANTIZE", "QuantizeOptions", to=B),
    Case("ADD", "AddOptions", data=[X, X], to=B),
    Case("ADD", "AddOptions", {"fused_activation_function": 3}, [X, X], to=(0.03, -100)),
    Case("SUB", "SubOptions", others=[W], to=B, version=3),
    Case("MUL", "MulOptions", data=[X, (2, 1, 1, 4)], to=(0.2, 3)),
    Case("MEAN", "ReducerOptions", {"keep_dims": True}, others=[i(1, 2)], to=(0.01, 5)),
    Case("SUM", "ReducerOptions", others=[i(1, 2)], to=(0.7, 5)),
    Case("RELU", to=(0.03, -128)),
    Case("RELU6", to=(0.03, -90)),
    Case("LEAKY_RELU", "LeakyReluOptions", {"alpha": 0.3}, to=B),
    Case("LOGISTIC", to=PLAIN),
    Case("TANH", to=(1 / 128, 0)),
    Case("SOFTMAX", "SoftmaxOptions", {"beta": 1.0}, to=PLAIN),
    Case("RESIZE_BILINEAR", "ResizeBilinearOptions", {"half_pixel_centers": True}, others=[i(7, 9)]),
]


OF_FLOATS = ("QUANTIZE", "RELU6", "RESIZE_BILINEAR", "SPACE_TO_BATCH_ND", "SUM")
"""Kinds that are written between DEQUANTIZE and QUANTIZE; so is what has a constant whose steps are not known."""


def most_apart(found: Sequence[Any], expected: Sequence[Any]) -> int:
    for y, e in zip(found, expected, strict=True):
        assert (y.dtype, y.shape) == (e.dtype, e.shape)
    return max(int(np.abs(y.astype(np.int64) - e.astype(np.int64)).max()) for y, e in zip(found, expected))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("case", [*PICKS, *ROUNDING], ids=str)
def test_operators_make_the_integers_of_litert(case: Case, dtype: str) -> None:
    """At all levels, and written to a file."""
    content, xs = case.content(dtype, np.random.default_rng(5))
    expected = litert(content, *xs)
    for level in (0, 3):
        found = renorm.compile(content, opt_level=level, threads=1).run(*xs)
        assert most_apart(found, expected) <= (0 if case in PICKS else 1), level
    graph = read(content)
    is_filled = case.kind == "SPACE_TO_BATCH_ND"  # with zeros, by an op that knows no others
    assert any(n.op.name == "quantize_linear" for n in graph.nodes) == (case not in PICKS or is_filled)
    if all(n.op.name in WRITTEN for n in graph.nodes):
        written = write(graph)
        assert most_apart(litert(written, *xs), expected) <= (0 if case in PICKS else 1)
        is_of_floats = any(kind == "DEQUANTIZE" for kind, _ in operators(written))
        assert is_of_floats == (case.kind in OF_FLOATS or (case.kind == "SUB" and bool(case.others)))


def test_a_cast_is_of_integers() -> None:
    """Whatever these stand for."""
    file, x = File(), np.random.default_rng(3).integers(-128, 128, X).astype(np.int8)
    file.tensor("x", X, "int8", scale=([A[0]], [A[1]], 0))
    file.tensor("c", X)
    file.tensor("q", X, "int8", scale=([B[0]], [B[1]], 0))
    file.tensor("y", X)
    file.operator("CAST", ["x"], ["c"], "CastOptions")
    file.operator("CAST", ["c"], ["q"], "CastOptions")
    file.operator("DEQUANTIZE", ["q"], ["y"])
    content = file.written(["x"], ["c", "q", "y"])
    for found, expected in zip(renorm.compile(content).run(x), litert(content, x), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def weights(shape: tuple[int, ...], axis: int, kind: str = "int8") -> tuple[Any, Any]:
    """A weight, and its steps and zero points by channel."""
    rng = np.random.default_rng(2)
    held = rng.integers(-7 if kind == "INT4" else -127, 8 if kind == "INT4" else 128, shape).astype(np.int8)
    return held, (rng.uniform(0.002, 0.02, shape[axis]), [0] * shape[axis], axis)


@pytest.mark.parametrize("kind", ["int8", "INT4"])
@pytest.mark.parametrize(("shape", "keeps"), [((3, 24), False), ((3, 2, 24), True), ((3, 2, 3, 4), False)])
def test_products_of_rows(shape: tuple[int, ...], keeps: bool, kind: str) -> None:
    file, (w, scale) = File(), weights((18, 24), 0, kind)
    file.tensor("x", shape, "int8", scale=([A[0]], [A[1]], 0))
    packed = (w[:, ::2] & 15 | w[:, 1::2] << 4).astype(np.uint8)
    file.tensor("w", w.shape, kind, packed if kind == "INT4" else w, scale)
    file.constant("b", np.arange(18, dtype=np.int32) * 100, ([*(np.float32(A[0]) * scale[0])], [0] * 18, 0))
    file.tensor("y", (), "int8", scale=([0.2], [3], 0))
    said = {"keep_num_dims": keeps, "fused_activation_function": 1}
    file.operator("FULLY_CONNECTED", ["x", "w", "b"], ["y"], "FullyConnectedOptions", 12, **said)
    content = file.written(["x"], ["y"])
    x = np.random.default_rng(3).integers(-128, 128, shape).astype(np.int8)
    assert most_apart(renorm.compile(content, threads=1).run(x), litert(content, x)) <= 1
    assert "byte_matmul" in towards_bytes(content)


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("is_constant", [False, True])
def test_products_of_matrices(is_constant: bool, is_turned: bool) -> None:
    file, rng = File(), np.random.default_rng(3)
    b = rng.integers(-127, 128, (2, 16, 24) if is_turned else (2, 24, 16)).astype(np.int8)
    file.tensor("a", (2, 5, 24), "int8", scale=([A[0]], [A[1]], 0))
    (file.constant if is_constant else lambda name, held, scale: file.tensor(name, held.shape, "int8", scale=scale))(
        "b", b, ([0.01], [0], 0)
    )
    file.tensor("y", (), "int8", scale=([0.2], [3], 0))
    file.operator("BATCH_MATMUL", ["a", "b"], ["y"], "BatchMatMulOptions", 2, adjoint_rhs=is_turned)
    xs = [rng.integers(-128, 128, (2, 5, 24)).astype(np.int8), *([] if is_constant else [b])]
    content = file.written(["a"] if is_constant else ["a", "b"], ["y"])
    assert most_apart(renorm.compile(content, threads=1).run(*xs), litert(content, *xs)) <= 1


def towards_bytes(content: bytes) -> list[str]:
    """The ops that a machine with an instruction for bytes computes."""
    graph, _ = pipeline.optimize(read(content), target=find("llvm -mcpu=cascadelake"))
    return [n.op.name for n in graph.nodes]


@pytest.mark.parametrize("between", ["", "PAD", "MAX_POOL_2D"])
def test_convolutions_are_products_of_bytes(between: str) -> None:
    """Also behind what moves their data, and before what reads the file's order."""
    file, rng = File(), np.random.default_rng(4)
    file.tensor("x", (2, 9, 8, 16), "int8", scale=([A[0]], [A[1]], 0))
    at, step = "x", A
    for k, channels in enumerate((32, 48)):
        w, scale = weights((channels, 3, 3, 16 if not k else 32), 0)
        file.constant(f"w{k}", w, scale)
        held = rng.integers(-900, 900, channels).astype(np.int32)
        file.constant(f"b{k}", held, ([*(np.float32(step[0]) * scale[0])], [0] * channels, 0))
        step = (0.3 + k, -128)
        file.tensor(f"c{k}", (), "int8", scale=([step[0]], [step[1]], 0))
        said = {"stride_h": 1, "stride_w": 1, "fused_activation_function": 1}
        file.operator("CONV_2D", [at, f"w{k}", f"b{k}"], [at := f"c{k}"], "Conv2DOptions", 3, **said)
        if between and not k:
            file.tensor("m", (), "int8", scale=([step[0]], [step[1]], 0))
            beside = [file.constant("pads", PADS)] if between == "PAD" else []
            options = {"PAD": "PadOptions", "MAX_POOL_2D": "Pool2DOptions"}[between]
            file.operator(between, [at, *beside], [at := "m"], options, 2, **({} if beside else WINDOW))
    content = file.written(["x"], [at])
    x = rng.integers(-128, 128, (2, 9, 8, 16)).astype(np.int8)
    assert most_apart(renorm.compile(content, threads=1).run(x), litert(content, x)) <= 1
    assert towards_bytes(content).count("byte_conv") == 2


def test_floats_beside_weights_of_integers_stay_floats() -> None:
    """Compute with the weight's numbers what LiteRT quantizes while it runs."""
    file, (w, scale) = File(), weights((18, 24), 0)
    file.tensor("x", (3, 24))
    file.constant("w", w, scale)
    file.tensor("y", (3, 18))
    file.operator("FULLY_CONNECTED", ["x", "w", None], ["y"], "FullyConnectedOptions", 9)
    graph = read(file.written(["x"], ["y"]))
    assert [n.op.name for n in graph.nodes] == ["gemm"]
    x = np.random.default_rng(3).standard_normal((3, 24)).astype(np.float32)
    real = w.astype(np.float64) * np.asarray(scale[0], np.float32)[:, None]
    np.testing.assert_allclose(interpret.run(graph, [x])[0], x @ real.T, rtol=1e-5, atol=1e-5)


def test_concatenation_brings_integers_to_one_scale() -> None:
    file, rng = File(), np.random.default_rng(3)
    for name, (step, zero) in {"a": A, "b": B, "y": B}.items():
        file.tensor(name, X if name != "y" else (2, 12, 5, 4), "uint8", scale=([step], [zero + 128], 0))
    file.operator("CONCATENATION", ["a", "b"], ["y"], "ConcatenationOptions", 2, axis=1)
    content, xs = file.written(["a", "b"], ["y"]), [rng.integers(0, 256, X).astype(np.uint8) for _ in range(2)]
    found, expected = renorm.compile(content, threads=1).run(*xs), litert(content, *xs)
    assert most_apart(found, expected) <= 1
    np.testing.assert_array_equal(found[0][:, 6:], xs[1])


def test_a_zero_point_that_no_integer_is() -> None:
    file = File()
    file.tensor("x", (2, 3), "int8", scale=([0.5], [128], 0))
    file.tensor("y", (2, 3), "int8", scale=([0.5], [0], 0))
    file.operator("RELU", ["x"], ["y"])
    with pytest.raises(InvalidModel, match="zero points 128 to 128 are no int8"):
        read(file.written(["x"], ["y"]))


def test_integers_that_stand_for_several_numbers_are_not_written() -> None:
    g = Graph()
    x = g.input("x", "int8", (2, 3))
    zero = np.asarray(0, np.int8)
    g.outputs = [ops.add(*(ops.dequantize_linear(x, np.float32(step), zero) for step in (0.5, 0.25)))]
    with pytest.raises(UnsupportedOp, match="integers 'x' stand for several numbers"):
        write(g)


def test_arithmetic_on_integers_is_no_arithmetic_on_what_they_stand_for() -> None:
    """Only what picks elements hands on what these stand for."""
    g = Graph()
    x, zero = g.input("x", "int8", (2, 3)), np.asarray(3, np.int8)
    g.outputs = [ops.dequantize_linear(ops.transpose(ops.neg(x), perm=(1, 0)), np.float32(0.5), zero)]
    _, model = decode(memoryview(write(g)), "written")
    said = [t["quantization"] is not None for t in model["subgraphs"][0]["tensors"] if not t["buffer"]]
    assert said == [False, True, True, False]
