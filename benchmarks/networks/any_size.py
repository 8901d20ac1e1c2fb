"""Networks whose inputs have no fixed size: detection, segmentation, super-resolution, text lines, speech, sentences.
Exported with open extents.

Each is built from its public definition (YOLOv5, LRASPP on inverted residuals, EDSR with sub-pixel convolution, CRNN
with the encoder of a transformer in place of its LSTM, Whisper's encoder, BERT) with random weights, or small, with few
channels and layers but the same nodes, for tests: python -m benchmarks.networks.any_size FOLDER writes those.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.networks.mobile import InvertedResidual

NORMS = (nn.BatchNorm2d, nn.LayerNorm)
WORDS = 50  # of a text that is drawn: those that small networks know, too


@dataclass(frozen=True)
class Input:
    """shape: extents, open ones by name. draw: gives random elements of a shape."""

    shape: tuple[int | str, ...]
    draw: Callable[[Sequence[int]], Tensor] = torch.randn


@dataclass(frozen=True)
class AnySize:
    """build: gives the network, with few channels and layers where it is asked for a small one. sizes: the open extents
    of the example that is exported. multiples: of what an open extent must be one, by its name. most: how large an
    open extent may be, by its name, for the network and for the small one."""

    build: Callable[[bool], nn.Module]
    inputs: Mapping[str, Input]
    sizes: Mapping[str, int]
    multiples: Mapping[str, int] = field(default_factory=dict[str, int])
    most: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def drawn(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Return random inputs of these sizes."""
        return {
            name: given.draw([sizes[d] if isinstance(d, str) else d for d in given.shape])
            for name, given in self.inputs.items()
        }


# --- a detector -------------------------------------------------------------------------------------------------------


class _Conv(nn.Sequential):
    """Convolution, batch norm, SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, padding: int | None = None):
        padding = kernel // 2 if padding is None else padding
        conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs), nn.SiLU())


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, adds: bool):
        super().__init__()
        self.body, self.adds = nn.Sequential(_Conv(channels, channels), _Conv(channels, channels, 3)), adds

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


class _CrossStage(nn.Module):
    """C3: half of the channels passes bottlenecks, half passes by."""

    def __init__(self, inputs: int, outputs: int, depth: int, adds: bool = True):
        super().__init__()
        half = outputs // 2
        self.through, self.by, self.join = _Conv(inputs, half), _Conv(inputs, half), _Conv(outputs, outputs)
        self.body = nn.Sequential(*(_Bottleneck(half, adds) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.join(torch.cat((self.body(self.through(x)), self.by(x)), 1))


class _PyramidPooling(nn.Module):
    """SPPF: three poolings in a row, all of them joined."""

    def __init__(self, channels: int):
        super().__init__()
        self.first, self.last = _Conv(channels, channels // 2), _Conv(2 * channels, channels)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.last(torch.cat(parts, 1))


class _Detect(nn.Module):
    """Boxes in pixels, their score and those of classes, of every anchor at every place of three images."""

    ANCHORS = ((10, 13, 16, 30, 33, 23), (30, 61, 62, 45, 59, 119), (116, 90, 156, 198, 373, 326))

    def __init__(self, channels: list[int], classes: int):
        super().__init__()
        self.each = classes + 5
        self.heads = nn.ModuleList(nn.Conv2d(c, 3 * self.each, 1) for c in channels)
        self.register_buffer("anchors", torch.tensor(self.ANCHORS).float().view(3, 1, 3, 1, 1, 2))

    def forward(self, images: list[Tensor]) -> Tensor:
        found = list[Tensor]()
        for i, (head, image) in enumerate(zip(self.heads, images)):
            x = head(image)
            n, _, h, w = x.shape
            y = x.view(n, 3, self.each, h, w).permute(0, 1, 3, 4, 2).contiguous().sigmoid()
            down, across = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            grid = torch.stack((across, down), 2).expand(1, 3, h, w, 2).float() - 0.5
            center, extent, scores = y.split((2, 2, self.each - 4), 4)
            center = (center * 2 + grid) * (8 << i)
            extent = (extent * 2) ** 2 * self.get_buffer("anchors")[i]
            found.append(torch.cat((center, extent, scores), 4).view(n, 3 * h * w, self.each))
        return torch.cat(found, 1)


class Detector(nn.Module):
    """YOLOv5. widths: channels of the stem and of four stages. depths: bottlenecks of each stage."""

    def __init__(self, widths: list[int], depths: list[int], classes: int):
        super().__init__()
        stem, a, b, c, d = widths
        self.stem = _Conv(3, stem, 6, 2, 2)
        self.down = nn.ModuleList(
            nn.Sequential(_Conv(i, o, 3, 2), _CrossStage(o, o, depth))
            for i, o, depth in zip((stem, a, b, c), (a, b, c, d), depths)
        )
        self.pool = _PyramidPooling(d)
        self.narrow = nn.ModuleList((_Conv(d, c), _Conv(c, b)))
        self.up = nn.ModuleList((_CrossStage(2 * c, c, depths[0], False), _CrossStage(2 * b, b, depths[0], False)))
        self.shrink = nn.ModuleList((_Conv(b, b, 3, 2), _Conv(c, c, 3, 2)))
        self.out = nn.ModuleList((_CrossStage(2 * b, c, depths[0], False), _CrossStage(2 * c, d, depths[0], False)))
        self.detect = _Detect([b, c, d], classes)

    def forward(self, x: Tensor) -> Tensor:
        x, images = self.stem(x), list[Tensor]()
        for stage in self.down:
            x = stage(x)
            images.append(x)
        x, tops = self.pool(x), list[Tensor]()
        for narrow, up, image in zip(self.narrow, self.up, images[2:0:-1]):
            tops.append(narrow(x))
            x = up(torch.cat((F.interpolate(tops[-1], scale_factor=2.0, mode="nearest"), image), 1))
        found = [x]
        for shrink, out, top in zip(self.shrink, self.out, tops[::-1]):
            found.append(out(torch.cat((shrink(found[-1]), top), 1)))
        return self.detect(found)


def detector(small: bool = False) -> nn.Module:
    if small:
        return Detector([8, 8, 16, 16, 32], [1, 1, 1, 1], 3)
    return Detector([32, 64, 128, 256, 512], [1, 2, 3, 1], 80)


# --- segmentation and super-resolution --------------------------------------------------------------------------------


class Segmentation(nn.Module):
    """LRASPP: two images of a backbone, the deeper one gated by its mean; resized to the size of the input."""

    def __init__(self, widths: list[int], classes: int):
        super().__init__()
        a, b, c = widths
        self.stem = nn.Sequential(nn.Conv2d(3, a, 3, 2, 1, bias=False), nn.BatchNorm2d(a), nn.Hardswish())
        self.low = nn.Sequential(
            InvertedResidual(a, a, 3, 2, 1, nn.ReLU, True), InvertedResidual(a, b, 3, 2, 4, nn.ReLU, False)
        )
        self.high = nn.Sequential(
            InvertedResidual(b, c, 5, 2, 4, nn.Hardswish, True), InvertedResidual(c, c, 5, 1, 4, nn.Hardswish, True)
        )
        self.wide = nn.Sequential(nn.Conv2d(c, c, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU())
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, c, 1, bias=False), nn.Sigmoid())
        self.from_low, self.from_high = nn.Conv2d(b, classes, 1), nn.Conv2d(c, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        low = self.low(self.stem(x))
        high = self.high(low)
        gated = self.wide(high) * self.gate(high)
        gated = F.interpolate(gated, size=low.shape[-2:], mode="bilinear", align_corners=False)
        scores = self.from_low(low) + self.from_high(gated)
        return F.interpolate(scores, size=x.shape[-2:], mode="bilinear", align_corners=False)


def segmentation(small: bool = False) -> nn.Module:
    return Segmentation([8, 8, 16], 4) if small else Segmentation([16, 40, 128], 21)


class SuperResolution(nn.Module):
    """EDSR: residual blocks without norms, then channels become pixels; and the image itself, enlarged."""

    def __init__(self, channels: int, blocks: int, factor: int):
        super().__init__()
        self.first, self.factor = nn.Conv2d(3, channels, 3, 1, 1), factor
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, channels, 3, 1, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 1, 1))
            for _ in range(blocks)
        )
        self.enlarge = nn.Sequential(nn.Conv2d(channels, 3 * factor**2, 3, 1, 1), nn.PixelShuffle(factor))

    def forward(self, x: Tensor) -> Tensor:
        first = y = self.first(x)
        for block in self.blocks:
            y = y + 0.1 * block(y)
        enlarged = F.interpolate(x, scale_factor=float(self.factor), mode="bicubic", align_corners=False)
        return self.enlarge(first + y) + enlarged


def super_resolution(small: bool = False) -> nn.Module:
    return SuperResolution(8, 2, 2) if small else SuperResolution(64, 16, 2)


# --- sequences --------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Heads as projections of their own, as BERT and Whisper have them. mask: what is added to products."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.width = heads, width
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), self.heads, self.width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = (self._split(part(x)) for part in (self.query, self.key, self.value))
        products = query @ key.transpose(-1, -2) / math.sqrt(self.width // self.heads)
        weights = (products if mask is None else products + mask).softmax(-1)
        joined = (weights @ value).transpose(1, 2).contiguous()
        return self.out(joined.view(*joined.size()[:-2], self.width))


class _Layer(nn.Module):
    """A layer of a transformer, its norms in front (Whisper) or behind (BERT)."""

    def __init__(self, width: int, heads: int, before: bool):
        super().__init__()
        self.attend, self.before = Attention(width, heads), before
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList((nn.LayerNorm(width), nn.LayerNorm(width)))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        first, second = self.norms
        if self.before:
            x = x + self.attend(first(x), mask)
            return x + self.feed(second(x))
        x = first(x + self.attend(x, mask))
        return second(x + self.feed(x))


class TextLine(nn.Module):
    """CRNN: columns of an image 32 pixels high become letters; log of what each column shows, letters last."""

    def __init__(self, widths: list[int], layers: int, letters: int):
        super().__init__()
        convs, channels = list[nn.Module](), 1
        for i, outputs in enumerate(widths):
            convs += [nn.Conv2d(channels, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
            convs.append(nn.MaxPool2d(2) if i < 2 else nn.MaxPool2d((2, 2), (2, 1), (0, 1)))
            channels = outputs
        self.convs = nn.Sequential(*convs, nn.Conv2d(channels, channels, 2), nn.ReLU())
        self.layers = nn.ModuleList(_Layer(channels, 4, True) for _ in range(layers))
        self.read = nn.Linear(channels, letters)

    def forward(self, x: Tensor) -> Tensor:
        y = self.convs(x)
        n, c, h, w = y.size()
        y = y.reshape(n, c * h, w).permute(0, 2, 1)
        for layer in self.layers:
            y = layer(y)
        return self.read(y).log_softmax(-1)


def text_line(small: bool = False) -> nn.Module:
    return TextLine([8, 8, 16, 16], 1, 11) if small else TextLine([64, 128, 256, 512], 2, 97)


class SpeechEncoder(nn.Module):
    """Whisper's: two convolutions over time, fixed positions up to the length, layers."""

    def __init__(self, bands: int, width: int, heads: int, layers: int, longest: int):
        super().__init__()
        self.first, self.second = nn.Conv1d(bands, width, 3, 1, 1), nn.Conv1d(width, width, 3, 2, 1)
        rates = torch.exp(-math.log(10000) / (width // 2 - 1) * torch.arange(width // 2))
        angles = torch.arange(longest)[:, None] * rates[None]
        self.register_buffer("positions", torch.cat((angles.sin(), angles.cos()), 1))
        self.layers = nn.ModuleList(_Layer(width, heads, True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.second(F.gelu(self.first(x)))).permute(0, 2, 1)
        x = x + self.get_buffer("positions")[: x.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def speech_encoder(small: bool = False) -> nn.Module:
    return SpeechEncoder(80, 32, 2, 2, 60) if small else SpeechEncoder(80, 512, 8, 6, 1500)


class SentenceEncoder(nn.Module):
    """BERT: words, places and kinds of segments are vectors that are added; masked words get no attention."""

    def __init__(self, words: int, width: int, heads: int, layers: int, longest: int):
        super().__init__()
        self.word, self.place, self.kind = (nn.Embedding(n, width) for n in (words, longest, 2))
        self.register_buffer("places", torch.arange(longest).expand(1, -1))
        self.norm, self.layers = nn.LayerNorm(width), nn.ModuleList(_Layer(width, heads, False) for _ in range(layers))
        self.pool = nn.Linear(width, width)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        length = ids.size()[1]
        x = self.word(ids) + self.kind(torch.zeros_like(ids)) + self.place(self.get_buffer("places")[:, :length])
        x, added = self.norm(x), (1.0 - mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
        for layer in self.layers:
            x = layer(x, added)
        return x, self.pool(x[:, 0]).tanh()


def sentence_encoder(small: bool = False) -> nn.Module:
    return SentenceEncoder(WORDS, 32, 4, 2, 48) if small else SentenceEncoder(30522, 768, 12, 12, 512)


def _words(shape: Sequence[int]) -> Tensor:
    return torch.randint(WORDS, tuple(shape))


def _mask(shape: Sequence[int]) -> Tensor:
    """Return 1 for words that are there: the first one at least."""
    mask = (torch.rand(tuple(shape)) < 0.8).long()
    mask[:, 0] = 1
    return mask


IMAGE = Input(("N", 3, "H", "W"))

NETWORKS: dict[str, AnySize] = {
    "detector": AnySize(detector, {"x": IMAGE}, {"N": 2, "H": 64, "W": 96}, multiples={"H": 32, "W": 32}),
    "segmentation": AnySize(segmentation, {"x": IMAGE}, {"N": 2, "H": 65, "W": 97}),
    "super_resolution": AnySize(super_resolution, {"x": IMAGE}, {"N": 2, "H": 15, "W": 17}),
    "text_line": AnySize(text_line, {"x": Input(("N", 1, 32, "W"))}, {"N": 2, "W": 101}),
    "speech_encoder": AnySize(speech_encoder, {"x": Input(("N", 80, "T"))}, {"N": 2, "T": 99}, most={"T": (3000, 120)}),
    "sentence_encoder": AnySize(
        sentence_encoder,
        {"ids": Input(("N", "L"), _words), "mask": Input(("N", "L"), _mask)},
        {"N": 2, "L": 19},
        most={"L": (512, 48)},
    ),
}


def export(name: str, path: Path, small: bool = False) -> None:
    """Write a network as an ONNX file with open extents, its norms as nodes."""
    torch.manual_seed(0)
    network = NETWORKS[name]
    module, given = network.build(small), network.drawn(network.sizes)
    for part in module.modules():
        if isinstance(part, NORMS):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0.0, 0.2)
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.get_buffer("running_mean"), std=0.2)
            nn.init.uniform_(part.get_buffer("running_var"), 0.5, 2)
    outputs = ["y", "pooled"] if name == "sentence_encoder" else ["y"]
    axes = {i: {a: d for a, d in enumerate(v.shape) if isinstance(d, str)} for i, v in network.inputs.items()}
    with warnings.catch_warnings():  # the exporter that leaves norms alone is the old one, which says so
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), tuple(given.values()), path, input_names=list(given), output_names=outputs,
            dynamic_axes=axes, opset_version=17, dynamo=False, do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
        )  # fmt: skip


if __name__ == "__main__":
    for each in NETWORKS:
        export(each, Path(sys.argv[1]) / f"{each}.onnx", small=True)
