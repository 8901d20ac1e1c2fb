"""Note what became of a network that somebody else's package defines, once renorm has read it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

TOLERANCE = 1e-4  # of the largest output


@dataclass
class Outcome:
    """error: the largest difference, of the largest output; eager: that of the package itself in float32, where it was
    measured. said: why it was not read. norms: kinds of norms and their fate, how many each."""

    package: str
    network: str
    error: float = float("nan")
    eager: float = float("nan")
    said: str = ""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    kernels: int = 0
    norms: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def is_right(self) -> bool:
        return self.error <= TOLERANCE

    def compiled(self, report: Any) -> None:
        """Note what a module's report says."""
        self.kernels = len(report.kernels)
        self.norms = dict(Counter(f"{n.kind} {n.fate}" for n in report.norms))
