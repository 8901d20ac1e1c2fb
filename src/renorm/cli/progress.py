"""A progress bar on a terminal, for what takes longer than a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from renorm.cli.output import console, stderr

DELAY = 1.0  # seconds before anything is shown


@contextmanager
def progress(title: str) -> Generator[Callable[[str, int, int], None] | None]:
    """Gives what renorm.compile takes as `progress`: called with (stage, done, of). None where nobody would see it."""
    if console.quiet or not stderr.is_terminal:
        yield None
        return
    since = time.perf_counter()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=stderr,
        transient=True,
    )
    task = bar.add_task(title, total=None)
    started = False

    def tell(stage: str, done: int, of: int) -> None:
        nonlocal started
        if not started and time.perf_counter() - since > DELAY:
            bar.start()
            started = True
        bar.update(task, description=f"{title}: {stage}", completed=done, total=of)

    try:
        yield tell
    finally:
        if started:
            bar.stop()
