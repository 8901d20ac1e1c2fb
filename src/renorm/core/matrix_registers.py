"""The registers of AMX, which Linux gives to a process that asks for them: it must save 8 KiB more per thread then.

Source: Documentation/arch/x86/xstate.rst of Linux.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18  # of x86-64


@cache
def granted() -> bool:
    """Ask for them, once in a process; return whether it may use them. Threads and children of fork() may too.

    The system refuses where it is older than Linux 5.16, or a thread's alternate signal stack is too small."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    return ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0
