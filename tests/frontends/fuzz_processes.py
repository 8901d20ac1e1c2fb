"""Processes in which model files are read that may end them: with little memory, and no longer than so many seconds."""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import resource
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.frontends.fuzz_outcome import SECONDS, Outcome, outcome, trusted

MEMORY = 3 << 29  # bytes of addresses beyond those that a process has: several times what limits allow
MOST_SECONDS = 2 * SECONDS  # of the CPU, after which a file is not waited for
LATE = 20 * SECONDS  # of the clock: nothing is computed, or the machine has much else to do
START = multiprocessing.get_context("fork")  # with all that is imported, and the seeds


def limited(more: int = MEMORY) -> None:
    """From here on this process has so many bytes of addresses more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        most = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def silenced(directory: Path) -> None:
    """Send what libraries print, and where a process crashed, to a file."""
    held = open(directory / "printed", "wb", buffering=0)  # noqa: SIM115 (as long as the process)
    for stream in (1, 2):
        os.dup2(held.fileno(), stream)
    faulthandler.enable(held)
    faulthandler.register(signal.SIGPROF, held, chain=True)
    logging.disable(logging.CRITICAL)


def guarded(path: Path, is_computed: bool) -> Outcome:
    """Return what becomes of a file; the process ends where it takes too much of the CPU, also in a library's C."""
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        return outcome(path, is_computed)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def judged(content: bytes, form: str, is_computed: bool) -> Outcome:
    """Return what becomes of a file in a process of its own."""

    def read(to: Any) -> None:
        silenced(directory)
        limited()
        to.send(guarded(path, is_computed))

    with tempfile.TemporaryDirectory() as held:
        directory = Path(held)
        path = directory / f"held.{form}"
        path.write_bytes(content)
        (directory / "held.data").write_bytes(bytes(4096))
        received, to = START.Pipe(False)
        process = START.Process(target=read, args=(to,))
        process.start()
        to.close()
        is_late = not received.poll(LATE)
        with suppress(EOFError):
            if not is_late:
                found = received.recv()
                process.join()
                return found
        return ended(process, directory, is_late)


def ended(process: Any, directory: Path, is_late: bool) -> Outcome:
    """Return what became of a file at which a process crashed, or was not done in time: where, it prints itself."""
    process.join(0 if is_late else LATE)
    process.kill()
    process.join()
    is_late = is_late or process.exitcode == -signal.SIGPROF
    kind = f"not done after {MOST_SECONDS:.0f} s" if is_late else f"crash ({process.exitcode})"
    printed = (directory / "printed").read_text(errors="replace")[-4000:]
    lines = [line.strip() for line in printed.splitlines() if line.strip().startswith("File ")]
    if libraries := [name for line in lines[:2] if (name := trusted(line))]:
        return Outcome(f"{kind} in {libraries[0]}")
    own = [line for line in lines if f"{os.sep}renorm{os.sep}" in line]
    return Outcome(kind, f"{kind}\n{printed}", f"{kind}, {(own or lines or [''])[0].rpartition('renorm' + os.sep)[2]}")
