"""Compile while something else computes, in one process of its own; in several where somebody waits for it.

The process is a plain child, as those of codegen.workers. Requests go into its pipe and answers are taken out of the
other without ever waiting, whenever somebody asks. So there is no thread that could hold a lock in a fork or at the
end of the program, none that takes turns with Python's others, and the child ends when this process has.

    greeting ::= digest of the sources    whether both sides run the same code
    request  ::= pickle of (function, arguments): of a module that imports nothing but renorm
    answer   ::= what it returns, pickle of (program, objects, weights, walker) say; nothing where it raises

Answers come in the order of requests, each after its length as in codegen.worker.
"""

from __future__ import annotations

import os
import pickle
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from renorm.codegen import worker
from renorm.core import sources
from renorm.core.locks import Leaf
from renorm.runtime import threads

_AHEAD = 1 << 15  # bytes of requests that are out, which a pipe takes without waiting: half of Linux's
MOST, _START = 4, 3  # processes that share requests; requests in whose time one starts
_NICE = 5  # what trains goes first
_LOOK_S = 0.1  # between two looks whether the process is still there
_SAME = "ops", "runtime", "training"  # packages of which both sides must have the same


class Background:
    """Who asks again and again has an answer some time."""

    def __init__(self) -> None:
        self._lock = Leaf("kernels that are compiled in the background")
        self._process: Any = None
        self._is_lost = False  # there is no such process, or no more
        self._is_greeted = False
        self._waiting, self._sent = deque[tuple[Any, bytes]](), deque[tuple[Any, bytes]]()  # keys, and their messages
        self._asked, self._answers = set[Any](), dict[Any, bytes]()
        self._read = bytearray()

    def answer(self, key: tuple[Callable[..., bytes], tuple[Any, ...]]) -> bytes | None:
        """Return what came for `key`, a function and its arguments. b"": it is for this process to compile. None:
        nothing yet."""
        if not self._lock.take():
            return None
        try:
            if key not in self._asked and not self._is_lost:
                self._asked.add(key)
                self._waiting.append((key, pickle.dumps(key)))
            self._go_on()
            if key in self._answers or self._is_lost:
                self._asked.discard(key)
                return self._answers.pop(key, b"")
            return None
        finally:
            self._lock.release()

    def knows(self, key: Any) -> bool:
        """Return whether `key` was asked for, and the answer not yet taken."""
        return key in self._asked

    @property
    def load(self) -> float:
        """Requests that are not answered; a process that is still to be started stands for some, a lost one for all."""
        return inf if self._is_lost else len(self._waiting) + len(self._sent) + (_START if self._process is None else 0)

    def finish(self, timeout: float | None) -> bool:
        """Wait until there is an answer to all that was asked for, seconds at the most. Return whether there is."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if not self._is_lost:
                    self._go_on()
                if self._is_lost or not (self._waiting or self._sent):
                    return True
            left = _LOOK_S if until is None else until - time.monotonic()
            if left <= 0:
                return False
            _listen([self], min(left, _LOOK_S))

    def _go_on(self) -> None:
        """Take what has come, and send what can be sent."""
        try:
            if self._process is None and self._waiting:
                self._start()
            if self._process is not None:
                self._receive()
                while self._is_greeted and self._waiting and self._has_room():
                    worker.send(self._process.stdin, self._waiting[0][1])
                    self._sent.append(self._waiting.popleft())
        except Exception:  # it cannot be started, died, or says what makes no sense: all is compiled here
            self._lose()
        except BaseException:  # an interrupt, in the middle of a message
            self._lose()
            raise

    def _has_room(self) -> bool:
        """Return whether the next request can be sent. Were the pipe full, both sides could wait for each other."""
        return not self._sent or sum(len(m) for _, m in (*self._sent, self._waiting[0])) <= _AHEAD

    def _start(self) -> None:
        from renorm.codegen import workers  # who has all kernels is spared the compiler

        self._process = workers.start("renorm.training.background")
        os.set_blocking(self._process.stdout.fileno(), False)

    def _receive(self) -> None:
        while (part := self._process.stdout.read(1 << 16)) is not None:
            if not part:
                raise EOFError
            self._read += part
        while len(self._read) >= worker.LENGTH.size:
            end = worker.LENGTH.size + worker.LENGTH.unpack_from(self._read)[0]
            if len(self._read) < end:
                return
            message = bytes(self._read[worker.LENGTH.size : end])
            del self._read[:end]
            if self._is_greeted:
                self._answers[self._sent.popleft()[0]] = message
            elif message and message.decode() == sources.digest(*_SAME):
                self._is_greeted = True
            else:
                raise EOFError

    def _lose(self) -> None:
        self._is_lost = True
        for held in (self._waiting, self._sent, self._asked):
            held.clear()
        self._end()

    def _end(self) -> None:
        process, self._process, self._is_greeted = self._process, None, False
        self._read.clear()
        if process is not None:
            with suppress(OSError):
                process.kill()
            with suppress(OSError), process:
                pass

    def serve(self) -> None:
        """Take what has come, send what can be sent, and end the process where that was all: its memory is given
        back."""
        with self._lock:
            if not self._is_lost:
                self._go_on()
            if not (self._waiting or self._sent):
                self._end()

    def start_over(self) -> None:
        """In a child of fork(), whose pipes are those of its parent."""
        process = self._process
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    os.close(pipe.fileno())
            _inherited.append(process)  # nobody waits for a process of the parent's, or closes its pipes again
        self.__init__()


class Several:
    """Processes that share requests whose answers somebody waits for: one per core, as far as requests are worth it."""

    def __init__(self) -> None:
        self.all = [Background() for _ in range(MOST)]

    def answer(self, key: tuple[Callable[..., bytes], tuple[Any, ...]]) -> bytes | None:
        """As Background.answer, by the process that was asked, or has the least to do."""
        known = (b for b in self.all if b.knows(key))
        return (next(known, None) or min(self.all[: threads.working(MOST)], key=lambda b: b.load)).answer(key)

    def awaited(self, key: tuple[Callable[..., bytes], tuple[Any, ...]]) -> bytes:
        """Return what comes for `key`. Processes of which nobody waits for more end."""
        while (found := self.answer(key)) is None:
            _listen(self.all, _LOOK_S)
            for other in self.all:
                other.serve()
        for other in self.all:
            other.serve()
        return found

    def start_over(self) -> None:
        for one in self.all:
            one.start_over()


def finish(processes: Sequence[Background], timeout: float | None) -> bool:
    """Wait until there is an answer to all that was asked of them, seconds at the most. Return whether there is."""
    until = None if timeout is None else time.monotonic() + timeout
    return all(b.finish(None if until is None else max(0.0, until - time.monotonic())) for b in processes)


def _listen(processes: Sequence[Background], seconds: float) -> None:
    """Wait until something comes from one of them, at most so long."""
    with suppress(OSError, ValueError, AttributeError):  # a process may end meanwhile
        select.select([p.stdout for b in processes if (p := b._process) is not None], [], [], seconds)


_inherited = list[Any]()
BACKGROUND, SEVERAL = Background(), Several()  # for who goes on meanwhile, and for who waits
os.register_at_fork(after_in_child=BACKGROUND.start_over)
os.register_at_fork(after_in_child=SEVERAL.start_over)


def _compiler() -> tuple[str, worker.Answer]:
    from renorm.training import graphs, kernels  # noqa: F401 - what requests call

    with suppress(OSError):
        os.nice(_NICE)

    def answer(request: Any) -> bytes:
        function, given = request
        return function(*given)

    return sources.digest(*_SAME), answer


def main() -> None:
    """The other side: serves until its input ends."""
    worker.serve(_compiler)
