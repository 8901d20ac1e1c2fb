"""ONNX ops that are read as several of renorm's, against ONNX's evaluator, ONNX Runtime, PyTorch and NumPy: fixed and
open extents, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import renorm
from renorm.core.errors import RenormError

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)


def f(*shape: int) -> Array:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def made(
    op: str,
    operands: Sequence[Array | None],
    outputs: int,
    fixed: Sequence[int],
    is_open: bool,
    opset: int,
    **given: Any,
) -> onnx.ModelProto:
    """A model of one node. fixed: numbers of operands that are constants; is_open: the first extent of all others is a
    symbol."""
    names = [f"i{k}" if x is not None else "" for k, x in enumerate(operands)]
    inputs, constants = list[onnx.ValueInfoProto](), list[onnx.TensorProto]()
    for k, x in enumerate(operands):
        if x is None:
            continue
        if k in fixed:
            constants.append(numpy_helper.from_array(x, names[k]))
            continue
        shape = ["n" if is_open and a == 0 else d for a, d in enumerate(x.shape)]
        inputs.append(helper.make_tensor_value_info(names[k], helper.np_dtype_to_tensor_dtype(x.dtype), shape))
    ends = [f"y{k}" for k in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, ends, **given)],
        "one",
        inputs,
        [onnx.ValueInfoProto(name=e) for e in ends],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def check(
    op: str,
    *operands: Array | None,
    fixed: Sequence[int] = (),
    is_open: bool = False,
    opset: int = 21,
    outputs: int = 1,
    evaluator: str = "onnx",
    **given: Any,
) -> list[Array]:
    """Hold renorm's results against another evaluator's; return them."""
    model = made(op, operands, outputs, fixed, is_open, opset, **given)
    fed = {f"i{k}": x for k, x in enumerate(operands) if x is not None and k not in fixed}
    results = renorm.compile(model).run(*fed.values())
    if evaluator == "onnx":
        expected: Any = ReferenceEvaluator(model).run(None, fed)
    else:
        for e in model.graph.output:
            e.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(results[int(e.name[1:])].dtype)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        expected = session.run(None, fed)
    for got, wanted in zip(results, expected, strict=True):
        assert got.shape == np.shape(wanted)
        np.testing.assert_allclose(got, wanted, 1e-4, 1e-5)
    return results


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("wanted", [None, (2, 3, 9, 11)])
def test_max_unpool(is_open: bool, wanted: tuple[int, ...] | None) -> None:
    x = torch.tensor(f(2, 3, 8, 10))
    y, at = torch.nn.functional.max_pool2d(x, (2, 3), (2, 3), return_indices=True)
    plane = (y.shape[2] * 2) * (y.shape[3] * 3)  # a pool read so much of each channel
    row, column = at // 10, at % 10
    whole = row * (y.shape[3] * 3) + column + torch.arange(6).reshape(2, 3, 1, 1) * plane
    shape = None if wanted is None else ints(*wanted)
    check(
        *("MaxUnpool", y.numpy(), whole.numpy(), shape),
        fixed=(2,),
        is_open=is_open and wanted is None,
        kernel_shape=[2, 3],
        strides=[2, 3],
    )


def test_positions_of_a_pool_are_those_of_another_library() -> None:
    x = f(2, 3, 9, 8)
    for order in (0, 1):
        check(
            *("MaxPool", x),
            outputs=2,
            evaluator="runtime",
            kernel_shape=[3, 2],
            strides=[2, 3],
            pads=[1, 1, 0, 0],
            storage_order=order,
        )


@pytest.mark.parametrize(("shape", "axes"), [((4, 9), (1, -1)), ((7, 3), (2, 0)), ((8, 5, 4), None), ((5,), (-2,))])
def test_center_crop_pad(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> None:
    given: dict[str, Any] = {} if axes is None else {"axes": axes}
    check("CenterCropPad", f(7, 5, 6), ints(*shape), fixed=(1,), **given)


@pytest.mark.parametrize("is_sorted", [0, 1])
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("axis", [None, 0])
def test_unique(is_sorted: int, is_open: bool, axis: int | None) -> None:
    given: dict[str, Any] = {} if axis is None else {"axis": axis}
    shape = (37,) if axis is not None else (5, 9)
    for most in (1, 6):
        x = RNG.integers(-most, most, shape)
        check("Unique", x, outputs=4, evaluator="runtime", sorted=is_sorted, is_open=is_open, **given)
    check("Unique", f(*shape), outputs=4, evaluator="runtime", sorted=is_sorted, is_open=is_open, **given)


@pytest.mark.parametrize("is_sorted", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), [((19, 3), 0), ((2, 17, 2), 1), ((3, 23), -1)])
def test_unique_slices(shape: tuple[int, ...], axis: int, is_sorted: int) -> None:
    x = RNG.integers(0, 3, shape)
    check("Unique", x, outputs=4, evaluator="runtime", sorted=is_sorted, is_open=axis == 0, axis=axis)


def test_unique_long_slices_are_refused() -> None:
    with pytest.raises(RenormError, match="are of 1 to 64 elements"):
        renorm.compile(made("Unique", [f(3, 65)], 4, (), False, 21, axis=0))


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(("length", "axis"), [(None, 1), (5, 2), (9, -2)])
@pytest.mark.parametrize("parts", [1, 2])
def test_dft(is_open: bool, length: int | None, axis: int, parts: int) -> None:
    x = f(2, 7, 6, parts)
    operands = x, None if length is None else ints(length)[0], ints(axis)[0]
    signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    along = axis % 4
    for inverse, onesided in ((0, 0), (1, 0), (0, 1)):
        if onesided and parts == 2:
            continue
        transform = np.fft.ifft if inverse else np.fft.rfft if onesided else np.fft.fft
        expected = transform(signal, length, along)
        model = made("DFT", operands, 1, (1, 2), is_open, 20, inverse=inverse, onesided=onesided)
        (y,) = renorm.compile(model).run(x)
        np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], expected, 1e-4, 1e-5)


@pytest.mark.parametrize("length", [None, 5, 9])
@pytest.mark.parametrize(
    ("attributes", "parts"), [("", 1), ("", 2), ("inverse = 1", 1), ("inverse = 1", 2), ("onesided = 1", 1)]
)
def test_dft_along_an_open_axis(attributes: str, parts: int, length: int | None) -> None:
    onesided, inverse = attributes.startswith("o"), attributes.startswith("i")
    said = "" if length is None else f", int64 length = {{{length}}}"
    source = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 20]>
        g (float[N, A, B, {parts}] x) => (float[N, C, B, 2] y) <int64 axis = {{1}}{said}> {{
        y = DFT<{attributes}>(x, {"length" if said else ""}, axis) }}""".replace("<>", "")
    )
    module = renorm.compile(source)
    transform = np.fft.ifft if inverse else np.fft.rfft if onesided else np.fft.fft
    for n in (7, 1, 12):
        x = f(2, n, 3, parts)
        expected = transform(x[..., 0] + (1j * x[..., 1] if parts == 2 else 0), length, 1)
        (y,) = module.run(x)
        assert y.shape[:-1] == expected.shape
        np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], expected, 1e-4, 1e-5)


@pytest.mark.parametrize("length", [None, 10, 11])
def test_inverse_dft_of_half_a_spectrum(length: int | None) -> None:
    x = f(2, 6, 2)
    operands = x, None if length is None else ints(length)[0], ints(1)[0]
    (y,) = renorm.compile(made("DFT", operands, 1, (1, 2), True, 20, inverse=1, onesided=1)).run(x)
    assert y.shape == (2, length or 10, 1)
    expected = np.fft.irfft(x[..., 0] + 1j * x[..., 1], length, 1)
    np.testing.assert_allclose(y[..., 0], expected, 1e-4, 1e-5)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("own", "length"), [(144, 144), (768, 768), (1000, 1000), (263, 263), (200, 150), (150, 201)])
def test_long_dft(own: int, length: int, parts: int, is_open: bool) -> None:
    """Transforms of parts, of which a prime length has none, and signals that are cut or continued."""
    for kind in ("", "inverse", "onesided") if parts == 1 else ("", "inverse"):
        x = f(2, own, 3, parts)
        signal = x[..., 0].astype(np.float64) + (1j * x[..., 1] if parts == 2 else 0)
        transform = {"": np.fft.fft, "inverse": np.fft.ifft, "onesided": np.fft.rfft}[kind]
        said = None if length == own else ints(length)[0]
        model = made("DFT", (x, said, ints(1)[0]), 1, (1, 2), is_open, 20, **({kind: 1} if kind else {}))
        (y,) = renorm.compile(model).run(x)
        expected = transform(signal, length, 1)
        assert y.shape[:-1] == expected.shape
        np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], expected, 0, 3e-6 * np.abs(expected).max())


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("own", "length"), [(385, None), (385, 769), (129, 256), (100, 256), (200, 256)])
def test_long_inverse_dft_of_half_a_spectrum(own: int, length: int | None, parts: int) -> None:
    x = f(2, own, 3, parts)
    said = None if length is None else ints(length)[0]
    (y,) = renorm.compile(made("DFT", (x, said, ints(1)[0]), 1, (1, 2), False, 20, inverse=1, onesided=1)).run(x)
    spectrum = x[..., 0].astype(np.float64) + (1j * x[..., 1] if parts == 2 else 0)
    expected = np.fft.irfft(spectrum, length, 1)
    np.testing.assert_allclose(y[..., 0], expected, 0, 3e-6 * np.abs(expected).max())


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", ["constant", "given", "none"])
def test_stft(is_open: bool, onesided: int, window: str) -> None:
    x, weights = f(3, 40, 1), np.hanning(9).astype(np.float32)
    operands = x, ints(4)[0], None if window == "none" else weights, ints(9)[0]
    fixed = (1, 3) if window == "given" else (1, 2, 3)
    model = made("STFT", operands, 1, fixed, is_open and window != "given", 17, onesided=onesided)
    (y,) = renorm.compile(model).run(*([x, weights] if window == "given" else [x]))
    frames = np.stack([x[:, s : s + 9, 0] for s in range(0, 32, 4)], 1) * (1 if window == "none" else weights)
    expected = (np.fft.rfft if onesided else np.fft.fft)(frames)
    np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], expected, 1e-4, 1e-4)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize(("group", "offset_group"), [(1, 1), (2, 1), (1, 2), (2, 4)])
def test_deform_conv(is_open: bool, has_mask: bool, group: int, offset_group: int) -> None:
    x, w, b = f(2, 4, 7, 6), f(6, 4 // group, 3, 2), f(6)
    offset = f(2, offset_group * 12, 3, 5)
    mask = f(2, offset_group * 6, 3, 5) if has_mask else None
    check(
        *("DeformConv", x, w, offset, b, mask),
        fixed=(1, 3),
        is_open=is_open,
        group=group,
        offset_group=offset_group,
        kernel_shape=[3, 2],
        strides=[2, 1],
        pads=[1, 0, 1, 0],
        dilations=[2, 1],
    )


@pytest.mark.parametrize(("mode", "old"), [("linear", "bilinear"), ("cubic", "bicubic"), ("nearest", "nearest")])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_grid_sample_is_that_of_other_libraries(mode: str, old: str, padding_mode: str, align_corners: int) -> None:
    x, grid = f(2, 3, 5, 7), f(2, 4, 9, 2) * np.float32(1.5)
    attributes: dict[str, Any] = {"padding_mode": padding_mode, "align_corners": align_corners}
    (y,) = check("GridSample", x, grid, opset=20, evaluator="runtime", mode=mode, **attributes)
    (again,) = check("GridSample", x, grid, opset=16, evaluator="runtime", is_open=True, mode=old, **attributes)
    expected = torch.nn.functional.grid_sample(
        torch.tensor(x), torch.tensor(grid), old, padding_mode, align_corners=bool(align_corners)
    )
    np.testing.assert_allclose(y, expected, 1e-4, 1e-5)
    np.testing.assert_allclose(again, expected, 1e-4, 1e-5)


def test_random_numbers_are_drawn_evenly() -> None:
    x = np.zeros((40, 2501), np.float32)
    for is_open in (False, True):
        results = [
            renorm.compile(made(op, [x], 1, (), is_open, 21, **given)).run(x)[0].astype(np.float64)
            for op, given in (
                ("RandomUniformLike", {"low": -1.0, "high": 3.0, "seed": 2.0}),
                ("RandomUniformLike", {"low": -1.0, "high": 3.0, "seed": 3.0}),
                ("RandomNormalLike", {"mean": 1.0, "scale": 2.0}),
            )
        ]
        uniform, other, normal = results
        assert uniform.min() >= -1
        assert uniform.max() < 3
        np.testing.assert_allclose(np.histogram(uniform, 16, (-1, 3))[0] * 16 / x.size, 1, atol=0.06)
        np.testing.assert_allclose([normal.mean(), normal.std()], [1, 2], atol=0.03)
        np.testing.assert_allclose(((normal - 1) ** 4).mean() / 16, 3, atol=0.15)
        for a, b in ((uniform, other), (uniform[:-1], uniform[1:]), (uniform[:, :-1], uniform[:, 1:])):
            assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02


def test_events_have_their_probability() -> None:
    x = np.repeat(np.array([[0.0], [0.25], [1.0]], np.float32), 9001, axis=1)
    (y,) = renorm.compile(made("Bernoulli", [x], 1, (), True, 15, dtype=onnx.TensorProto.INT32)).run(x)
    assert y.dtype == np.int32
    np.testing.assert_allclose(y.mean(1), [0, 0.25, 1], atol=0.02)


def test_random_numbers_of_a_stated_shape_are_a_constant() -> None:
    module = renorm.compile(made("RandomNormal", [], 1, (), False, 21, shape=[30, 50], mean=4.0))
    (y,) = module.run()
    assert y.shape == (30, 50)
    np.testing.assert_allclose([y.mean(), y.std()], [4, 1], atol=0.1)
    np.testing.assert_array_equal(module.run()[0], y)
