"""Limits that a process of a test sets for itself."""

from __future__ import annotations

import os
import resource

NOBODY = 54_321  # a user without other processes


def without_threads() -> None:
    """From here on the system gives this process no further thread or process. Root, who is not limited, becomes
    somebody else."""
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
