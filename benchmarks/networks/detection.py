"""A detector as the small ones of the YOLO family are: SiLU, blocks of two ways, a neck down and up, three heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

OUTPUTS = 3 * 85  # of each pixel: three boxes, each with four sides, a score, and 80 classes


def _conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs, eps=1e-3), nn.SiLU())


class Step(nn.Module):
    def __init__(self, channels: int, adds: bool):
        super().__init__()
        self.body, self.adds = nn.Sequential(_conv(channels, channels), _conv(channels, channels, 3)), adds

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


class TwoWays(nn.Module):
    """Half of the channels through steps, the others past them."""

    def __init__(self, inputs: int, outputs: int, depth: int, adds: bool = True):
        super().__init__()
        half = outputs // 2
        self.through = nn.Sequential(_conv(inputs, half), *(Step(half, adds) for _ in range(depth)))
        self.past, self.join = _conv(inputs, half), _conv(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.join(torch.cat((self.through(x), self.past(x)), 1))


class Pyramid(nn.Module):
    """Maxima over windows of three sizes, by pools in a row."""

    def __init__(self, channels: int):
        super().__init__()
        self.enter, self.leave = _conv(channels, channels // 2), _conv(2 * channels, channels)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.enter(x)]
        for _ in range(3):
            found.append(self.pool(found[-1]))
        return self.leave(torch.cat(found, 1))


class Detector(nn.Module):
    def __init__(self, base: int = 32, depths: tuple[int, int, int, int] = (1, 2, 3, 1)):
        super().__init__()
        a, b, c, d, e = (base << i for i in range(5))
        self.eighth = nn.Sequential(
            *(_conv(3, a, 6, 2), _conv(a, b, 3, 2), TwoWays(b, b, depths[0])),
            *(_conv(b, c, 3, 2), TwoWays(c, c, depths[1])),
        )
        self.sixteenth = nn.Sequential(_conv(c, d, 3, 2), TwoWays(d, d, depths[2]))
        self.last = nn.Sequential(_conv(d, e, 3, 2), TwoWays(e, e, depths[3]), Pyramid(e), _conv(e, d))
        self.up16, self.narrow, self.up8 = (
            TwoWays(2 * d, d, 1, adds=False),
            _conv(d, c),
            TwoWays(2 * c, c, 1, adds=False),
        )
        self.down16, self.join16 = _conv(c, c, 3, 2), TwoWays(d, d, 1, adds=False)
        self.down32, self.join32 = _conv(d, d, 3, 2), TwoWays(e, e, 1, adds=False)
        self.heads = nn.ModuleList(nn.Conv2d(width, OUTPUTS, 1) for width in (c, d, e))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        eighth = self.eighth(x)
        sixteenth = self.sixteenth(eighth)
        last = self.last(sixteenth)
        middle = self.narrow(self.up16(torch.cat((F.interpolate(last, scale_factor=2), sixteenth), 1)))
        fine = self.up8(torch.cat((F.interpolate(middle, scale_factor=2), eighth), 1))
        middle = self.join16(torch.cat((self.down16(fine), middle), 1))
        coarse = self.join32(torch.cat((self.down32(middle), last), 1))
        return tuple(head(part) for head, part in zip(self.heads, (fine, middle, coarse)))


def yolo() -> nn.Module:
    return Detector()
