"""Networks on images as their papers define them, narrow: super-resolution, segmentation, restoration, generation."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2)


def _normed(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(_conv(inputs, outputs), nn.BatchNorm2d(outputs), nn.ReLU())


class Srcnn(nn.Module):
    """Dong and others 2014: a bicubic enlargement, then three convolutions."""

    def __init__(self, scale: int = 3):
        super().__init__()
        self.scale = scale
        self.body = nn.Sequential(_conv(1, 32, 9), nn.ReLU(), _conv(32, 16, 5), nn.ReLU(), _conv(16, 1, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(F.interpolate(x, scale_factor=self.scale, mode="bicubic", align_corners=False))


def fsrcnn() -> nn.Module:
    """Return Dong and others 2016: shrink, map, expand, and a transposed convolution."""
    mapped = [part for _ in range(4) for part in (_conv(12, 12), nn.PReLU(12))]
    return nn.Sequential(
        _conv(1, 40, 5), nn.PReLU(40), _conv(40, 12, 1), nn.PReLU(12), *mapped, _conv(12, 40, 1), nn.PReLU(40),
        nn.ConvTranspose2d(40, 1, 9, 3, 4, output_padding=2),
    )  # fmt: skip


def espcn() -> nn.Module:
    """Return Shi and others 2016: convolutions, then pixels out of channels."""
    return nn.Sequential(_conv(1, 32, 5), nn.Tanh(), _conv(32, 16), nn.Tanh(), _conv(16, 9), nn.PixelShuffle(3))


class _Scaled(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.body = nn.Sequential(_conv(width, width), nn.ReLU(), _conv(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * self.body(x)


class Edsr(nn.Module):
    """Lim and others 2017: residual blocks without norms, scaled; two enlargements by two."""

    def __init__(self, width: int = 24, depth: int = 3):
        super().__init__()
        self.head = _conv(3, width)
        self.body = nn.Sequential(*(_Scaled(width) for _ in range(depth)), _conv(width, width))
        ups = [part for _ in range(2) for part in (_conv(width, 4 * width), nn.PixelShuffle(2))]
        self.tail = nn.Sequential(*ups, _conv(width, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(x - 0.45)
        return self.tail(x + self.body(x)) + 0.45


class _Dense(nn.Module):
    def __init__(self, width: int, growth: int, depth: int):
        super().__init__()
        self.layers = nn.ModuleList(_conv(width + i * growth, growth) for i in range(depth))
        self.join = _conv(width + depth * growth, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self.layers:
            found.append(F.relu(layer(torch.cat(found, 1))))
        return x + self.join(torch.cat(found, 1))


class Rdn(nn.Module):
    """Zhang and others 2018: dense residual blocks, joined."""

    def __init__(self, width: int = 16, depth: int = 3):
        super().__init__()
        self.first, self.second = _conv(3, width), _conv(width, width)
        self.blocks = nn.ModuleList(_Dense(width, 8, 3) for _ in range(depth))
        self.join = nn.Sequential(_conv(depth * width, width, 1), _conv(width, width))
        self.tail = nn.Sequential(_conv(width, 4 * width), nn.PixelShuffle(2), _conv(width, 3))

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        found = [self.second(first)]
        for block in self.blocks:
            found.append(block(found[-1]))
        return self.tail(first + self.join(torch.cat(found[1:], 1)))


class Srgan(nn.Module):
    """Ledig and others 2017, the generator: residual blocks with batch norms, PReLU."""

    def __init__(self, width: int = 16, depth: int = 3):
        super().__init__()
        self.head = nn.Sequential(_conv(3, width, 9), nn.PReLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(
                _conv(width, width), nn.BatchNorm2d(width), nn.PReLU(), _conv(width, width), nn.BatchNorm2d(width)
            )
            for _ in range(depth)
        )
        self.join = nn.Sequential(_conv(width, width), nn.BatchNorm2d(width))
        ups = [part for _ in range(2) for part in (_conv(width, 4 * width), nn.PixelShuffle(2), nn.PReLU())]
        self.tail = nn.Sequential(*ups, _conv(width, 3, 9), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        head = x = self.head(x)
        for block in self.blocks:
            x = x + block(x)
        return self.tail(head + self.join(x))


class Unet(nn.Module):
    """Ronneberger and others 2015. bilinear: enlarge by interpolation, not by a transposed convolution."""

    def __init__(self, width: int = 8, depth: int = 3, bilinear: bool = False):
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        self.downs = nn.ModuleList(
            nn.Sequential(_normed(a, b), _normed(b, b)) for a, b in zip((3, *widths), widths)
        )  # fmt: skip
        pairs = [*zip(widths[:0:-1], widths[-2::-1])]
        up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.ups = nn.ModuleList(
            nn.Sequential(up, _conv(a, b, 1)) if bilinear else nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs
        )
        self.joins = nn.ModuleList(nn.Sequential(_normed(2 * b, b), _normed(b, b)) for _, b in pairs)
        self.head = _conv(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        held = list[Tensor]()
        for i, down in enumerate(self.downs):
            x = down(F.max_pool2d(x, 2) if i else x)
            held.append(x)
        for up, join, beside in zip(self.ups, self.joins, held[-2::-1]):
            x = up(x)
            x = join(
                torch.cat((beside, F.pad(x, (0, beside.shape[3] - x.shape[3], 0, beside.shape[2] - x.shape[2]))), 1)
            )
        return self.head(x)


class Enet(nn.Module):
    """Paszke and others 2016 in short: pools whose indices another pool takes back are left out; dilated blocks."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.start, self.pool = _conv(3, width - 3, 3, 2), nn.MaxPool2d(2, 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                _conv(width, 4, 1), nn.BatchNorm2d(4), nn.PReLU(4), nn.Conv2d(4, 4, 3, 1, d, d, bias=False),
                nn.BatchNorm2d(4), nn.PReLU(4), _conv(4, width, 1), nn.BatchNorm2d(width),
            )
            for d in (1, 2, 4, 8)
        )  # fmt: skip
        self.head = nn.ConvTranspose2d(width, 5, 3, 2, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((self.start(x), self.pool(x)), 1)
        for block in self.blocks:
            x = F.prelu(x + block(x), torch.tensor([0.2]))
        return self.head(x).argmax(1)


class DnCnn(nn.Module):
    """Zhang and others 2017: noise as what convolutions with batch norms leave."""

    def __init__(self, width: int = 16, depth: int = 4):
        super().__init__()
        layers = [_normed(width, width) for _ in range(depth)]
        self.body = nn.Sequential(_conv(1, width), nn.ReLU(), *layers, _conv(width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.body(x)


class CycleGan(nn.Module):
    """Zhu and others 2017, the generator: reflected edges, instance norms."""

    def __init__(self, width: int = 8):
        super().__init__()
        norm, w = nn.InstanceNorm2d, width
        self.enter = nn.Sequential(
            nn.ReflectionPad2d(3), nn.Conv2d(3, w, 7), norm(w), nn.ReLU(), _conv(w, 2 * w, 3, 2), norm(2 * w), nn.ReLU()
        )
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.ReflectionPad2d(1), nn.Conv2d(2 * w, 2 * w, 3), norm(2 * w), nn.ReLU(),
                nn.ReflectionPad2d(1), nn.Conv2d(2 * w, 2 * w, 3), norm(2 * w),
            )
            for _ in range(2)
        )  # fmt: skip
        self.leave = nn.Sequential(
            nn.ConvTranspose2d(2 * w, w, 3, 2, 1, 1),
            norm(w),
            nn.ReLU(),
            nn.ReflectionPad2d(3),
            nn.Conv2d(w, 3, 7),
            nn.Tanh(),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return self.leave(x)


class _Styled(nn.Module):
    """A convolution whose weights a style scales and which are normalized, as groups of one over the batch."""

    def __init__(self, inputs: int, outputs: int, style: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, outputs, inputs, 3, 3))
        self.affine, self.strength = nn.Linear(style, inputs), nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor, style: Tensor, noise: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        w = self.weight * (self.affine(style)[:, None, :, None, None] + 1)
        w = w * torch.rsqrt(w.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8)
        x = F.conv2d(x.reshape(1, batch * channels, height, width), w.flatten(0, 1), padding=1, groups=batch)
        x = x.reshape(batch, -1, height, width) + self.strength * noise
        return F.leaky_relu(x, 0.2) * 2**0.5


class StyleGan(nn.Module):
    """Karras and others 2020, the generator: a mapping of styles, modulated convolutions, noise given as inputs."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.mapping = nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(width, width), nn.LeakyReLU(0.2))))
        self.start = nn.Parameter(torch.randn(1, width, 4, 4))
        self.first, self.second = _Styled(width, width, width), _Styled(width, 12, width)
        self.image = _conv(12, 3, 1)

    def forward(self, z: Tensor, coarse: Tensor, fine: Tensor) -> Tensor:
        style = self.mapping(z * torch.rsqrt(z.pow(2).mean(1, keepdim=True) + 1e-8))
        x = self.first(self.start.expand(z.shape[0], -1, -1, -1), style, coarse)
        x = self.second(F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False), style, fine)
        return self.image(x)


def dcgan() -> nn.Module:
    """Return Radford and others 2016, the generator."""
    widths = (24, 16, 12, 8)
    layers = [nn.ConvTranspose2d(20, widths[0], 4, 1, 0, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    for a, b in itertools.pairwise(widths):
        layers += [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(widths[-1], 3, 4, 2, 1), nn.Tanh())
