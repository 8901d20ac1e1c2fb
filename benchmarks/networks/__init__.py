"""The networks that are measured, written in PyTorch with random weights, and their export."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.networks import branches, detection, images, language, mobile, plain, residual, speech, transformer

NORMS = (nn.BatchNorm2d, nn.InstanceNorm2d, nn.LayerNorm)


@dataclass(frozen=True)
class Network:
    """build: gives it untrained. shape: of its input, where that is one of floats; else examples gives inputs by names.
    outputs: their names. tuned: renorm's schedules were developed on it."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = (1, 3, 224, 224)
    tuned: bool = False
    examples: Callable[[], dict[str, torch.Tensor]] | None = None
    outputs: tuple[str, ...] = ("y",)

    def inputs(self) -> dict[str, torch.Tensor]:
        return self.examples() if self.examples else {"x": torch.randn(self.shape)}


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
    "odd_channels": Network(images.odd_channels, (1, 3, 112, 112)),
    "vgg16": Network(plain.vgg16),
    "squeezenet": Network(plain.squeezenet),
    "googlenet": Network(branches.googlenet),
    "regnet_x": Network(plain.regnet_x),
    "convnext_tiny": Network(plain.convnext_tiny),
    "yolo": Network(detection.yolo, (1, 3, 320, 320), outputs=("fine", "middle", "coarse")),
    "vit_base": Network(transformer.vit_base),
    "whisper_base": Network(speech.whisper_base, (1, 80, 3000)),
    "bert_base_128": Network(language.bert_base, examples=lambda: language.sentence(128)),
    "bert_base_384": Network(language.bert_base, examples=lambda: language.sentence(384)),
    "gpt2_small_token": Network(
        language.gpt2_small,
        examples=language.cached,
        outputs=("scores", *(f"{kind}{i}_after" for i in range(12) for kind in ("keys", "values"))),
    ),
}


def trained(network: Network, seed: int = 0) -> nn.Module:
    """The network with norms as training leaves them: scales about 1, and the statistics of random batches."""
    torch.manual_seed(seed)
    module = network.build()
    for part in module.modules():
        if isinstance(part, NORMS):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0.0, 0.2)
    if any(isinstance(part, nn.BatchNorm2d) for part in module.modules()):
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
        module, inputs = trained(network), network.inputs()
        _as_onnx(module, inputs, network.outputs, model)
        torch.export.save(torch.export.export(module, tuple(inputs.values())), program)
    return model, program


def export_open(name: str, model: Path, axes: Mapping[str, Mapping[int, str]]) -> None:
    """Write the network as an ONNX file with its norms in it. axes: names of the extents of inputs that are open."""
    network = NETWORKS[name]
    _as_onnx(trained(network), network.inputs(), network.outputs, model, axes)


def _as_onnx(
    module: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    path: Path,
    axes: Mapping[str, Mapping[int, str]] | None = None,
) -> None:
    given: Any = None if axes is None else {name: dict(of) for name, of in axes.items()}
    with warnings.catch_warnings():  # the exporter that leaves norms alone is the old one, which says so
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, tuple(inputs.values()), path, input_names=list(inputs), output_names=list(outputs),
            opset_version=17, dynamo=False, do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE, dynamic_axes=given,
        )  # fmt: skip
