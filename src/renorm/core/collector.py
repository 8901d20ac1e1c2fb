"""Python's search for cyclic garbage, put off."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collection_put_off() -> Generator[None]:
    """For what makes many objects that stay: searching among them again and again finds nothing, and takes a tenth of
    the time in which a network is compiled that the cache knows."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
