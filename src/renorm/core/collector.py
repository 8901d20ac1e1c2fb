"""Python's search for cyclic garbage, put off."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from contextlib import contextmanager
from threading import get_ident

_put_off_by: int | None = None  # thread


@contextmanager
def collection_put_off() -> Generator[None]:
    """For what makes many objects that stay: searching among them again and again finds nothing, and takes a tenth of
    the time in which a network is compiled that the cache knows."""
    global _put_off_by
    if not gc.isenabled():
        yield
        return
    try:
        _put_off_by = get_ident()
        gc.disable()
        yield
    finally:
        gc.enable()
        _put_off_by = None


def _after_fork() -> None:
    if _put_off_by not in (None, get_ident()):  # the thread that would put an end to it does not exist in a child
        gc.enable()


os.register_at_fork(after_in_child=_after_fork)
