"""Fourier transforms, spectra and cepstra of TensorFlow Lite files against LiteRT; random numbers by their moments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.test_tflite_detection import packed
from tests.frontends.tflite_files import File, litert
from tests.random_numbers import RNG

import renorm
from renorm.errors import UnsupportedOp


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("lengths", [(1, 16), (1, 8), (1, 32)])
def test_magnitudes_of_a_transform_along_one_axis(lengths: tuple[int, int]) -> None:
    """As tf.signal.rfft is converted: an axis of one is put in and taken out around the transform."""
    file, bins = File(), lengths[1] // 2 + 1
    file.tensor("x", (3, 16))
    file.constant("axis", np.asarray(-2, np.int32))
    file.constant("lengths", np.asarray(lengths, np.int32))
    file.constant("shape", np.asarray([3, bins], np.int32))
    file.tensor("rows", (3, 1, 16))
    file.tensor("c", (3, 1, bins), "COMPLEX64")
    for name in ("y", "re", "im"):
        file.tensor(name, (3, bins))
    for name in ("a", "b", "d"):
        file.tensor(name, (3, bins), "COMPLEX64")
    file.operator("EXPAND_DIMS", ["x", "axis"], ["rows"], "ExpandDimsOptions")
    file.operator("RFFT2D", ["rows", "lengths"], ["c"], "Rfft2dOptions")
    file.operator("SQUEEZE", ["c"], ["a"], "SqueezeOptions", squeeze_dims=np.asarray([-2], np.int32))
    file.operator("COMPLEX_ABS", ["a"], ["y"])
    file.operator("RESHAPE", ["c", "shape"], ["b"], "ReshapeOptions")
    file.operator("REAL", ["b"], ["re"])
    file.operator("IMAG", ["b"], ["im"])
    content, x = file.written(["x"], ["y", "re", "im"]), f(3, 16)
    found, expected = renorm.compile(content).run(x), np.fft.rfft(x.astype(np.float64), lengths[1])
    for y, e in zip(found, (np.abs(expected), expected.real, expected.imag), strict=True):
        np.testing.assert_allclose(y, e, atol=1e-5)


@pytest.mark.parametrize(("shape", "lengths"), [((2, 4, 8), (4, 8)), ((4, 16), (4, 8)), ((1, 8), (2, 8))])
def test_a_transform_along_two_axes(shape: tuple[int, ...], lengths: tuple[int, int]) -> None:
    file, made = File(), (*shape[:-2], lengths[0], lengths[1] // 2 + 1)
    file.tensor("x", shape)
    file.constant("lengths", np.asarray(lengths, np.int32))
    file.tensor("c", made, "COMPLEX64")
    file.tensor("y", made)
    file.operator("RFFT2D", ["x", "lengths"], ["c"], "Rfft2dOptions")
    file.operator("COMPLEX_ABS", ["c"], ["y"])
    content, x = file.written(["x"], ["y"]), f(*shape)
    found = renorm.compile(content).run(x)[0]
    np.testing.assert_allclose(found, np.abs(np.fft.rfft2(x.astype(np.float64), lengths)), atol=1e-5)
    if shape[-2:] == lengths:
        np.testing.assert_allclose(found, litert(content, x)[0], atol=1e-4)


def test_complex_numbers_elsewhere_are_refused() -> None:
    file = File()
    file.tensor("x", (1, 8))
    file.constant("lengths", np.asarray([1, 8], np.int32))
    file.tensor("c", (1, 5), "COMPLEX64")
    file.tensor("y", (1, 5), "COMPLEX64")
    file.operator("RFFT2D", ["x", "lengths"], ["c"], "Rfft2dOptions")
    file.operator("NEG", ["c"], ["y"], "NegOptions")
    with pytest.raises(UnsupportedOp, match="NEG of complex numbers"):
        renorm.read(file.written(["x"], ["y"]))


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize(("size", "stride"), [(100, 40), (64, 64)])
def test_a_spectrogram_and_its_cepstrum(squared: bool, size: int, stride: int) -> None:
    """As networks that spot words begin with them."""
    file, samples = File(), 1000
    file.tensor("x", (samples, 2))
    file.constant("rate", np.asarray([8000], np.int32))
    file.tensor("s", ())
    file.tensor("y", ())
    spectrum = {"window_size": size, "stride": stride, "magnitude_squared": squared}
    bands = {
        "upper_frequency_limit": 3800.0, "lower_frequency_limit": 30.0, "filterbank_channel_count": 12,
        "dct_coefficient_count": 7,
    }  # fmt: skip
    file.operator("AudioSpectrogram", ["x"], ["s"], custom=packed(spectrum))
    file.operator("Mfcc", ["s", "rate"], ["y"], custom=packed(bands))
    content, x = file.written(["x"], ["s", "y"]), f(samples, 2)
    for found, expected in zip(renorm.compile(content).run(x), litert(content, x), strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("kind", ["RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL"])
def test_random_numbers(kind: str) -> None:
    file = File()
    file.constant("shape", np.asarray([30, 41], np.int32))
    for name, seed in (("a", 3), ("b", 4)):
        file.tensor(name, (30, 41))
        file.operator(kind, ["shape"], [name], "RandomOptions", seed=seed)
    module = renorm.compile(file.written([], ["a", "b"]))
    a, b = module.run()
    assert a.shape == (30, 41)
    assert not np.array_equal(a, b)
    mean, deviation = (0.5, 12**-0.5) if kind == "RANDOM_UNIFORM" else (0, 1)
    assert abs(a.mean() - mean) < 0.1
    assert abs(a.std() - deviation) < 0.1
    np.testing.assert_array_equal(module.run()[0], a)
    assert any("draws the same numbers" in said for said in module.report.assumptions)


def test_classes_are_drawn_by_their_logits() -> None:
    file = File()
    file.tensor("x", (2, 3))
    file.constant("count", np.asarray(2000, np.int32))
    file.tensor("y", (2, 2000), "int64")
    file.operator("MULTINOMIAL", ["x", "count"], ["y"], "RandomOptions", seed=1)
    p = np.asarray([[0.2, 0.5, 0.3], [0.9, 0.1, 1e-20]])
    (found,) = renorm.compile(file.written(["x"], ["y"])).run(np.log(p).astype(np.float32))
    assert found.dtype == np.int64
    shares = np.stack([np.bincount(row, minlength=3) / 2000 for row in found])
    np.testing.assert_allclose(shares, p, atol=0.05)
