"""The floating-point environment that NumPy computes in, where results are kept: constants of networks."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Generator
from contextlib import contextmanager

_libm = ctypes.CDLL(None)
_DEFAULT = ctypes.c_void_p(-1)  # FE_DFL_ENV: round to nearest, denormals kept, no traps
_BYTES = 64  # more than fenv_t has anywhere


@contextmanager
def standard_environment() -> Generator[None]:
    """Inside, this thread and those that it starts compute as if nobody had flushed denormals or changed rounding."""
    if sys.platform != "linux":  # FE_DFL_ENV is another address there
        yield
        return
    before = ctypes.create_string_buffer(_BYTES)
    _libm.fegetenv(before)
    try:
        _libm.fesetenv(_DEFAULT)
        yield
    finally:
        _libm.fesetenv(before)
