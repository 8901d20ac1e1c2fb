"""Trains the network that `scripts/demo` compiles, and exports it: model.onnx and test.npz in this directory.

    pip install "renorm[train]"
    python examples/digits/train.py

The network is small, but has every kind of place in which a normalization stands in real ones: behind Conv,
ConvTranspose and Gemm, where a batch norm folds away; before the activation of a residual branch, where it cannot,
because what it reads is also the skip connection; and an instance norm, whose statistics come from the image at hand.

Data: `sklearn.datasets.load_digits`, 1797 handwritten digits of 8x8 pixels with values 0 to 16. It is the test part
of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, UCI Machine Learning Repository, 1998), CC BY
4.0: see README.md."""

# scikit-learn is in the extra train
# pyright: reportMissingImports=false

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).parent
EPOCHS, BATCH, SEED = 60, 64, 7


class PreActivation(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))): the first norm cannot fold, since x is read twice; the second can."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.relu(self.norm1(x)))
        return x + self.conv2(F.relu(self.norm2(y)))


class Digits(nn.Module):
    """float32 [N, 1, 8, 8], pixels in [0, 1] -> scores [N, 10]. One level of an hourglass: down to 4x4, and up
    again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(16)
        self.block = PreActivation(16)
        self.style = nn.InstanceNorm2d(16, affine=True)
        self.down = nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False)
        self.down_norm = nn.BatchNorm2d(32)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2, bias=False)
        self.up_norm = nn.BatchNorm2d(16)
        self.join = nn.Conv2d(32, 32, 3, stride=2, padding=1, bias=False)
        self.join_norm = nn.BatchNorm2d(32)
        self.hidden = nn.Linear(32 * 4 * 4, 48)
        self.hidden_norm = nn.BatchNorm1d(48)
        self.classify = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = F.relu(self.style(self.block(F.relu(self.stem_norm(self.stem(x))))))
        coarse = F.relu(self.down_norm(self.down(fine)))
        raised = F.relu(self.up_norm(self.up(coarse)))
        joined = F.relu(self.join_norm(self.join(torch.cat([fine, raised], 1))))
        hidden = F.relu(self.hidden_norm(self.hidden(joined.flatten(1))))
        return self.classify(hidden)


def shifted(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Each image moved by up to one pixel in either direction, what comes in being blank."""
    padded = F.pad(images, (1, 1, 1, 1))
    moves = torch.randint(0, 3, (len(images), 2), generator=generator)
    return torch.stack([p[:, i : i + 8, j : j + 8] for p, (i, j) in zip(padded, moves.tolist())])


def main() -> None:
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    data = load_digits()
    pixels = data.images.astype(np.uint8)
    split = train_test_split(
        pixels, data.target.astype(np.uint8), test_size=540, random_state=SEED, stratify=data.target
    )
    train_x, test_x, train_y, test_y = split

    x = torch.from_numpy(train_x)[:, None].float() / 16
    y = torch.from_numpy(train_y).long()
    network = Digits()
    steps = EPOCHS * -(-len(x) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-2)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(x), generator=generator).split(BATCH):
            loss = F.cross_entropy(network(shifted(x[chosen], generator)), y[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()

    network.eval()
    with torch.no_grad():
        scores = network(torch.from_numpy(test_x)[:, None].float() / 16)
    accuracy = (scores.argmax(1).numpy() == test_y).mean()
    print(f"accuracy on {len(test_y)} test images: {accuracy:.2%}")

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # the exporter that keeps BatchNormalization as nodes is the older of torch's two
        torch.onnx.export(
            network,
            (torch.zeros(2, 1, 8, 8),),
            str(HERE / "model.onnx"),
            input_names=["pixels"],
            output_names=["scores"],
            dynamic_axes={"pixels": {0: "batch"}, "scores": {0: "batch"}},
            opset_version=17,
            dynamo=False,
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
        )
    np.savez_compressed(HERE / "test.npz", images=test_x, labels=test_y)


if __name__ == "__main__":
    main()
