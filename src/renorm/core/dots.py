"""Instructions that sum, in each lane of 32 bits, the products of terms which memory holds side by side."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dot:
    """lane += sum over `count` neighbours of data * weight. data, weight: in which dtypes memory holds them; sums: the
    dtype of a lane. features: what a CPU needs, by LLVM's names: for vectors of 64 bytes, and of 32 ("" for none).
    latency: cycles, half of one more than makers say."""

    count: int
    data: str
    weight: str
    sums: str
    features: tuple[str, str]
    latency: float

    @property
    def is_exact(self) -> bool:
        return self.sums == "int32"


PAIRS = Dot(2, "bfloat16", "bfloat16", "float32", ("avx512bf16", ""), 6.5)  # vdpbf16ps
QUADS = Dot(4, "uint8", "int8", "int32", ("avx512vnni", "avxvnni"), 5.5)  # vpdpbusd, whose sums are exact
WORDS = Dot(2, "int16", "int16", "int32", ("", "avx2"), 5.5)  # vpmaddwd and an addition, which in 64 bytes take turns
ALL = (PAIRS, QUADS, WORDS)


def of_data(dtype: str | None) -> Dot | None:
    """Return the instruction whose data memory holds in a dtype; None where there is none."""
    return next((dot for dot in ALL if dot.data == dtype), None)


def of_weight(dtype: str | None) -> Dot | None:
    """Return the instruction whose weights memory holds in a dtype; None where there is none."""
    return next((dot for dot in ALL if dot.weight == dtype), None)
