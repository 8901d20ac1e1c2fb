"""The four networks that renorm was developed on, on small images: CUDA C of all kernels on the CPU, against PyTorch in
float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler

torch = pytest.importorskip("torch")

from benchmarks.networks import NETWORKS, trained

import renorm
from renorm.core.tolerance import tolerance

SMALL = 32  # rows and columns of an image at most


@needs_compiler
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "fast") for name in ("resnet50", "se_resnet101_ibn", "dcgan", "unet")),
        ("dcgan", "tf32"),
        pytest.param("resnet50", "tf32", marks=pytest.mark.exhaustive),
    ],
)
def test_a_network(name: str, precision: str) -> None:
    host_device.register()
    _, channels, *plane = NETWORKS[name].shape
    shape = (2, channels, *(min(extent, SMALL) for extent in plane))
    module = trained(replace(NETWORKS[name], shape=shape))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    m = renorm.compile(module, args=(x,), target="cuda -arch=host", precision=precision)
    (got,) = m.run(x.numpy())
    with torch.no_grad():
        want = module.double()(x.double()).numpy()
    allowed = 1e-4 if precision == "fast" else tolerance(precision)
    assert abs(got - want).max() <= allowed * abs(want).max()
    rounded = [p for p in m.report.precisions if p.dtype == precision]
    assert bool(rounded) == (precision == "tf32")
