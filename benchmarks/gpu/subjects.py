"""What is measured, as modules of PyTorch with random weights, and as renorm compiles it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import renorm
from benchmarks.gpu.place import Place

SMALL = 32  # rows and columns of images without a GPU


@dataclass(frozen=True)
class Subject:
    """build: gives the module, ready to run. shapes: of its inputs. flops: multiplications and additions by the
    textbook's algorithm. moved: bytes that it must read and write at least. 0: not counted."""

    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    flops: int = 0
    moved: int = 0


def network(name: str, batch: int, place: Place) -> Subject:
    """Return a network of benchmarks.networks at a batch; without a GPU on small images."""
    from benchmarks.networks import NETWORKS, trained

    found = NETWORKS[name]
    _, channels, *plane = found.shape
    shape = batch, channels, *(plane if place.is_gpu else [min(extent, SMALL) for extent in plane])

    def build() -> nn.Module:
        with torch.device(place.device):  # its statistics are those of batches, which take long on a CPU
            return trained(replace(found, shape=shape)).cpu()

    return Subject(build, (shape,))


class _Batch(nn.Module):
    """Batch norm by the statistics of the batch, as in training."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(channels) + 0.5), nn.Parameter(torch.randn(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True)


def _norm(build: Callable[[int], nn.Module], shape: tuple[int, ...], axis: int, times: int = 2) -> Subject:
    """times: how often the tensor has to be moved at least, where one channel's part of it exceeds what is on chip."""
    elements = 1
    for extent in shape:
        elements *= extent
    return Subject(lambda: _scaled(build(shape[axis])), (shape,), moved=4 * times * elements)


def _scaled(module: nn.Module) -> nn.Module:
    """Return a norm with constants that are no ones and zeros, and statistics of its own."""
    torch.manual_seed(0)
    for p in module.parameters():
        nn.init.uniform_(p, 0.5, 1.5)
    for name, statistic in module.named_buffers():
        if name in ("running_mean", "running_var"):
            nn.init.uniform_(statistic, 0.5, 1.5)
    return module.eval()


def norms(is_gpu: bool) -> dict[str, Subject]:
    """Return normalizations of tensors that no cache holds: 205 MB each way."""
    images, rows = ((64, 64, 112, 112), (65536, 784)) if is_gpu else ((2, 64, 9, 11), (13, 48))
    groups = 32
    return {
        "batch norm, inference": _norm(nn.BatchNorm2d, images, 1),
        "instance norm": _norm(lambda c: nn.InstanceNorm2d(c, affine=True), images, 1),
        "group norm": _norm(lambda c: nn.GroupNorm(groups, c), images, 1),
        "layer norm": _norm(nn.LayerNorm, rows, 1),
        "RMS norm": _norm(lambda c: nn.RMSNorm(c, eps=1e-6), rows, 1),
        "softmax": _norm(lambda _: nn.Softmax(-1), rows, 1),
        "batch norm, training": _norm(_Batch, images, 1, times=3),
    }


class _Product(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


def _linear(rows: tuple[int, ...], inputs: int, outputs: int) -> Subject:
    count = 1
    for extent in rows:
        count *= extent
    return Subject(lambda: nn.Linear(inputs, outputs).eval(), ((*rows, inputs),), 2 * count * inputs * outputs)


def _matmul(m: int, n: int, k: int) -> Subject:
    return Subject(lambda: _Product().eval(), ((m, k), (k, n)), 2 * m * n * k)


def _conv(batch: int, inputs: int, outputs: int, kernel: int, stride: int, size: int) -> Subject:
    def build() -> nn.Module:
        return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False).eval()

    out = (size + stride - 1) // stride
    return Subject(build, ((batch, inputs, size, size),), 2 * batch * inputs * outputs * kernel**2 * out**2)


def products(is_gpu: bool) -> dict[str, Subject]:
    """Return products of matrices, and the different convolutions of resnet50 (224x224) one by one."""
    if not is_gpu:
        return {
            "matmul 65": _matmul(65, 65, 65),
            "linear 2x5x24 to 40": _linear((2, 5), 24, 40),
            "1x conv 3x3/2 7 to 9, 13": _conv(2, 7, 9, 3, 2, 13),
        }
    found = {
        "matmul 4096": _matmul(4096, 4096, 4096),
        "matmul 1024": _matmul(1024, 1024, 1024),
        "linear 8x128x768 to 3072": _linear((8, 128), 768, 3072),
    }
    for (inputs, outputs, kernel, stride, size), count in resnet50_convolutions().items():
        stride_told = f"/{stride}" if stride > 1 else ""
        name = f"{count}x conv {kernel}x{kernel}{stride_told} {inputs} to {outputs}, {size}"
        found[name] = _conv(8, inputs, outputs, kernel, stride, size)
    return found


def resnet50_convolutions() -> dict[tuple[int, int, int, int, int], int]:
    """Return (inputs, outputs, kernel, stride, size) of resnet50's convolutions, and how many are alike."""
    found = {(3, 64, 7, 2, 224): 1}
    channels, size = 64, 56
    for stage, depth in enumerate((3, 4, 6, 3)):
        width, outputs = 64 << stage, 256 << stage
        for block in range(depth):
            stride = 2 if stage and not block else 1
            own = [(channels, width, 1, 1, size), (width, width, 3, stride, size)]
            own += [(width, outputs, 1, 1, size // stride)]
            own += [(channels, outputs, 1, stride, size)] if not block else []
            for conv in own:
                found[conv] = found.get(conv, 0) + 1
            channels, size = outputs, size // stride
    return found


@dataclass(frozen=True)
class Compiled:
    """A subject in both forms. inputs: on the CPU. seconds: that renorm took to compile it. read_from: the form in
    which renorm got it."""

    subject: Subject
    module: nn.Module
    inputs: tuple[Tensor, ...]
    renorm: Any
    seconds: float
    read_from: str


@cache
def compiled(place: Place, kind: str, name: str, batch: int = 0) -> Compiled:
    """Return a subject, compiled; once in a process. kind: "networks", "norms" or "products"."""
    all_of = {"norms": norms, "products": products}
    subject = network(name, batch, place) if kind == "networks" else all_of[kind](place.is_gpu)[name]
    torch.manual_seed(1)
    module = subject.build()
    inputs = tuple(torch.randn(shape) for shape in subject.shapes)
    model, read_from = read(module, inputs)
    begin = time.perf_counter()
    made = renorm.compile(model, **place.options)
    return Compiled(subject, module, inputs, made, time.perf_counter() - begin, read_from)


def read(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Any, str]:
    """Return a module as renorm reads it: a program of torch.export, or, where a version of PyTorch fails at that, the
    bytes of an ONNX file."""
    with torch.no_grad():
        try:
            return torch.export.export(module, inputs), "torch.export"
        except Exception:
            with TemporaryDirectory() as folder:
                file = Path(folder) / "model.onnx"
                torch.onnx.export(
                    module, inputs, file, input_names=[f"x{i}" for i in range(len(inputs))], output_names=["y"],
                    opset_version=17, dynamo=False, do_constant_folding=False,
                    training=torch.onnx.TrainingMode.PRESERVE,
                )  # fmt: skip
                return file.read_bytes(), "onnx"
