"""Arrays of a GPU, in whose place the CPU stands: what the same calls give on the host, each result where x lies."""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler
from tests.training.oracle import Forward, near

import renorm.training
from renorm.core.errors import InvalidInput, StatisticsWarning
from renorm.runtime.dlpack import CUDA, _Tensor
from renorm.runtime.gpu.arrays import DeviceArray
from renorm.training import kernels
from renorm.training.kernels import Gpu

pytestmark = needs_compiler
training: Any = renorm.training  # whose results are arrays of the GPU here
f32 = np.float32
INDEX = 5


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    host_device.register()
    monkeypatch.setattr(kernels, "gpu", lambda index: Gpu(host_device.ARCH, index))
    yield
    host_device.host(INDEX).wait(0)


class Tensor:
    """An array as PyTorch has it, on a GPU."""

    is_cuda = True

    def __init__(self, array: Any, is_contiguous: bool = True):
        self._lies, self._is_contiguous = there(array), is_contiguous
        self.shape, self.dtype = array.shape, f"torch.{array.dtype.name}"

    def data_ptr(self) -> int:
        return self._lies.address

    def is_contiguous(self) -> bool:
        return self._is_contiguous

    def get_device(self) -> int:
        return INDEX

    def numpy(self) -> Any:
        return self._lies.numpy()


class Exported:
    """An array on a GPU of which only DLPack is known."""

    def __init__(self, array: Any):
        self._lies, self._array = there(array), array

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA[0], INDEX

    def __dlpack__(self, *, stream: int) -> Any:
        shape = (ctypes.c_int64 * self._array.ndim)(*self._array.shape)
        code = {"f": 2, "i": 0}[self._array.dtype.kind]
        bits = 8 * self._array.dtype.itemsize
        self._kept = shape, _Tensor(self._lies.address, CUDA[0], INDEX, self._array.ndim, code, bits, 1, shape)
        return _capsule(ctypes.addressof(self._kept[1]), b"dltensor", None)


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def there(array: Any) -> DeviceArray:
    return DeviceArray.of(np.ascontiguousarray(array), INDEX, host_device.host(INDEX), 0)


def operands(shape: tuple[int, ...], seed: int) -> tuple[Any, ...]:
    """x, dy, a residual; and scale, bias, running mean and variance of axis 1."""
    rng = np.random.default_rng(seed)
    x, dy, residual = rng.normal(size=(3, *shape)).astype(f32)
    scale, bias, mean, var = rng.uniform(0.5, 2, (4, shape[1])).astype(f32)
    return x * 3 + 2, dy, residual, scale, bias, mean, var


def same(found: Any, expected: Any, tolerance: float = 2e-6) -> None:
    """Found lies on the GPU, and is what NumPy's arrays gave."""
    if expected is None or isinstance(expected, int):
        assert found == expected
        return
    assert isinstance(found, DeviceArray)
    assert (found.index, found.shape, found.dtype) == (INDEX, expected.shape, expected.dtype)
    near(found.numpy(), expected, tolerance)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("shape", [(5, 3, 7, 2), (4, 6), (1, 2, 0)])
def test_both_passes(shape: tuple[int, ...], fused: bool) -> None:
    x, dy, residual, *channels = operands(shape, 1)
    settings: Any = {"convention": "cudnn", "momentum": 0.1, "epsilon": 1e-5, "fused": fused, "relu": True}
    expected = training.batch_norm(x, *channels, residual=residual, **settings)
    found = training.batch_norm(there(x), *map(there, channels), residual=there(residual), **settings)
    for got, right in zip(found, expected, strict=True):
        same(got, right)
    for saved in ({"saved_mean": found.saved_mean, "saved_invstd": found.saved_invstd}, {"epsilon": 1e-5}):
        theirs = {k: v.numpy() if isinstance(v, DeviceArray) else v for k, v in saved.items()}
        scale, y = channels[0], expected.y
        gradients = training.batch_norm_backward(there(dy), there(x), there(scale), **saved, y=there(y), residual=True)
        for got, right in zip(
            gradients, training.batch_norm_backward(dy, x, scale, **theirs, y=y, residual=True), strict=True
        ):
            same(got, right)


def test_against_float64() -> None:
    x, dy, _, scale, bias, *_ = operands((6, 4, 5), 2)
    wanted = Forward(x, scale, bias, 1e-5)
    r = training.batch_norm(there(x), there(scale), there(bias), epsilon=1e-5)
    near(r.y.numpy(), wanted.y, 2e-6)
    found = training.batch_norm_backward(there(dy), there(x), there(scale), r.saved_mean, r.saved_invstd)
    for got, right in zip(found, wanted.gradient(dy), strict=True):
        near(got.numpy(), right, 3e-6)


def test_parts_channels_last_and_masks() -> None:
    x, _, _, scale, bias, mean, var = operands((4, 5, 6), 3)
    x, mask = np.ascontiguousarray(x.transpose(0, 2, 1)), np.random.default_rng(4).random((4, 6)) < 0.7
    for given in (mask, there(mask)):
        expected, found = training.moments(x, axis=-1, mask=mask), training.moments(there(x), axis=-1, mask=given)
        for got, right in zip(found, expected, strict=True):
            same(got, right, 1e-12)
        whole = training.batch_norm(there(x), there(scale), axis=-1, mask=given)
        same(whole.y, training.batch_norm(x, scale, axis=-1, mask=mask).y)
        updated = training.update(there(mean), there(var), found.mean, found.var, found.count)
        for got, right in zip(updated, training.update(mean, var, *expected), strict=True):
            same(got, right)
    normalized = training.normalize(there(x), found.mean, found.var, scale, there(bias), epsilon=1e-3, axis=-1)
    same(normalized, training.normalize(x, expected.mean, expected.var, scale, bias, epsilon=1e-3, axis=-1))


def test_frozen_and_channels_of_several_axes() -> None:
    x, dy, _, *channels = operands((3, 8, 2), 5)
    scale, bias, mean, var = channels
    expected = training.batch_norm_inference(x, *channels, epsilon=0.1)
    same(training.batch_norm_inference(there(x), *map(there, channels), epsilon=0.1), expected)
    found = training.batch_norm_backward_frozen(there(dy), there(x), there(scale), there(mean), there(var), epsilon=0.1)
    for got, right in zip(
        found, training.batch_norm_backward_frozen(dy, x, scale, mean, var, epsilon=0.1), strict=True
    ):
        same(got, right)
    cube = x.reshape(3, 4, 2, 2)
    r = training.batch_norm(there(cube), there(scale.reshape(4, 2)), there(bias), axis=(1, 2))
    for got, right in zip(r, training.batch_norm(cube, scale.reshape(4, 2), bias, axis=(1, 2)), strict=True):
        same(got, right)


def test_narrow_parameters_are_widened_and_their_gradients_are_narrow() -> None:
    x, dy, _, scale, bias, mean, var = operands((4, 3, 5), 6)
    narrow = [a.astype(np.float16) for a in (scale, bias, mean, var)]
    expected = training.batch_norm(x, *narrow)
    found = training.batch_norm(there(x), *map(there, narrow))
    for got, right in zip(found, expected, strict=True):
        same(got, right)
    found = training.batch_norm_backward(there(dy), there(x), there(narrow[0]), epsilon=1e-5)
    for got, right in zip(found, training.batch_norm_backward(dy, x, narrow[0], epsilon=1e-5), strict=True):
        same(got, right, 1e-3)


def test_tensors_in_the_order_of_a_stream_into_the_callers_memory() -> None:
    x, dy, _, *channels = operands((4, 3, 5), 7)
    y, dx, given = Tensor(np.zeros_like(x)), Tensor(np.zeros_like(x)), [Tensor(a) for a in (x, dy, *channels)]
    with training.on_stream(0):
        r = training.batch_norm(given[0], *given[2:], out=y)
        found = training.batch_norm_backward(given[1], given[0], given[2], r.saved_mean, r.saved_invstd, out=dx)
    assert r.y is y
    assert found[0] is dx
    expected = training.batch_norm(x, *channels)
    gradients = training.batch_norm_backward(dy, x, channels[0], expected.saved_mean, expected.saved_invstd)
    for got, right in zip((*r, *found), (*expected, *gradients), strict=True):
        near(got if isinstance(got, int) else got.numpy(), right, 2e-6)


def test_ranks_exchange_numbers_of_the_host() -> None:
    scale, bias = np.random.default_rng(0).normal(size=(2, 3)).astype(f32)
    parts = [operands((n, 3, 5), n)[:2] for n in (2, 3)]
    x, dy = (np.concatenate(whole) for whole in zip(*parts, strict=True))

    def rank(comm: Any) -> Any:
        here, gradient = map(there, parts[comm.rank])
        r = training.batch_norm(here, there(scale), there(bias), comm=comm)
        given = gradient, here, there(scale), r.saved_mean, r.saved_invstd
        dx, *sums = training.batch_norm_backward(*given, comm=comm)
        _, *own = training.batch_norm_backward(*given, comm=comm, local=True)
        return [a.numpy() for a in (r.y, dx, *sums, *own)]

    y, dx, dscale, dbias, own_scale, own_bias = zip(*training.Threads(2).run(rank), strict=True)
    wanted = Forward(x, scale, bias, 1e-5)
    right = wanted.gradient(dy)
    near(np.concatenate(y), wanted.y, 2e-6)
    near(np.concatenate(dx), right[0], 3e-6)
    for whole, parts_of, expected in ((dscale, own_scale, right[1]), (dbias, own_bias, right[2])):
        near(whole[0], expected, 3e-6)
        near(whole[1], expected, 3e-6)
        near(parts_of[0] + parts_of[1], expected, 3e-6)


def test_other_libraries_give_their_memory_by_dlpack() -> None:
    x, _, _, scale, *_ = operands((4, 3, 5), 10)
    expected = training.batch_norm(x, scale)
    same(training.batch_norm(Exported(x), Exported(scale)).y, expected.y)
    with pytest.raises(InvalidInput, match="x is int32"):
        training.batch_norm(Exported(x.astype(np.int32)))


def test_running_variances_beyond_float32_are_told_where_the_call_waits() -> None:
    x = (np.random.default_rng(8).normal(size=(6, 2, 10)) * 1e30).astype(f32)
    running = there(np.zeros(2, f32)), there(np.ones(2, f32))
    with pytest.warns(StatisticsWarning, match=r"^bn3: running_var of channel 0, 1 is beyond float32"):
        training.batch_norm(there(x), None, None, *running, name="bn3")
    with training.on_stream(0):
        assert np.isinf(training.batch_norm(there(x), None, None, *running).running_var.numpy()).all()


def test_what_does_not_go_together_is_refused() -> None:
    x, dy, _, scale, *_ = operands((4, 3, 5), 9)
    with pytest.raises(InvalidInput, match="scale lies on cuda\\(5\\)"):
        training.batch_norm(x, there(scale))
    with pytest.raises(InvalidInput, match="dy lies on the host"):
        training.batch_norm_backward(dy, there(x), epsilon=1e-5)
    with pytest.raises(InvalidInput, match="x is not C-contiguous"):
        training.batch_norm(Tensor(x, is_contiguous=False))
    with pytest.raises(InvalidInput, match="scale is float64"):
        training.batch_norm(there(x), there(scale.astype(np.float64)))
    with pytest.raises(InvalidInput, match="dy is float32\\[4, 3, 4\\]"):
        training.batch_norm_backward(there(dy[..., :4]), there(x), epsilon=1e-5)
    with pytest.raises(InvalidInput, match=r"shape \[4, 3, 5\] cannot become \[4, 14\]"):
        there(x).reshape(4, 14)
