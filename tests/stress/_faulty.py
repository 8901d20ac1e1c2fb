"""Attacks that find a fault at their seed 1: what the runner must notice."""

from __future__ import annotations

import signal
import time

from tests.stress.attack import attack


@attack(limit_s=30, in_gate=3)
def raises(seed: int) -> None:
    """An attempt that fails."""
    assert seed != 1


@attack(limit_s=30, in_gate=3)
def crashes(seed: int) -> None:
    """An attempt that takes the process with it."""
    if seed == 1:
        signal.raise_signal(signal.SIGSEGV)


@attack(limit_s=2, in_gate=3)
def hangs(seed: int) -> None:
    """An attempt without an end."""
    if seed == 1:
        time.sleep(3600)
