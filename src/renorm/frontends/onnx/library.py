"""The onnx package, an extra: files are written with it, and functions are put in the place of their calls."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec

from renorm.core.errors import InvalidInput

INSTALL = 'pip install "renorm[onnx]"'


def is_installed() -> bool:
    """Return whether the package can be imported."""
    return find_spec("onnx") is not None


@contextmanager
def required(what: str) -> Generator[None]:
    """Raise InvalidInput, about `what`, where the package is imported inside and is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "onnx":
            raise
        raise InvalidInput(f"{what} needs the onnx package, which is not installed", do=INSTALL) from error
