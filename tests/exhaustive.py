"""Parameters of which the gate tries some, evenly spread, and `scripts/test --exhaustive` all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_of(every: int, values: Iterable[Any]) -> list[Any]:
    """Return parameters of which one in `every` is for the gate, the first among them. values: tuples where a test has
    several parameters."""
    several = (v if isinstance(v, tuple) else (v,) for v in values)
    return [pytest.param(*v, marks=[pytest.mark.exhaustive] if i % every else []) for i, v in enumerate(several)]
