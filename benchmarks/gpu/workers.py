"""Tasks in processes of their own: one that raises, hangs or spoils the device stops no other.

A task is a function of a place and plain data that returns plain data. What it raises becomes an answer with "failed".
A worker that failed is replaced, since a fault leaves nothing of the device to a process.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

from benchmarks.gpu.place import Place

Answer = dict[str, Any]
FAILED = "failed"  # the key of an answer that says why there is none, and "where" says in which lines


class Worker:
    """A process for one task at a time. log: the file that its standard streams go to, "" for this process's own.
    threads: of PyTorch on the CPU: more than there are cores wait for each other."""

    def __init__(self, place: Place, log: str = "", threads: int = 1):
        self._place, self._log, self._threads = place, log, threads
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._place, self._log, self._threads))
        self._process.start()
        theirs.close()

    def ask(self, task: str, *args: Any) -> None:
        """Begin a task, "module:function"."""
        self.connection.send((task, args))

    def answer(self, seconds: float) -> Answer:
        """Return what the task returned. A process that failed, or took longer, is replaced."""
        if not self.connection.poll(max(0.0, seconds)):
            self.replace()
            return {FAILED: f"no answer within {seconds:.0f} s"}
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            answer = {FAILED: f"the process ended with {self._process.exitcode}"}
        if FAILED in answer:
            self.replace()
        return answer

    def replace(self) -> None:
        """End the process, and begin another."""
        self.close()
        self._begin()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join(10)
        self.connection.close()


@contextmanager
def workers(place: Place, count: int, log: str = "") -> Generator[list[Worker]]:
    """Return processes that end with the block."""
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    made = [Worker(place, log, threads) for _ in range(count)]
    try:
        yield made
    finally:
        for worker in made:
            worker.close()


def shared_out(
    crew: Sequence[Worker],
    tasks: Sequence[tuple[str, str, tuple[Any, ...]]],
    until: float,
    longest: float,
    done: Callable[[str, Answer], None],
) -> list[str]:
    """Run tasks (name, "module:function", arguments) on whoever is free, and tell each answer to `done`. until: on the
    clock of time.monotonic; longest: seconds that a task may take. Returns the names that there was no time for."""
    waiting = list(reversed(tasks))
    busy = dict[Worker, tuple[str, float]]()
    while waiting or busy:
        for worker in crew:
            if worker not in busy and waiting and time.monotonic() < until:
                name, task, args = waiting.pop()
                worker.ask(task, *args)
                busy[worker] = name, min(time.monotonic() + longest, until + 1.0)
        if not busy:
            break
        first = min(end for _, end in busy.values())
        ready = wait([w.connection for w in busy], max(0.0, first - time.monotonic()))
        for worker, (name, end) in list(busy.items()):
            if worker.connection in ready or time.monotonic() >= end:
                del busy[worker]
                done(name, worker.answer(0.0 if worker.connection in ready else end - time.monotonic()))
    return [name for name, _, _ in reversed(waiting)]


def _serve(connection: Connection, place: Place, log: str, threads: int) -> None:
    """Answer tasks until the other end is gone."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if log:
        with open(log, "ab", buffering=0) as to:
            os.dup2(to.fileno(), 1)
            os.dup2(to.fileno(), 2)
    warnings.simplefilter("ignore")
    place.prepare()
    while True:
        try:
            task, args = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(_answered(place, task, args))


def _answered(place: Place, task: str, args: Sequence[Any]) -> Answer:
    module, _, function = task.partition(":")
    try:
        return getattr(importlib.import_module(module), function)(place, *args)
    except Exception as error:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        return {FAILED: said(error), "where": "".join(traceback.format_tb(error.__traceback__)[-3:])}


def said(error: BaseException) -> str:
    """Return an error in one line: its first, and the first in which a compiler says what it does not take."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [*lines[:1], *[line for line in lines[1:] if "error:" in line][:1], *lines[1:3]]
    return f"{type(error).__name__}: {'; '.join(dict.fromkeys(lines))}"[:400]
