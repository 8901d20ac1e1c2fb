"""Signals: Fourier transforms, spectra, cepstra; and random numbers.

A complex number is a pair along a last axis, which the file's tensor does not have.
"""

from __future__ import annotations

import numpy as np

from renorm import ops
from renorm.core.dims import Dim
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.tflite.call import OperatorCall
from renorm.frontends.tflite.operator import Operator, Reader
from renorm.frontends.tflite.tensors import Array
from renorm.graph.ir import Value

_FLOOR = 1e-12  # of an energy whose logarithm is taken
_SEEDS = 1 << 24  # whole numbers that float32 has


def _extent(extent: Dim, what: str) -> int:
    if not isinstance(extent, int):
        raise UnsupportedOp(f"{what} is not known", do="give shapes")
    return extent


# --- transforms -------------------------------------------------------------------------------------------------------


def _transformed(call: OperatorCall, x: Value, length: int, axis: int, onesided: bool = False) -> Value:
    held = (call.graph.constant(np.asarray(n, np.int64), call.name) for n in (length, axis))
    return call.onnx("DFT", x, *held, onesided=int(onesided))


def _rfft_2d(call: OperatorCall) -> Value:
    """Over the last two axes, which are cut or continued by zeros to the lengths given."""
    x, (rows, columns) = call.stored(0), call.integers(1, "its lengths")
    y = _transformed(call, ops.unsqueeze(x, axes=[-1]), columns, x.rank - 1, True)
    return y if rows == x.shape[-2] == 1 else _transformed(call, y, rows, x.rank - 2)


def _part(index: int) -> Reader:
    return lambda call: _pair(call.stored(0))[index]


def _pair(x: Value) -> list[Value]:
    return [ops.squeeze(v, axes=[-1]) for v in ops.split(x, axis=-1, num_outputs=2)]


def _magnitude(call: OperatorCall) -> Value:
    re, im = _pair(call.stored(0))
    return ops.sqrt(ops.add(ops.mul(re, re), ops.mul(im, im)))


def _audio_spectrogram(call: OperatorCall) -> Value:
    """x [samples, channels] -> [channels, frames, bins]: magnitudes of frames under a Hann window, which zeros continue
    to a power of two."""
    said, x = call.custom(), call.stored(0)
    size, stride = int(said["window_size"]), int(said["stride"])
    samples = _extent(x.shape[0], "the number of samples")
    if min(size - 1, stride, samples - size + 1) < 1:
        raise InvalidModel(f"windows of {size} with stride {stride} over {samples} samples")
    call.allow((samples - size) // stride * size)
    frames = np.arange(0, samples - size + 1, stride)[:, None] + np.arange(size)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    cut = ops.mul(ops.gather(ops.transpose(x, perm=(1, 0)), frames, axis=1), window.astype(np.float32))
    re, im = _pair(_transformed(call, ops.unsqueeze(cut, axes=[-1]), 1 << (size - 1).bit_length(), 2, True))
    energy = ops.add(ops.mul(re, re), ops.mul(im, im))
    return energy if said.get("magnitude_squared") else ops.sqrt(energy)


def _mfcc(call: OperatorCall) -> Value:
    """Energies [channels, frames, bins] -> cosine transform of the logarithms of magnitudes in bands."""
    said, x, (rate,) = call.custom(), call.stored(0), call.integers(1, "the sample rate")
    bins = _extent(x.shape[-1], "the number of bins")
    count, kept = int(said["filterbank_channel_count"]), int(said["dct_coefficient_count"])
    if bins < 2 or rate < 1 or not 0 < kept <= count:
        raise InvalidModel(f"{bins} bins at rate {rate}, {count} bands, {kept} coefficients")
    bands = _bands(bins, rate, count, said["lower_frequency_limit"], said["upper_frequency_limit"])
    sums = ops.matmul(ops.sqrt(x), bands.astype(np.float32))
    angles = np.arange(kept) * (np.arange(count)[:, None] + 0.5) * np.pi / count
    waves = np.sqrt(2 / count) * np.cos(angles)
    return ops.matmul(ops.log(ops.max(sums, np.float32(_FLOOR))), waves.astype(np.float32))


def _bands(bins: int, rate: int, count: int, low: float, high: float) -> Array:
    """Return how much of each bin each band has, [bins, count]: triangles that overlap, equally wide on the mel scale.
    Bins outside of the limits have no part, nor has the first."""

    def mel(frequency: Array | float) -> Array:
        return 1127 * np.log1p(np.asarray(frequency) / 700)

    centers = np.linspace(mel(low), mel(high), count + 2)
    step = 0.5 * rate / (bins - 1)
    at, place = np.arange(bins), mel(np.arange(bins) * step)
    inside = (at >= int(1.5 + low / step)) & (at <= int(high / step))
    right = np.searchsorted(centers[1:], place).clip(0, count)  # between which of them a bin lies
    share = (centers[right + 1] - place) / np.diff(centers)[right]
    found = np.zeros((bins, count + 2))
    found[at, right] = share * inside
    found[at, right + 1] = (1 - share) * inside
    return found[:, 1:-1]


# --- random numbers ---------------------------------------------------------------------------------------------------


def _drawn(call: OperatorCall, shape: list[Dim], name: str) -> Value:
    """Return numbers that depend on the seeds alone: they are the same in each run, and others than LiteRT's."""
    seed = (int(call.option("seed", 0)) * 8191 + int(call.option("seed2", 0))) % _SEEDS
    call.scope.reader.assume(f"{call.name} draws the same numbers in each run, which are not those of other runtimes")
    zeros = ops.expand(call.graph.constant(np.zeros((), np.float32), call.name), shape=call.shape_of(shape))
    return getattr(ops, name)(zeros, seed=float(seed))


def _random(name: str) -> Reader:
    return lambda call: _drawn(call, call.extents(0, "its shape"), name)


def _multinomial(call: OperatorCall) -> Value:
    """Classes drawn by logits [batch, classes]: the largest logits plus Gumbel noise."""
    x, (count,) = call.stored(0), call.extents(1, "the number of samples")
    noise = _drawn(call, [x.shape[0], count, x.shape[1]], "random_uniform_like")
    noise = ops.neg(ops.log(ops.neg(ops.log(ops.max(noise, np.float32(1e-30))))))
    drawn = ops.arg_max(ops.add(ops.unsqueeze(x, axes=[1]), noise), axis=2, keepdims=False)
    return ops.cast(drawn, to=call.outputs[0].dtype)


OPERATORS = [
    Operator("COMPLEX_ABS", read=_magnitude, is_complex=True),
    Operator("CUSTOM 'AudioSpectrogram'", read=_audio_spectrogram),
    Operator("CUSTOM 'Mfcc'", read=_mfcc),
    Operator("IMAG", read=_part(1), is_complex=True),
    Operator("MULTINOMIAL", read=_multinomial),
    Operator("RANDOM_STANDARD_NORMAL", read=_random("random_normal_like")),
    Operator("RANDOM_UNIFORM", read=_random("random_uniform_like")),
    Operator("REAL", read=_part(0), is_complex=True),
    Operator("RFFT2D", read=_rfft_2d),
]
