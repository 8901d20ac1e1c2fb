"""Public definitions, a part of their channels and layers, that are quantized and compared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.quantized_parts import Scaled, Sum, pooled, unit


def lenet() -> nn.Module:
    convs = [nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)]
    dense = [nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)]
    return nn.Sequential(*convs, nn.Flatten(), *dense)


def alexnet() -> nn.Module:
    layers = [nn.Conv2d(3, 32, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU()]
    for i, o in ((64, 96), (96, 64), (64, 64)):
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, pooled(64, 128), nn.ReLU(), nn.Linear(128, 100))


def vgg11() -> nn.Module:
    layers, channels = list[nn.Module](), 3
    for outputs, count in ((16, 1), (32, 1), (64, 2), (96, 2), (96, 2)):
        for _ in range(count):
            layers.append(unit(channels, outputs))
            channels = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, pooled(96, 100))


def resnet_v2() -> nn.Module:
    """Norms and activations before convolutions."""

    def before(i: int, o: int, stride: int = 1) -> list[nn.Module]:
        return [nn.BatchNorm2d(i), nn.ReLU(), nn.Conv2d(i, o, 3, stride, 1, bias=False)]

    layers, channels = list[nn.Module]([nn.Conv2d(3, 16, 3, 2, 1, bias=False)]), 16
    for outputs, stride in ((16, 1), (32, 2), (64, 2)):
        same = stride == 1 and channels == outputs
        beside = nn.Identity() if same else nn.Conv2d(channels, outputs, 1, stride, bias=False)
        layers.append(Sum(nn.Sequential(*before(channels, outputs, stride), *before(outputs, outputs)), beside))
        channels = outputs
    return nn.Sequential(*layers, nn.BatchNorm2d(64), nn.ReLU(), pooled(64, 100))


def regnet_y() -> nn.Module:
    """Blocks of grouped convolutions with squeeze and excite."""
    layers, channels = list[nn.Module]([unit(3, 16, 3, 2)]), 16
    for outputs in (24, 48, 96):
        for stride in (2, 1):
            body = [unit(channels, outputs, 1), unit(outputs, outputs, 3, stride, outputs // 8)]
            body += [Scaled(outputs, nn.Sigmoid()), unit(outputs, outputs, 1, act=None)]
            beside = nn.Identity() if stride == 1 else unit(channels, outputs, 1, stride, act=None)
            layers.append(Sum(nn.Sequential(*body), beside, act=nn.ReLU()))
            channels = outputs
    return nn.Sequential(*layers, pooled(96, 100))


def inverted(act: type[nn.Module]) -> nn.Module:
    """MnasNet, and EfficientNet-Lite with another activation: kernels of 3 and 5 between expansion and projection."""
    first = [unit(3, 16, 3, 2, act=act), unit(16, 16, 3, 1, 16, act), unit(16, 16, 1, act=None)]
    layers, channels = list[nn.Module](first), 16
    for wide, kernel, outputs, stride in ((6, 3, 24, 2), (3, 5, 40, 2), (3, 5, 40, 1), (6, 3, 80, 2), (6, 5, 80, 1)):
        body = [unit(channels, channels * wide, 1, act=act), unit(channels * wide, channels * wide, kernel, stride,
                channels * wide, act), unit(channels * wide, outputs, 1, act=None)]  # fmt: skip
        layers.append(Sum(nn.Sequential(*body), nn.Identity()) if channels == outputs else nn.Sequential(*body))
        channels = outputs
    return nn.Sequential(*layers, unit(80, 160, 1, act=act), pooled(160, 100))


class Ghost(nn.Module):
    """Half of the channels are depthwise convolutions of the other half."""

    def __init__(self, i: int, o: int, act: type[nn.Module] | None = nn.ReLU):
        super().__init__()
        self.first, self.second = unit(i, o // 2, 1, act=act), unit(o // 2, o // 2, 3, 1, o // 2, act)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return torch.cat([y, self.second(y)], 1)


def ghostnet() -> nn.Module:
    layers, channels = list[nn.Module]([unit(3, 16, 3, 2)]), 16
    for wide, outputs, stride, excites in ((16, 16, 1, 0), (48, 24, 2, 0), (72, 24, 1, 1), (72, 40, 2, 1)):
        body = [Ghost(channels, wide), *([unit(wide, wide, 3, 2, wide, None)] if stride > 1 else [])]
        body += [Scaled(wide, nn.Hardsigmoid())] if excites else []
        beside = nn.Sequential(
            unit(channels, channels, 3, stride, channels, None), unit(channels, outputs, 1, act=None)
        )
        same = stride == 1 and channels == outputs
        layers.append(Sum(nn.Sequential(*body, Ghost(wide, outputs, None)), nn.Identity() if same else beside))
        channels = outputs
    return nn.Sequential(*layers, unit(40, 120, 1), pooled(120, 100))


class Joined(nn.Module):
    """Branches whose channels are joined."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def googlenet() -> nn.Module:
    first = [unit(3, 24, 7, 2), nn.MaxPool2d(3, 2, 1), unit(24, 24, 1), unit(24, 48), nn.MaxPool2d(3, 2, 1)]
    layers, channels = list[nn.Module](first), 48
    for a, b, c, d in ((16, 32, 8, 8), (32, 48, 16, 16), (48, 64, 16, 24)):
        pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), unit(channels, d, 1))
        second, third = (nn.Sequential(unit(channels, o // 2, 1), unit(o // 2, o, k)) for o, k in ((b, 3), (c, 5)))
        layers.append(Joined(unit(channels, a, 1), second, third, pool))
        channels = a + b + c + d
    return nn.Sequential(*layers, pooled(channels, 100))


def xception() -> nn.Module:
    def separable(i: int, o: int) -> list[nn.Module]:
        return [nn.ReLU(), nn.Conv2d(i, i, 3, padding=1, groups=i, bias=False), unit(i, o, 1, act=None)]

    layers, channels = list[nn.Module]([unit(3, 16, 3, 2), unit(16, 32)]), 32
    for outputs in (48, 64):
        body = [*separable(channels, outputs), *separable(outputs, outputs), nn.MaxPool2d(3, 2, 1)]
        layers.append(Sum(nn.Sequential(*body), unit(channels, outputs, 1, 2, act=None)))
        channels = outputs
    middle = nn.Sequential(*separable(64, 64), *separable(64, 64), *separable(64, 64))
    return nn.Sequential(*layers, Sum(middle, nn.Identity()), *separable(64, 96), nn.ReLU(), pooled(96, 100))


def repvgg() -> nn.Module:
    """Three branches at each place, as it is trained."""
    layers, channels = list[nn.Module](), 3
    for outputs, stride in ((24, 2), (24, 1), (48, 2), (48, 1), (96, 2), (96, 1)):
        same = [nn.BatchNorm2d(channels)] if stride == 1 else []
        branches = [unit(channels, outputs, k, stride, act=None) for k in (3, 1)]
        layers.append(Sum(*branches, *same, act=nn.ReLU()))
        channels = outputs
    return nn.Sequential(*layers, pooled(96, 100))


def dncnn() -> nn.Module:
    """Noise is subtracted: the last convolution gives its negative."""
    body = [
        nn.Conv2d(1, 24, 3, padding=1),
        nn.ReLU(),
        *(unit(24, 24) for _ in range(5)),
        nn.Conv2d(24, 1, 3, padding=1),
    ]
    return Sum(nn.Sequential(*body), nn.Identity())


def fsrcnn() -> nn.Module:
    layers, channels = list[nn.Module](), 1
    for outputs, kernel in ((56, 5), (12, 1), (12, 3), (12, 3), (56, 1)):
        layers += [nn.Conv2d(channels, outputs, kernel, padding=kernel // 2), nn.PReLU(outputs)]
        channels = outputs
    return nn.Sequential(*layers, nn.ConvTranspose2d(56, 1, 9, 3, 3))


def conv_autoencoder() -> nn.Module:
    down = [unit(i, o, 3, 2) for i, o in ((3, 16), (16, 32), (32, 48))]
    up = [nn.Sequential(nn.Upsample(scale_factor=2), unit(i, o)) for i, o in ((48, 32), (32, 16), (16, 16))]
    return nn.Sequential(*down, *up, nn.Conv2d(16, 3, 3, padding=1), nn.Sigmoid())


def hourglass() -> nn.Module:
    """Heat maps of joints: images halved and doubled again, with sums across."""

    def level(depth: int) -> nn.Module:
        inner = [level(depth - 1)] if depth > 1 else [unit(24, 24)]
        down = nn.Sequential(nn.MaxPool2d(2), unit(24, 24), *inner, unit(24, 24), nn.Upsample(scale_factor=2))
        return Sum(down, unit(24, 24))

    return nn.Sequential(unit(3, 24, 7, 2), level(3), unit(24, 24, 1), nn.Conv2d(24, 16, 1))


class FastScnn(nn.Module):
    """Segmentation of two resolutions, which are added."""

    def __init__(self) -> None:
        super().__init__()

        def separable(i: int, o: int, stride: int) -> nn.Module:
            return nn.Sequential(unit(i, i, 3, stride, i), unit(i, o, 1))

        self.shallow = nn.Sequential(unit(3, 16, 3, 2), separable(16, 24, 2), separable(24, 32, 2))
        deep = nn.Sequential(unit(32, 64, 1), unit(64, 64, 3, 1, 64), unit(64, 32, 1, act=None))
        self.deep = nn.Sequential(separable(32, 32, 2), Sum(deep, nn.Identity()))
        self.high, self.low = unit(32, 48, 1, act=None), unit(32, 48, 1, act=None)
        self.out = nn.Sequential(nn.ReLU(), separable(48, 48, 1), nn.Conv2d(48, 6, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.shallow(x)
        high = F.interpolate(self.high(self.deep(y)), size=y.shape[2:], mode="bilinear", align_corners=False)
        return self.out(high + self.low(y))


def _rows(heads: Sequence[Tensor], each: int) -> Tensor:
    """Return what heads find in images, one row each."""
    return torch.cat([h.permute(0, 2, 3, 1).reshape(h.shape[0], -1, each) for h in heads], 1)


class Fpn(nn.Module):
    """RetinaNet's pyramid and its heads, which all images share."""

    def __init__(self, width: int = 24):
        super().__init__()
        self.body = nn.ModuleList([nn.Sequential(unit(3, 16, 3, 2), unit(16, 24, 3, 2)), unit(24, 32, 3, 2)])
        self.body.append(unit(32, 48, 3, 2))
        self.across = nn.ModuleList(nn.Conv2d(c, width, 1) for c in (24, 32, 48))
        self.boxes = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 12, 3, padding=1))
        self.scores = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 15, 3, padding=1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = list[Tensor]()
        for part in self.body:
            found.append(x := part(x))
        x = self.across[2](found[2])
        pyramid = [x]
        for i in (1, 0):
            pyramid.append(x := self.across[i](found[i]) + F.interpolate(x, scale_factor=2.0))
        return _rows([self.boxes(p) for p in pyramid], 4), _rows([self.scores(p) for p in pyramid], 5).sigmoid()


class YoloTiny(nn.Module):
    """Two images of a backbone with leaky activations, joined, and what is found in them."""

    def __init__(self) -> None:
        super().__init__()

        def leaky(i: int, o: int, kernel: int = 3) -> nn.Module:
            return nn.Sequential(unit(i, o, kernel, act=None), nn.LeakyReLU(0.1))

        first = [nn.Sequential(leaky(i, o), nn.MaxPool2d(2)) for i, o in ((3, 8), (8, 16), (16, 32))]
        self.first, self.second = nn.Sequential(*first), nn.Sequential(leaky(32, 64), nn.MaxPool2d(2), leaky(64, 48, 1))
        self.small = nn.Sequential(leaky(48, 96), nn.Conv2d(96, 33, 1))
        self.up, self.large = leaky(48, 24, 1), nn.Sequential(leaky(56, 64), nn.Conv2d(64, 33, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        z = self.second(y)
        return self.small(z), self.large(torch.cat([F.interpolate(self.up(z), scale_factor=2.0), y], 1))


def wave_encoder() -> nn.Module:
    """wav2vec's convolutions of a wave."""
    layers, channels = list[nn.Module](), 1
    for outputs, kernel, stride in ((32, 10, 5), (32, 3, 2), (48, 3, 2), (48, 2, 2)):
        layers += [nn.Conv1d(channels, outputs, kernel, stride, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()]
        channels = outputs
    return nn.Sequential(*layers, nn.Conv1d(48, 29, 1))


def temporal() -> nn.Module:
    """TCN: pairs of dilated convolutions along time, which see what came before only."""

    def block(i: int, o: int, dilation: int) -> nn.Module:
        layers = list[nn.Module]()
        for channels in (i, o):
            conv = nn.Conv1d(channels, o, 3, dilation=dilation)
            layers += [nn.ConstantPad1d((2 * dilation, 0), 0.0), conv, nn.ReLU()]
        beside = nn.Identity() if i == o else nn.Conv1d(i, o, 1)
        return Sum(nn.Sequential(*layers), beside, act=nn.ReLU())

    return nn.Sequential(block(13, 32, 1), block(32, 32, 2), block(32, 32, 4), nn.Conv1d(32, 11, 1))


class _Mixing(nn.Module):
    def __init__(self, patches: int, width: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.across, self.along = (
            nn.Sequential(nn.Linear(w, 2 * w), nn.GELU(), nn.Linear(2 * w, w)) for w in (patches, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norms[1](x))


class MlpMixer(nn.Module):
    """Products along channels and across patches, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 48, 8, 8)
        self.layers, self.out = nn.Sequential(_Mixing(36, 48), _Mixing(36, 48)), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
