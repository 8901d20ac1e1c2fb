"""Limits that a process of a test sets for itself."""

from __future__ import annotations

import os


def without_threads() -> None:
    """From here on the system gives this process no further thread or process. Root, who is not limited, becomes
    somebody else. It is given to scripts as text."""
    import resource

    if os.geteuid() == 0:
        os.setuid(54_321)  # a user without other processes
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
