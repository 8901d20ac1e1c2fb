"""Programs of PyTorch's with complex numbers inside, against eager PyTorch: rotary embeddings, Fourier layers, spectra.

Complex inputs and results have their parts on a last axis, as torch.view_as_real has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch
from torch._higher_order_ops.map import map as _map

import renorm
from renorm.driver.module import OpenModule
from renorm.errors import UnsupportedOp
from renorm.frontends.torch.overloads import PAIRS, TABLE
from renorm.ops.shared.fourier import WHOLE

AUTO = torch.export.Dim.AUTO
map_slices: Any = _map  # its annotations take no functions of slices
WINDOW = torch.hann_window(64)


class Of(torch.nn.Module):
    def __init__(self, function: Callable[..., Any], **buffers: torch.Tensor):
        super().__init__()
        self.function = function
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, *x: Any) -> Any:
        return self.function(self, *x)


def real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj()).contiguous() if x.is_complex() else x


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def agree(module: torch.nn.Module, calls: Sequence[Sequence[torch.Tensor]], dynamic: Any = None) -> Any:
    """Return the module that is compiled for the first arguments, held to eager in float64 for all."""
    made = renorm.compile(module, args=tuple(calls[0]), dynamic_shapes=dynamic)
    for args in calls:
        wide = (x.to(torch.complex128 if x.is_complex() else torch.float64) for x in args)
        wanted = module.to(torch.float64)(*wide)
        for y, expected in zip(made.run(*map(real, args)), wanted if isinstance(wanted, tuple) else (wanted,)):
            expected = real(expected).numpy()
            assert y.shape == expected.shape
            np.testing.assert_allclose(y, expected, rtol=1e-4, atol=3e-6 * np.abs(expected).max(initial=1))
    return made


def _rotated(m: Any, x: torch.Tensor) -> torch.Tensor:
    """As in the first Llama: angles are complex numbers, which a buffer holds."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * m.turns[: x.shape[1]].unsqueeze(1)).flatten(3)


def _turns(count: int, width: int) -> torch.Tensor:
    angles = torch.outer(torch.arange(count), 10000.0 ** -(torch.arange(0, width, 2) / width))
    return torch.polar(torch.ones_like(angles), angles)


def test_rotary_embeddings() -> None:
    module = Of(_rotated, turns=_turns(32, 8))
    dynamic = {"x": ({0: AUTO, 1: torch.export.Dim("n", max=32)},)}
    made = renorm.compile(module, args=(drawn(2, 7, 3, 8),), dynamic_shapes=dynamic)
    assert isinstance(made, OpenModule)
    assert len(made.report.kernels) == 1
    for x in (drawn(2, 7, 3, 8), drawn(3, 31, 2, 8)[:, :, :, :].repeat(1, 1, 2, 1)[:, :, :3], drawn(1, 1, 3, 8)):
        np.testing.assert_allclose(made.run(x)[0], module(x).numpy(), rtol=1e-5, atol=1e-6)


def _global_filter(m: Any, x: torch.Tensor) -> torch.Tensor:
    spectrum = torch.fft.rfft2(x, dim=(1, 2), norm="ortho") * torch.view_as_complex(m.weight)
    return torch.fft.irfft2(spectrum, s=(6, 7), dim=(1, 2), norm="ortho")


def _neural_operator(m: Any, x: torch.Tensor) -> torch.Tensor:
    """A Fourier layer: the lowest frequencies of both signs are mixed, all others left out."""
    spectrum = torch.fft.rfft2(x)
    made = torch.zeros(x.shape[0], 4, x.shape[2], x.shape[3] // 2 + 1, dtype=spectrum.dtype)
    for place, weight in ((slice(None, 3), m.low), (slice(-3, None), m.high)):
        mixed = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, place, :3], torch.view_as_complex(weight))
        made[:, :, place, :3] = mixed
    return torch.fft.irfft2(made, s=(x.shape[2], x.shape[3]))


def _convolved(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.fft.irfft(torch.fft.rfft(x, n=24) * torch.fft.rfft(y, n=24).conj(), n=24)[..., :12]


def _log_mel(m: Any, x: torch.Tensor) -> torch.Tensor:
    power = torch.stft(x, 64, 16, window=m.window, return_complex=True)[..., :-1].abs() ** 2
    return (m.bands @ power).clamp(min=1e-6).log10()


LAYERS: dict[str, tuple[torch.nn.Module, list[torch.Tensor]]] = {
    "a global filter": (Of(_global_filter, weight=drawn(6, 4, 5, 2)), [drawn(2, 6, 7, 5)]),
    "a neural operator": (
        Of(_neural_operator, low=drawn(2, 4, 3, 3, 2), high=drawn(2, 4, 3, 3, 2)), [drawn(3, 2, 9, 8)],
    ),
    "mixing by transforms": (Of(lambda m, x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real), [drawn(2, 7, 10)]),
    "a correlation": (Of(_convolved), [drawn(3, 12), drawn(3, 11)]),
    "a log-mel spectrum": (Of(_log_mel, window=WINDOW, bands=drawn(5, 33).abs()), [drawn(2, 400)]),
    "an envelope": (Of(lambda m, x: torch.fft.ifft(torch.fft.fft(x) * m.kept).abs(), kept=drawn(16)), [drawn(3, 16)]),
    "phases": (Of(lambda m, x: torch.fft.rfft(x).angle().cos()), [drawn(3, 17)]),
    "shifted": (Of(lambda m, x: torch.fft.fftshift(torch.fft.fft2(x)).abs()), [drawn(3, 4, 6)]),
    "half a plane": (Of(lambda m, x: torch.fft.ihfft(x).conj() * 2), [drawn(3, 9)]),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    module, args = LAYERS[name]
    agree(module, [args])


@pytest.mark.parametrize("n", [1, 2, 3, 16, WHOLE - 1, WHOLE, WHOLE + 1, 131, 2 * WHOLE, 1000])
def test_transforms_of_any_length(n: int) -> None:
    """One product, several, or one of a prime length."""
    x, z = drawn(2, n), drawn(2, n, dtype=torch.complex64)
    agree(Of(lambda m, x: torch.fft.rfft(x)), [[x]])
    agree(Of(lambda m, z: (torch.fft.fft(z), torch.fft.ifft(z, norm="forward"))), [[z]])
    agree(Of(lambda m, x: torch.fft.irfft(torch.fft.rfft(x), n=n)), [[x]])


OPEN: dict[str, Callable[..., Any]] = {
    "planes": lambda m, x: torch.fft.irfft2(torch.fft.rfft2(x.expand(3, 2, -1)) * 2, s=(2, x.shape[-1])),
    "a longer one": lambda m, x: torch.fft.irfft(torch.fft.rfft(x, n=2 * x.shape[-1]) ** 2, n=2 * x.shape[-1]),
    "a shorter one": lambda m, x: torch.fft.fft(x, n=9, norm="ortho"),
    "rfft": lambda m, x: torch.fft.rfft(x),
    "fft": lambda m, x: torch.fft.fft(x, norm="ortho"),
    "ifft": lambda m, x: torch.fft.ifft(torch.fft.fft(x) * 2).real,
    "irfft": lambda m, x: torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1], norm="forward"),
    "stft": lambda m, x: torch.stft(x, 16, 5, window=m.window, return_complex=True),
    "frames of a short window": lambda m, x: torch.stft(
        x, 16, 4, 9, m.window[:9], normalized=True, return_complex=True
    ),
}


@pytest.mark.parametrize("name", OPEN)
def test_open_lengths(name: str) -> None:
    module = Of(OPEN[name], window=torch.hann_window(16))
    calls = [[drawn(2, 40)], [drawn(2, 73)], [drawn(2, 32)]]
    made = agree(module, calls, {"x": ({1: AUTO},)})
    assert isinstance(made, OpenModule)


@pytest.mark.filterwarnings("ignore:The length of signal is shorter")
@pytest.mark.parametrize("n", [64, 1024])  # a convolution, and transforms of frames
def test_frames_and_back(n: int) -> None:
    window, hop = torch.hann_window(n), n * 3 // 8
    x = drawn(2, 4 * n + 5)
    framed = Of(lambda m, x: torch.stft(x, n, hop, window=m.window, return_complex=True), window=window)
    agree(framed, [[x], [x[:1]]], {"x": ({0: AUTO},)})
    back = Of(lambda m, z: torch.istft(z, n, hop, window=m.window), window=window)
    z = torch.stft(x, n, hop, window=window, return_complex=True)
    agree(back, [[z]])
    agree(
        Of(lambda m, z: torch.istft(z, n, hop, window=m.window, length=5 * n), window=window + 0.1), [[z]]
    )  # with zeros behind
    ones = torch.ones(n)
    agree(
        Of(lambda m, z: torch.istft(z, n, n // 4, window=m.ones, normalized=True, length=n), ones=ones), [[z[..., :6]]]
    )


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "products": lambda m, z, w: z * w + w * 2.5 - 1j * z,
    "quotients": lambda m, z, w: z / w + 1 / z,
    "powers": lambda m, z, w: (z**3, z**-2, z**0.3, z**0),
    "matrices": lambda m, z, w: z @ w.mT + (z @ w.adjoint()).real,
    "exponentials": lambda m, z, w: ((1j * z.real).exp(), z.sin(), w.tanh(), z.sigmoid(), (z + 3).log()),
    "sizes": lambda m, z, w: (z.abs(), z.angle(), torch.linalg.vector_norm(z, dim=1), z.sgn()),
    "moved": lambda m, z, w: torch.cat([z, w.real.to(z.dtype)], 1).permute(1, 0)[1:].flip(0).reshape(2, -1),
    "cut": lambda m, z, w: (z.chunk(2, 0)[1], z[:, None] * w, torch.stack([z, w]).sum(0), z.mean()),
    "chosen": lambda m, z, w: torch.where(z.real > 0, z, w.imag.to(z.dtype)),
    "filled": lambda m, z, w: (torch.full_like(z, 1 - 2j) * z, torch.nn.functional.pad(z, (1, 0), value=2)),
    "both": lambda m, z, w: (z == w, z.isnan(), z != z, z == z.to(torch.complex128) + 1e-12, z == z.real.double()),
    "powers of each": lambda m, z, w: (z**w, (torch.arange(3) + 1) ** z, z ** torch.zeros(3), (0 * z) ** w.abs()),
    "of parts": lambda m, z, w: torch.complex(z.real, w.imag),
    "negative zeros": lambda m, z, w: ((-z.abs() + 0j).conj().sqrt(), (-w.abs() + 0j).conj().angle()),
    "of other dtypes": lambda m, z, w: (z.to(torch.complex128) / w, z / w.real.double(), z.real / w),
    "broadcast beside real ones": lambda m, z, w: torch.broadcast_tensors(z.real[0], w),
    "slices": lambda m, z, w: map_slices(lambda a: a * 1j, z),
    "a branch": lambda m, z, w: torch.cond(z.real.sum() > 0, lambda z: z * 1j, lambda z: z + 1, (z,)),
    "expanded alike": lambda m, z, w: z.real.sum(1, keepdim=True).expand_as(w) * w,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    z, w = (drawn(4, n, dtype=torch.complex64)[:, :3] for n in (3, 5))
    agree(Of(FUNCTIONS[name]), [[z, w]])


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_lengths_and_axes(name: str, norm: str | None) -> None:
    """A signal is cut, or continued by zeros; several axes, and -1 for as many elements as there are."""
    x, z = drawn(2, 9, 5), drawn(2, 9, 4, dtype=torch.complex64)
    for length in (None, 5, 9, 14):
        agree(Of(lambda m, x, n=length: getattr(torch.fft, name)(x, n, 1, norm)), [[x]])
        if name != "rfft":
            agree(Of(lambda m, z, n=length: getattr(torch.fft, name)(z, n, -1, norm)), [[z]])
    for sizes, axes in ((None, (0, 2)), ((4, 7), (1, 2)), ((3, -1), (-1, 1))):
        for given in (x, *([z] if name != "rfft" else [])):
            agree(Of(lambda m, x, s=sizes, d=axes: getattr(torch.fft, f"{name}n")(x, s, d, norm)), [[given]])
    for given in (x, *([z] if name != "rfft" else [])):
        agree(Of(lambda m, x: getattr(torch.fft, f"{name}2")(x, norm=norm)), [[given]])


def test_calls_that_read_nothing_are_constants() -> None:
    def windowed(m: Any, x: torch.Tensor) -> Any:
        windows = torch.hamming_window(5) + torch.blackman_window(5) + torch.kaiser_window(5) + torch.bartlett_window(5)
        return x * (windows + torch.fft.fftfreq(5) + torch.fft.rfftfreq(8))

    made = renorm.compile(Of(windowed), args=(drawn(3, 5),))
    np.testing.assert_allclose(made.run(drawn(3, 5))[0], windowed(None, drawn(3, 5)).numpy(), rtol=1e-5, atol=1e-6)
    assert len(made.report.kernels) == 1


def test_calls_of_other_libraries_are_not_run() -> None:
    """Refuse them: they may give something else each time, which a constant would not."""
    with torch.library._scoped_library("renorm_tests", "FRAGMENT") as library:
        library.define("drawn() -> Tensor")
        library.impl("drawn", lambda: torch.rand(3), "CompositeExplicitAutograd")
        torch.library.register_fake("renorm_tests::drawn", lambda: torch.empty(3), lib=library)
        with pytest.raises(UnsupportedOp, match="drawn"):
            renorm.compile(Of(lambda m, x: x + torch.ops.renorm_tests.drawn()), args=(drawn(2, 3),))


def test_sizes_of_parts_whose_squares_no_float_holds() -> None:
    parts = torch.tensor([[3e30, 4e30], [3e-30, 4e-30], [0, 0], [np.inf, 1], [1, np.nan]])
    (y,) = renorm.compile(Of(lambda m, x: torch.view_as_complex(x).abs()), args=(parts,)).run(parts)
    np.testing.assert_allclose(y, [5e30, 5e-30, 0, np.inf, np.nan], rtol=1e-6)


def test_data_may_choose_complex_numbers() -> None:
    calls = [[drawn(20, dtype=torch.complex64)], [drawn(20, dtype=torch.complex64) * 0]]
    agree(Of(lambda m, z: z[z.abs() > 1] * 2j), calls)


def test_what_is_not_read_is_named() -> None:
    with pytest.raises(UnsupportedOp, match=r"renorm does not read acos\.default of complex numbers"):
        renorm.compile(Of(lambda m, z: z.acos()), args=(drawn(3, dtype=torch.complex64),))


def test_pairs_are_of_overloads_that_are_read() -> None:
    own = {
        *("_fft_r2c", "_fft_c2c", "_fft_c2r", "fft_irfft", "view_as_complex", "view_as_real", "view_as_real_copy"),
        *("complex", "polar", "imag", "conj_physical", "_conj_physical", "istft", "sgn"),
        *(f"fft_{name}{axes}" for name in ("fft", "ifft", "rfft", "irfft") for axes in ("", "2", "n")),
    }  # fmt: skip
    assert PAIRS.keys() - TABLE.keys() <= {f"{name}.default" for name in own}
