"""Networks on sequences as their papers define them, narrow: text in images, speech, time series, recommendation."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Crnn(nn.Module):
    """Shi and others 2015: convolutions, two bidirectional LSTMs, scores of letters for CTC."""

    def __init__(self, width: int = 8, letters: int = 27):
        super().__init__()

        def block(a: int, b: int, *pool: Any) -> list[nn.Module]:
            return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), *pool]

        self.body = nn.Sequential(
            *block(1, width, nn.MaxPool2d(2)), *block(width, 2 * width, nn.MaxPool2d(2)),
            *block(2 * width, 2 * width, nn.MaxPool2d((2, 2), (2, 1), (0, 1))),
            *block(2 * width, 4 * width, nn.MaxPool2d((2, 2), (2, 1), (0, 1))),
            nn.Conv2d(4 * width, 4 * width, 2), nn.ReLU(),
        )  # fmt: skip
        self.rnn, self.head = nn.LSTM(4 * width, 12, 2, bidirectional=True), nn.Linear(24, letters)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x).squeeze(2).permute(2, 0, 1)
        return self.head(self.rnn(y)[0]).log_softmax(2)


class DeepSpeech2(nn.Module):
    """Amodei and others 2016: convolutions over a spectrogram, recurrent layers with batch norms between, CTC.
    kind: of the recurrent layers."""

    def __init__(self, bands: int = 40, width: int = 16, kind: str = "GRU", letters: int = 29):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, (11, 5), (2, 2), (5, 2), bias=False), nn.BatchNorm2d(8), nn.Hardtanh(0, 20),
            nn.Conv2d(8, 8, (7, 5), (2, 1), (3, 2), bias=False), nn.BatchNorm2d(8), nn.Hardtanh(0, 20),
        )  # fmt: skip
        layer: Any = getattr(nn, kind)
        inputs = 8 * (bands // 4)
        self.layers = nn.ModuleList(
            layer(n, width, bidirectional=True, batch_first=True) for n in (inputs, 2 * width, 2 * width)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(2 * width) for _ in self.layers)
        self.head = nn.Linear(2 * width, letters)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x[:, None]).flatten(1, 2).transpose(1, 2)
        for layer, norm in zip(self.layers, self.norms):
            y = norm(layer(y)[0].transpose(1, 2)).transpose(1, 2)
        return self.head(y).log_softmax(2)


class TacotronEncoder(nn.Module):
    """Shen and others 2018, the encoder: letters, convolutions with batch norms, a bidirectional LSTM."""

    def __init__(self, letters: int = 40, width: int = 16):
        super().__init__()
        self.words = nn.Embedding(letters, width)
        self.body = nn.Sequential(
            *(p for _ in range(3) for p in (nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU()))
        )
        self.rnn = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(self.body(self.words(x).transpose(1, 2)).transpose(1, 2))[0]


class WaveNet(nn.Module):
    """van den Oord and others 2016: dilated causal convolutions, gated, with skips."""

    def __init__(self, width: int = 12, depth: int = 4):
        super().__init__()
        self.enter = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=1 << i) for i in range(depth))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.leave = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        y, total = self.enter(x), torch.zeros(())
        for i, (gate, skip) in enumerate(zip(self.gates, self.skips)):
            a, b = gate(F.pad(y, (1 << i, 0))).chunk(2, 1)
            z = skip(a.tanh() * b.sigmoid())
            y, total = y + z, total + z
        return self.leave(total)


class ConformerBlock(nn.Module):
    """Gulati and others 2020: attention between two half feed-forward parts, and a gated depthwise convolution."""

    def __init__(self, width: int = 16, heads: int = 4):
        super().__init__()

        def forward_part() -> nn.Sequential:
            return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, width))

        self.first, self.last = forward_part(), forward_part()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, heads, batch_first=True)
        self.before = nn.LayerNorm(width)
        self.conv = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1), nn.GLU(1), nn.Conv1d(width, width, 7, padding=3, groups=width),
            nn.BatchNorm1d(width), nn.SiLU(), nn.Conv1d(width, width, 1),
        )  # fmt: skip
        self.after = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.first(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.conv(self.before(x).transpose(1, 2)).transpose(1, 2)
        return self.after(x + 0.5 * self.last(x))


class Conformer(nn.Module):
    def __init__(self, bands: int = 20, width: int = 16):
        super().__init__()
        self.enter = nn.Conv1d(bands, width, 3, 2, 1)
        self.blocks = nn.Sequential(*(ConformerBlock(width) for _ in range(2)))
        self.head = nn.Linear(width, 29)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.enter(x).transpose(1, 2))).log_softmax(2)


class LstmLanguage(nn.Module):
    """Zaremba and others 2014: words, two LSTMs whose state goes in and comes out, words."""

    def __init__(self, words: int = 100, width: int = 16):
        super().__init__()
        self.words, self.rnn, self.head = nn.Embedding(words, width), nn.LSTM(width, width, 2), nn.Linear(width, words)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (hidden, cell) = self.rnn(self.words(x.transpose(0, 1)), (hidden, cell))
        return self.head(y), hidden, cell


class Attended(nn.Module):
    """Bahdanau and others 2015 in short: a GRU reads, another writes given words, with additive attention."""

    def __init__(self, words: int = 100, width: int = 16):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.read, self.write = nn.GRU(width, width, batch_first=True), nn.GRU(width, width, batch_first=True)
        self.a, self.b, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.head = nn.Linear(2 * width, words)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        seen, state = self.read(self.words(x))
        said, _ = self.write(self.words(y), state)
        weights = self.v((self.a(said)[:, :, None] + self.b(seen)[:, None]).tanh()).squeeze(3).softmax(2)
        return self.head(torch.cat((said, weights @ seen), 2))


class KeywordSpotter(nn.Module):
    """Zhang and others 2017: depthwise separable convolutions over features of a second."""

    def __init__(self, width: int = 16):
        super().__init__()

        def part() -> list[nn.Module]:
            deep = nn.Conv2d(width, width, 3, padding=1, groups=width)
            norms = [nn.BatchNorm2d(width) for _ in range(2)]
            return [deep, norms[0], nn.ReLU(), nn.Conv2d(width, width, 1), norms[1], nn.ReLU()]

        self.body = nn.Sequential(
            nn.Conv2d(1, width, (10, 4), 2, (5, 1)),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            *(p for _ in range(3) for p in part()),
        )
        self.head = nn.Linear(width, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Tcn(nn.Module):
    """Bai and others 2018: causal dilated convolutions with residuals."""

    def __init__(self, width: int = 12):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(3 if not i else width, width, 3, dilation=1 << i) for i in range(3))
        self.first, self.head = nn.Conv1d(3, width, 1), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        for i, conv in enumerate(self.convs):
            y = y + F.relu(conv(F.pad(y if i else x, (2 << i, 0))))
        return self.head(y[:, :, -1])


class PointNet(nn.Module):
    """Qi and others 2017: a set of points, each alone, then the largest of each feature."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 24, 32)
        self.body = nn.Sequential(
            *(p for a, b in itertools.pairwise(widths) for p in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()))
        )
        self.head = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).amax(2)).log_softmax(1)


class Dlrm(nn.Module):
    """Naumov and others 2019: embeddings of categories, numbers through layers, products of all pairs."""

    def __init__(self, tables: int = 4, rows: int = 100, width: int = 8):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs[0] * (tables + 1) + pairs[1])
        self.top = nn.Sequential(nn.Linear(width + pairs.shape[1], 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        low = self.bottom(numbers)
        all_of = torch.stack((low, *(table(kinds[:, i]) for i, table in enumerate(self.tables))), 1)
        products = (all_of @ all_of.transpose(1, 2)).flatten(1)[:, self.get_buffer("pairs")]
        return self.top(torch.cat((low, products), 1))
