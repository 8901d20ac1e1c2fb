"""Attacks that find a fault at their seed 1: what the runner must notice."""

from __future__ import annotations

import signal
import time

from tests.stress._children import in_child
from tests.stress.attack import attack


@attack(limit_s=30, in_gate=3)
def raises(seed: int) -> None:
    """An attempt that fails."""
    assert seed != 1


@attack(limit_s=30, in_gate=3)
def has_a_child_that_hangs(seed: int) -> None:
    """An attempt whose child does not end."""
    if seed == 1:
        in_child(wait_for_ever, 0.5)


def wait_for_ever() -> None:
    """What the stack of the child shows."""
    time.sleep(3600)


@attack(limit_s=30, in_gate=3)
def crashes(seed: int) -> None:
    """An attempt that takes the process with it."""
    if seed == 1:
        signal.raise_signal(signal.SIGSEGV)


@attack(limit_s=2, in_gate=3)
def hangs(seed: int) -> None:
    """An attempt without an end."""
    if seed == 1:
        wait_for_ever()
