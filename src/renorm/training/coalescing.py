"""Branches of a network that meet the other ranks in one message, as far as they do not need each other."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

from renorm.core.errors import SynchronizationError
from renorm.core.room import start_thread
from renorm.training.communicators import Array, Communicator


def together(comm: Communicator, *branches: Callable[[Communicator], Any]) -> list[Any]:
    """Run `branch(comm)` of each branch and return what they return; exchanges that they come to share one message.

        left, right = together(comm, lambda comm: block(x1, comm), lambda comm: block(x2, comm))

    Each branch runs until it gathers, then the next one does; once all that are not through wait, one collective
    carries what they all sent. n branches of k synchronized layers cost k collectives, not n * k. One branch runs at
    any time, in a thread of its own. All ranks pass the same branches in the same order. The first error of a branch
    is raised here once the other ranks know of it; what other branches were at is given up. What a library keeps per
    thread, as torch.no_grad, is set inside a branch.
    """
    running = list[_Branch]()
    try:
        for branch in branches:
            running.append(_Branch(comm, branch))
        while waiting := [branch for branch in running if branch.proceed()]:
            gathered = comm.gather_all([item for branch in waiting for item in branch.sent])
            for branch in waiting:
                branch.came, gathered = gathered[: len(branch.sent)], gathered[len(branch.sent) :]
    except BaseException as error:
        comm.fail(next((branch.at for branch in running if branch.at), "branches"), error)
        for branch in running:
            branch.give_up(error)
        raise
    return [branch.result for branch in running]


class _Branch(Communicator):
    """A branch's end: what it gathers waits until `proceed` is called again."""

    def __init__(self, comm: Communicator, function: Callable[[Communicator], Any]):
        super().__init__(comm.rank, comm.size, comm.timeout)
        self.sent: Sequence[tuple[str, Array]] = ()
        self.came: list[list[Array]] = []
        self.at = ""  # where it failed
        self.result: Any = None
        self._failed: BaseException | None = None  # what the branch wants told, whether it goes on or not
        self._error: BaseException | None = None
        self._given_up: BaseException | None = None
        self._is_through = False
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        context = contextvars.copy_context()  # np.errstate and the like, as outside
        thread = threading.Thread(target=context.run, args=(self._run, function), name="branch", daemon=True)
        try:
            start_thread(thread)
        except RuntimeError as error:
            raise SynchronizationError(
                "a branch cannot start: the system gives no more threads",
                [str(error)],
                "call the branches one after the other on all ranks, or raise how many threads the process may have",
            ) from error

    def proceed(self) -> bool:
        """Let it run until it gathers (True) or is through (False). Raises what it raises."""
        if self._is_through:
            return False
        self._go.release()
        self._stopped.acquire()
        error = self._failed or self._error
        if error is not None:
            raise error
        return not self._is_through

    def give_up(self, error: BaseException) -> None:
        """End it where it waits."""
        if not self._is_through:
            self._given_up = error
            self._go.release()
            self._stopped.acquire()

    def gather_all(self, items: Sequence[tuple[str, Array]]) -> list[list[Array]]:
        self.sent = items
        self._pause()
        return self.came

    def fail(self, label: str, error: BaseException) -> None:
        self.at, self._failed = label, error  # `together` tells the other ranks, once for all branches

    def exchange(self, message: bytes, timeout: float) -> Sequence[bytes]:
        raise AssertionError("gather_all and fail, the callers of this, are replaced above")

    def _pause(self) -> None:
        self._stopped.release()
        self._wait()

    def _wait(self) -> None:
        self._go.acquire()
        if self._given_up is not None:
            raise SynchronizationError(f"given up: another branch, or the exchange, failed: {self._given_up}")

    def _run(self, function: Callable[[Communicator], Any]) -> None:
        try:
            self._wait()
            self.result = function(self)
        except BaseException as error:
            self._error = error
        finally:
            self._is_through = True
            self._stopped.release()
