"""Convolutions, plain and transposed, against torch in float64, and ONNX Runtime where torch has no such form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.nodes import by_loops, by_onnxruntime, by_reference, by_renorm, model, normal

import renorm
from renorm.core.dims import Sym
from renorm.core.errors import OperandError
from renorm.graph.ir import Graph
from renorm.ops.conv import Conv
from renorm.ops.conv_transpose import ConvTranspose

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch


@dataclass
class Setting:
    """A convolution: shapes, and attributes as torch has them."""

    x: Any
    w: Any
    b: Any
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    group: int
    output_padding: tuple[int, ...] = ()

    @property
    def attributes(self) -> dict[str, Any]:
        extra = {"output_padding": self.output_padding} if self.output_padding else {}
        return {
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": self.pads * 2,
            "group": self.group,
            **extra,
        }


@st.composite
def convolutions(draw: st.DrawFn, transposed: bool) -> Setting:
    rank = draw(st.integers(1, 3))

    def per_axis(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    group, per_in, per_out = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel, strides, dilations = per_axis(1, 4), per_axis(1, 3), per_axis(1, 2)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations)]
    pads = tuple(draw(st.integers(0, r - 1)) for r in reach)
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    if transposed:
        least = [1 + -(-(2 * p) // s) for p, s in zip(pads, strides)]  # leaves one element at least
        spatial = tuple(draw(st.integers(n, n + 4)) for n in least)
        weight = (group * per_in, per_out, *kernel)
        extra = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations))
    else:
        spatial = tuple(draw(st.integers(max(1, r - 2 * p), r + 4)) for r, p in zip(reach, pads))
        weight, extra = (group * per_out, per_in, *kernel), ()
    x = normal(rng, draw(st.integers(1, 2)), group * per_in, *spatial)
    b = normal(rng, group * per_out) if draw(st.booleans()) else None
    return Setting(x, normal(rng, *weight), b, strides, dilations, pads, group, extra)


def by_torch(s: Setting) -> Any:
    kind = "conv_transpose" if s.output_padding else "conv"
    f = getattr(torch.nn.functional, f"{kind}{s.x.ndim - 2}d")
    x, w, b = (None if a is None else torch.from_numpy(a.astype(np.float64)) for a in (s.x, s.w, s.b))
    extra = {"output_padding": s.output_padding} if s.output_padding else {}
    return f(x, w, b, stride=s.strides, padding=s.pads, dilation=s.dilations, groups=s.group, **extra).numpy()


@settings(deadline=None, max_examples=40)
@given(convolutions(transposed=False))
def test_conv_agrees_with_torch(s: Setting) -> None:
    expected = by_torch(s)
    np.testing.assert_allclose(by_reference(Conv, s.x, s.w, s.b, **s.attributes), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(by_loops(Conv, s.x, s.w, s.b, **s.attributes), expected, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=60)
@given(convolutions(transposed=True))
def test_conv_transpose_agrees_with_torch(s: Setting) -> None:
    expected = by_torch(s)
    operands = (s.x, s.w, s.b)
    np.testing.assert_allclose(by_reference(ConvTranspose, *operands, **s.attributes), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(by_loops(ConvTranspose, *operands, **s.attributes), expected, rtol=1e-4, atol=1e-4)


FORMS = [
    {"strides": [s], "dilations": [d], **form}
    for s in (1, 2, 3)
    for d in (1, 2)
    for form in ({"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {"auto_pad": "VALID"}, {"pads": [2, 0]})
    if d == 1 or "SAME" not in form.get("auto_pad", "")  # ONNX Runtime refuses both at once
]


@pytest.mark.parametrize("attributes", FORMS, ids=str)
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
def test_automatic_padding_of_conv_is_that_of_onnxruntime(attributes: dict[str, Any], kernel: int) -> None:
    rng = np.random.default_rng(kernel)
    operands = {"x": normal(rng, 2, 3, 8), "w": normal(rng, 4, 3, kernel), "b": normal(rng, 4)}
    proto = model("Conv", 11, operands, **attributes)
    expected = by_onnxruntime(proto, operands)[0]
    np.testing.assert_allclose(by_renorm(proto, operands)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("output_shape", [None, [5], [7], [9]], ids=str)
@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("opset", [1, 11, 22])
def test_stated_extents_of_conv_transpose_are_those_of_onnxruntime(
    output_shape: list[int] | None, auto_pad: str, stride: int, opset: int
) -> None:
    rng = np.random.default_rng(stride)
    operands = {"x": normal(rng, 1, 2, 3), "w": normal(rng, 2, 3, 4)}
    attributes: dict[str, Any] = {"strides": [stride], "auto_pad": auto_pad}
    attributes |= {"output_shape": output_shape} if output_shape else {}
    proto = model("ConvTranspose", opset, operands, **attributes)
    expected = by_onnxruntime(proto, operands)[0]
    np.testing.assert_allclose(by_renorm(proto, operands)[0], expected, rtol=1e-5, atol=1e-5)
    loops = by_loops(ConvTranspose, *operands.values(), **attributes)
    np.testing.assert_allclose(loops, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 2), (1, 3), (2, 3), (3, 3), (3, 2)])
@pytest.mark.parametrize("extra", [0, 1])
def test_automatic_padding_of_conv_transpose_is_that_of_onnxruntime(
    auto_pad: str, kernel: int, stride: int, extra: int
) -> None:
    """Strides beyond the kernel: there is nothing to take away, and no elements are added."""
    rng = np.random.default_rng(stride)
    operands = {"x": normal(rng, 1, 2, 5), "w": normal(rng, 2, 3, kernel)}
    proto = model("ConvTranspose", 17, operands, strides=[stride], auto_pad=auto_pad, output_padding=[extra])
    expected = by_onnxruntime(proto, operands)[0]
    np.testing.assert_allclose(by_renorm(proto, operands)[0], expected, rtol=1e-5, atol=1e-5)


def test_output_padding_may_exceed_the_stride_where_the_dilation_does() -> None:
    rng = np.random.default_rng(0)
    s = Setting(normal(rng, 1, 2, 4), normal(rng, 2, 3, 2), None, (2,), (5,), (1,), 1, (4,))
    expected = by_torch(s)
    np.testing.assert_allclose(by_loops(ConvTranspose, s.x, s.w, None, **s.attributes), expected, rtol=1e-5, atol=1e-5)


def test_conv_transpose_whose_dilation_is_a_multiple_of_its_stride_compiles() -> None:
    """Only the guard on o - k * dilation says that o // stride - k * dilation // stride is inside of x."""
    rng = np.random.default_rng(1)
    x, w = normal(rng, 3, 3, 7, 6, 4), normal(rng, 3, 3, 3, 2, 3)
    s = Setting(x, w, None, (3, 3, 1), (3, 2, 2), (0, 0, 0), 1, (1, 0, 1))
    graph = Graph("dilated")
    y = graph.apply(ConvTranspose(**s.attributes), [graph.input("x", "float32", x.shape), graph.constant(w, "w"), None])
    graph.outputs = [y]
    np.testing.assert_allclose(renorm.compile(graph).run(x)[0], by_torch(s), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", [2, 3, 4, 5])
@pytest.mark.parametrize("stride", [2, 3, 4])
def test_conv_transpose_multiplies_hardly_any_zero(kernel: int, stride: int) -> None:
    """Products of the reduction stages against those that the definition has: one per tap and element of x."""
    from math import prod

    from renorm import te
    from renorm.ops.schedules import structure

    x, w = te.placeholder((1, 4, 16, 16)), te.placeholder((4, 8, kernel, kernel))
    pad = (kernel - 1) // 2
    y = ConvTranspose(strides=(stride, stride), pads=(pad,) * 4).compute(x, w, None)
    mains = [t for t in structure.stages([y]) if t.op.tag == "conv_transpose"]
    done = sum(prod(t.shape) * prod(a.extent for a in t.op.reduce_axis) for t in mains)
    assert done <= 1.15 * 16 * 16 * 4 * 8 * kernel * kernel


def test_extents_may_be_symbols() -> None:
    graph = Graph()
    x = graph.input("x", "float32", (Sym("N"), 3, Sym("H"), Sym("W")))
    w = graph.input("w", "float32", (4, 3, 3, 3))
    y = Conv(strides=(2, 1), pads=(1, 1, 1, 1))(x, w)
    assert [str(d) for d in y.shape] == [str(Sym("N")), "4", str((Sym("H") - 1) // 2 + 1), "W"]
    same = Conv(strides=(2, 2), auto_pad="SAME_UPPER")(x, w)
    assert same.shape[2] == (Sym("H") + 1) // 2
    wt = graph.input("wt", "float32", (3, 4, 4, 4))
    z = ConvTranspose(strides=(2, 2), pads=(1, 1, 1, 1))(x, wt)
    assert z.shape[1:] == (4, Sym("H") * 2, Sym("W") * 2)


def test_an_unknown_weight_takes_its_window_from_the_attribute() -> None:
    graph = Graph()
    x = graph.input("x", "float32", (1, 3, 8, 8))
    w = graph.input("w", "float32", (4, 3, Sym("kh"), Sym("kw")))
    assert Conv(kernel_shape=(3, 5))(x, w).shape == (1, 4, 6, 4)
    open_extents = Conv()(x, w).shape
    assert open_extents[:2] == (1, 4)
    assert not any(isinstance(d, int) for d in open_extents[2:])


def test_depth_of_an_error_names_operands_and_group() -> None:
    graph = Graph()
    x, w = graph.input("x", "float32", (1, 6, 8, 8)), graph.input("w", "float32", (4, 2, 3, 3))
    with pytest.raises(OperandError, match="x has 6 channels, expected 4"):
        Conv(group=2)(x, w)
