"""Parts that quantized networks share: units, sums of branches, squeeze and excite."""

from __future__ import annotations

from torch import Tensor, nn


def unit(i: int, o: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = nn.ReLU):
    """Convolution, batch norm, activation."""
    conv = nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(o), *([act()] if act else []))


def pooled(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class Sum(nn.Module):
    """Branches that are added, and an activation."""

    def __init__(self, *branches: nn.Module, act: nn.Module | None = None):
        super().__init__()
        self.branches, self.act = nn.ModuleList(branches), act or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        first, *others = (branch(x) for branch in self.branches)
        for other in others:
            first = first + other
        return self.act(first)


class Scaled(nn.Module):
    """Squeeze and excite, with MobileNetV3's hard sigmoid or a sigmoid."""

    def __init__(self, channels: int, gate: nn.Module):
        super().__init__()
        squeezed = max(8, channels // 4)
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, squeezed, 1), nn.ReLU(), nn.Conv2d(squeezed, channels, 1), gate
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(x)
