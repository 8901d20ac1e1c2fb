"""Facts of NVIDIA GPUs by architecture: what schedules, the verifier and code rely on.

Source: NVIDIA's CUDA C++ Programming Guide, technical specifications per compute capability.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_BLOCKS = 65535  # along y and z of a grid
ROW_LANES, COLUMN_LANES = 8, 4  # of a warp, along rows and columns of what tensor cores multiply
NARROW = ("float16", "bfloat16", "tf32")  # what they multiply, and add in float32
STEP = 32  # bytes of a row, and of a column, that one of their products adds up
RESERVED = 1 << 10  # bytes of shared memory of each block that are the system's


@dataclass(frozen=True)
class GpuFacts:
    """units: multiprocessors of the largest GPU of an architecture that is sold; resident: threads that one of them has
    at most; lanes: float32 multiplications with addition that it begins per cycle; matrices: those of 16 bits, added in
    float32, that its tensor cores make when warps ask for them (mma), half as many of tf32; narrow: of which dtypes;
    step: bytes of a row that one instruction takes; shared: bytes of shared memory that a block has at most, when it
    asks for them; static: those that it has without asking; copies: whether some go to shared memory on their own
    (cp.async)."""

    units: int
    resident: int
    shared: int
    lanes: int = 128
    matrices: int = 512
    narrow: tuple[str, ...] = NARROW
    step: int = STEP
    static: int = 48 << 10
    copies: bool = True


_KNOWN = {
    75: GpuFacts(72, 1024, 64 << 10, lanes=64, narrow=("float16",), step=16, copies=False),
    80: GpuFacts(108, 2048, 163 << 10, lanes=64, matrices=1024),
    86: GpuFacts(84, 1536, 99 << 10),
    87: GpuFacts(16, 1536, 163 << 10),
    89: GpuFacts(142, 1536, 99 << 10),
    90: GpuFacts(132, 2048, 227 << 10, matrices=1024),
    100: GpuFacts(148, 2048, 227 << 10, matrices=1024),
    120: GpuFacts(188, 1536, 99 << 10),
}


def facts(arch: str) -> GpuFacts:
    """Return the facts of an architecture, "sm_90": of one that is not known those of the nearest older one, and of
    what is no NVIDIA GPU those of sm_90."""
    number = re.fullmatch(r"sm_(\d+)[af]?", arch)
    older = [n for n in _KNOWN if number and n <= int(number[1])]
    return _KNOWN[max(older, default=75) if number else 90]
