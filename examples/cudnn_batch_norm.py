"""cuDNN's batch norm beside ours, on the data of Kaixi Hou's article on moving mean and variance: in training, at
inference, and backward with saved statistics and without.

    pip install "renorm[cuda]" nvidia-cudnn-cu13

Both read and write the same kind of arrays in the memory of the GPU. Where there is no GPU, or no cuDNN, it says so,
and ours are computed where that can be done.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_double, c_float, c_int, c_void_p
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from renorm import training
from renorm.errors import RenormError
from renorm.runtime.gpu.arrays import DeviceArray
from renorm.runtime.gpu.device import device

X0 = np.array(  # two samples of 1 x 2 pixels, three channels in the last place
    [
        [[[0.16513085, 0.9014813, 0.6309742], [0.4345461, 0.29193902, 0.64250207]]],
        [[[0.9757855, 0.43509948, 0.6601019], [0.60489583, 0.6366315, 0.6144488]]],
    ],
    np.float32,
)
SETTINGS = {"scale": 1.0, "bias": 0.0, "running_mean": 1.0, "running_var": 1.0}  # of each channel
FACTOR, EPSILON = 0.5, 1e-3
NCHW, FLOAT, SPATIAL = 0, 0, 1  # of cudnn_ops.h, as all that CuDnn calls
Put = Callable[[Any], Any]
"""Places an array where the batch norms work."""


def operands(put: Put) -> list[Any]:
    """Return x and dy [N, C, H, W]; scale, bias, running mean and variance [C]."""
    x = np.ascontiguousarray(X0.transpose(0, 3, 1, 2))
    return [put(a) for a in (x, np.ones_like(x), *(np.full(3, value, np.float32) for value in SETTINGS.values()))]


def ours(put: Put) -> dict[str, Any]:
    """Return what the four calls give, by name."""
    x, dy, scale, bias, mean, var = operands(put)
    r = training.batch_norm(x, scale, bias, mean, var, convention="cudnn", momentum=FACTOR, epsilon=EPSILON)
    y = training.batch_norm_inference(x, scale, bias, mean, var, epsilon=EPSILON)
    saved = training.batch_norm_backward(dy, x, scale, r.saved_mean, r.saved_invstd)
    computed = training.batch_norm_backward(dy, x, scale, epsilon=EPSILON)
    return named(r.y, r.running_mean, r.running_var, r.saved_mean, r.saved_invstd, y, *saved, *computed)


def named(*results: Any) -> dict[str, Any]:
    """Return the results of training, of inference, and of both ways back, by name."""
    backward = [f"{name}, {how}" for how in ("saved", "computed again") for name in ("dx", "dscale", "dbias")]
    statistics = ["running_mean", "running_var", "saved_mean", "saved_invstd"]
    return dict(zip(["y", *statistics, "y at inference", *backward], results, strict=True))


class CuDnn:
    """The calls of cuDNN's library, on arrays of the GPU."""

    def __init__(self, library: Path):
        self._library = ctypes.CDLL(str(library))
        self._handle = c_void_p()
        self._call("cudnnCreate", byref(self._handle))

    def results(self, put: Put) -> dict[str, Any]:
        """Return what `ours` does."""
        x, dy, scale, bias, mean, var = operands(put)
        images, channels = self._descriptor(x.shape), self._descriptor((1, 3, 1, 1))
        like_x, like_mean = np.empty(x.shape, np.float32), np.empty(3, np.float32)
        y, saved_mean, saved_invstd = put(like_x), put(like_mean), put(like_mean)
        of_image, of_channels = (images, at(x), images), (channels, at(scale))
        blend = by_value(1.0), by_value(0.0)  # results are written, not added
        self._call("cudnnBatchNormalizationForwardInference", self._handle, SPATIAL, *blend, *of_image, at(y),
                   *of_channels, at(bias), at(mean), at(var), c_double(EPSILON))  # fmt: skip
        y_inference, y = y, put(like_x)
        self._call("cudnnBatchNormalizationForwardTraining", self._handle, SPATIAL, *blend, *of_image, at(y),
                   *of_channels, at(bias), c_double(FACTOR), at(mean), at(var), c_double(EPSILON), at(saved_mean),
                   at(saved_invstd))  # fmt: skip
        found = [y, mean, var, saved_mean, saved_invstd, y_inference]
        for saved in ((at(saved_mean), at(saved_invstd)), (None, None)):
            dx, dscale, dbias = put(like_x), put(like_mean), put(like_mean)
            self._call("cudnnBatchNormalizationBackward", self._handle, SPATIAL, *blend, *blend, *of_image, at(dy),
                       images, at(dx), *of_channels, at(dscale), at(dbias), c_double(EPSILON), *saved)  # fmt: skip
            found += [dx, dscale, dbias]
        return named(*found)

    def _descriptor(self, shape: Any) -> c_void_p:
        made = c_void_p()
        self._call("cudnnCreateTensorDescriptor", byref(made))
        self._call("cudnnSetTensor4dDescriptor", made, NCHW, FLOAT, *map(c_int, shape))
        return made

    def _call(self, name: str, *args: Any) -> None:
        if status := self._library[name](*args):
            raise RuntimeError(f"{name} returned {status}")


def at(array: Any) -> c_void_p:
    """Return where an array of the GPU lies."""
    return c_void_p(array.address)


def by_value(number: float) -> Any:
    """Return a number of the host, as cuDNN reads it."""
    return byref(c_float(number))


def library() -> Path | None:
    """Return where pip has put cuDNN; None where it did not."""
    spec = find_spec("nvidia.cudnn") if find_spec("nvidia") else None
    folders = (spec.submodule_search_locations if spec else None) or ()
    there = [Path(folder) / "lib" / "libcudnn.so.9" for folder in folders]
    return next((path for path in there if path.exists()), None)


def shown(values: Any) -> str:
    """Return the numbers of an array, as many as fit a line."""
    numbers = (values if isinstance(values, np.ndarray) else values.numpy()).reshape(-1)
    return " ".join(f"{v:10.6f}" for v in numbers[:6]) + (" .." if numbers.size > 6 else "")


def main() -> None:
    try:
        gpu: Any = device("", 0)
    except RenormError as error:
        print(f"ours, on the CPU: {str(error).splitlines()[0]}")
        report(ours(lambda array: array), {})
        return
    found = ours(lambda array: DeviceArray.of(array, 0, gpu, 0))
    if (path := library()) is None:
        print(f"ours, on {gpu.name}; cuDNN is not here: pip install nvidia-cudnn-cu13")
        report(found, {})
        return
    theirs = CuDnn(path).results(lambda array: DeviceArray.of(array, 0, gpu, 0))
    gpu.synchronize()  # cuDNN works in the order of the default stream
    print(f"ours, and cuDNN's below, on {gpu.name}")
    report(found, theirs)
    for name, values in theirs.items():
        np.testing.assert_allclose(found[name].numpy(), values.numpy(), rtol=2e-6, atol=2e-5, err_msg=name)


def report(found: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Print results by name, ours and cuDNN's."""
    for name, values in found.items():
        print(f"{name:24s} {shown(values)}")
        if name in theirs:
            print(f"{'':24s} {shown(theirs[name])}")


if __name__ == "__main__":
    main()
