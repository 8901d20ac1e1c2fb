"""Residual networks: ResNet and its grouped, squeeze-and-excite and instance-batch-norm variants."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class InstanceBatchNorm(nn.Module):
    """IBN-a: instance norm of the first half of the channels, batch norm of the rest."""

    def __init__(self, channels: int):
        super().__init__()
        self.cut = channels // 2
        self.instance = nn.InstanceNorm2d(self.cut, affine=True)
        self.batch = nn.BatchNorm2d(channels - self.cut)

    def forward(self, x: Tensor) -> Tensor:
        first, rest = torch.split(x, [self.cut, x.shape[1] - self.cut], 1)
        return torch.cat((self.instance(first), self.batch(rest)), 1)


class SqueezeExcite(nn.Module):
    """Scales channels by what two small dense layers make of their means."""

    def __init__(self, channels: int, reduction: int = 16):
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // reduction, bias=False)
        self.excite = nn.Linear(channels // reduction, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        return x * scale[:, :, None, None]


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, outputs: int, stride: int, groups: int, ibn: bool, se: bool):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            InstanceBatchNorm(width) if ibn else nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
            SqueezeExcite(outputs) if se else nn.Identity(),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """depths: blocks of each stage. group_width: channels of each of `groups` groups in the first stage."""

    def __init__(
        self, depths: Sequence[int], groups: int = 1, group_width: int = 64, ibn: bool = False, se: bool = False
    ):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks, channels = list[nn.Module](), 64
        for stage, depth in enumerate(depths):
            width, outputs = groups * group_width << stage, 256 << stage
            for block in range(depth):
                stride = 2 if stage and block == 0 else 1
                blocks.append(Bottleneck(channels, width, outputs, stride, groups, ibn and stage < 3, se))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.classify = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.blocks(self.stem(x)).mean((2, 3)))


def resnet50() -> nn.Module:
    return ResNet((3, 4, 6, 3))


def se_resnet101_ibn() -> nn.Module:
    return ResNet((3, 4, 23, 3), ibn=True, se=True)


def resnext50() -> nn.Module:
    """32 groups of 4 channels."""
    return ResNet((3, 4, 6, 3), groups=32, group_width=4)
