"""Attempts of one attack in a process of their own, so that a crash or a hang is one more result."""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.stress.attack import Attack, named

ROOT = Path(__file__).parents[2]
START_S = 120.0  # what a process may take until its first attempt: imports, on a busy machine
LINES = 80  # of what a failed attempt printed


@dataclass(frozen=True)
class Outcome:
    """One attempt. fault: empty where renorm held; otherwise why, and what it and its children printed last."""

    attack: str
    seed: int
    seconds: float
    fault: str = ""


def attempts(attack: Attack, seeds: range) -> Iterator[Outcome]:
    """Makes the attempts one after the other; a process that ends or hangs is followed by a new one."""
    at = seeds.start
    while at < seeds.stop:
        for outcome in _in_process(attack, range(at, seeds.stop)):
            at = outcome.seed + 1
            yield outcome


def _in_process(attack: Attack, seeds: range) -> Iterator[Outcome]:
    """Outcomes up to the first at which the process ends."""
    command = [sys.executable, "-m", "tests.stress.batch", attack.name, str(seeds.start), str(seeds.stop)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    lines, limit = _Lines(process.stdout.fileno()), START_S
    try:
        for seed in seeds:
            said, begun = list[str](), time.monotonic()
            while (line := lines.get(begun + limit)) is not None and not line.startswith(_MARK):
                said.append(line)
            took = time.monotonic() - begun
            fault = _end(process, lines, said, took) if line is None else json.loads(line.removeprefix(_MARK))
            yield Outcome(attack.name, seed, took, "\n".join([fault, *said[-LINES:]]) if fault else "")
            if line is None:
                return
            limit = attack.limit_s
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what an attempt left running
        process.stdout.close()
        process.wait()


def _end(process: subprocess.Popen[bytes], lines: _Lines, said: list[str], took: float) -> str:
    """How the process came to say nothing more; of one that hangs, `said` is given the stacks of its threads."""
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(0.5)
        how = f"exit status {code}" if code >= 0 else signal.Signals(-code).name
        return f"the process ended with {how}"
    process.send_signal(signal.SIGABRT)  # faulthandler prints them
    until = time.monotonic() + 5
    while (line := lines.get(until)) is not None:
        said.append(line)
    return f"no end in {took:.1f} s"


class _Lines:
    """Lines of a pipe, waited for until a moment."""

    def __init__(self, pipe: int):
        self._pipe = pipe
        self._whole, self._rest = deque[bytes](), b""

    def get(self, until: float) -> str | None:
        """The next line; None at the end, and at this moment of time.monotonic()."""
        while not self._whole:
            left = max(0.0, until - time.monotonic())
            if not select.select([self._pipe], [], [], left)[0] or not (read := os.read(self._pipe, 65536)):
                return None
            *lines, self._rest = (self._rest + read).split(b"\n")
            self._whole += lines
        return self._whole.popleft().decode(errors="replace")


_MARK = "\x1eattempt "


def _main(name: str, start: int, stop: int) -> None:
    """Inside the process: one line for each attempt that ends."""
    faulthandler.enable()
    attempt = named(name).attempt
    for seed in range(start, stop):
        fault = ""
        try:
            attempt(seed)
        except BaseException:  # of any kind: the next attempt is made all the same
            fault = traceback.format_exc()[-4000:]
        sys.stderr.flush()
        print(f"{_MARK}{json.dumps(fault)}", flush=True)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
