"""Attention of ONNX with all of its operands and attributes, against the package's own definition in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, reference

import renorm
from renorm import frontends
from renorm.core.errors import OperandError

RNG = np.random.default_rng(11)
NAMES = ("q", "k", "v", "mask", "past_k", "past_v", "valid")
BATCH, HEADS, SERVED, ROWS, KEYS, HELD, WIDTH = 2, 6, 3, 5, 7, 8, 9
Arrays = dict[str, np.ndarray]


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def model(given: Arrays, outputs: int, open_axes: Any = (), opset: int = 25, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one Attention. open_axes: (operand, axis, name) of extents that are not stated."""
    made = ("y", "present_k", "present_v", "scores")
    asked = [name if i in (0, outputs) or (i < 3 and outputs == 2) else "" for i, name in enumerate(made)]
    last = max((i for i, n in enumerate(NAMES) if n in given), default=2) + 1
    node = helper.make_node("Attention", [n if n in given else "" for n in NAMES[:last]], asked, **attributes)
    extents = {(operand, axis): name for operand, axis, name in open_axes}
    inputs = [
        helper.make_tensor_value_info(
            n,
            helper.np_dtype_to_tensor_dtype(a.dtype),
            [extents.get((n, axis), extent) for axis, extent in enumerate(a.shape)],
        )
        for n, a in given.items()
    ]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=n) for n in asked if n])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


def operands(**others: np.ndarray) -> Arrays:
    shapes = {"q": (HEADS, ROWS, HELD), "k": (SERVED, KEYS, HELD), "v": (SERVED, KEYS, WIDTH)}
    found = {n: f(BATCH, *shape) for n, shape in shapes.items()} | others
    return {n: found[n] for n in NAMES if n in found}


def check(given: Arrays, outputs: int = 0, opset: int = 25, **attributes: Any) -> None:
    spread = dict(given)
    if "mask" in given:  # the package reads what is causal into the rows that a mask has
        spread["mask"] = np.broadcast_to(given["mask"], np.broadcast_shapes(given["mask"].shape, (ROWS, 1)))
    of_package = model(spread, outputs, opset=opset, **attributes)
    expected: Any = reference.ReferenceEvaluator(of_package).run(None, spread)
    module = renorm.compile(model(given, outputs, opset=opset, **attributes))
    for got, wanted in zip(module.run(*[given[v.name] for v in module.inputs]), expected, strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-6)


MASKS = {
    "none": None,
    "floats": f(BATCH, HEADS, ROWS, KEYS),
    "of keys": f(KEYS),
    "truth": RNG.random((BATCH, 1, ROWS, KEYS)) < 0.6,
    "truth of heads": RNG.random((HEADS, ROWS, KEYS)) < 0.6,
    "short": f(ROWS, KEYS - 2),
    "short truth": RNG.random((ROWS, KEYS - 2)) < 0.6,
}
WINDOWS: list[dict[str, int]] = [
    {},
    {"is_causal": 1},
    {"left_window_size": 1},
    {"left_window_size": 2, "right_window_size": 1},
    {"right_window_size": 0},
    {"left_window_size": 0, "is_causal": 1},
    {"right_window_size": 3, "is_causal": 1},
]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_masks_and_windows(mask: str, window: dict[str, int]) -> None:
    held = MASKS[mask]
    check(operands() if held is None else operands(mask=held), softcap=1.5, scale=0.3, **window)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_keys_of_earlier_calls(window: dict[str, int]) -> None:
    past = {"past_k": f(BATCH, SERVED, 4, HELD), "past_v": f(BATCH, SERVED, 4, WIDTH)}
    check(operands(**past), 2, **window)
    check(operands(mask=f(BATCH, 1, ROWS, KEYS + 4), **past), 2, **window)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("valid", [(7, 5), (3, 6), (0, 7)])
def test_keys_of_padding(window: dict[str, int], valid: tuple[int, int]) -> None:
    """Also of fewer keys than queries, of which the first then take none."""
    counts = np.array(valid, np.int64)
    check(operands(valid=counts), 3, qk_matmul_output_mode=3, **window)
    check(operands(valid=counts, mask=RNG.random((BATCH, 1, ROWS, KEYS)) < 0.6), **window)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("mask", ["none", "floats", "truth"])
def test_scores_as_a_result(mode: int, mask: str) -> None:
    held = MASKS[mask]
    given = operands() if held is None else operands(mask=held)
    if mode:  # the package caps scores of mode 0 too, which its text and its function do not
        check(given, 3, qk_matmul_output_mode=mode, softcap=0.75)
    check(given, 3, qk_matmul_output_mode=mode, is_causal=1)


def test_scores_of_mode_0_are_not_capped() -> None:
    given = operands()
    scores = renorm.compile(model(given, 3, softcap=0.75, scale=0.5)).run(*given.values())[1]
    keys = np.repeat(given["k"], HEADS // SERVED, 1)
    np.testing.assert_allclose(scores, 0.5 * given["q"] @ keys.swapaxes(2, 3), rtol=1e-5, atol=1e-5)


def test_heads_side_by_side() -> None:
    given = {"q": f(BATCH, ROWS, HEADS * HELD), "k": f(BATCH, KEYS, SERVED * HELD), "v": f(BATCH, KEYS, SERVED * WIDTH)}
    heads = {"q_num_heads": HEADS, "kv_num_heads": SERVED}
    check(given, 3, qk_matmul_output_mode=2, is_causal=1, **heads)
    past = {"past_k": f(BATCH, SERVED, 4, HELD), "past_v": f(BATCH, SERVED, 4, WIDTH)}
    check({**given, **past}, 2, softcap=2.0, **heads)


@pytest.mark.parametrize("mask", [(1,), (4,), (ROWS, 3)])
def test_a_mask_that_is_shorter_than_keys_of_which_nobody_knows_how_many(mask: tuple[int, ...]) -> None:
    open_axes = [("k", 2, "keys"), ("v", 2, "keys"), ("valid", 0, "batch"), ("q", 0, "batch")]
    given = operands(mask=f(*mask), valid=np.array([mask[-1]] * BATCH, np.int64))
    module = renorm.compile(model(given, 0, open_axes, left_window_size=2))
    for keys in (7, 4, 11):
        given = {**given, "k": f(BATCH, SERVED, keys, HELD), "v": f(BATCH, SERVED, keys, WIDTH)}
        m = model(given, 0, left_window_size=2)
        expected: Any = reference.ReferenceEvaluator(m).run(None, given)
        (got,) = module.run(*[given[v.name] for v in module.inputs])
        np.testing.assert_allclose(got, expected[0], rtol=1e-5, atol=2e-6)


def test_before_opset_24_a_mask_is_as_long_as_there_are_keys() -> None:
    with pytest.raises(OperandError, match="does not broadcast to scores"):
        frontends.read(model(operands(mask=f(ROWS, KEYS - 2)), 0, opset=23))


@pytest.mark.parametrize(
    ("others", "attributes", "why"),
    [
        ({"past_k": f(BATCH, SERVED, 4, HELD)}, {}, "past_key and past_value come together"),
        ({}, {"left_window_size": -2}, "a window of -2 and -1"),
    ],
)
def test_what_is_refused(others: Arrays, attributes: dict[str, Any], why: str) -> None:
    with pytest.raises(OperandError, match=why):
        frontends.read(model(operands(**others), 0, **attributes))


def test_narrow_floats_are_rounded_once() -> None:
    """Where ONNX's definition rounds after every step, results here are the nearest to what NumPy computes widely."""
    given = {n: a.astype(np.float16) for n, a in operands().items()}
    (y,) = renorm.compile(model(given, 0, is_causal=1)).run(*given.values())
    wide = {n: a.astype(np.float64) for n, a in given.items()}
    (exact,) = reference.ReferenceEvaluator(model(wide, 0, is_causal=1)).run(None, wide)  # type: ignore[misc]
    assert helper.np_dtype_to_tensor_dtype(y.dtype) == TensorProto.FLOAT16
    assert np.mean(y == np.asarray(exact).astype(np.float16)) > 0.98  # float32 in between may round otherwise at ties
