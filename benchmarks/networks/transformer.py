"""Vision transformers (ViT-Ti/16, ViT-B/16): layer norm, attention, GELU."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        each = width // self.heads
        q, k, v = self.project(x).reshape(n, length, 3, self.heads, each).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-2, -1) * each**-0.5, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attend = nn.Sequential(nn.LayerNorm(width), Attention(width, heads))
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(x)
        return x + self.feed(x)


class VisionTransformer(nn.Module):
    def __init__(self, width: int = 192, heads: int = 3, depth: int = 12, patch: int = 16, side: int = 224):
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.token.expand(x.shape[0], -1, -1), patches), 1) + self.position
        return self.classify(self.norm(self.blocks(tokens))[:, 0])


def vit_tiny() -> nn.Module:
    return VisionTransformer()


def vit_base() -> nn.Module:
    return VisionTransformer(width=768, heads=12)
