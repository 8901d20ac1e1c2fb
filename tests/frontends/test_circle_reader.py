"""Circle files as tico writes them give what PyTorch computes, and what tico's own runtime computes of the file."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.test_tflite_writer import operators
from tests.frontends.tflite_files import File

import renorm
from renorm.frontends import tflite
from renorm.graph import interpret

torch = pytest.importorskip("torch")
nn = torch.nn


def exported(module: Any, path: Path, *shapes: tuple[int, ...]) -> tuple[bytes, list[Any], Any]:
    """The file, inputs, and what the module computes of them."""
    tico = pytest.importorskip("tico")
    torch.manual_seed(5)
    for m in module.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            m.running_mean.uniform_(-1, 1)
            m.running_var.uniform_(0.5, 2)
        if getattr(m, "affine", False):
            nn.init.uniform_(m.weight, -2, 2)
            nn.init.uniform_(m.bias, -1, 1)
    module.eval()
    xs = [torch.randn(*s) for s in shapes]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        tico.convert(module, tuple(xs)).save(str(path))
        y = module(*xs)
    return path.read_bytes(), [x.numpy() for x in xs], y.numpy()


class Rms(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-5)
        nn.init.uniform_(self.norm.weight, 0.5, 2)

    def forward(self, x: Any) -> Any:
        return self.norm(x)


def tconv(**options: Any) -> Callable[[], Any]:
    groups = options.get("groups", 1)
    return lambda: nn.Sequential(nn.ConvTranspose2d(2 * groups, 3 * groups, 3, **options), nn.BatchNorm2d(3 * groups))


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "conv_norm_relu": (
        lambda: nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU()),
        (2, 3, 7, 6),
    ),
    "conv_strided": (lambda: nn.Sequential(nn.Conv2d(3, 4, (3, 2), (2, 3)), nn.BatchNorm2d(4)), (1, 3, 9, 8)),
    "conv_dilated": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=2, dilation=2), nn.BatchNorm2d(4)), (1, 3, 9, 8)),
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4)), (1, 4, 6, 5)),
    "tconv": (tconv(), (1, 2, 4, 5)),
    "tconv_stride": (tconv(stride=2, padding=1, output_padding=1), (1, 2, 4, 5)),
    "tconv_stride_3": (tconv(stride=3, padding=1), (2, 2, 4, 5)),
    "linear": (lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)), (5, 6)),
    "instance_norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True)), (1, 3, 8, 7)),
    "layer_norm": (lambda: nn.LayerNorm(6), (2, 3, 6)),
    "rms_norm": (lambda: Rms(6), (2, 3, 6)),
    "pools": (lambda: nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(3, 1, 1), nn.AdaptiveAvgPool2d(1)), (1, 3, 8, 6)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_give_what_torch_computes(name: str, tmp_path: Path):
    make, shape = NETWORKS[name]
    content, xs, expected = exported(make(), tmp_path / "net.circle", shape)
    assert content[4:8] == b"CIR0"
    for level in (0, 3):
        (found,) = renorm.compile(tmp_path / "net.circle", opt_level=level).run(*xs)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


def test_norms_of_circle_are_norms(tmp_path: Path):
    for name, op in (("instance_norm", "instance_norm"), ("rms_norm", "rms_norm")):
        make, shape = NETWORKS[name]
        exported(make(), tmp_path / f"{name}.circle", shape)
        graph = renorm.read(tmp_path / f"{name}.circle")
        assert op in [n.op.name for n in graph.nodes], str(graph)


class RmsInPieces(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, width))

    def forward(self, x: Any) -> Any:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize(
    ("make", "shape", "op", "written"),
    [
        (lambda: nn.LayerNorm(6), (2, 3, 6), "layer_norm", "MEAN SUB MUL MEAN ADD RSQRT MUL"),
        (lambda: nn.LayerNorm(6), (2, 3, 5, 6), "layer_norm", "MEAN SUB MUL MEAN ADD RSQRT MUL"),
        (lambda: nn.GroupNorm(2, 4), (2, 4, 5, 3), "group_norm", "RESHAPE MEAN SUB MUL MEAN ADD RSQRT MUL"),
        (lambda: RmsInPieces(6), (2, 3, 6), "rms_norm", "RMS_NORM"),
    ],
)  # fmt: skip
def test_norms_in_pieces_are_raised(make: Any, shape: tuple[int, ...], op: str, written: str, tmp_path: Path):
    """One op each; in the file where Circle has it, and elsewhere still in pieces."""
    _, xs, expected = exported(make(), tmp_path / "net.circle", shape)
    module = renorm.compile(tmp_path / "net.circle")
    assert [n.op.name for n in module.graph.nodes] == [op]
    assert [r.kind for r in module.report.norms] == [op]
    np.testing.assert_allclose(module.run(*xs)[0], expected, rtol=1e-4, atol=2e-5)
    renorm.optimize(tmp_path / "net.circle", tmp_path / "out.circle")
    content = (tmp_path / "out.circle").read_bytes()
    kinds = [kind for kind, _ in operators(content)]
    assert kinds[: len(written.split())] == written.split()
    assert "RMS_NORM" not in kinds or kinds == ["RMS_NORM"]
    runtime = pytest.importorskip("tico.circle.runtime", reason="tico is not installed")
    (found,) = runtime.CircleReferenceRuntime(content).run(xs).outputs
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=2e-5)


def test_rotary_embeddings_are_read_and_written():
    """ROPE of Circle is a rotation of halves; it is written as the operators that it consists of."""
    rng = np.random.default_rng(6)
    x, sin, cos = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 5, 8), (1, 1, 5, 8), (1, 1, 5, 8)))
    file = File(b"CIR0")
    for name, array in (("x", x), ("sin", sin), ("cos", cos), ("y", x)):
        file.tensor(name, array.shape)
    file.operator("ROPE", ["x", "sin", "cos"], ["y"], "RoPEOptions", mode=0)
    graph = renorm.read(file.written(["x", "sin", "cos"], ["y"]))
    expected = x * cos + np.concatenate([-x[..., 4:], x[..., :4]], axis=-1) * sin
    for again in (graph, renorm.read(tflite.write(graph))):
        (found,) = interpret.run(again, [x, sin, cos])
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
