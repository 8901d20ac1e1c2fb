"""Networks of public definitions that are quantized and compared: small ones defined here, those of the tests, and
those of benchmarks.networks.

Each has open extents, and two sets of them: one that it is exported and calibrated with, another that fills no vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from tests.driver import architectures
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import quantized_public as public
from benchmarks.networks import images, mobile, plain, residual
from benchmarks.networks.any_size import IMAGE, Input
from benchmarks.networks.any_size import NETWORKS as OPEN
from benchmarks.quantized_parts import Scaled, Sum, pooled, unit


@dataclass(frozen=True)
class Subject:
    """build: gives the network. sizes, others: the open extents of inputs, by their names. outputs: names."""

    build: Callable[[], nn.Module]
    inputs: Mapping[str, Input] = field(default_factory=lambda: {"x": IMAGE})
    sizes: Mapping[str, int] = field(default_factory=lambda: {"N": 1, "H": 64, "W": 64})
    others: Mapping[str, int] = field(default_factory=lambda: {"N": 3, "H": 45, "W": 77})
    outputs: tuple[str, ...] = ("y",)

    def drawn(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Return random inputs of these sizes."""
        shapes = {n: [sizes[d] if isinstance(d, str) else d for d in v.shape] for n, v in self.inputs.items()}
        return {n: v.draw(shapes[n]) for n, v in self.inputs.items()}


def ds_cnn() -> nn.Module:
    """Hello Edge's keyword spotter, as MLPerf Tiny has it: 49 x 10 coefficients, 12 words."""
    first = [nn.ZeroPad2d((1, 1, 4, 5)), nn.Conv2d(1, 64, (10, 4), 2, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    blocks = [nn.Sequential(unit(64, 64, groups=64), unit(64, 64, 1)) for _ in range(4)]
    return nn.Sequential(*first, *blocks, pooled(64, 12))


def tc_resnet8() -> nn.Module:
    """A keyword spotter of convolutions along time: coefficients are channels."""

    def conv(i: int, o: int, kernel: int, stride: int) -> list[nn.Module]:
        return [nn.Conv1d(i, o, kernel, stride, kernel // 2, bias=False), nn.BatchNorm1d(o)]

    layers, channels = list[nn.Module]([nn.Conv1d(40, 16, 3, padding=1, bias=False)]), 16
    for outputs in (24, 32, 48):
        body = nn.Sequential(*conv(channels, outputs, 9, 2), nn.ReLU(), *conv(outputs, outputs, 9, 1))
        beside = nn.Sequential(*conv(channels, outputs, 1, 2), nn.ReLU())
        layers.append(Sum(body, beside, act=nn.ReLU()))
        channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(48, 12))


def mobilenet_v1(inputs: int, classes: int) -> nn.Module:
    """A quarter of the channels. Of one channel and two classes, it is MLPerf Tiny's person detection."""
    layers, channels = [unit(inputs, 8, stride=2)], 8
    for outputs, stride in ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1)):
        layers += [unit(channels, channels, 3, stride, channels), unit(channels, outputs, 1)]
        channels = outputs
    return nn.Sequential(*layers, pooled(channels, classes))


def mobilenet_v3() -> nn.Module:
    """The small one: hard swish, squeeze and excite."""

    def block(i: int, kernel: int, wide: int, o: int, excites: bool, act: type[nn.Module], stride: int) -> nn.Module:
        gate = [Scaled(wide, nn.Hardsigmoid())] if excites else []
        depthwise = unit(wide, wide, kernel, stride, wide, act)
        body = nn.Sequential(unit(i, wide, 1, act=act), depthwise, *gate, unit(wide, o, 1, act=None))
        return Sum(body, nn.Identity()) if stride == 1 and i == o else body

    swish, relu = nn.Hardswish, nn.ReLU
    rows = [
        (16, 3, 16, 16, True, relu, 2), (16, 3, 72, 24, False, relu, 2), (24, 3, 88, 24, False, relu, 1),
        (24, 5, 96, 40, True, swish, 2), (40, 5, 240, 40, True, swish, 1), (40, 5, 240, 40, True, swish, 1),
        (40, 5, 120, 48, True, swish, 1), (48, 5, 144, 48, True, swish, 1), (48, 5, 288, 96, True, swish, 2),
        (96, 5, 576, 96, True, swish, 1), (96, 5, 576, 96, True, swish, 1),
    ]  # fmt: skip
    head = [unit(96, 576, 1, act=swish), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(576, 256), nn.Hardswish()]
    return nn.Sequential(unit(3, 16, 3, 2, act=swish), *(block(*row) for row in rows), *head, nn.Linear(256, 100))


def basic(i: int, o: int, stride: int, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> nn.Module:
    """ResNet's block of two convolutions."""
    body = nn.Sequential(
        nn.Conv2d(i, o, 3, stride, 1, bias=False), norm(o), nn.ReLU(), nn.Conv2d(o, o, 3, 1, 1, bias=False), norm(o)
    )
    shortcut = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), norm(o)) if stride > 1 or i != o else nn.Identity()
    return Sum(body, shortcut, act=nn.ReLU())


def resnet18() -> nn.Module:
    layers, channels = [unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for outputs in (64, 128, 256, 512):
        layers += [basic(channels, outputs, 1 if outputs == 64 else 2), basic(outputs, outputs, 1)]
        channels = outputs
    return nn.Sequential(*layers, pooled(512, 100))


def resnet8_group_norm() -> nn.Module:
    """ResNet-8 of CIFAR-10, its norms group norms."""

    def norm(channels: int) -> nn.Module:
        return nn.GroupNorm(4, channels)

    first = [nn.Conv2d(3, 16, 3, padding=1, bias=False), norm(16), nn.ReLU()]
    return nn.Sequential(*first, basic(16, 16, 1, norm), basic(16, 32, 2, norm), basic(32, 64, 2, norm), pooled(64, 10))


class Ssd(nn.Module):
    """SSDLite: two images of a backbone, and of each boxes and scores, which are joined."""

    def __init__(self, anchors: int = 3, classes: int = 7):
        super().__init__()
        self.first = nn.Sequential(unit(3, 16, 3, 2), unit(16, 16, 3, 2, 16), unit(16, 32, 1))
        self.second = nn.Sequential(unit(32, 32, 3, 2, 32), unit(32, 48, 1))

        def head(channels: int, each: int) -> nn.Module:
            return nn.Sequential(unit(channels, channels, groups=channels), nn.Conv2d(channels, anchors * each, 1))

        self.boxes = nn.ModuleList(head(channels, 4) for channels in (32, 48))
        self.scores = nn.ModuleList(head(channels, classes) for channels in (32, 48))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = self.first(x)
        found = first, self.second(first)

        def joined(heads: nn.ModuleList, each: int) -> Tensor:
            parts = [head(part).permute(0, 2, 3, 1) for head, part in zip(heads, found)]
            return torch.cat([part.reshape(part.shape[0], -1, each) for part in parts], 1)

        return joined(self.boxes, 4), joined(self.scores, 7).softmax(-1)


class Espcn(nn.Module):
    """Super-resolution: three convolutions, then channels become pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 64, 5, padding=2), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1), nn.Tanh(),
            nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Dilated(nn.Module):
    """DeepLab's head: branches of several dilations and the mean of the image, joined; scores, resized."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(unit(3, 16, 3, 2), unit(16, 32, 3, 2))
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Conv2d(32, 16, 3, padding=d, dilation=d, bias=False), nn.BatchNorm2d(16), nn.ReLU())
            for d in (1, 3, 6)
        )
        self.mean, self.out = unit(32, 16, 1), nn.Sequential(unit(64, 32, 1), nn.Conv2d(32, 5, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        mean = self.mean(y.mean((2, 3), keepdim=True)).expand(-1, -1, y.shape[2], y.shape[3])
        y = self.out(torch.cat([*(branch(y) for branch in self.branches), mean], 1))
        return F.interpolate(y, size=x.shape[2:], mode="bilinear", align_corners=False)


class Recurrent(nn.Module):
    """A convolution along time, a recurrent layer in both directions, and scores of each step."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]):
        super().__init__()
        self.first, self.layer = nn.Conv1d(13, 24, 5, padding=2), kind(24, 20, batch_first=True, bidirectional=True)
        self.out = nn.Linear(40, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.first(x).relu().transpose(1, 2))[0])


def autoencoder() -> nn.Module:
    """MLPerf Tiny's anomaly detection: products and batch norms only."""
    layers, wide = list[nn.Module](), 640
    for width in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        layers += [nn.Linear(wide, width), nn.BatchNorm1d(width), nn.ReLU()]
        wide = width
    return nn.Sequential(*layers, nn.Linear(wide, 640))


def _of_tests(name: str) -> Subject:
    """A network of tests/driver/architectures.py, of several batches."""
    shape = architectures.NETWORKS[name]()[1]

    def build() -> nn.Module:
        return architectures.NETWORKS[name]()[0]

    return Subject(build, {"x": Input(("N", *shape[1:]))}, {"N": shape[0]}, {"N": 3})


def _open(name: str, **others: int) -> Subject:
    """A network of benchmarks.networks.any_size, the small one."""
    of = OPEN[name]
    outputs = ("y", "pooled") if name == "sentence_encoder" else ("y",)
    return Subject(lambda: of.build(True), of.inputs, of.sizes, others, outputs)


SPOKEN = {"x": Input(("N", 40, "T"))}
SOUND = {"x": Input(("N", 13, "T"))}
GREY = {"x": Input(("N", 1, "H", "W"))}
LARGE = {"N": 1, "H": 96, "W": 96}

NETWORKS: dict[str, Subject] = {
    "ds_cnn": Subject(ds_cnn, {"x": Input(("N", 1, 49, 10))}, {"N": 1}, {"N": 3}),
    "tc_resnet8": Subject(tc_resnet8, SPOKEN, {"N": 1, "T": 101}, {"N": 3, "T": 77}),
    "person_detection": Subject(lambda: mobilenet_v1(1, 2), GREY, LARGE),
    "mobilenet_v1": Subject(lambda: mobilenet_v1(3, 100)),
    "mobilenet_v2": Subject(mobile.mobilenet_v2),
    "mobilenet_v3": Subject(mobilenet_v3),
    "efficientnet_b0": Subject(mobile.efficientnet_b0),
    "shufflenet_v2": Subject(mobile.shufflenet_v2),
    "squeezenet": Subject(plain.squeezenet),
    "resnet18": Subject(resnet18),
    "resnet50": Subject(residual.resnet50),
    "se_resnet_ibn": Subject(lambda: residual.ResNet((1, 1, 1, 1), ibn=True, se=True)),
    "resnet8_group_norm": Subject(
        resnet8_group_norm, sizes={"N": 1, "H": 32, "W": 32}, others={"N": 3, "H": 33, "W": 21}
    ),
    "ssd_head": Subject(Ssd, outputs=("boxes", "scores")),
    "unet": Subject(lambda: images.UNet(8, 3), others={"N": 3, "H": 36, "W": 52}),
    "espcn": Subject(Espcn, GREY, {"N": 1, "H": 32, "W": 32}, {"N": 3, "H": 17, "W": 29}),
    "deeplab_head": Subject(Dilated),
    "lstm": Subject(lambda: Recurrent(nn.LSTM), SOUND, {"N": 1, "T": 40}, {"N": 3, "T": 17}),
    "gru": Subject(lambda: Recurrent(nn.GRU), SOUND, {"N": 1, "T": 40}, {"N": 3, "T": 17}),
    "autoencoder": Subject(autoencoder, {"x": Input(("N", 640))}, {"N": 1}, {"N": 7}),
    "detector": _open("detector", N=3, H=96, W=160),
    "lraspp": _open("segmentation", N=1, H=45, W=77),
    "edsr": _open("super_resolution", N=3, H=11, W=23),
    "text_line": _open("text_line", N=3, W=77),
    "whisper_encoder": _open("speech_encoder", N=3, T=51),
    "bert": _open("sentence_encoder", N=3, L=23),
    **{name: _of_tests(name) for name in architectures.NETWORKS if name not in ("mobilenet", "shufflenet")},
    "lenet": Subject(public.lenet, {"x": Input(("N", 1, 28, 28))}, {"N": 1}, {"N": 3}),
    "alexnet": Subject(public.alexnet),
    "vgg11": Subject(public.vgg11),
    "resnet_v2": Subject(public.resnet_v2),
    "regnet_y": Subject(public.regnet_y),
    "mnasnet": Subject(lambda: public.inverted(nn.ReLU)),
    "efficientnet_lite": Subject(lambda: public.inverted(nn.ReLU6)),
    "ghostnet": Subject(public.ghostnet),
    "googlenet": Subject(public.googlenet),
    "xception": Subject(public.xception),
    "repvgg": Subject(public.repvgg),
    "dncnn": Subject(public.dncnn, GREY, {"N": 1, "H": 32, "W": 32}, {"N": 3, "H": 17, "W": 29}),
    "fsrcnn": Subject(public.fsrcnn, GREY, {"N": 1, "H": 24, "W": 24}, {"N": 3, "H": 17, "W": 29}),
    "conv_autoencoder": Subject(public.conv_autoencoder, others={"N": 3, "H": 40, "W": 56}),
    "hourglass": Subject(public.hourglass, others={"N": 3, "H": 48, "W": 80}),
    "fast_scnn": Subject(public.FastScnn, others={"N": 3, "H": 64, "W": 96}),
    "fpn_detector": Subject(public.Fpn, others={"N": 3, "H": 48, "W": 80}, outputs=("boxes", "scores")),
    "yolo_tiny": Subject(public.YoloTiny, others={"N": 3, "H": 48, "W": 80}, outputs=("small", "large")),
    "wave_encoder": Subject(public.wave_encoder, {"x": Input(("N", 1, "T"))}, {"N": 1, "T": 1600}, {"N": 3, "T": 1111}),
    "temporal": Subject(public.temporal, SOUND, {"N": 1, "T": 64}, {"N": 3, "T": 51}),
    "mlp_mixer": Subject(public.MlpMixer, {"x": Input(("N", 3, 48, 48))}, {"N": 1}, {"N": 3}),
}
