"""Resize against ONNX Runtime over its attributes, and against torch for what torch exports."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from tests.ops.nodes import by_loops, by_onnxruntime, by_renorm, model, normal

from renorm.core.dims import Sym
from renorm.graph.ir import Graph
from renorm.ops.resize import Resize
from renorm.ops.shared.positions import POSITIONS, Line
from renorm.ops.shared.resampling import nearest
from renorm.ops.shared.scales import simplest

RULES = [p for p in POSITIONS if p != "tf_crop_and_resize"]


def both(opset: int, operands: dict[str, Any], op: str = "Resize", **attributes: Any) -> tuple[Any, Any]:
    """Results of renorm and of ONNX Runtime."""
    constant = tuple(n for n in operands if n != "x")
    proto = model(op, opset, operands, constant=constant, **attributes)
    return by_renorm(proto, operands)[0], by_onnxruntime(proto, operands)[0]


def operands(x: Any, *, scales: Any = None, sizes: Any = None, roi: Any = None) -> dict[str, Any]:
    return {
        "x": x,
        "roi": None if roi is None else np.array(roi, np.float32),
        "scales": None if scales is None else np.array(scales, np.float32),
        "sizes": None if sizes is None else np.array(sizes, np.int64),
    }


@pytest.mark.parametrize(
    ("mode", "rule"),
    [(m, r) for m in ("nearest", "linear", "cubic") for r in RULES if r != "tf_half_pixel_for_nn" or m == "nearest"],
)
@pytest.mark.parametrize("sizes", [(8, 10), (2, 3), (7, 4), (1, 1)], ids=str)
def test_rules_for_positions(rule: str, mode: str, sizes: tuple[int, int]) -> None:
    opset = 19 if rule == "half_pixel_symmetric" else 11
    o = operands(normal(np.random.default_rng(0), 1, 2, 4, 5), sizes=(1, 2, *sizes))
    if opset == 11:
        o |= {"roi": np.zeros(0, np.float32), "scales": np.zeros(0, np.float32)}
    ours, theirs = both(opset, o, mode=mode, coordinate_transformation_mode=rule)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nearest_mode", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("rule", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("scales", [(2, 3), (1.5, 0.5), (0.75, 2.5), (0.6, 1.3)], ids=str)
def test_rules_for_the_nearest_element(nearest_mode: str, rule: str, scales: tuple[float, float]) -> None:
    o = operands(normal(np.random.default_rng(0), 1, 1, 8, 10), scales=(1, 1, *scales))
    ours, theirs = both(13, o, nearest_mode=nearest_mode, coordinate_transformation_mode=rule)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("scales", [(0.6, 0.5), (0.3, 0.8), (1.7, 0.4)], ids=str)
def test_antialias(mode: str, exclude: int, scales: tuple[float, float]) -> None:
    o = operands(normal(np.random.default_rng(0), 1, 1, 12, 10), scales=(1, 1, *scales))
    ours, theirs = both(18, o, mode=mode, antialias=1, exclude_outside=exclude)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("a", [-0.75, -0.5])
@pytest.mark.parametrize("exclude", [0, 1])
def test_cubic(a: float, exclude: int) -> None:
    o = operands(normal(np.random.default_rng(0), 1, 1, 5, 4), scales=(1, 1, 1.7, 0.8))
    ours, theirs = both(13, o, mode="cubic", cubic_coeff_a=a, exclude_outside=exclude)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("roi", [(0, 0, 0.4, 0.6, 1, 1, 0.6, 0.8), (0, 0, -0.2, 0.1, 1, 1, 0.7, 1.3)], ids=str)
@pytest.mark.parametrize("sizes", [(3, 6), (1, 1)], ids=str)
def test_crop_and_resize(mode: str, roi: tuple[float, ...], sizes: tuple[int, int]) -> None:
    o = operands(normal(np.random.default_rng(0), 1, 1, 6, 7), sizes=(1, 1, *sizes), roi=roi)
    rule: dict[str, Any] = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0}
    ours, theirs = both(13, o, mode=mode, **rule)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller", "stretch"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_policies_for_the_aspect_ratio(policy: str, mode: str) -> None:
    o = operands(normal(np.random.default_rng(0), 1, 1, 4, 6), sizes=(7, 8))
    ours, theirs = both(18, o, mode=mode, keep_aspect_ratio_policy=policy, axes=[2, 3])
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32"])
@pytest.mark.parametrize(("mode", "antialias"), [("linear", 0), ("linear", 1), ("cubic", 0), ("cubic", 1)])
def test_means_of_integers_are_rounded(dtype: str, mode: str, antialias: int) -> None:
    """As ONNX's reference evaluator has it. Its positions are rounded: the scales are such that this errs nowhere."""
    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(info.min, info.max, (2, 3, 5, 6), dtype, endpoint=True)
    x[0, 0] = np.where(np.arange(6) % 4 < 2, info.min, info.max)  # cubic means of these are beyond the range
    o = operands(x, scales=(1, 1, 2, 0.5 if antialias else 2))
    proto = model("Resize", 18, o, constant=("scales",), mode=mode, antialias=antialias)
    (ours,), exact = by_renorm(proto, o), ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_array_equal(ours, np.asarray(exact)[0])
    assert antialias or mode == "linear" or {info.min, info.max} < {*ours.ravel().tolist()}


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("scales", [(2, 3), (1.7, 0.6)], ids=str)
def test_integers_are_less_than_a_step_from_onnx_runtime(dtype: str, scales: tuple[float, float]) -> None:
    """It cuts fractions off, where ours are rounded."""
    info = np.iinfo(dtype)
    x = np.random.default_rng(1).integers(info.min, info.max, (2, 3, 5, 6), dtype, endpoint=True)
    o = operands(x, scales=(1, 1, *scales))
    proto = model("Resize", 13, o, constant=("roi", "scales"), mode="linear")
    proto.graph.output[0].type.tensor_type.elem_type = proto.graph.input[0].type.tensor_type.elem_type
    (ours,), (theirs,) = by_renorm(proto, o), by_onnxruntime(proto, o)
    assert {*(np.abs(ours.astype(int)) - np.abs(theirs.astype(int))).ravel().tolist()} == {0, 1}


LARGER: list[tuple[float, float]] = [(2, 2), (1.5, 3), (1, 2.3)]
SMALLER: list[tuple[float, float]] = [(0.6, 0.6), (0.75, 1.5)]
OLD = [
    *((opset, op, s) for opset, op in ((7, "Upsample"), (9, "Upsample"), (10, "Resize")) for s in LARGER),
    *((10, "Resize", s) for s in SMALLER),
]


@pytest.mark.parametrize(("opset", "op", "scales"), OLD, ids=str)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_before_opset_11(opset: int, op: str, mode: str, scales: tuple[float, float]) -> None:
    x = normal(np.random.default_rng(0), 1, 2, 5, 6)
    whole = [1.0, 1.0, *scales]
    o: dict[str, Any] = {"x": x} if opset == 7 else {"x": x, "scales": np.array(whole, np.float32)}
    ours, theirs = both(opset, o, op, mode=mode, **({"scales": whole} if opset == 7 else {}))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_upsample_of_opset_1() -> None:
    o = {"x": normal(np.random.default_rng(0), 1, 2, 3, 4)}
    proto = model("Upsample", 1, o, width_scale=3.0, height_scale=2.0, mode="nearest")
    np.testing.assert_array_equal(by_renorm(proto, o)[0], o["x"].repeat(2, 2).repeat(3, 3))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 11), st.booleans(), st.integers(0, 99))
def test_interpolation_is_that_of_torch(rank: int, extent: int, length: int, aligned: bool, seed: int) -> None:
    """What torch exports: positions of half pixels or aligned corners, sizes given."""
    x = normal(np.random.default_rng(seed), 2, 2, *[extent + i for i in range(rank)])
    sizes = [length + i for i in range(rank)]
    mode = ["linear", "bilinear", "trilinear"][rank - 1]
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    wide = torch.from_numpy(x.astype(np.float64))
    expected = torch.nn.functional.interpolate(wide, sizes, mode=mode, align_corners=aligned).numpy()
    rule = "align_corners" if aligned else "half_pixel"
    whole = np.array([2, 2, *sizes])
    y = by_loops(Resize, x, None, None, whole, mode="linear", coordinate_transformation_mode=rule)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 40), st.integers(1, 40))
def test_a_scale_is_the_simplest_fraction_that_rounds_to_it(p: int, q: int) -> None:
    assert simplest(p / q) == Fraction(p, q)


def test_twice_as_large_reads_half_the_index() -> None:
    from renorm import te

    o = te.placeholder((1,), "int32", name="o")[0]
    for rule, start in (("round_prefer_floor", Fraction(-1, 4)), ("floor", Fraction(0))):
        assert str(nearest(Line(Fraction(1, 2), start, 4, 8, Fraction(2)), rule, o)) == "(o[0]//2)"


def test_extents_may_be_symbols() -> None:
    from renorm import ops

    graph = Graph()
    x = graph.input("x", "float32", (Sym("N"), 3, Sym("H"), Sym("W")))
    y = Resize()(x, None, np.array([1, 1, 2, 0.5], np.float32))
    assert y.shape == (Sym("N"), 3, Sym("H") * 2, Sym("W") // 2)
    other = graph.input("other", "float32", (Sym("N"), 3, Sym("H2"), Sym("W2")))
    assert Resize(mode="linear")(x, None, None, ops.shape(other)).shape == other.shape
