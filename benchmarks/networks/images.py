"""Networks whose output is an image: a DCGAN generator, a U-Net, fast style transfer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def dcgan(latent: int = 100, base: int = 64) -> nn.Module:
    """The generator: transposed convolutions of 4x4, from a vector to 64x64."""
    layers = list[nn.Module]()
    channels = latent
    for i, outputs in enumerate((base * 8, base * 4, base * 2, base)):
        layers.append(nn.ConvTranspose2d(channels, outputs, 4, 2 if i else 1, 1 if i else 0, bias=False))
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
        channels = outputs
    return nn.Sequential(*layers, nn.ConvTranspose2d(channels, 3, 4, 2, 1, bias=False), nn.Tanh())


class UNet(nn.Module):
    def __init__(self, base: int = 32, levels: int = 5):
        super().__init__()
        widths = [base << i for i in range(levels)]
        self.down = nn.ModuleList(self._double(i, o) for i, o in zip([3, *widths], widths))
        upward = list(zip(widths[:0:-1], widths[-2::-1]))
        self.up = nn.ModuleList(
            nn.Sequential(nn.ConvTranspose2d(i, o, 2, 2, bias=False), nn.BatchNorm2d(o)) for i, o in upward
        )
        self.join = nn.ModuleList(self._double(i, o) for i, o in upward)
        self.head = nn.Conv2d(base, 2, 1)

    @staticmethod
    def _double(inputs: int, outputs: int) -> nn.Module:
        layers = list[nn.Module]()
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        skips = list[Tensor]()
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, skips[-2::-1]):
            x = join(torch.cat((up(x), skip), 1))
        return self.head(x)


def unet() -> nn.Module:
    return UNet()


class _Padded(nn.Sequential):
    """Reflection padding, convolution, instance norm."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1):
        super().__init__(
            nn.ReflectionPad2d(kernel // 2),
            nn.Conv2d(inputs, outputs, kernel, stride),
            nn.InstanceNorm2d(outputs, affine=True),
        )


class _Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.body = nn.Sequential(_Padded(channels, channels, 3), nn.ReLU(), _Padded(channels, channels, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def style_transfer() -> nn.Module:
    """Johnson's network with instance norm and nearest-neighbour upsampling; 9x9 at both ends."""
    down = [
        m for i, o, k, s in ((3, 32, 9, 1), (32, 64, 3, 2), (64, 128, 3, 2)) for m in (_Padded(i, o, k, s), nn.ReLU())
    ]
    up = [m for i, o in ((128, 64), (64, 32)) for m in (nn.Upsample(scale_factor=2), _Padded(i, o, 3), nn.ReLU())]
    return nn.Sequential(*down, *(_Residual(128) for _ in range(5)), *up, nn.ReflectionPad2d(4), nn.Conv2d(32, 3, 9))


def odd_channels() -> nn.Module:
    """Channels that fill no vectors (37, 100, 61), and windows of one row or column: what renorm was found slow at."""

    def conv(inputs: int, outputs: int, kernel: tuple[int, int], stride: int = 1) -> list[nn.Module]:
        padding = (kernel[0] // 2, kernel[1] // 2)
        return [nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    layers = conv(3, 37, (3, 3))
    for inputs, outputs in ((37, 37), (37, 100), (100, 100), (100, 61)):
        layers += [*conv(inputs, outputs, (1, 7)), *conv(outputs, outputs, (7, 1)), *conv(outputs, outputs, (3, 3))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(61, 10))
