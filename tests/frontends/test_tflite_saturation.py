"""Quantized tensors hold what their integers can stand for: networks that saturate are those that LiteRT runs."""

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
    """Within 3 steps, which is what was seen of 600; without saturation the worst of these is off by more than 100."""
    saturates = 0
    for seed in range(12):
        content, x = spotter(np.random.default_rng(seed), dtype)
        (theirs,) = litert(content, x)
        (ours,) = interpret.run(renorm.read(content), [x])
        assert steps_apart(ours, theirs) <= 3, (dtype, seed)
        scores = theirs.reshape(-1).astype(np.int64)
        first, second = np.sort(scores)[:-3:-1]
        assert first - second <= 6 or ours.argmax() == scores.argmax(), (dtype, seed)
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


def test_nothing_is_cut_that_is_within_already() -> None:
    def clips(content: bytes) -> list[int]:
        nodes = [n for n in renorm.read(content).nodes if n.op.name == "clip"]
        return [sum(v is not None for v in n.inputs[1:]) for n in nodes]

    end = [2]  # the rounding of the result
    assert clips(chain()[0]) == [2, *end]
    assert clips(chain("MAX_POOL_2D", "AVERAGE_POOL_2D")[0]) == [2, *end]  # a pool stays within
    assert clips(chain("MAX_POOL_2D", activation=1)[0]) == [1, *end]  # the tensor begins at 0, as ReLU does


@pytest.mark.usefixtures("kept_code")
def test_files_with_saturation_fold_and_are_written(tmp_path: Path) -> None:
    """What is written computes in float what the source computes in integers; compiled it is the same again."""
    for seed in range(20, 22):
        content, x = spotter(np.random.default_rng(seed))
        (tmp_path / "in.tflite").write_bytes(content)
        renorm.optimize(tmp_path / "in.tflite", tmp_path / "out.tflite")
        (theirs,) = litert(content, x)
        assert steps_apart(litert((tmp_path / "out.tflite").read_bytes(), x)[0], theirs) <= 3
        assert steps_apart(renorm.compile(tmp_path / "in.tflite", threads=1).run(x)[0], theirs) <= 3


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
        assert steps_apart(found, theirs) <= 2


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
