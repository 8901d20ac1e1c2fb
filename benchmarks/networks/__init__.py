"""The networks that are measured, written in PyTorch with random weights, and their export."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.networks import branches, images, mobile, residual, transformer

NORMS = (nn.BatchNorm2d, nn.InstanceNorm2d, nn.LayerNorm)


@dataclass(frozen=True)
class Network:
    """build: gives it untrained. shape: of its input. tuned: renorm's schedules were developed on it."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = (1, 3, 224, 224)
    tuned: bool = False


NETWORKS: dict[str, Network] = {
    "resnet50": Network(residual.resnet50, tuned=True),
    "se_resnet101_ibn": Network(residual.se_resnet101_ibn, tuned=True),
    "dcgan": Network(images.dcgan, (8, 100, 1, 1), tuned=True),
    "unet": Network(images.unet, (1, 3, 256, 256), tuned=True),
    "se_resnet101_ibn_batch8": Network(residual.se_resnet101_ibn, (8, 3, 224, 224), tuned=True),
    "resnext50": Network(residual.resnext50),
    "mobilenet_v2": Network(mobile.mobilenet_v2),
    "efficientnet_b0": Network(mobile.efficientnet_b0),
    "shufflenet_v2": Network(mobile.shufflenet_v2),
    "densenet121": Network(branches.densenet121),
    "inception_v3": Network(branches.inception_v3, (1, 3, 299, 299)),
    "style_transfer": Network(images.style_transfer, (1, 3, 256, 256)),
    "vit_tiny": Network(transformer.vit_tiny),
    "vit_base": Network(transformer.vit_base),
    "bert_base_128": Network(transformer.bert_base, (1, 128, 768)),
    "bert_base_384": Network(transformer.bert_base, (1, 384, 768)),
    "whisper_tiny": Network(transformer.whisper_tiny, (1, 1500, 384)),
    "odd_channels": Network(images.odd_channels, (1, 3, 112, 112)),
}


def trained(network: Network, seed: int = 0) -> nn.Module:
    """The network with norms as training leaves them: scales about 1, and the statistics of random batches."""
    torch.manual_seed(seed)
    module = network.build()
    for part in module.modules():
        if isinstance(part, NORMS):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0.0, 0.2)
    module.train()
    with torch.no_grad():
        for _ in range(4):
            module(torch.randn((4, *network.shape[1:])))
    return module.eval()


def export(name: str, folder: Path) -> tuple[Path, Path]:
    """The network as an ONNX file, with its norms in it, and as a program of torch.export; made once."""
    model, program = folder / f"{name}.onnx", folder / f"{name}.pt2"
    if not (model.exists() and program.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        network = NETWORKS[name]
        module, example = trained(network), torch.randn(network.shape)
        _as_onnx(module, example, model)
        torch.export.save(torch.export.export(module, (example,)), program)
    return model, program


def export_open(name: str, model: Path, axes: Mapping[str, Mapping[int, str]]) -> None:
    """Write the network as an ONNX file with its norms in it. axes: names of the extents of inputs that are open."""
    network = NETWORKS[name]
    _as_onnx(trained(network), torch.randn(network.shape), model, axes)


def _as_onnx(
    module: nn.Module, example: torch.Tensor, path: Path, axes: Mapping[str, Mapping[int, str]] | None = None
) -> None:
    given: Any = None if axes is None else {name: dict(of) for name, of in axes.items()}
    with warnings.catch_warnings():  # the exporter that leaves norms alone is the old one, which says so
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (example,), path, input_names=["x"], output_names=["y"], opset_version=17, dynamo=False,
            do_constant_folding=False, training=torch.onnx.TrainingMode.PRESERVE, dynamic_axes=given,
        )  # fmt: skip
