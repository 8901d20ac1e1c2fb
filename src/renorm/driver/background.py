"""Modules for extents that come often, compiled while calls go on: by one thread of low priority, which is there as
long as there is something to compile."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from renorm.core.errors import Cancelled, RenormError
from renorm.core.locks import Leaf
from renorm.core.room import start_thread
from renorm.runtime.module import Sized

if TYPE_CHECKING:
    from renorm.driver.kernels import Progress
    from renorm.driver.module import CompiledModule

OFTEN = 64  # calls of the same extents after which these are worth what compiling takes: some 2 s of another core
_NICENESS = 10  # of the thread, and of processes that it compiles in
_PATIENCE = 10.0  # seconds in which a kernel that is being compiled at the end of the process comes to an end

Values = tuple[tuple[str, int], ...]
Make = Callable[[Mapping[str, int], "Progress"], "CompiledModule"]


@dataclass(frozen=True)
class Served:
    """Extents of calls. by: "open" kernels, those "specialized" for these extents, or open ones while others are
    "pending". calls: how many there were, about; of the latest extents only. failure: why there are no specialised ones
    though they were to be compiled."""

    extents: Mapping[str, int]
    calls: int
    by: str
    failure: str = ""


class Specializer:
    """Decides which extents get kernels of their own, and has these compiled. made: for which extents there are some.

    make: compiles for extents, and calls the second argument now and then, which raises where nobody wants the result
    any more. most: for how many extents at most.

    Safe to use from several threads. Whatever goes wrong while it compiles is in `failures`, and breaks no call.
    """

    def __init__(self, name: str, make: Make, most: int):
        self.name, self.most = name, most
        self.made: dict[Values, CompiledModule] = {}
        self.failures: dict[Values, str] = {}
        self.make, self._lock = make, Leaf(f"what is specialised of {name}")
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        """Begin anew in a child of fork, which has no other threads; what was not done has never been asked for."""
        self._waiting, self._asked = deque[Values](), {*self.made, *self.failures}
        self._thread: threading.Thread | None = None
        self.is_stopped, self._is_idle = False, threading.Event()
        self._is_idle.set()

    def look(self, sized: Sized) -> None:
        """Note a call, and let it be served by what there is for its extents."""
        sized.calls += 1
        if sized.other is None:
            if sized.seen != len(self.made):
                sized.seen = len(self.made)
                sized.other = self.made.get(_key(sized.values))
            elif sized.calls == OFTEN or (sized.calls > OFTEN and not sized.calls % OFTEN):
                self._ask(_key(sized.values))

    def by(self, values: Mapping[str, int]) -> tuple[str, str]:
        """Return what serves calls of these extents, and why it is nothing else."""
        key = _key(values)
        kind = "specialized" if key in self.made else "pending" if key in self._asked - {*self.failures} else "open"
        return kind, self.failures.get(key, "")

    def _ask(self, key: Values) -> None:
        with self._lock:
            if key in self._asked or len(self._asked) >= self.most or self.is_stopped:
                return
            self._asked.add(key)
            self._waiting.append(key)
            if self._thread is not None:
                return
            self._is_idle.clear()
            target, ref = _work, weakref.ref(self)
            self._thread = threading.Thread(target=target, args=(ref,), name=f"renorm {self.name}", daemon=True)
            thread = self._thread
        try:
            start_thread(thread)
        except RuntimeError as error:
            self._end({key: str(error)})

    def _end(self, failed: Mapping[Values, str]) -> None:
        self.failures.update(failed)
        self._thread = None
        self._is_idle.set()

    def next(self) -> Values | None:
        """Return the next extents; None where there are no more, and the thread ends."""
        with self._lock:
            if self._waiting and not self.is_stopped:
                return self._waiting.popleft()
            self._end({})
            return None

    def note(self, key: Values, found: CompiledModule | str | None) -> None:
        """Take the module for extents, or why there is none; None: it was given up."""
        if found is None:
            self._asked.discard(key)
        elif isinstance(found, str):
            self.failures[key] = found
        else:
            self.made[key] = found

    def wait(self, timeout: float | None) -> bool:
        """Return whether nothing is left to compile, at the latest after so many seconds."""
        return self._is_idle.wait(timeout)

    def stop(self, patience: float = _PATIENCE) -> None:
        """End the thread, which ends at the next kernel."""
        self.is_stopped = True
        if (thread := self._thread) is not None and thread is not threading.current_thread():
            thread.join(patience)


def _key(values: Mapping[str, int]) -> Values:
    return tuple(values.items())


def _work(ref: weakref.ref[Specializer]) -> None:
    """Compile what is asked for until there is no more, or nobody who would use it."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
    while (owner := ref()) is not None and (key := owner.next()) is not None:
        make = owner.make
        del owner
        found = _made(make, key, ref)
        if (owner := ref()) is not None:
            owner.note(key, found)


def _made(make: Make, key: Values, ref: weakref.ref[Specializer]) -> CompiledModule | str | None:
    """Return the module for extents, or why there is none; None where nobody waits for it any more."""

    def watch(stage: str, done: int, of: int) -> None:
        if (owner := ref()) is None or owner.is_stopped:
            raise Cancelled("nobody waits for these kernels any more")

    try:
        return make(dict(key), watch)
    except Cancelled:
        return None
    except BaseException as error:  # of a thread nobody else would hear
        return str(error) if isinstance(error, RenormError) else f"{type(error).__name__}: {error}"


_all = weakref.WeakSet[Specializer]()


def _stop_all() -> None:
    for one in list(_all):
        one.stop()


def _reset_all() -> None:
    for one in list(_all):
        one._reset()


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_reset_all)
