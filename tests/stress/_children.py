"""Children of fork(), and what became of them."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def _with_frames(function: Callable[[], object]) -> None:
    """Call a function with memory for the frames of what it calls. CPython takes it in chunks; where none was left
    children ended by SIGSEGV at a call (seen with 3.11, not debugged). The chunk of this frame of 600 kB has 1 MB."""
    function()


_with_frames.__code__ = _with_frames.__code__.replace(co_stacksize=75_000)


def in_child(function: Callable[[], object], limit_s: float) -> None:
    """Calls `function` in a child of fork(). Raises AssertionError where it raises, or has not ended in time."""
    sys.stdout.flush()
    sys.stderr.flush()
    if not (child := os.fork()):
        code = 1
        try:
            faulthandler.enable()
            faulthandler.register(signal.SIGUSR1, all_threads=False)
            _with_frames(function)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    if (code := _ended(child, limit_s)) is None:
        _show(child)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise AssertionError(f"the child has not ended in {limit_s:g} s")
    assert code == 0, f"the child ended with {code}"


def _ended(child: int, limit_s: float) -> int | None:
    """The exit code of the child; None where it has not ended in time."""
    until = time.monotonic() + limit_s
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > until:
            return None
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(ended[1])


def _show(child: int) -> None:
    """Prints what the threads of the child wait for, the stack of one, then those of all: the last may crash where they
    run meanwhile."""
    for task in sorted(Path(f"/proc/{child}/task").iterdir()):
        with suppress(OSError):  # it ended
            state = (task / "stat").read_text().rpartition(")")[2].split()
            print(f"thread {task.name}: {state[0]}, {state[11]} ticks, {(task / 'wchan').read_text()}", file=sys.stderr)
    sys.stderr.flush()
    for sign in (signal.SIGUSR1, signal.SIGABRT):
        os.kill(child, sign)
        time.sleep(0.3)
