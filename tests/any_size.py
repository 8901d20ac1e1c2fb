"""The small networks of benchmarks.networks.any_size for tests: as files, with what is stated of their extents, and at
random sizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
NAMES = ("detector", "segmentation", "super_resolution", "text_line", "speech_encoder", "sentence_encoder")


def export(folder: Path) -> Path:
    """Write all of them; another process does, for torch warns while it exports."""
    call = [sys.executable, "-W", "ignore", "-m", "benchmarks.networks.any_size", str(folder)]
    subprocess.run(call, check=True, capture_output=True, cwd=ROOT)
    return folder


def stated(name: str) -> dict[str, list[int | str]]:
    """Return what a user says of a network's shapes: ("N", 3, "32*H", "32*W"), ("N", "L:1..48")."""
    from benchmarks.networks.any_size import NETWORKS

    network = NETWORKS[name]

    def extent(d: int | str) -> int | str:
        if not isinstance(d, str):
            return d
        if d in network.multiples:
            return f"{network.multiples[d]}*{d}"
        return f"{d}:1..{network.most[d][1]}" if d in network.most else d

    return {v: [extent(d) for d in given.shape] for v, given in network.inputs.items()}


def drawn(name: str, rng: np.random.Generator, longest: int = 40) -> tuple[dict[str, int], dict[str, Any]]:
    """Return random sizes for a network, odd ones and the least among them, and inputs of these sizes."""
    from benchmarks.networks.any_size import NETWORKS

    network, sizes = NETWORKS[name], dict[str, int]()
    for symbol in network.sizes:
        multiple, (_, most) = network.multiples.get(symbol, 1), network.most.get(symbol, (0, longest))
        sizes[symbol] = multiple * int(rng.integers(1, max(2, (4 if symbol == "N" else most) // multiple)))
    if name == "text_line":
        sizes["W"] += 4  # at least one column
    return sizes, {n: t.numpy() for n, t in network.drawn(sizes).items()}
