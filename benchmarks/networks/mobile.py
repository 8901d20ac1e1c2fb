"""Networks for small machines, made of depthwise convolutions: MobileNetV2, EfficientNet-B0, ShuffleNetV2."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: Callable[[], nn.Module] | None = None
) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs), *([act()] if act else [])]


class _SqueezeExcite(nn.Module):
    """By 1x1 convolutions with biases, as EfficientNet has it."""

    def __init__(self, channels: int, squeezed: int):
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.SiLU(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(x)


class InvertedResidual(nn.Module):
    """1x1 to `expansion` times the channels, depthwise, 1x1 back; added to its input where shapes agree."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int,
        expansion: int,
        act: Callable[[], nn.Module],
        se: bool,
    ):
        super().__init__()
        width = inputs * expansion
        layers = _conv(inputs, width, 1, act=act) if expansion > 1 else []
        layers += _conv(width, width, kernel, stride, width, act)
        layers += [_SqueezeExcite(width, max(1, inputs // 4))] if se else []
        self.body = nn.Sequential(*layers, *_conv(width, outputs, 1))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def _inverted(
    stages: list[tuple[int, int, int, int, int]], head: int, act: Callable[[], nn.Module], se: bool
) -> nn.Module:
    """stages: (expansion, channels, blocks, stride, kernel)."""
    layers, channels = _conv(3, 32, 3, 2, act=act), 32
    for expansion, outputs, blocks, stride, kernel in stages:
        for block in range(blocks):
            layers.append(InvertedResidual(channels, outputs, kernel, 1 if block else stride, expansion, act, se))
            channels = outputs
    layers += _conv(channels, head, 1, act=act)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(head, 1000))


def mobilenet_v2() -> nn.Module:
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    return _inverted([(*s, 3) for s in stages], 1280, nn.ReLU6, se=False)


def efficientnet_b0() -> nn.Module:
    stages = [
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ]  # fmt: skip
    return _inverted(stages, 1280, nn.SiLU, se=True)


class ShuffleUnit(nn.Module):
    """Half of the channels passes by, or all goes two ways where the stride is 2; then channels are shuffled."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        half, entering = outputs // 2, inputs if stride > 1 else inputs // 2
        self.side = nn.Sequential()
        if stride > 1:
            self.side = nn.Sequential(*_conv(inputs, inputs, 3, stride, inputs), *_conv(inputs, half, 1, act=nn.ReLU))
        self.body = nn.Sequential(
            *_conv(entering, half, 1, act=nn.ReLU),
            *_conv(half, half, 3, stride, half),
            *_conv(half, half, 1, act=nn.ReLU),
        )
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        aside, worked = (x, x) if self.stride > 1 else x.chunk(2, 1)
        y = torch.cat((self.side(aside), self.body(worked)), 1)
        n, c, h, w = y.shape
        return y.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet_v2() -> nn.Module:
    layers, channels = [*_conv(3, 24, 3, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1)], 24
    for outputs, blocks in ((116, 4), (232, 8), (464, 4)):
        for block in range(blocks):
            layers.append(ShuffleUnit(channels, outputs, 1 if block else 2))
            channels = outputs
    layers += _conv(channels, 1024, 1, act=nn.ReLU)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))
