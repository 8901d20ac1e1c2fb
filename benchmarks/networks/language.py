"""Language models: an encoder as BERT-base has it, and a token of a decoder as the smallest GPT-2 is, with a cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WORDS = 30522
TOKENS = 50257


def heads_of(x: Tensor, heads: int) -> Tensor:
    """[n, length, width] -> [n, heads, length, width / heads]"""
    n, length, width = x.shape
    return x.reshape(n, length, heads, width // heads).transpose(1, 2)


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k' / sqrt(each) + mask) v, heads side by side again: [n, length, width]"""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    weights = torch.softmax(scores if mask is None else scores + mask, -1)
    n, heads, length, each = q.shape
    return (weights @ v).transpose(1, 2).reshape(n, length, heads * each)


class EncoderLayer(nn.Module):
    """Norms behind the sums, as BERT has them; q, k and v by a product each."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.attend_norm, self.feed_norm = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (heads_of(project(x), self.heads) for project in (self.query, self.key, self.value))
        x = self.attend_norm(x + self.out(attended(q, k, v, mask)))
        return self.feed_norm(x + self.feed(x))


class Encoder(nn.Module):
    """Inputs: words, a mask (1 where there is one), and to which of two sentences each belongs."""

    def __init__(self, width: int = 768, heads: int = 12, depth: int = 12, words: int = WORDS, length: int = 512):
        super().__init__()
        self.words, self.positions, self.kinds = (nn.Embedding(n, width) for n in (words, length, 2))
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(depth))

    def forward(self, words: Tensor, mask: Tensor, kinds: Tensor) -> Tensor:
        x = self.norm(self.words(words) + self.positions.weight[: words.shape[1]] + self.kinds(kinds))
        away = (1.0 - mask[:, None, None, :].to(x.dtype)) * -1e4
        for layer in self.layers:
            x = layer(x, away)
        return x


class DecoderLayer(nn.Module):
    """Norms before the products, as GPT-2 has them; k and v are appended to those of earlier tokens."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.attend_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (heads_of(part, self.heads) for part in self.project(self.attend_norm(x)).chunk(3, -1))
        keys, values = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        x = x + self.out(attended(q, keys, values))
        return x + self.feed(self.feed_norm(x)), keys, values


class Decoder(nn.Module):
    """One token: its scores for the next one, and the cache with it. cache: keys and values of each layer in turn,
    [n, heads, earlier tokens, width / heads]. The last product is by the embedding."""

    def __init__(self, width: int = 768, heads: int = 12, depth: int = 12, tokens: int = TOKENS, length: int = 1024):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, token: Tensor, *cache: Tensor) -> tuple[Tensor, ...]:
        x, found = self.tokens(token) + self.positions.weight[cache[0].shape[2]], list[Tensor]()
        for i, layer in enumerate(self.layers):
            x, keys, values = layer(x, *cache[2 * i : 2 * i + 2])
            found += [keys, values]
        return self.norm(x) @ self.tokens.weight.t(), *found


def sentence(length: int) -> dict[str, Tensor]:
    """Inputs of an Encoder."""
    ids = {"words": torch.randint(0, 2, (1, length)), "mask": torch.ones((1, length), dtype=torch.int64)}
    return ids | {"kinds": torch.zeros((1, length), dtype=torch.int64)}


def cached(past: int = 512, width: int = 768, heads: int = 12, depth: int = 12) -> dict[str, Tensor]:
    """Inputs of a Decoder."""
    of = ("keys", "values")
    cache = {f"{kind}{i}": torch.randn(1, heads, past, width // heads) for i in range(depth) for kind in of}
    return {"token": torch.randint(0, 2, (1, 1)), **cache}


def bert_base() -> nn.Module:
    return Encoder()


def gpt2_small() -> nn.Module:
    return Decoder()
