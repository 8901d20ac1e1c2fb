"""The encoder of a speech recognizer as Whisper's base model has it: two convolutions over time, then attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.networks.transformer import Block


class SpeechEncoder(nn.Module):
    """bands: of the spectrogram; steps: how many columns of it there are."""

    def __init__(self, bands: int = 80, steps: int = 3000, width: int = 512, heads: int = 8, depth: int = 6):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv1d(bands, width, 3, padding=1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU()
        )
        self.position = nn.Parameter(torch.randn(1, steps // 2, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks(self.stem(x).transpose(1, 2) + self.position))


def whisper_base() -> nn.Module:
    return SpeechEncoder()
