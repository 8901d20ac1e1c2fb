"""Output of the verbs: text for people, one JSON object for programs, errors with an exit code either way."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

from renorm import errors
from renorm.runtime.report import MemoryRecord

_CODES: list[tuple[type[errors.RenormError], int]] = [
    (errors.InternalError, 70),
    (errors.VerificationError, 1),
    (errors.InvalidTarget, 2),
    (errors.InvalidInput, 2),
    (errors.InvalidArtifact, 4),
    (errors.RenormError, 3),
]

# Names come from files of anybody: what would steer a terminal, or turn the order of letters, is shown by its number
_STEERING = (*range(9), *range(11, 32), *range(127, 160), *range(0x200E, 0x2010), *range(0x202A, 0x202F))
_SHOWN = {c: f"\\u{c:04x}" for c in (*_STEERING, *range(0x2066, 0x206A))}

_UNWRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}

WIDE = 200  # columns where there is no terminal whose width would count

# quiet where a JSON object is asked for
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout and sys.stdout.isatty() else WIDE)
stderr = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Outcome:
    """The result of a verb. data: as JSON has it. code: the exit code."""

    data: dict[str, Any] = field(default_factory=dict[str, Any])
    code: int = 0


def code_of(error: errors.RenormError) -> int:
    return next(code for kind, code in _CODES if isinstance(error, kind))


@contextmanager
def guarded(as_json: bool) -> Generator[None]:
    """Turns errors of renorm into their text, or a JSON object, and an exit code. as_json: inside the block, nothing is
    printed for people."""
    console.quiet = as_json
    try:
        yield
        if sys.stdout:
            sys.stdout.flush()  # now: what cannot be written then is the verb's error
    except errors.RenormError as error:
        _fail(error, as_json)
    except OSError as error:  # a file that the command line names, or what is printed
        if error.errno == errno.EPIPE:  # who reads has enough, which click knows
            raise
        if is_unprinted := not error.filename and error.errno in _UNWRITTEN:
            sys.stdout = None  # where the rest of it would be written to when Python ends
            console.quiet = True
            console.print()  # a quiet console drops what it could not write, which would come before what is next
        what = "standard output" if is_unprinted else error.filename
        _fail(errors.InvalidInput(f"{what}: {error.strerror}" if what else str(error)), as_json and not is_unprinted)
    finally:
        console.quiet = False


def _fail(error: errors.RenormError, as_json: bool) -> NoReturn:
    kind = type(error).__name__
    if as_json:
        told = {"kind": kind, "headline": error.headline, "facts": list(error.facts), "do": error.do}
        print(json.dumps({"error": told}))
    else:
        stderr.print(f"{kind}: {error}".translate(_SHOWN), markup=False)
    sys.exit(code_of(error))


def finish(outcome: Outcome, as_json: bool) -> None:
    """Prints the JSON object if it is asked for, and leaves with the exit code."""
    if as_json:
        print(json.dumps(_plain(outcome.data), allow_nan=False))
    if outcome.code:
        sys.exit(outcome.code)


def _plain(value: Any) -> Any:
    """As JSON has it, which knows neither NaN nor infinities: they become null."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints rows under a title; nothing where there are none."""
    if not rows or console.quiet:
        return
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for i, name in enumerate(columns):
        numeric = all(isinstance(r[i], (int, float)) for r in rows)
        last = i == len(columns) - 1  # the only one that is broken over lines: a sentence
        made.add_column(name, justify="right" if numeric else "left", overflow="fold", no_wrap=not last)
    for row in rows:
        made.add_row(*(_cell(v) for v in row))
    console.print(made)


def line(text: str = "") -> None:
    console.print(text.translate(_SHOWN), markup=False)


def warning(text: str) -> None:
    if not console.quiet:
        stderr.print(f"warning: {text}".translate(_SHOWN), markup=False)


def memory_text(memory: MemoryRecord) -> str:
    """Weights, and buffers between kernels beside the least that any plan of them needs."""
    gap = memory.arena - memory.lower_bound
    beside = f"{bytes_text(gap)} above the least of any plan" if gap else "the least of any plan"
    return f"weights {bytes_text(memory.weights)}, arena {bytes_text(memory.arena)} ({beside})"


def bytes_text(count: int) -> str:
    """A number of bytes as people read it."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"
    return str(value).translate(_SHOWN).replace("[", r"\[")
