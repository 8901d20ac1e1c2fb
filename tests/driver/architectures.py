"""Known architectures, small, with random weights, as torch exports them: python -m tests.driver.architectures FOLDER.

Each stands for a form that exporters write: depthwise convolutions and ReLU6 (mobilenet), norms before convolutions and
many concatenations (densenet), grouped convolutions (resnext), channels split, dealt out and joined (shufflenet), layer
norm with channels last (convnext), 1x7 and 7x1 convolutions (inception), attention (vit, encoder), one-dimensional
convolutions (text, wave), reflected edges and instance norm (style), bilinear resizing (segmentation), and
three-dimensional ones (volume).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def unit(i: int, o: int, kernel: int | tuple[int, int] = 3, *, stride: int = 1, groups: int = 1, act: bool = True):
    """Convolution, batch norm, activation."""
    k = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (k[0] // 2, k[1] // 2)
    conv = nn.Conv2d(i, o, k, stride, padding, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(o), *([nn.ReLU6()] if act else []))


def classifier(c: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(c, 10)]


class Residual(nn.Module):
    def __init__(self, inner: nn.Module, shortcut: nn.Module | None = None, act: bool = False):
        super().__init__()
        self.inner, self.shortcut, self.act = inner, shortcut or nn.Identity(), act

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x) + self.shortcut(x)
        return F.relu(y) if self.act else y


class Beside(nn.Module):
    """Results of branches side by side, along the channels."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([b(x) for b in self.branches], 1)


def mobilenet() -> tuple[nn.Module, tuple[int, ...]]:
    def inverted(i: int, o: int, stride: int) -> nn.Module:
        h = 6 * i
        inner = nn.Sequential(unit(i, h, 1), unit(h, h, 3, stride=stride, groups=h), unit(h, o, 1, act=False))
        return Residual(inner) if stride == 1 and i == o else inner

    blocks = [inverted(16, 24, 2), inverted(24, 24, 1), inverted(24, 40, 2), inverted(40, 40, 1)]
    return nn.Sequential(unit(3, 16, 3, stride=2), *blocks, unit(40, 100, 1), *classifier(100)), (2, 3, 50, 50)


def densenet() -> tuple[nn.Module, tuple[int, ...]]:
    def dense(c: int, growth: int = 12) -> nn.Module:
        first = [nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 4 * growth, 1, bias=False)]
        second = [nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)]
        return Beside(nn.Identity(), nn.Sequential(*first, *second))

    stem = [nn.Conv2d(3, 24, 7, 2, 3, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks = [dense(24), dense(36), nn.BatchNorm2d(48), nn.ReLU(), nn.Conv2d(48, 24, 1), nn.AvgPool2d(2), dense(24)]
    return nn.Sequential(*stem, *blocks, nn.BatchNorm2d(36), nn.ReLU(), *classifier(36)), (1, 3, 53, 47)


def resnext() -> tuple[nn.Module, tuple[int, ...]]:
    def block(i: int, o: int, stride: int) -> nn.Module:
        h = o // 2
        inner = nn.Sequential(unit(i, h, 1), unit(h, h, 3, stride=stride, groups=8), unit(h, o, 1, act=False))
        return Residual(inner, unit(i, o, 1, stride=stride, act=False), act=True)

    return nn.Sequential(unit(3, 32, 7, stride=2), block(32, 64, 1), block(64, 80, 2), *classifier(80)), (1, 3, 45, 45)


class Shuffle(nn.Module):
    def __init__(self, c: int):
        super().__init__()
        h = c // 2
        self.inner = nn.Sequential(unit(h, h, 1), unit(h, h, 3, groups=h, act=False), unit(h, h, 1))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        n, c, h, w = x.shape
        joined = torch.cat([a, self.inner(b)], 1)
        return joined.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet() -> tuple[nn.Module, tuple[int, ...]]:
    blocks = [Shuffle(58), Shuffle(58), unit(58, 116, 3, stride=2), Shuffle(116)]
    return nn.Sequential(unit(3, 58, 3, stride=2), nn.MaxPool2d(3, 2, 1), *blocks, *classifier(116)), (1, 3, 61, 61)


class ChannelsLast(nn.Module):
    """A module for [N, H, W, C] on [N, C, H, W]."""

    def __init__(self, *inner: nn.Module):
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext() -> tuple[nn.Module, tuple[int, ...]]:
    def block(c: int) -> nn.Module:
        inner = ChannelsLast(nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))
        return Residual(nn.Sequential(nn.Conv2d(c, c, 7, padding=3, groups=c), inner))

    stem = [nn.Conv2d(3, 24, 4, 4), ChannelsLast(nn.LayerNorm(24))]
    down = [ChannelsLast(nn.LayerNorm(24)), nn.Conv2d(24, 40, 2, 2)]
    return nn.Sequential(*stem, block(24), *down, block(40), *classifier(40)), (1, 3, 60, 60)


def inception() -> tuple[nn.Module, tuple[int, ...]]:
    def block(i: int, c: int) -> nn.Module:
        factored = nn.Sequential(unit(i, c, 1), unit(c, c, (1, 7)), unit(c, c, (7, 1)))
        stacked = nn.Sequential(unit(i, c, 1), unit(c, c, 3), unit(c, c, 5))
        return Beside(unit(i, c, 1), factored, stacked, nn.Sequential(nn.AvgPool2d(3, 1, 1), unit(i, c, 1)))

    pools = nn.MaxPool2d(3, 2, ceil_mode=True), nn.MaxPool2d(3, 2)
    return nn.Sequential(unit(3, 20), pools[0], block(20, 16), pools[1], block(64, 24), *classifier(96)), (1, 3, 40, 40)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.parts, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.parts(x).reshape(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        shares = ((q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5).softmax(-1)
        return self.out((shares @ v).transpose(1, 2).reshape(n, length, width))


def transformer(width: int, heads: int, *, before: bool) -> nn.Module:
    """A layer of a transformer, its norms before or behind."""
    wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    attention = Attention(width, heads)
    if before:
        inner = [nn.Sequential(nn.LayerNorm(width), part) for part in (attention, wide)]
        return nn.Sequential(*(Residual(part) for part in inner))
    return nn.Sequential(Residual(attention), nn.LayerNorm(width), Residual(wide), nn.LayerNorm(width))


class VisionTransformer(nn.Module):
    def __init__(self, width: int = 48, patches: int = 16):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, patches + 1, width))
        self.layers = nn.Sequential(*(transformer(width, 3, before=True) for _ in range(2)), nn.LayerNorm(width))
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.out(self.layers(x)[:, 0])


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(16, 25, k, padding=k // 2) for k in (3, 4, 5)])
        self.norm, self.out = nn.BatchNorm1d(75), nn.Linear(75, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        return self.out(self.norm(torch.cat([F.relu(c(x)).amax(-1) for c in self.convs], 1)))


def style() -> tuple[nn.Module, tuple[int, ...]]:
    def step(i: int, o: int, k: int, stride: int = 1) -> list[nn.Module]:
        return [nn.ReflectionPad2d(k // 2), nn.Conv2d(i, o, k, stride), nn.InstanceNorm2d(o, affine=True), nn.ReLU()]

    inner = Residual(nn.Sequential(*step(24, 24, 3), *step(24, 24, 3)[:-1]))
    up = [nn.Upsample(scale_factor=2), *step(24, 12, 3), nn.ReflectionPad2d(4), nn.Conv2d(12, 3, 9)]
    return nn.Sequential(*step(3, 12, 9), *step(12, 24, 3, 2), inner, *up), (1, 3, 38, 38)


class Segmentation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = unit(3, 12), unit(12, 24), unit(24, 40)
        self.d, self.e, self.out = unit(64, 24), unit(36, 12), nn.Conv2d(12, 5, 1)
        self.down = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(self.down(a))
        c = F.interpolate(self.c(self.down(b)), scale_factor=2, mode="bilinear", align_corners=False)
        d = F.interpolate(self.d(torch.cat([c, b], 1)), scale_factor=2, mode="bilinear", align_corners=True)
        return self.out(self.e(torch.cat([d, a], 1))).softmax(1)


def volume() -> tuple[nn.Module, tuple[int, ...]]:
    first = [nn.Conv3d(1, 8, 3, padding=1, bias=False), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2)]
    second = [nn.Conv3d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.SiLU(), nn.ConvTranspose3d(16, 8, 2, 2)]
    return nn.Sequential(*first, *second, nn.Conv3d(8, 3, 1)), (1, 1, 12, 14, 16)


def wave() -> tuple[nn.Module, tuple[int, ...]]:
    first = [nn.Conv1d(1, 16, 15, 4, 7), nn.BatchNorm1d(16), nn.GELU()]
    second = [nn.Conv1d(16, 24, 9, 2, 4, groups=2), nn.BatchNorm1d(24), nn.Conv1d(24, 24, 5, padding=4, dilation=2)]
    third = [nn.GroupNorm(8, 24), nn.ReLU(), nn.ConvTranspose1d(24, 12, 8, 4, 2), nn.LeakyReLU(0.2)]
    return nn.Sequential(*first, *second, *third, nn.Conv1d(12, 1, 7, padding=3), nn.Tanh()), (2, 1, 404)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "mobilenet": mobilenet,
    "densenet": densenet,
    "resnext": resnext,
    "shufflenet": shufflenet,
    "convnext": convnext,
    "inception": inception,
    "vit": lambda: (VisionTransformer(), (2, 3, 32, 32)),
    "encoder": lambda: (nn.Sequential(*(transformer(48, 4, before=False) for _ in range(2))), (2, 19, 48)),
    "text": lambda: (Text(), (3, 33, 16)),
    "style": style,
    "segmentation": lambda: (Segmentation(), (1, 3, 36, 44)),
    "volume": volume,
    "wave": wave,
}


def export(name: str, folder: Path) -> None:
    """Writes the network with its norms as nodes, as in training mode, but with the meaning of inference."""
    torch.manual_seed(0)
    network, shape = NETWORKS[name]()
    for part in network.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            nn.init.normal_(part.get_buffer("running_mean"), std=0.2)
            nn.init.uniform_(part.get_buffer("running_var"), 0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.2)
    torch.onnx.export(
        network.eval(),
        (torch.randn(shape),),
        str(folder / f"{name}.onnx"),
        dynamo=False,
        opset_version=17,
        do_constant_folding=False,
        training=torch.onnx.TrainingMode.PRESERVE,
        input_names=["x"],
        output_names=["y"],
    )


if __name__ == "__main__":
    for network_name in NETWORKS:
        export(network_name, Path(sys.argv[1]))
