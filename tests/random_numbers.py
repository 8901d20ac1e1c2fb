"""The random numbers of tests. Each test begins anew: its numbers follow from its name and from the seed that is
printed first, in the gate from its name alone; never from the tests before it."""

from __future__ import annotations

import sys
from zlib import crc32

import numpy as np

RNG = np.random.default_rng(0)


def begin(seed: int, test: str) -> None:
    """Set `RNG`, and the generator of PyTorch where it is imported, to where the test of this name begins."""
    seeds = np.random.SeedSequence((seed, crc32(test.encode())))
    RNG.bit_generator.state = np.random.PCG64(seeds).state
    if torch := sys.modules.get("torch"):
        torch.manual_seed(int(seeds.generate_state(1)[0]))
