"""Networks of packages that need no download, with random weights, through torch.export to renorm with a dynamic batch,
against eager PyTorch in float64: docs/pytorch-networks.md is written from the results.

    pip install ".[bench]" timm pytorchcv transformers torchvision
"""

# the packages are installed for this alone
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import logging
import sys
import time
import types
import warnings
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import renorm
from benchmarks.machine import commit, now
from benchmarks.outcome import Outcome
from renorm.core.errors import RenormError

SIZES = (1, 3)  # of the batch; the program is exported with 2
NETWORKS: dict[str, tuple[str, ...]] = {
    "torchvision": (
        *("alexnet", "vgg11_bn", "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "densenet121"),
        *("googlenet", "inception_v3", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "mnasnet1_0"),
        *("shufflenet_v2_x1_0", "efficientnet_b0", "efficientnet_v2_s", "regnet_y_400mf", "convnext_tiny"),
        *("vit_b_16", "swin_t", "swin_v2_t", "maxvit_t", "fcn_resnet50", "deeplabv3_mobilenet_v3_large"),
        "lraspp_mobilenet_v3_large",
    ),
    "timm": (
        *("resnet26d", "resnetv2_50", "seresnet50", "ecaresnet26t", "skresnet18", "res2net50_26w_4s", "dla34"),
        *("dpn68", "hrnet_w18_small", "ghostnet_100", "mixnet_s", "tinynet_a", "mobilenetv4_conv_small", "rexnet_100"),
        *("nfnet_l0", "regnetz_b16", "cspdarknet53", "vovnet39a", "hardcorenas_a", "repvgg_a0", "mobileone_s0"),
        *("deit_tiny_patch16_224", "cait_xxs24_224", "xcit_nano_12_p16_224", "beit_base_patch16_224"),
        *("mixer_s32_224", "gmlp_s16_224", "resmlp_12_224", "poolformer_s12", "convmixer_768_32", "pit_ti_224"),
        *("levit_128s", "coat_lite_tiny", "twins_svt_small", "swin_tiny_patch4_window7_224", "edgenext_xx_small"),
        *("efficientformer_l1", "fastvit_t8", "mobilevit_xxs", "tiny_vit_5m_224", "davit_tiny", "focalnet_tiny_srf"),
    ),
    "pytorchcv": (
        *("resnet10", "preresnet18", "seresnet50", "ibn_resnet50", "airnet50_1x64d_r2", "bam_resnet18"),
        *("cbam_resnet18", "senet16", "igcv3_w1", "menet108_8x1_g3", "darknet53", "xception", "ibnb_resnet50"),
        *("proxylessnas_cpu", "fbnet_cb", "hardnet39ds"),
        *(
            "dla34",
            "regnety002",
            "resnesta18",
            "sknet50",
            "resneta10",
            "diaresnet10",
            "unet_cityscapes",
            "bisenet_resnet18_celebamaskhq",
            "icnet_resnetd50b_cityscapes",
        ),
    ),
    "transformers": (
        *("Bert", "Roberta", "DistilBert", "Albert", "Electra", "GPT2", "GPTNeoX", "OPT", "Llama", "Mistral", "Qwen2"),
        *("ViT", "DeiT", "Dinov2", "WhisperEncoder", "T5Encoder", "CLIPVision", "Wav2Vec2", "Segformer", "ConvNext"),
    ),
}


def without_compiled_operators() -> None:
    """torchvision of PyPI is built for a CUDA build of PyTorch and registers shapes for operators that it has not
    loaded beside one for CPUs. Its networks need none of them."""
    name = "torchvision._meta_registrations"
    sys.modules.setdefault(name, types.ModuleType(name))
    torch.library.Library("torchvision", "FRAGMENT").define(
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    )


def built(package: str, name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return a network and arguments for a batch of two."""
    match package:
        case "torchvision":
            from torchvision.models import get_model

            more: dict[str, Any] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
            more |= {"weights_backbone": None} if name.partition("_")[0] in ("fcn", "deeplabv3", "lraspp") else {}
            return get_model(name, weights=None, **more), (torch.randn(2, 3, *[299 if "v3" in name[:12] else 224] * 2),)
        case "timm":
            import timm

            net = timm.create_model(name, pretrained=False)
            return net, (torch.randn(2, *net.default_cfg["input_size"]),)
        case "pytorchcv":
            from pytorchcv.model_provider import get_model

            net = get_model(name, pretrained=False)
            size = getattr(net, "in_size", (224, 224))
            if max(size) > 512:  # of street scenes
                size = (256, 256)
                net = get_model(name, pretrained=False, in_size=size)
            return net, (torch.randn(2, 3, *size),)
        case _:
            return _of_transformers(name)


def _of_transformers(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    import transformers

    own = name.removesuffix("Encoder") if name != "T5Encoder" else "T5"
    config = getattr(transformers, f"{own}Config")()
    config.use_cache = False
    for layers in ("num_hidden_layers", "n_layer", "n_layers", "encoder_layers", "num_layers"):
        if isinstance(getattr(config, layers, None), int) and not hasattr(config, "depths"):
            setattr(config, layers, 2)
    if hasattr(config, "vocab_size") and name != "Wav2Vec2":
        config.vocab_size = 1000
    if name == "WhisperEncoder":
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        return WhisperEncoder(config), (torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions),)
    if name == "T5Encoder":
        return transformers.T5EncoderModel(config), (torch.randint(0, 1000, (2, 24)),)
    net = getattr(transformers, f"{name}Model")(config)
    if name in ("ViT", "DeiT", "Dinov2", "CLIPVision", "Segformer", "ConvNext"):
        size = getattr(config, "image_size", 224)
        return net, (torch.randn(2, 3, size, size),)
    if name == "Wav2Vec2":
        return net, (torch.randn(2, 8000),)
    return net, (torch.randint(0, 1000, (2, 24)),)


def measured(package: str, name: str) -> Outcome:
    """Return what became of a network; never raises."""
    found = Outcome(package, name)
    try:
        torch.manual_seed(0)
        net, given = built(package, name)
        _of_training(net, given)
        clock = time.perf_counter
        t0 = clock()
        with torch.no_grad():
            shapes = tuple({0: torch.export.Dim.DYNAMIC} for _ in given)
            program = torch.export.export(_Tensors(net), given, dynamic_shapes=(shapes,))
        t1 = clock()
        m = renorm.compile(program)
        found.seconds = {"export": round(t1 - t0, 2), "compile": round(clock() - t1, 2)}
        found.compiled(m.report)
        errors = [_errors(net, m, [_again(x, size) for x in given]) for size in SIZES]
        found.error, found.eager = (max(column) for column in zip(*errors))
    except RenormError as error:
        found.said = str(error)
    except Exception as error:  # of the package, or of torch.export
        found.said = f"{type(error).__name__}: {error}"[:500]
    return found


def _of_training(net: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
    """Give batch norms statistics of a batch, as training would, and what begins as zeros other numbers: with those of
    a new network values grow from layer to layer, until eager float32 keeps no four digits of them either."""
    for p in net.parameters():
        if not p.any():
            torch.nn.init.normal_(p, std=0.02)
    norms: list[Any] = [m for m in net.modules() if isinstance(getattr(m, "running_mean", None), torch.Tensor)]
    held = [m.momentum for m in norms]
    for m in norms:
        m.momentum = 1.0
    with torch.no_grad():
        net.train()(*given) if norms else None
    for m, momentum in zip(norms, held):
        m.momentum = momentum
        m.running_var.add_((0.1 * m.running_mean) ** 2)  # two samples may lie close together, which magnifies rounding
    net.eval()


class _Tensors(torch.nn.Module):
    """A network whose results are the tensors among those of another one."""

    def __init__(self, net: torch.nn.Module):
        super().__init__()
        self.net = net

    def forward(self, *given: Any) -> Any:
        return tuple(tensors(self.net(*given)))


def tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, (list, tuple)) else ()
    return [t for part in parts for t in tensors(part)]


def _again(x: torch.Tensor, size: int) -> torch.Tensor:
    shape = (size, *x.shape[1:])
    return torch.randn(shape) if x.is_floating_point() else torch.randint(0, 1000, shape)


def _errors(net: torch.nn.Module, m: Any, given: list[torch.Tensor]) -> tuple[float, float]:
    """Return the largest differences of renorm and of eager PyTorch in float32 from float64."""
    with torch.no_grad():
        eager = tensors(net(*given))
        wanted = tensors(net.double()(*(x.double() if x.is_floating_point() else x for x in given)))
    net.float()
    return _largest(m.run(*given), wanted), _largest([y.numpy() for y in eager], wanted)


def _largest(found: Any, wanted: list[torch.Tensor]) -> float:
    pairs = zip(found if isinstance(found, (list, tuple)) else [found], wanted, strict=True)
    return max(float(np.abs(a - b.numpy()).max() / max(np.abs(b.numpy()).max(), 1e-30)) for a, b in pairs)


def run(names: list[str], into: Path, tell: Callable[[str], None]) -> None:
    """Write what became of networks, "package/name" or all of a package, to a file."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    without_compiled_operators()
    chosen = [
        (p, n) for p, all_of in NETWORKS.items() for n in all_of if not names or p in names or f"{p}/{n}" in names
    ]
    outcomes = list[Outcome]()
    for package, name in chosen:
        outcomes.append(o := measured(package, name))
        tell(f"{package}/{name}: {f'{o.error:.1e}' if o.error == o.error else o.said.splitlines()[0]}")
        said = {"commit": commit(), "when": now(), "packages": _versions(), "networks": [asdict(o) for o in outcomes]}
        into.write_text(json.dumps(said, indent=1))


def _versions() -> dict[str, str]:
    found = dict[str, str]()
    for name in ("torch", *NETWORKS):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
