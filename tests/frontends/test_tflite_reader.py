"""Every operator that the reader knows gives what LiteRT computes of the same file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.frontends.tflite_files import File, litert
from tests.random_numbers import RNG
from tests.shared_files import shared

import renorm
from renorm.errors import RenormError, UnsupportedOp
from renorm.frontends.tflite.flatbuffer import encode
from renorm.ops.conv import Conv


@dataclass
class Case:
    """xs: shapes of what is computed with, or arrays that are constant. out: number of results, or their dtype."""

    kind: str
    xs: list[Any]
    options: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    version: int = 1
    outs: int = 1
    dtype: str = "float32"  # of operands given by shape
    out: str = ""
    positive: bool = False

    def __str__(self) -> str:
        shown = [list(x.shape) if isinstance(x, np.ndarray) else x for x in self.xs]
        return f"{self.kind}-{shown}-{self.fields}".replace(" ", "")


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def i(*values: Any) -> Any:
    return np.asarray(values, np.int32)


SAME, VALID = {"padding": 0}, {"padding": 1}


def step(h: int, w: int, **more: Any) -> dict[str, Any]:
    return {"stride_h": h, "stride_w": w, **more}


def conv_cases() -> list[Case]:
    found: list[Case] = []
    for pad in (SAME, VALID):
        for h, w in ((1, 1), (2, 3)):
            for act in (0, 1, 2, 3):
                found.append(
                    Case(
                        "CONV_2D",
                        [(2, 7, 9, 3), f(5, 3, 2, 3), f(5)],
                        "Conv2DOptions",
                        {**pad, **step(h, w), "fused_activation_function": act},
                    )
                )
        dilated = {"dilation_h_factor": 2, "dilation_w_factor": 3}
        found.append(
            Case("CONV_2D", [(1, 11, 12, 2), f(4, 3, 3, 2), f(4)], "Conv2DOptions", {**pad, **step(1, 1), **dilated})
        )
        found.append(
            Case("CONV_2D", [(1, 6, 5, 6), f(4, 3, 3, 3), f(4)], "Conv2DOptions", {**pad, **step(1, 1)}, version=6)
        )
        for mult in (1, 2):
            found.append(
                Case(
                    "DEPTHWISE_CONV_2D",
                    [(2, 7, 8, 3), f(1, 3, 2, 3 * mult), f(3 * mult)],
                    "DepthwiseConv2DOptions",
                    {**pad, **step(2, 2), "depth_multiplier": mult, "fused_activation_function": 1},
                )
            )
        for kind in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
            found.append(
                Case(
                    kind, [(2, 7, 8, 3)], "Pool2DOptions", {**pad, **step(2, 1), "filter_height": 3, "filter_width": 2}
                )
            )
    for pad, h, w, out in (
        (SAME, 2, 2, (1, 8, 10, 4)),
        (SAME, 2, 3, (1, 7, 15, 4)),
        (VALID, 2, 1, (1, 9, 7, 4)),
        (VALID, 1, 1, (1, 6, 7, 4)),
        (VALID, 3, 2, (1, 13, 11, 4)),
    ):
        xs = [i(*out), f(4, 3, 3, 2), (1, 4, 5, 2)]
        found.append(Case("TRANSPOSE_CONV", xs, "TransposeConvOptions", {**pad, **step(h, w)}, version=1))
        found.append(
            Case(
                "TRANSPOSE_CONV",
                [*xs, f(4)],
                "TransposeConvOptions",
                {**pad, **step(h, w), "fused_activation_function": 1},
                version=4,
            )
        )
    found.append(
        Case(
            "CONV_3D",
            [(1, 5, 6, 7, 3), f(2, 3, 2, 3, 4), f(4)],
            "Conv3DOptions",
            {"padding": 0, "stride_d": 1, **step(2, 1)},
        )
    )
    return found


def other_cases() -> list[Case]:
    x = (2, 3, 4, 5)
    found = [
        Case("FULLY_CONNECTED", [(3, 4), f(5, 4), f(5)], "FullyConnectedOptions", {"fused_activation_function": 1}),
        Case("FULLY_CONNECTED", [(2, 3, 4), f(5, 4), None], "FullyConnectedOptions", {"keep_num_dims": True}),
        Case("FULLY_CONNECTED", [(2, 3, 4), f(5, 4), f(5)], "FullyConnectedOptions", {}),
        Case("FULLY_CONNECTED", [(2, 2, 6), f(5, 4), f(5)], "FullyConnectedOptions", {}),
        Case("BATCH_MATMUL", [(2, 3, 4), (2, 4, 5)], "BatchMatMulOptions", {}),
        Case("BATCH_MATMUL", [(2, 4, 3), (2, 5, 4)], "BatchMatMulOptions", {"adjoint_lhs": True, "adjoint_rhs": True}),
        Case("SOFTMAX", [(2, 3, 4)], "SoftmaxOptions", {"beta": 0.5}),
        Case("LOG_SOFTMAX", [(2, 4)], "LogSoftmaxOptions"),
        Case("RESHAPE", [x, i(6, -1)], "ReshapeOptions", {"new_shape": i(6, -1)}),
        Case("SQUEEZE", [(2, 1, 3, 1)], "SqueezeOptions", {"squeeze_dims": i(1)}),
        Case("EXPAND_DIMS", [(2, 3), i(1)], "ExpandDimsOptions"),
        Case("TRANSPOSE", [x, i(3, 1, 0, 2)], "TransposeOptions"),
        Case("CONCATENATION", [x, (2, 3, 4, 2)], "ConcatenationOptions", {"axis": -1}),
        Case("CONCATENATION", [x, (2, 1, 4, 5), f(2, 2, 4, 5)], "ConcatenationOptions", {"axis": 1}),
        Case("SPLIT", [i(3).reshape(()), (2, 3, 4, 6)], "SplitOptions", {"num_splits": 3}, outs=3),
        Case("SPLIT_V", [x, i(1, -1), i(1).reshape(())], "SplitVOptions", {"num_splits": 2}, outs=2),
        Case("PACK", [(2, 3), (2, 3)], "PackOptions", {"values_count": 2, "axis": 1}),
        Case("UNPACK", [(2, 3, 4)], "UnpackOptions", {"num": 3, "axis": 1}, outs=3),
        Case("SLICE", [x, i(0, 1, 2, 0), i(2, -1, 2, 5)], "SliceOptions"),
        Case("STRIDED_SLICE", [x, i(0, 1, 3, 4), i(2, 3, 0, 0), i(1, 2, -1, -2)], "StridedSliceOptions",
             {"begin_mask": 0, "end_mask": 4}),
        Case("STRIDED_SLICE", [x, i(0, -1, 0, 1), i(2, 3, 4, 9), i(1, 1, 2, 2)], "StridedSliceOptions",
             {"shrink_axis_mask": 2, "begin_mask": 4}),
        Case("PAD", [x, i([0, 0], [1, 2], [0, 3], [2, 0])], "PadOptions"),
        Case("PADV2", [x, i([0, 0], [1, 2], [0, 3], [2, 0]), np.float32(1.5).reshape(1)], "PadV2Options"),
        Case("MIRROR_PAD", [x, i([0, 0], [1, 2], [0, 3], [2, 0])], "MirrorPadOptions", {"mode": 0}),
        Case("MIRROR_PAD", [x, i([0, 0], [1, 3], [0, 4], [2, 0])], "MirrorPadOptions", {"mode": 1}),
        Case("GATHER", [x, i(2, 0, 1)], "GatherOptions", {"axis": 2}),
        Case("GATHER_ND", [x, i([1, 2], [0, 0])], "GatherNdOptions"),
        Case("TILE", [(2, 3), i(2, 3)], "TileOptions"),
        Case("BROADCAST_TO", [(2, 1, 3), i(2, 4, 3)], "BroadcastToOptions", version=2),
        Case("FILL", [i(2, 3), ()], "FillOptions"),
        Case("SHAPE", [x], "ShapeOptions", {"out_type": 2}, out="int32"),
        Case("RANK", [x], "RankOptions", out="int32"),
        Case("ZEROS_LIKE", [x], "ZerosLikeOptions"),
        Case("REVERSE_V2", [x, i(1)], "ReverseV2Options"),
        Case("ONE_HOT", [i(2, 0, 5, -1), i(4).reshape(()), np.asarray(2, np.float32), np.asarray(-1, np.float32)],
             "OneHotOptions", {"axis": -1}),
        Case("RANGE", [i(2).reshape(()), i(11).reshape(()), i(3).reshape(())], "RangeOptions", out="int32"),
        Case("CAST", [x], "CastOptions", {"in_data_type": 0, "out_data_type": 2}, out="int32"),
        Case("ARG_MAX", [x, i(2).reshape(())], "ArgMaxOptions", {"output_type": 2}, out="int32"),
        Case("ARG_MIN", [x, i(-1).reshape(())], "ArgMinOptions", {"output_type": 4}, out="int64"),
        Case("CUMSUM", [(3, 4), i(1).reshape(())], "CumsumOptions", {"exclusive": True, "reverse": True}),
        Case("L2_NORMALIZATION", [x], "L2NormOptions"),
        Case("LOCAL_RESPONSE_NORMALIZATION", [x], "LocalResponseNormalizationOptions", {"radius": 2, "bias": 1.0,
             "alpha": 0.3, "beta": 0.6}),
        Case("SPACE_TO_BATCH_ND", [(2, 5, 4, 3), i(2, 3), i([1, 0], [0, 2])], "SpaceToBatchNDOptions"),
        Case("BATCH_TO_SPACE_ND", [(6, 3, 2, 3), i(2, 3), i([1, 0], [0, 2])], "BatchToSpaceNDOptions"),
        Case("DEPTH_TO_SPACE", [(1, 2, 3, 8)], "DepthToSpaceOptions", {"block_size": 2}),
        Case("SPACE_TO_DEPTH", [(1, 4, 6, 3)], "SpaceToDepthOptions", {"block_size": 2}),
        Case("ADD_N", [x, x, x], "AddNOptions"),
        Case("PRELU", [x, f(1, 1, 5)]),
        Case("LEAKY_RELU", [x], "LeakyReluOptions", {"alpha": 0.3}),
        Case("GELU", [x], "GeluOptions", {"approximate": True}),
        Case("GELU", [x], "GeluOptions", {"approximate": False}),
        Case("FLOOR_DIV", [(3, 4), f(3, 4)], "FloorDivOptions"),
        Case("FLOOR_MOD", [(3, 4), f(3, 4)], "FloorModOptions"),
        Case("POW", [(3, 4), f(3, 4)], "PowOptions", positive=True),
        Case("SQUARED_DIFFERENCE", [x, f(5)], "SquaredDifferenceOptions"),
        Case("SQUARE", [x], "SquareOptions"),
        Case("SELECT_V2", [np.asarray([[True, False, True]]), (2, 3), (2, 3)], "SelectV2Options"),
    ]  # fmt: skip
    for mode in ({}, {"align_corners": True}, {"half_pixel_centers": True}):
        for size in (i(7, 9), i(2, 3)):
            found.append(Case("RESIZE_BILINEAR", [(1, 4, 5, 2), size], "ResizeBilinearOptions", mode, version=3))
            found.append(
                Case("RESIZE_NEAREST_NEIGHBOR", [(1, 4, 5, 2), size], "ResizeNearestNeighborOptions", mode, version=3)
            )
    for kind in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
        for keep in (True, False):
            found.append(Case(kind, [x, i(1, 2)], "ReducerOptions", {"keep_dims": keep}))
            found.append(Case(kind, [x, i(-1)], "ReducerOptions", {"keep_dims": keep}))
    for kind in (
        "RELU",
        "RELU6",
        "RELU_N1_TO_1",
        "RELU_0_TO_1",
        "TANH",
        "LOGISTIC",
        "ABS",
        "CEIL",
        "COS",
        "ELU",
        "EXP",
        "FLOOR",
        "HARD_SWISH",
        "NEG",
        "ROUND",
        "SIN",
    ):
        found.append(Case(kind, [x]))
    found.append(Case("SIGN", [x], "SignOptions"))
    for kind in ("LOG", "RSQRT", "SQRT"):
        found.append(Case(kind, [x], positive=True))
    for kind, options in (("ADD", "AddOptions"), ("SUB", "SubOptions"), ("MUL", "MulOptions"), ("DIV", "DivOptions")):
        found.append(Case(kind, [x, f(5)], options, {"fused_activation_function": 3}))
        found.append(Case(kind, [(3, 1, 5), x], options))
    for kind in ("MAXIMUM", "MINIMUM"):
        found.append(Case(kind, [x, f(5)], "MaximumMinimumOptions"))
    for kind in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"):
        found.append(Case(kind, [(3, 4), f(3, 4)], "".join(p.title() for p in kind.split("_")) + "Options", out="bool"))
    return found


CASES = [*conv_cases(), *other_cases()]


def build(case: Case) -> tuple[bytes, list[Any]]:
    file, names, given, xs = File(), list[str | None](), list[str](), list[Any]()
    for n, x in enumerate(case.xs):
        if x is None:
            names.append(None)
        elif isinstance(x, np.ndarray):
            names.append(file.constant(f"c{n}", x))
        else:
            names.append(file.tensor(f"x{n}", x, case.dtype))
            given.append(f"x{n}")
            data = RNG.standard_normal(x) * 3
            xs.append(np.asarray(np.abs(data) + 0.1 if case.positive else data, case.dtype))
    outs = [file.tensor(f"y{n}", (), case.out or case.dtype) for n in range(case.outs)]
    file.operator(case.kind, names, outs, case.options, case.version, **case.fields)
    return file.written(given, outs), xs


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operators_compute_what_litert_computes(case: Case):
    content, xs = build(case)
    expected = litert(content, *xs)
    graph = renorm.read(content)
    found = renorm.compile(graph, opt_level=2).run(*xs)
    assert [v.name for v in graph.outputs] == [f"y{n}" for n in range(case.outs)]
    for y, e in zip(found, expected, strict=True):
        assert (y.dtype, y.shape) == (e.dtype, e.shape)
        np.testing.assert_allclose(y, e, rtol=2e-5, atol=2e-5 * max(1, np.abs(e).max(initial=0)))


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_a_trained_network(level: int):
    path = shared("models/tiny_resnet8.tflite")
    m = renorm.compile(path, opt_level=level)
    assert [(v.name, str(v.shape[1:])) for v in m.inputs] == [("input_1", "(32, 32, 3)")]
    for batch in (1, 3):
        x = f(batch, 32, 32, 3)
        (expected,) = litert(path.read_bytes(), x)
        np.testing.assert_allclose(m.run(x)[0], expected, atol=1e-5)


def quantized(x: Any, scale: float, zero: int, dtype: str = "int8") -> Any:
    limits = np.iinfo(dtype)
    return np.clip(np.round(x / scale) + zero, limits.min, limits.max).astype(dtype)


def test_a_quantized_convolution_with_a_scale_per_channel():
    """Integers in and out, and for weights, each channel of which has its scale."""
    file, n = File(), 6
    scales = np.linspace(0.01, 0.03, n).astype(np.float32)
    w = RNG.integers(-127, 128, (n, 3, 3, 4)).astype(np.int8)
    b = RNG.integers(-2000, 2000, n).astype(np.int32)
    file.tensor("x", (2, 7, 6, 4), "int8", scale=([0.05], [3], 0))
    file.constant("w", w, scale=(scales, np.zeros(n), 0))
    file.constant("b", b, scale=(scales * np.float32(0.05), np.zeros(n), 0))
    file.tensor("y", (2, 7, 6, n), "int8", scale=([0.4], [-5], 0))
    file.operator("CONV_2D", ["x", "w", "b"], ["y"], "Conv2DOptions", stride_h=1, stride_w=1)
    content = file.written(["x"], ["y"])
    x = quantized(f(2, 7, 6, 4), 0.05, 3)
    (expected,) = litert(content, x)
    m = renorm.compile(content)
    (found,) = m.run(x)
    assert found.dtype == np.int8
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    (conv,) = [node for node in renorm.read(content).nodes if node.op.name == "conv"]
    weight = conv.operands[1].producer
    np.testing.assert_array_equal(weight.operands[0].data, w.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(weight.operands[1].data, scales)
    assert weight.op.values["axis"] == 0


def test_networks_quantized_inside_only():
    """QUANTIZE, a quantized operator, DEQUANTIZE: float in, float out."""
    file = File()
    file.tensor("x", (3, 5))
    file.tensor("q", (3, 5), "int8", scale=([0.05], [0], 0))
    file.constant("w", RNG.integers(-127, 128, (4, 5)).astype(np.int8), scale=([0.02], [0], 0))
    file.tensor("p", (3, 4), "int8", scale=([0.3], [2], 0))
    file.tensor("y", (3, 4))
    file.operator("QUANTIZE", ["x"], ["q"], "QuantizeOptions")
    file.operator("FULLY_CONNECTED", ["q", "w", None], ["p"], "FullyConnectedOptions", version=4)
    file.operator("DEQUANTIZE", ["p"], ["y"], "DequantizeOptions", version=2)
    content = file.written(["x"], ["y"])
    x = f(3, 5)
    np.testing.assert_allclose(
        renorm.compile(content).run(x)[0], litert(content, x)[0], atol=0.3 + 5 * 127 * 0.02 * 0.025
    )


def test_weights_in_float16():
    file, w = File(), f(4, 3, 3, 2)
    file.tensor("x", (1, 6, 5, 2))
    file.constant("half", w.astype(np.float16))
    file.constant("b", f(4))
    file.tensor("w", w.shape)
    file.tensor("y", (1, 6, 5, 4))
    file.operator("DEQUANTIZE", ["half"], ["w"], "DequantizeOptions", version=3)
    file.operator("CONV_2D", ["x", "w", "b"], ["y"], "Conv2DOptions", stride_h=1, stride_w=1)
    content = file.written(["x"], ["y"])
    x, m = f(1, 6, 5, 2), renorm.compile(content)
    np.testing.assert_allclose(m.run(x)[0], litert(content, x)[0], rtol=1e-4, atol=1e-4)
    assert [str(k) for k in m.report.kernels if "cast" in str(k)] == []


def test_logic():
    file = File()
    for name in ("a", "b", "and", "or", "not"):
        file.tensor(name, (2, 3), "bool")
    file.operator("LOGICAL_AND", ["a", "b"], ["and"], "LogicalAndOptions")
    file.operator("LOGICAL_OR", ["and", "b"], ["or"], "LogicalOrOptions")
    file.operator("LOGICAL_NOT", ["or"], ["not"], "LogicalNotOptions")
    content = file.written(["a", "b"], ["and", "not"])
    a, b = (RNG.integers(0, 2, (2, 3)).astype(bool) for _ in range(2))
    for y, e in zip(renorm.compile(content).run(a, b), litert(content, a, b), strict=True):
        np.testing.assert_array_equal(y, e)


def test_dilated_convolution_in_blocks_becomes_one():
    """As TensorFlow writes it: blocks apart, a plain convolution, scale and shift, blocks together."""
    for kind, w, options in (
        ("CONV_2D", f(5, 3, 3, 4), "Conv2DOptions"),
        ("DEPTHWISE_CONV_2D", f(1, 3, 3, 4), "DepthwiseConv2DOptions"),
    ):
        n = 5 if kind == "CONV_2D" else 4
        file = File()
        file.tensor("x", (2, 9, 10, 4))
        file.constant("blocks", i(2, 3))
        file.constant("pads", i([2, 3], [3, 5]))
        file.constant("crops", i([0, 1], [0, 2]))
        file.constant("w", w)
        file.constant("b", f(n))
        file.constant("scale", f(n))
        file.constant("shift", f(1, 1, 1, n))
        for name in ("apart", "conv", "together", "scaled", "y"):
            file.tensor(name, (1, 1, 1, 1))
        file.operator("SPACE_TO_BATCH_ND", ["x", "blocks", "pads"], ["apart"], "SpaceToBatchNDOptions")
        more = {"depth_multiplier": 1} if n == 4 else {}
        file.operator(kind, ["apart", "w", "b"], ["conv"], options, padding=1, stride_h=1, stride_w=1, **more)
        file.operator("BATCH_TO_SPACE_ND", ["conv", "blocks", "crops"], ["together"], "BatchToSpaceNDOptions")
        file.operator("MUL", ["together", "scale"], ["scaled"], "MulOptions")
        file.operator("ADD", ["scaled", "shift"], ["y"], "AddOptions", fused_activation_function=1)
        content = file.written(["x"], ["y"])
        x = f(2, 9, 10, 4)
        for level in (0, 3):
            m = renorm.compile(content, opt_level=level)
            np.testing.assert_allclose(m.run(x)[0], litert(content, x)[0], rtol=1e-4, atol=1e-4)
        kinds = [node.op.name for node in m.graph.nodes]
        assert sorted(kinds) == ["conv", "relu", "transpose", "transpose"]
        assert [node.op.dilations for node in m.graph.nodes if isinstance(node.op, Conv)] == [(2, 3)]


def test_all_that_cannot_be_read_is_named_at_once():
    file = File()
    file.tensor("x", (2, 3))
    for name in ("a", "b", "c", "y"):
        file.tensor(name, (2, 3))
    file.operator("DELEGATE", ["x"], ["a"])
    file.operator("RELU", ["a"], ["b"])
    file.operator("HASHTABLE_FIND", ["b"], ["c"])
    file.operator("RESHAPE", ["x"], ["y"])
    with pytest.raises(UnsupportedOp) as error:
        renorm.read(file.written(["x"], ["y"]))
    for words in ("DELEGATE_0", "HASHTABLE_FIND_2", "RESHAPE_3", "states no shape"):
        assert words in str(error.value)


def options(model: Any) -> Any:
    return model["subgraphs"][0]["operators"][0]["builtin_options"].fields


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m["subgraphs"][0].fields.update(outputs=i(9)), "no tensor 9 among 4"),
        (lambda m: m["subgraphs"][0]["operators"][0].fields.update(inputs=i(0, 7, 2)), "no tensor 7"),
        (lambda m: m["subgraphs"][0]["operators"][0].fields.update(opcode_index=4), "code 4 of 1"),
        (lambda m: m["subgraphs"][0]["tensors"][1].fields.update(shape=i(4, 3, 3, 9)), "its buffer has"),
        (lambda m: m["subgraphs"][0]["tensors"][1].fields.update(buffer=77), "buffer 77 of"),
        (lambda m: m["subgraphs"][0]["tensors"][0].fields.update(type=13), "RESOURCE"),
        (lambda m: m["subgraphs"][0].fields.update(outputs=i(3, 2), operators=[]), "nothing before makes it"),
        (lambda m: m.fields.update(subgraphs=[]), "no subgraph"),
        (lambda m: options(m).update(stride_h=0), "at least 1"),
        (lambda m: options(m).update(fused_activation_function=5), "SIGN_BIT"),
    ],
)  # fmt: skip
def test_contradictions_are_named(change: Any, words: str):
    file = File()
    file.tensor("x", (1, 6, 5, 3))
    file.constant("w", f(4, 3, 3, 3))
    file.constant("b", f(4))
    file.tensor("y", (1, 6, 5, 4))
    file.operator("CONV_2D", ["x", "w", "b"], ["y"], "Conv2DOptions", stride_h=1, stride_w=1)
    model = file.model(["x"], ["y"])
    change(model)
    with pytest.raises(RenormError, match=words):
        renorm.read(encode(b"TFL3", model, ""))


def test_all_faults_of_a_file_stand_in_one_error_that_names_it(tmp_path: Any) -> None:
    file = File()
    for name in ("x", "y", "z", "u", "nobody", "nothing"):
        file.tensor(name, (2, 3))
    file.tensor("damaged", (2, 3), data=np.zeros(4, np.float32))
    file.operator("RELU", ["x"], ["y"])
    file.operator("EXP", ["x"], ["y"])
    file.operator("NEG", ["nobody"], ["z"])
    file.operator("ADD", ["x", "damaged"], ["u"], "AddOptions")
    path = tmp_path / "faulty.tflite"
    path.write_bytes(file.written(["x", "x"], ["u", "nothing"]))
    with pytest.raises(RenormError) as raised:
        renorm.read(path)
    told = str(raised.value)
    assert told.startswith("faulty.tflite: ")
    for part in (
        "input 'x' is listed twice", "node 'EXP_1': it makes tensor 1 'y', which exists already",
        "node 'NEG_2': tensor 4 'nobody' is read, but nothing before makes it",
        "node 'ADD_3': tensor 6 'damaged' is float32[2, 3]", "tensor 5 'nothing' is read, but nothing before makes it",
    ):  # fmt: skip
        assert part in told, (part, told)
