"""Quantized tensors hold integers: what operators make is rounded to them and cut to their range, as LiteRT does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.quantized_files import SIDES, Quantized, spotter
from tests.frontends.tflite_files import File, litert

import renorm
from renorm.graph import interpret


def steps_apart(ours: Any, theirs: Any) -> int:
    return int(np.abs(ours.astype(np.int64) - theirs.astype(np.int64)).max())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_random_quantized_networks_are_those_of_litert(dtype: str) -> None:
    """Within a step, or two of 16 bits, whose kernels in LiteRT scale by factors of 15; without saturation the worst of
    these is off by more than 100, without rounding by 3."""
    saturates = 0
    for seed in range(12):
        content, x = spotter(np.random.default_rng(seed), dtype)
        (theirs,) = litert(content, x)
        (ours,) = interpret.run(renorm.read(content), [x])
        assert steps_apart(ours, theirs) <= (2 if dtype == "int16" else 1), (dtype, seed)
        scores = theirs.reshape(-1).astype(np.int64)
        first, second = np.sort(scores)[:-3:-1]
        assert first - second <= 2 or ours.argmax() == scores.argmax(), (dtype, seed)
        saturates += int(theirs.max() in SIDES[dtype])
    assert saturates < 12  # most networks tell one score from another


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("kind", ["ADD", "SUB", "MUL"])
def test_sums_and_products_saturate(kind: str, dtype: str) -> None:
    """What goes in fills its range, what comes out has half of the range that it would need; then the other way."""
    rng, (low, high) = np.random.default_rng(3), SIDES[dtype]
    for reach in (0.5, 1.0, 4.0):
        q = Quantized(rng, dtype)
        a, b = q.tensor((2, 3, 4, 5), 1.0), q.tensor((2, 3, 4, 5), 2.0)
        y = q.binary(kind, a, b)
        q.file.tables[y]["quantization"]["scale"] = np.asarray([reach * 8 / (high - low)], np.float32)
        content = q.file.written([a, b], [y])
        xs = [rng.integers(low, high + 1, (2, 3, 4, 5)).astype(dtype) for _ in range(2)]
        (theirs,), (ours,) = litert(content, *xs), interpret.run(renorm.read(content), xs)
        assert steps_apart(ours, theirs) <= 1, (kind, reach)
    (compiled,) = renorm.compile(content, threads=1).run(*xs)
    assert steps_apart(compiled, theirs) <= 1


def chain(*kinds: str, activation: int = 0) -> tuple[bytes, Any]:
    """A convolution in int8 and operators behind it that only move or average."""
    q = Quantized(np.random.default_rng(0))
    x = q.tensor((1, 8, 8, 3), 1.0)
    at = q.conv(x, 4, activation)
    for kind in kinds:
        at = q.pool(at, kind)
    given = np.random.default_rng(1).integers(-128, 128, (1, 8, 8, 3)).astype(np.int8)
    return q.file.written([x], [at]), given


def rounded(content: bytes) -> list[str]:
    """The ops that a network is read as, but for those of weights, of the order of axes, and what nobody reads."""
    graph = renorm.read(content)
    used = [n for n in graph.nodes if n.output.readers or graph.is_output(n.output)]
    weights = [n for n in used if all(v is None or v.is_constant for v in n.inputs)]
    return [n.op.name for n in used if n not in weights and n.op.name != "transpose"]


START = ["dequantize_linear", "conv", "quantize_linear"]
MEAN = ["cast", "average_pool", "mul", "round", "cast"]


def test_what_picks_elements_picks_integers() -> None:
    """A mean of them is rounded as it is, a largest element is not."""
    assert rounded(chain()[0]) == START
    assert rounded(chain("MAX_POOL_2D")[0]) == [*START, "max_pool"]
    assert rounded(chain("MAX_POOL_2D", "AVERAGE_POOL_2D")[0]) == [*START, "max_pool", *MEAN]


def test_an_activation_beyond_which_no_integer_is_goes() -> None:
    """ReLU where the zero point is the least integer; ReLU6 where the greatest stands for 6 besides."""
    assert "relu" not in rounded(chain(activation=1)[0])
    for top, is_cut in ((6.0, False), (6.2, True)):
        q = Quantized(np.random.default_rng(0))
        x = q.tensor((1, 8, 8, 3), 1.0)
        y = q.conv(x, 4, 3)
        q.file.tables[y]["quantization"]["scale"] = np.asarray([top / 255], np.float32)
        q.file.tables[y]["quantization"]["zero_point"] = np.asarray([-128])
        content = q.file.written([x], [y])
        assert ("clip" in rounded(content)) == is_cut
        given = np.random.default_rng(1).integers(-128, 128, (1, 8, 8, 3)).astype(np.int8)
        assert steps_apart(renorm.compile(content, threads=1).run(given)[0], litert(content, given)[0]) <= 1


@pytest.mark.usefixtures("kept_code")
def test_files_with_saturation_fold_and_are_written(tmp_path: Path) -> None:
    """Compare what a written file computes with its source."""
    for seed in range(20, 22):
        content, x = spotter(np.random.default_rng(seed))
        (tmp_path / "in.tflite").write_bytes(content)
        renorm.optimize(tmp_path / "in.tflite", tmp_path / "out.tflite")
        (theirs,) = litert(content, x)
        assert steps_apart(litert((tmp_path / "out.tflite").read_bytes(), x)[0], theirs) <= 1
        assert steps_apart(renorm.compile(tmp_path / "in.tflite", threads=1).run(x)[0], theirs) <= 1


def test_a_scale_and_a_shift_do_not_fold_across_a_saturation(tmp_path: Path) -> None:
    q = Quantized(np.random.default_rng(5))
    x = q.tensor((1, 6, 6, 3), 1.0)
    c = q.conv(x, 4, 0)
    q.file.tables[c]["quantization"]["scale"] = np.asarray([0.3 / 127], np.float32)  # most of it saturates
    k = q.file.constant("k", np.asarray([-100, 90, 40, 127], np.int8), scale=([0.02], [0], 0))
    b = q.file.constant("b", np.asarray([-100, 90, 40, 127], np.int8), scale=([0.005], [0], 0))
    m, y = q.tensor((1, 6, 6, 4), 1.0), q.tensor((1, 6, 6, 4), 1.0)
    q.file.operator("MUL", [c, k], [m], "MulOptions", 2)
    q.file.operator("ADD", [m, b], [y], "AddOptions", 2)
    content = q.file.written([x], [y])
    given = np.random.default_rng(1).integers(-128, 128, (1, 6, 6, 3)).astype(np.int8)
    (theirs,) = litert(content, given)
    (tmp_path / "in.tflite").write_bytes(content)
    renorm.optimize(tmp_path / "in.tflite", tmp_path / "out.tflite")
    for found in (
        renorm.compile(content, threads=1).run(given)[0],
        litert((tmp_path / "out.tflite").read_bytes(), given)[0],
    ):
        assert steps_apart(found, theirs) <= 1


def test_tensors_of_float_and_weights_of_integers_are_not_cut() -> None:
    """Weights alone are quantized: nothing between operators has a range."""
    file, rng = File(), np.random.default_rng(0)
    file.tensor("x", (2, 4))
    file.constant("w8", rng.integers(-127, 128, (3, 4)).astype(np.int8), scale=([0.1], [0], 0))
    file.tensor("w", (3, 4))
    file.tensor("y", (2, 3))
    file.operator("DEQUANTIZE", ["w8"], ["w"])
    file.operator("FULLY_CONNECTED", ["x", "w", None], ["y"], "FullyConnectedOptions", 6)
    assert all(n.op.name != "clip" for n in renorm.read(file.written(["x"], ["y"])).nodes)
