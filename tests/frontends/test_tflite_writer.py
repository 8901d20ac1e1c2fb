"""What is written computes what was read: LiteRT runs both files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.test_tflite_reader import CASES, Case, build, f, i
from tests.frontends.tflite_files import File, litert
from tests.shared_files import shared

import renorm
from renorm import ops
from renorm.errors import UnsupportedOp
from renorm.frontends import tflite
from renorm.frontends.tflite.flatbuffer import decode
from renorm.graph.ir import Graph

NOT_WRITTEN = {"CONV_3D", "GATHER_ND", "ONE_HOT", "RANGE", "SHAPE", "FLOOR_MOD"}
"""Read only: their ops have no operator that is written, or one of other types."""


def operators(content: bytes) -> list[tuple[str, int]]:
    """Kinds and versions, in order."""
    _, model = decode(memoryview(content), "written")
    names, codes = model.schema.names("BuiltinOperator"), model["operator_codes"]
    used = [codes[o["opcode_index"]] for o in model["subgraphs"][0]["operators"]]
    return [(names[c["builtin_code"] or c["deprecated_builtin_code"]], c["version"]) for c in used]


@pytest.mark.parametrize("case", [c for c in CASES if c.kind not in NOT_WRITTEN], ids=str)
def test_operators_are_written_as_they_were_read(case: Case):
    content, xs = build(case)
    written = tflite.write(renorm.read(content))
    for y, e in zip(litert(written, *xs), litert(content, *xs), strict=True):
        assert (y.dtype, y.shape) == (e.dtype, e.shape)
        np.testing.assert_allclose(y, e, rtol=2e-5, atol=2e-5 * max(1, np.abs(e).max(initial=0)))


def test_a_trained_network_has_the_operators_it_had():
    content = shared("models/tiny_resnet8.tflite").read_bytes()
    written = tflite.write(renorm.read(content))
    assert operators(written) == operators(content)
    x = f(2, 32, 32, 3)
    np.testing.assert_array_equal(litert(written, x)[0], litert(content, x)[0])


def seed_001(scale: float = 1.0177339, offset: float = 0.0156285) -> tuple[bytes, Any]:
    """The network of the article: a transposed convolution of ones, MUL and ADD; and the numbers of both."""
    mean, var, epsilon = 1.0271552, 0.2558007, 0.001
    k = scale / np.sqrt(var + epsilon)
    factor, shift = np.float32(k), np.float32(offset - mean * k)
    file = File(b"CIR0")
    file.tensor("input", (1, 2, 2, 1))
    file.constant("shape", i(1, 4, 4, 1))
    file.constant("filter", np.ones((1, 3, 3, 1), np.float32))
    file.constant("factor", factor.reshape(1))
    file.constant("shift", shift.reshape(1))
    for name in ("tconv", "mul", "output"):
        file.tensor(name, (1, 4, 4, 1))
    file.operator(
        "TRANSPOSE_CONV", ["shape", "filter", "input"], ["tconv"], "TransposeConvOptions",
        padding=1, stride_h=1, stride_w=1,
    )  # fmt: skip
    file.operator("MUL", ["tconv", "factor"], ["mul"], "MulOptions")
    file.operator("ADD", ["mul", "shift"], ["output"], "AddOptions", fused_activation_function=1)
    return file.written(["input"], ["output"]), (factor, shift)


def test_a_transposed_convolution_takes_scale_and_shift(tmp_path: Path):
    """TCONV, MUL, ADD and ReLU are one TRANSPOSE_CONV with bias and activation, of the version that has both."""
    content, (factor, shift) = seed_001()
    np.testing.assert_allclose((factor, shift), (2.0083351, -2.0472434), rtol=2e-7)
    (tmp_path / "in.circle").write_bytes(content)
    renorm.optimize(tmp_path / "in.circle", tmp_path / "out.circle")
    written = (tmp_path / "out.circle").read_bytes()
    assert written[4:8] == b"CIR0"
    assert operators(written) == [("TRANSPOSE_CONV", 4)]
    _, model = decode(memoryview(written), "out")
    main = model["subgraphs"][0]
    assert [main["tensors"][t]["name"] for t in main["outputs"]] == ["output"]
    x = f(1, 2, 2, 1)
    before, after = (renorm.compile(tmp_path / f"{n}.circle", opt_level=0).run(x)[0] for n in ("in", "out"))
    np.testing.assert_allclose(after, before, atol=1e-6)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1])
def test_strides_and_padding_of_folded_transposed_convolutions(stride: int, padding: int, tmp_path: Path):
    """What the article left open; LiteRT computes before and after, several channels in and out."""
    h, w = (4 * stride, 5 * stride) if padding == 0 else (3 * stride + 3, 4 * stride + 2)
    file = File()
    file.tensor("input", (2, 4, 5, 3))
    file.constant("shape", i(2, h, w, 4))
    file.constant("filter", f(4, 3, 2, 3))
    file.constant("factor", f(4))
    file.constant("shift", f(1, 1, 1, 4))
    for name in ("tconv", "mul", "output"):
        file.tensor(name, (2, h, w, 4))
    file.operator(
        "TRANSPOSE_CONV", ["shape", "filter", "input"], ["tconv"], "TransposeConvOptions",
        padding=padding, stride_h=stride, stride_w=stride,
    )  # fmt: skip
    file.operator("MUL", ["tconv", "factor"], ["mul"], "MulOptions")
    file.operator("ADD", ["mul", "shift"], ["output"], "AddOptions")
    content = file.written(["input"], ["output"])
    (tmp_path / "in.tflite").write_bytes(content)
    renorm.optimize(tmp_path / "in.tflite", tmp_path / "out.tflite")
    written = (tmp_path / "out.tflite").read_bytes()
    assert operators(written) == [("TRANSPOSE_CONV", 3)]
    x = f(2, 4, 5, 3)
    np.testing.assert_allclose(litert(written, x)[0], litert(content, x)[0], rtol=1e-5, atol=1e-5)


def test_all_that_cannot_be_written_is_named_at_once():
    case = next(c for c in CASES if c.kind == "CONV_3D")
    with pytest.raises(UnsupportedOp, match="CONV_3D_0"):
        tflite.write(renorm.read(build(case)[0]))


@pytest.mark.parametrize("op", ["max", "min"])
def test_the_largest_of_one_is_a_copy(op: str):
    """MAXIMUM has two operands: LiteRT refuses one of one."""
    graph, x = Graph("one"), f(2, 3)
    graph.outputs.append(getattr(ops, op)(graph.input("x", "float32", (2, 3)), name="y"))
    written = tflite.write(graph)
    np.testing.assert_array_equal(litert(written, x)[0], x)


def test_a_suffix_of_no_format_leaves_the_source_s(tmp_path: Path):
    content, _ = seed_001()
    renorm.optimize(content, tmp_path / "out")
    assert (tmp_path / "out").read_bytes()[4:8] == b"CIR0"


@pytest.mark.parametrize("kind", ["RELU", "RELU6", "RELU_N1_TO_1", "TANH", "LOGISTIC"])
def test_activations_behind_a_convolution(kind: str):
    """LiteRT computes those that are written into the operator, and the others have one of their own."""
    file = File()
    file.tensor("x", (1, 5, 6, 3))
    file.constant("w", f(4, 3, 3, 3))
    file.constant("b", f(4))
    file.tensor("c", (1, 5, 6, 4))
    file.tensor("y", (1, 5, 6, 4))
    file.operator("CONV_2D", ["x", "w", "b"], ["c"], "Conv2DOptions", stride_h=1, stride_w=1)
    file.operator(kind, ["c"], ["y"])
    content, x = file.written(["x"], ["y"]), f(1, 5, 6, 3)
    written = tflite.write(renorm.read(content))
    assert len(operators(written)) == (2 if kind in ("TANH", "LOGISTIC") else 1)
    np.testing.assert_allclose(litert(written, x)[0], litert(content, x)[0], rtol=1e-5, atol=1e-5)
