"""Parts of networks as torch exports them, with all that its shape arithmetic brings: windows of a padded plane, caches
that grow, neighbours, anchors, patches. python -m tests.driver.exported_parts FOLDER writes each as an ONNX file."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Given(NamedTuple):
    """An input. below: of integers, one more than the greatest; None of floats."""

    shape: tuple[str | int, ...]
    below: int | None = None


class Part(NamedTuple):
    """sizes: of each open extent the least and the greatest that is drawn."""

    build: Callable[[], nn.Module]
    inputs: Mapping[str, Given]
    sizes: Mapping[str, tuple[int, int]]

    def drawn(self, rng: np.random.Generator, is_least: bool = False) -> dict[str, Any]:
        """Return inputs of random sizes."""
        sizes = {s: low if is_least else int(rng.integers(low, high + 1)) for s, (low, high) in self.sizes.items()}
        found = dict[str, Any]()
        for name, given in self.inputs.items():
            shape = [sizes[d] if isinstance(d, str) else d for d in given.shape]
            is_float = given.below is None
            found[name] = (
                rng.standard_normal(shape).astype(np.float32) if is_float else rng.integers(0, given.below, shape)
            )
        return found


class ShiftedWindows(nn.Module):
    """Attention within windows of 4x4, of a plane that is padded to whole ones and rolled by half a window."""

    def __init__(self, channels: int = 16, side: int = 4, heads: int = 2):
        super().__init__()
        self.side, self.heads = side, heads
        self.embed, self.norm = nn.Conv2d(3, channels, 1), nn.LayerNorm(channels)
        self.to_qkv, self.to_out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.bias = nn.Parameter(torch.randn(heads, side * side, side * side))

    def forward(self, x: Tensor) -> Tensor:
        x, a = self.embed(x).permute(0, 2, 3, 1), self.side
        n, h, w, c = x.shape
        down, right = (a - h % a) % a, (a - w % a) % a
        y = F.pad(self.norm(x), (0, 0, 0, right, 0, down))
        y = torch.roll(y, (-a // 2, -a // 2), (1, 2))
        rows, columns = (h + down) // a, (w + right) // a
        y = y.view(n, rows, a, columns, a, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, a * a, c)
        q, k, v = self.to_qkv(y).reshape(-1, a * a, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = ((q @ k.transpose(-1, -2) * 0.3 + self.bias).softmax(-1) @ v).transpose(1, 2).reshape(-1, a * a, c)
        y = self.to_out(y).view(n, rows, columns, a, a, c).permute(0, 1, 3, 2, 4, 5)
        y = torch.roll(y.reshape(n, h + down, w + right, c), (a // 2, a // 2), (1, 2))
        return x + y[:, :h, :w]


class Cached(nn.Module):
    """A layer of a decoder with rotary positions and a cache of keys and values, which comes back longer."""

    def __init__(self):
        super().__init__()
        self.norm, self.to_qkv, self.to_out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (n, t, c), past = x.shape, keys.shape[2]
        q, k, v = self.to_qkv(self.norm(x)).view(n, t, 3, 4, 8).permute(2, 0, 3, 1, 4)
        own = torch.arange(past, past + t)
        angle = own.float()[:, None] * torch.exp(-torch.arange(0, 8, 2).float() / 8)

        def turned(z: Tensor) -> Tensor:
            a, b = z[..., ::2], z[..., 1::2]
            return torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1).flatten(-2)

        keys, values = torch.cat((keys, turned(k)), 2), torch.cat((values, v), 2)
        is_seen = torch.arange(past + t)[None, :] <= own[:, None]
        scores = (turned(q) @ keys.transpose(-1, -2) / 8**0.5).masked_fill(~is_seen, -1e9)
        return x + self.to_out((scores.softmax(-1) @ values).transpose(1, 2).reshape(n, t, c)), keys, values


class Pyramid(nn.Module):
    """Three planes, each added to the larger one, whatever that measures."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(3 if i == 0 else 8, 8, 3, 2, 1) for i in range(3))
        self.out, self.gate = nn.Conv2d(8, 4, 3, padding=1), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.down[0](x))
        b = F.relu(self.down[1](a))
        c = F.relu(self.down[2](b))
        c = c * self.gate(F.adaptive_avg_pool2d(c, 1).flatten(1)).sigmoid()[:, :, None, None]
        b = b + F.interpolate(c, size=b.shape[-2:], mode="bilinear", align_corners=False)
        a = a + F.interpolate(b, size=a.shape[-2:], mode="nearest")
        return F.interpolate(self.out(a), size=x.shape[-2:], mode="bilinear", align_corners=True)


class Anchors(nn.Module):
    """The best boxes of all anchors: 20 of them, or as many as there are."""

    def __init__(self):
        super().__init__()
        self.boxes, self.scores = nn.Conv2d(8, 12, 1), nn.Conv2d(8, 3, 1)
        self.register_buffer("sides", torch.randn(3, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n, _, h, w = x.shape
        down, across = torch.meshgrid(torch.arange(h) * 8, torch.arange(w) * 8, indexing="ij")
        places = torch.stack((across, down, across, down), -1).reshape(-1, 1, 4).float() + self.get_buffer("sides")
        boxes = self.boxes(x).view(n, 3, 4, h, w).permute(0, 3, 4, 1, 2).reshape(n, -1, 4) + places.reshape(-1, 4)
        scores = self.scores(x).permute(0, 2, 3, 1).reshape(n, -1)
        best, at = scores.topk(torch.minimum(torch.tensor(20), torch.tensor(scores.shape[1])), 1)
        return best, torch.gather(boxes, 1, at[..., None].expand(-1, -1, 4))


class Neighbours(nn.Module):
    """Each point beside its five nearest ones, which are gathered out of all points of the batch."""

    def __init__(self):
        super().__init__()
        self.edges, self.out = nn.Conv2d(6, 16, 1), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        n, c, p = x.shape
        near = (-((x[:, :, :, None] - x[:, :, None]) ** 2).sum(1)).topk(5, -1)[1]
        points = x.transpose(1, 2)
        rows = (near + torch.arange(n)[:, None, None] * p).reshape(-1)
        others, own = points.reshape(n * p, c)[rows].view(n, p, 5, c), points[:, :, None].expand(-1, -1, 5, -1)
        y = F.leaky_relu(self.edges(torch.cat((others - own, own), 3).permute(0, 3, 1, 2)))
        return self.out(y.amax(-1).amax(-1))


class Distances(nn.Module):
    """Attention with a bias by how far apart two positions are, in buckets that widen."""

    def __init__(self):
        super().__init__()
        self.bias, self.to_q = nn.Embedding(16, 2), nn.Linear(16, 16)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        (n, rows, _), columns = q.shape, k.shape[1]
        apart = torch.arange(columns)[None] - torch.arange(rows)[:, None]
        far = apart.abs()
        log = 4 + (torch.log(far.float() / 4 + 1e-6) / math.log(4) * 4).long()
        bucket = (apart > 0).long() * 8 + torch.where(far < 4, far, torch.minimum(log, torch.full_like(log, 7)))
        heads, keys = self.to_q(q).view(n, rows, 2, 8).transpose(1, 2), k.view(n, columns, 2, 8)
        weights = (heads @ keys.permute(0, 2, 3, 1) + self.bias(bucket).permute(2, 0, 1)).softmax(-1)
        return torch.einsum("nhrc,nchd->nrhd", weights, keys).flatten(2)


class Reflected(nn.Module):
    """A plane that is reflected up to a multiple of 8, halved and doubled, and cut to what it was."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True)
        self.inner, self.up, self.out = (
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ConvTranspose2d(16, 8, 2, 2),
            nn.Conv2d(16, 2, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[-2:]
        down, right = (8 - h % 8) % 8, (8 - w % 8) % 8
        x = F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2), mode="reflect")
        a = F.relu(self.norm(self.first(x)))
        y = self.out(torch.cat((self.up(F.relu(self.inner(F.max_pool2d(a, 2)))), a), 1))
        return y[:, :, down // 2 : down // 2 + h, right // 2 : right // 2 + w]


class Patches(nn.Module):
    """Windows as columns: what a padded plane has at rows and columns that are computed."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(36, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        n, _, h, w = x.shape
        y = self.mix(F.unfold(x, 3, padding=1).transpose(1, 2)).transpose(1, 2).view(n, 6, h, w)
        return F.avg_pool2d(y, 2, ceil_mode=True), F.max_pool2d(y, 3, 2, 1), y.amax((2, 3)) + y.var((2, 3))


class Cropped(nn.Module):
    """The middle of a plane as large as another one, and the other one doubled, up to the size of the plane."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        (h, w), (a, b) = x.shape[-2:], y.shape[-2:]
        down, right = (h - a) // 2, (w - b) // 2
        doubled = F.interpolate(y, scale_factor=2.0)[:, :, :h, :w]
        joined = torch.cat((x[:, :, down : down + a, right : right + b], y), 1)
        return joined, doubled, F.interpolate(x, size=(a, b), mode="bilinear")


class Correlation(nn.Module):
    """Products of all pairs of pixels, which for a large plane are many."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n, c, h, w = x.shape
        pixels = x.view(n, c, h * w)
        pairs = (pixels.transpose(1, 2) @ pixels / 8**0.5).view(n * h * w, 1, h, w)
        return F.avg_pool2d(pairs, 2, 2, ceil_mode=True), pairs.view(n, h, w, h, w).amax((3, 4))


class Blocks(nn.Module):
    """Attention of blocks of 8 to themselves and the block before, behind what fills up the last one."""

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        own = F.pad(x, (0, 0, 0, (8 - t % 8) % 8)).view(n, -1, 8, c)
        both = torch.cat((F.pad(own, (0, 0, 0, 0, 1, 0))[:, :-1], own), 2)
        is_seen = torch.arange(8)[:, None] + 8 >= torch.arange(16)[None]
        weights = (own @ both.transpose(-1, -2)).masked_fill(~is_seen, -1e9).softmax(-1)
        return (weights @ both).reshape(n, -1, c)[:, :t]


class Shifted(nn.Module):
    """Attention with terms of relative positions, shifted into place by padding and other rows."""

    def __init__(self):
        super().__init__()
        self.to_qkv, self.places = nn.Linear(16, 48), nn.Parameter(torch.randn(128, 16))

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.to_qkv(x).chunk(3, -1)
        terms = F.pad(q @ self.places[64 - t : 63 + t].T, (1, 0)).reshape(n, 2 * t, t)
        terms = terms[:, 1:].reshape(n, t, 2 * t - 1)[:, :, :t]
        return ((q @ k.transpose(1, 2) + terms) / 4).softmax(-1) @ v


class Wave(nn.Module):
    """Samples to features: strides, a group norm along time, a window of even width, a layer norm across."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv1d(1, 8, 10, 5), nn.GroupNorm(8, 8), nn.Conv1d(8, 8, 3, 2)
        self.place, self.across = nn.Conv1d(8, 8, 8, padding=4, groups=2), nn.LayerNorm(8)
        self.back = nn.ConvTranspose1d(8, 4, 4, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = F.gelu(self.second(F.gelu(self.norm(self.first(x[:, None])))))
        y = y + F.gelu(self.place(y)[:, :, :-1])
        y = self.across(y.transpose(1, 2)).transpose(1, 2)
        return self.back(y), y.std(-1), y.mean(-1)


class Text(nn.Module):
    """Tokens with positions that count those that are no padding; the features of the last word are taken out."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(50, 16), nn.Embedding(64, 16), nn.LayerNorm(16)

    def forward(self, t: Tensor) -> tuple[Tensor, Tensor]:
        n, length = t.shape
        is_word = (t != 1).int()
        x = self.norm(self.words(t) + self.places((torch.cumsum(is_word, 1) * is_word).long() + 1))
        hidden = torch.full((length, length), float("-inf")).triu(1)
        y = (x @ x.transpose(1, 2) / 4 + hidden).softmax(-1) @ x
        return y[torch.arange(n), t.argmax(-1)], y.mean(1)


class Grid(nn.Module):
    """Patches of 8x8 whose learned places are interpolated to as many as there are, behind one more token."""

    def __init__(self):
        super().__init__()
        self.patches, self.norm, self.values = nn.Conv2d(3, 16, 8, 8), nn.LayerNorm(16), nn.Linear(16, 16)
        self.places, self.whole = nn.Parameter(torch.randn(1, 16, 4, 4)), nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.patches(x)
        y = y + F.interpolate(self.places, size=y.shape[-2:], mode="bicubic", align_corners=False)
        y = torch.cat((self.whole.expand(x.shape[0], -1, -1), y.flatten(2).transpose(1, 2)), 1)
        z = self.norm(y)
        y = y + (z @ z.transpose(1, 2) * 0.25).softmax(-1) @ self.values(z)
        return y[:, 0], y[:, 1:].mean(1)


class Repeated(nn.Module):
    """Each row as often as an input says: as many rows as the numbers add up to."""

    def forward(self, times: Tensor, x: Tensor) -> Tensor:
        ends = times.cumsum(0)
        return x[(torch.arange(cast("int", ends[-1]))[:, None] >= ends[None]).sum(1)]


class Halves(nn.Module):
    """Every second row, the second half, half a turn, steps, order, and sums from the end."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        half = x.shape[1] // 2
        even, rest = x[:, ::2], x[:, half:]
        turned, steps = torch.roll(x, half, 1), x[:, 1:] - x[:, :-1]
        return even, rest, turned, steps, torch.cat((even, rest), 1).sum(1), x.sort(1)[0], x.flip(1).cumsum(1)


class Volumes(nn.Module):
    """Three open axes: a padded convolution, pools of two kinds, and a transposed convolution."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.up = (
            nn.Conv3d(4, 8, 3, padding=1),
            nn.BatchNorm3d(8),
            nn.ConvTranspose3d(8, 4, 2, 2),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(self.norm(self.first(x)))
        return self.up(F.max_pool3d(y, 2)), F.avg_pool3d(y, 3, 2, 1)


class Pairs(nn.Module):
    """All pairs of two sets: how far apart they are, and products over four axes."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        apart = ((x[:, None] - y[None]) ** 2).sum(-1).sqrt()
        products = torch.einsum("ac,bd->abcd", x, y)
        return apart.amin(1), apart.argmin(0), products.sum((0, 3)), F.normalize(x, dim=1) @ F.normalize(y, dim=1).T


IMAGE, FEATURES = Given(("n", 3, "h", "w")), Given(("n", 8, "h", "w"))
PARTS = {
    "shifted windows": Part(ShiftedWindows, {"x": IMAGE}, {"n": (1, 3), "h": (1, 40), "w": (1, 40)}),
    "cached": Part(
        Cached,
        {"x": Given(("n", "t", 32)), "keys": Given(("n", 4, "past", 8)), "values": Given(("n", 4, "past", 8))},
        {"n": (1, 3), "t": (1, 5), "past": (0, 30)},
    ),
    "pyramid": Part(Pyramid, {"x": IMAGE}, {"n": (1, 2), "h": (8, 50), "w": (8, 50)}),
    "anchors": Part(Anchors, {"x": FEATURES}, {"n": (1, 2), "h": (1, 20), "w": (1, 20)}),
    "neighbours": Part(Neighbours, {"x": Given(("n", 3, "p"))}, {"n": (1, 3), "p": (8, 70)}),
    "distances": Part(
        Distances, {"q": Given(("n", "r", 16)), "k": Given(("n", "c", 16))}, {"n": (1, 3), "r": (1, 20), "c": (1, 20)}
    ),
    "reflected": Part(Reflected, {"x": IMAGE}, {"n": (1, 2), "h": (9, 50), "w": (9, 50)}),
    "patches": Part(Patches, {"x": Given(("n", 4, "h", "w"))}, {"n": (1, 2), "h": (3, 20), "w": (3, 20)}),
    "cropped": Part(
        Cropped,
        {"x": Given(("n", 4, "h", "w")), "y": Given(("n", 4, "a", "b"))},
        {"n": (1, 2), "h": (9, 18), "w": (9, 18), "a": (3, 9), "b": (3, 9)},
    ),
    "correlation": Part(Correlation, {"x": FEATURES}, {"n": (1, 2), "h": (1, 9), "w": (1, 9)}),
    "blocks": Part(Blocks, {"x": Given(("n", "t", 8))}, {"n": (1, 3), "t": (1, 50)}),
    "shifted": Part(Shifted, {"x": Given(("n", "t", 16))}, {"n": (1, 3), "t": (1, 30)}),
    "wave": Part(Wave, {"x": Given(("n", "t"))}, {"n": (1, 3), "t": (400, 1000)}),
    "text": Part(Text, {"t": Given(("n", "t"), 50)}, {"n": (1, 3), "t": (1, 20)}),
    "grid": Part(Grid, {"x": IMAGE}, {"n": (1, 2), "h": (8, 60), "w": (8, 60)}),
    "repeated": Part(Repeated, {"times": Given(("s",), 5), "x": Given(("s", 8))}, {"s": (1, 15)}),
    "halves": Part(Halves, {"x": Given(("n", "t", 8))}, {"n": (1, 3), "t": (2, 40)}),
    "volumes": Part(
        Volumes, {"x": Given(("n", 4, "d", "h", "w"))}, {"n": (1, 2), "d": (4, 10), "h": (4, 12), "w": (4, 12)}
    ),
    "pairs": Part(Pairs, {"x": Given(("a", "c")), "y": Given(("b", "c"))}, {"a": (1, 12), "b": (1, 12), "c": (1, 9)}),
}


def export(name: str, path: Path) -> None:
    """Write a part as an ONNX file, each extent that has a name open."""
    torch.manual_seed(0)
    part = PARTS[name]
    given = tuple(torch.from_numpy(a) for a in part.drawn(np.random.default_rng(0)).values())
    module = part.build().eval()
    found: Any = module(*given)
    outputs = [f"y{i}" for i in range(len(found) if isinstance(found, tuple) else 1)]
    axes = {i: {a: d for a, d in enumerate(v.shape) if isinstance(d, str)} for i, v in part.inputs.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, given, path, input_names=list(part.inputs), output_names=outputs, dynamic_axes=axes,
            opset_version=17, dynamo=False,
        )  # fmt: skip


if __name__ == "__main__":
    for each in PARTS:
        export(each, Path(sys.argv[1]) / f"{each}.onnx")
