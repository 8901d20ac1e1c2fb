"""What becomes of one model file: a graph, an error of renorm that names the file, or what must not be."""

from __future__ import annotations

import os
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import renorm
from renorm.core.dims import Sym, is_static, static
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import InternalError, OutOfMemory, RenormError
from renorm.core.inputs import given_symbols
from renorm.driver import bounds
from renorm.driver.compile import analyze
from renorm.graph import interpret

LIMITS = renorm.Limits(file_bytes=1 << 26, nodes=20_000, elements=1 << 24, bytes=1 << 28, operations=1 << 24)
SMALL = renorm.Limits(elements=1 << 14, bytes=1 << 22, operations=1 << 21)  # of what is computed, without kernels
SECONDS = 5.0  # of the CPU for one file; a process that takes twice as many is ended
# what becomes of a hostile file in these is counted, and no finding: C that is trusted, and what PyTorch unpickles
_TRUSTED = ("h5py", "torch")


@dataclass(frozen=True)
class Outcome:
    """What became of a file. kind: "read", or the class of the error. fault: what must not be, "" for none; place:
    where it is, by which findings are told apart."""

    kind: str
    fault: str = ""
    place: str = ""


def outcome(path: Path, is_computed: bool = False) -> Outcome:
    """Read a file, and compute the graph where that is asked for."""
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = _read(path, is_computed)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            found = Outcome(type(error).__name__, traceback.format_exc(), _place(error))
    seconds = time.process_time() - started
    if seconds > SECONDS and not found.fault:
        found = Outcome(found.kind, f"it took {seconds:.1f} s", f"slow, {found.kind}")
    return found


def _read(path: Path, is_computed: bool) -> Outcome:
    try:
        graph = renorm.read(path, limits=LIMITS)
    except (InternalError, OutOfMemory):
        raise
    except RenormError as error:
        kind = type(error).__name__
        if _lacks_memory(error):
            raise
        if path.name not in error.headline:
            return Outcome(kind, f"its error does not name the file: {error}", f"unnamed, {_place(error)}")
        return Outcome(kind)
    if is_computed:
        with suppress(RenormError):
            _computed(graph)
    return Outcome("read")


def _lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error was raised for one that memory was not there, in code that is not trusted."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return error is not None and not (frames and trusted(frames[-1].filename))


def trusted(line: str) -> str:
    """Return the library that a file, or a line of a traceback, is of; "" where it is none that is trusted."""
    return next((name for name in _TRUSTED if f"{os.sep}site-packages{os.sep}{name}{os.sep}" in line), "")


def _computed(graph: Any) -> None:
    """Take a graph through the passes, and compute it. Raises what is found, and errors of renorm."""
    sizes = dict.fromkeys(given_symbols(graph.inputs), 2)
    try:
        fixed = graph.copy({Sym(name) if isinstance(name, str) else name: n for name, n in sizes.items()})
        bounds.check(fixed, SMALL)
        if not all(is_static(v.shape) and max(static(v.shape), default=0) <= SMALL.elements for v in fixed.values()):
            return  # of open extents, or of no elements along very many
        draw = np.random.default_rng(0)
        given = [draw.integers(0, 3, v.shape).astype(numpy_dtype(v.dtype)) for v in fixed.inputs]
        interpret.run(fixed, given)
        analyze(fixed, limits=LIMITS)
    except InternalError as error:
        raise RuntimeError(str(error)) from error


def _place(error: BaseException) -> str:
    """Return the class of an error and the innermost line of renorm that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f"{os.sep}renorm{os.sep}" in f.filename] or list(frames)
    return f"{type(error).__name__} at {own[-1].filename.rpartition('renorm' + os.sep)[2]}:{own[-1].lineno}"
