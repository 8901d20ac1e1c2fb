"""Networks of few kinds of layers: VGG-16, SqueezeNet 1.1, RegNetX-400MF, ConvNeXt-T."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.networks.residual import Bottleneck


def vgg16() -> nn.Module:
    layers, channels = list[nn.Module](), 3
    for outputs, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU()]
            channels = outputs
        layers.append(nn.MaxPool2d(2))
    dense = [nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


class Fire(nn.Module):
    """1x1 to few channels, then 1x1 and 3x3 side by side."""

    def __init__(self, inputs: int, few: int, each: int):
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(inputs, few, 1), nn.ReLU())
        self.ones = nn.Sequential(nn.Conv2d(few, each, 1), nn.ReLU())
        self.threes = nn.Sequential(nn.Conv2d(few, each, 3, padding=1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x)
        return torch.cat((self.ones(x), self.threes(x)), 1)


def squeezenet() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2), nn.ReLU()]
    channels = 64
    for few, each, pooled in (
        *((16, 64, True), (16, 64, False), (32, 128, True), (32, 128, False)),
        *((48, 192, True), (48, 192, False), (64, 256, False), (64, 256, False)),
    ):
        layers += [nn.MaxPool2d(3, 2, ceil_mode=True)] if pooled else []
        layers.append(Fire(channels, few, each))
        channels = 2 * each
    return nn.Sequential(*layers, nn.Conv2d(channels, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def regnet_x() -> nn.Module:
    """Residual blocks as wide inside as outside, in groups of 16 channels."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    channels = 32
    for outputs, depth in ((32, 1), (64, 2), (160, 7), (400, 12)):
        for block in range(depth):
            stride = 1 if block else 2
            layers.append(Bottleneck(channels, outputs, outputs, stride, outputs // 16, ibn=False, se=False))
            channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class ChannelNorm(nn.LayerNorm):
    """Layer norm of the channels of each pixel."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class WideBlock(nn.Module):
    """Depthwise 7x7, then two products over channels, scaled and added."""

    def __init__(self, channels: int):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.feed = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.feed(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + (self.scale * y).permute(0, 3, 1, 2)


def convnext_tiny() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96, eps=1e-6)]
    channels = 96
    for outputs, depth in ((96, 3), (192, 3), (384, 9), (768, 3)):
        if outputs != channels:
            layers += [ChannelNorm(channels, eps=1e-6), nn.Conv2d(channels, outputs, 2, 2)]
        layers += [WideBlock(outputs) for _ in range(depth)]
        channels = outputs
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(channels, eps=1e-6), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers, *head)
