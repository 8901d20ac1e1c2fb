"""Children of fork(), and what became of them."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable


def in_child(function: Callable[[], object], limit_s: float) -> None:
    """Calls `function` in a child of fork(). Raises AssertionError where it raises, or has not ended in time."""
    sys.stdout.flush()
    sys.stderr.flush()
    if not (child := os.fork()):
        code = 1
        try:
            faulthandler.enable()
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    until = time.monotonic() + limit_s
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > until:
            os.kill(child, signal.SIGABRT)  # prints its stacks
            time.sleep(1)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"the child has not ended in {limit_s:g} s")
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(ended[1])
    assert code == 0, f"the child ended with {code}"
