"""Networks that concatenate: DenseNet-121, GoogLeNet, and Inception-v3 with 5x5, 1x7, 7x1, 1x3 and 3x1 kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class DenseLayer(nn.Module):
    """Batch norm and ReLU before each convolution; the result is appended to the input."""

    def __init__(self, channels: int, growth: int):
        super().__init__()
        width = 4 * growth
        self.body = nn.Sequential(
            *(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, width, 1, bias=False)),
            *(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, growth, 3, padding=1, bias=False)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.body(x)), 1)


def densenet121(growth: int = 32) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    ]  # fmt: skip
    channels = 64
    for stage, depth in enumerate((6, 12, 24, 16)):
        if stage:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False)]
            layers.append(nn.AvgPool2d(2))
            channels //= 2
        for _ in range(depth):
            layers.append(DenseLayer(channels, growth))
            channels += growth
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers)


Kernel = int | tuple[int, int]


def _conv(inputs: int, outputs: int, kernel: Kernel, stride: int = 1, valid: bool = False) -> nn.Module:
    """valid: without padding."""
    sides = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (0, 0) if valid else (sides[0] // 2, sides[1] // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False), nn.BatchNorm2d(outputs, eps=1e-3), nn.ReLU()
    )


def _chain(inputs: int, *parts: tuple[int, Kernel]) -> nn.Module:
    """Convolutions (channels, kernel) one after the other."""
    widths = [inputs, *(channels for channels, _ in parts)]
    return nn.Sequential(*(_conv(i, o, k) for i, (o, k) in zip(widths, parts)))


class Branches(nn.Module):
    """The results of all branches, side by side."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _pooled(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), _conv(inputs, outputs, 1))


def _reduced(inputs: int, outputs: int, parts: Sequence[tuple[int, Kernel]]) -> nn.Module:
    """A chain, and a 3x3 of stride 2 at its end."""
    return nn.Sequential(_chain(inputs, *parts), _conv(parts[-1][0], outputs, 3, 2, valid=True))


def inception_v3() -> nn.Module:
    stem = [
        _conv(3, 32, 3, 2, valid=True), _conv(32, 32, 3, valid=True), _conv(32, 64, 3), nn.MaxPool2d(3, 2),
        _conv(64, 80, 1), _conv(80, 192, 3, valid=True), nn.MaxPool2d(3, 2),
    ]  # fmt: skip
    blocks, c = list[nn.Module](), 192
    for pool in (32, 64, 64):  # 35x35
        fives, threes = _chain(c, (48, 1), (64, 5)), _chain(c, (64, 1), (96, 3), (96, 3))
        blocks.append(Branches(_conv(c, 64, 1), fives, threes, _pooled(c, pool)))
        c = 224 + pool
    blocks.append(Branches(_conv(c, 384, 3, 2, valid=True), _reduced(c, 96, [(64, 1), (96, 3)]), nn.MaxPool2d(3, 2)))
    c += 480
    row, column = (1, 7), (7, 1)
    for w in (128, 160, 160, 192):  # 17x17
        once = _chain(c, (w, 1), (w, row), (192, column))
        twice = _chain(c, (w, 1), (w, column), (w, row), (w, column), (192, row))
        blocks.append(Branches(_conv(c, 192, 1), once, twice, _pooled(c, 192)))
    asymmetric = _reduced(c, 192, [(192, 1), (192, row), (192, column)])
    blocks.append(Branches(_reduced(c, 320, [(192, 1)]), asymmetric, nn.MaxPool2d(3, 2)))
    c += 512
    for _ in range(2):  # 8x8
        split = nn.Sequential(_conv(c, 384, 1), Branches(_conv(384, 384, (1, 3)), _conv(384, 384, (3, 1))))
        deep = nn.Sequential(_chain(c, (448, 1), (384, 3)), Branches(_conv(384, 384, (1, 3)), _conv(384, 384, (3, 1))))
        blocks.append(Branches(_conv(c, 320, 1), split, deep, _pooled(c, 192)))
        c = 2048
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 1000))


def googlenet() -> nn.Module:
    """With batch norm, and without the heads that help training; 3x3 where the paper has 5x5, as most files of it."""
    stem = [_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True), _conv(64, 64, 1), _conv(64, 192, 3)]
    blocks, c = list[nn.Module](), 192
    for stage in (
        ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
        (
            *((192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64)),
            *((112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128)),
        ),
        ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
    ):
        blocks.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        for ones, few, threes, fewer, others, pooled in stage:
            past = nn.Sequential(nn.MaxPool2d(3, 1, 1), _conv(c, pooled, 1))
            ways = (_conv(c, ones, 1), _chain(c, (few, 1), (threes, 3)), _chain(c, (fewer, 1), (others, 3)), past)
            blocks.append(Branches(*ways))
            c = ones + threes + others + pooled
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 1000))
