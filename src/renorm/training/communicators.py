"""Communicators: how the ranks of a training run meet, and what becomes of them when one does not come.

A rank is a process or thread that holds a part of the batch. Every exchange is one collective: each rank sends one
message to all, and gets those of all in rank order, its own among them. Nothing is computed on the way, so that whoever
merges what came (`merging.py`) has the same bits on every rank.

A message is a line of JSON, filled up with spaces to a multiple of 64 bytes, and the bytes of its arrays after it:

    {"arrays": [[label, dtype, shape], ...]}\\n bytes      what one `gather_all` sends
    {"failed": what was raised, "at": label}\\n            from a rank that raised before it could take part

Each rank sees the first line of all others: ranks that are not at the same layer all find out, in the same exchange.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from renorm.core.errors import InvalidInput, SynchronizationError
from renorm.core.locks import Lock, Rank

TIMEOUT = 300.0  # seconds: longer than a rank loads data or writes a checkpoint while the others wait
FAREWELL = 30.0  # seconds for which a rank that failed waits for the others, to tell them
_ALIGNED = 64
_TOLD = "renorm_told"  # attribute of an error that all ranks of a communicator have: (communicator, its exchanges then)
_SAME = "every rank runs the same synchronized layers in the same order, with an empty batch where it has no data"
Array = NDArray[Any]


class Communicator(ABC):
    """One rank's end of a group of ranks. A subclass says how messages travel: `exchange`.

    rank, size: this rank's number, from 0, and how many there are.
    timeout: seconds after which a rank that waits for another raises SynchronizationError.
    After a mismatch of layers, or a failure that a rank told the others, all ranks have raised in the same exchange and
    may go on together. After a timeout or a lost rank nobody knows where the others are: every later call raises.
    """

    def __init__(self, rank: int, size: int, timeout: float = TIMEOUT):
        if not timeout > 0:
            raise SynchronizationError(f"timeout must be a positive number of seconds, not {timeout}")
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self._lost: SynchronizationError | None = None
        self._in_use = Lock("a communicator", Rank.EXCHANGE)
        self._exchanges = 0  # that ended well

    @abstractmethod
    def exchange(self, message: bytes, timeout: float) -> Sequence[bytes]:
        """Send `message` to every rank and return those of all in rank order: one collective, messages of any length.
        Raises SynchronizationError, naming who is missing, when they are not there within `timeout` seconds."""

    def gather(self, label: str, array: Array) -> list[Array]:
        """`array` of every rank, in rank order; dtype and shape are the same on all. One collective.

        label: names layer, direction and channels. Ranks that come with other labels, dtypes or shapes, or that failed,
        make this SynchronizationError on every rank. The arrays are read-only.
        """
        return self.gather_all([(label, array)])[0]

    def gather_all(self, items: Sequence[tuple[str, Array]]) -> list[list[Array]]:
        """`gather` of several arrays, of layers that do not need each other, in one message: one list for each item."""
        messages = self._meet(_message(items), self.timeout)
        try:
            return _opened(messages)
        except SynchronizationError as error:
            self._note_told(error)
            raise

    def fail(self, label: str, error: BaseException) -> None:
        """Tell the other ranks, in the exchange that they are at or come to next, that this one raised `error` at
        `label` and takes no part. Waits for them no longer than FAREWELL seconds, and raises nothing. What they have
        already, since it came of the exchange before or was told there, is not told again; nor what was raised in its
        place, as by a library that adds words."""
        if self._has_told(error):
            return
        line = {"failed": f"{type(error).__name__}: {error}"[:2000], "at": label}
        with suppress(SynchronizationError):
            self._meet(_line(line), min(self.timeout, FAREWELL))
        self._note_told(error)

    def _has_told(self, error: BaseException | None) -> bool:
        while error is not None and getattr(error, _TOLD, None) != (self, self._exchanges):
            error = error.__cause__ or error.__context__
        return error is not None

    def _note_told(self, error: BaseException) -> None:
        setattr(error, _TOLD, (self, self._exchanges))

    @contextmanager
    def guard(self, label: str) -> Generator[None]:
        """Round what has exchanges in it: what is raised inside is told to the other ranks, who would wait else. Guards
        may stand in each other, as one round the loop of a training and those of its layers: an error is told once."""
        try:
            yield
        except BaseException as error:
            self.fail(label, error)
            raise

    def named(self, name: str) -> Communicator:
        """Return the same ranks, with `name` before each label: errors then say which layer of a network it was."""
        return _Named(self, name)

    def _meet(self, message: bytes, timeout: float) -> Sequence[bytes]:
        if not self._in_use.take():
            raise SynchronizationError(
                f"two threads use the communicator of rank {self.rank} at the same time",
                do="give each thread a rank of its own (training.Threads), or let branches meet by training.together",
            )
        try:
            if self._lost is not None:
                lost = self._lost
                raise SynchronizationError(
                    f"the ranks had lost each other before: {lost.headline}", lost.facts, lost.do
                )
            try:
                messages = self.exchange(message, timeout)
            except SynchronizationError as error:
                self._lost = error
                raise
            except BaseException as error:  # also an interrupt: this rank has left the others in mid-exchange
                self._lost = SynchronizationError(
                    f"rank {self.rank} left an exchange by {type(error).__name__}: {error}"
                )
                raise
            self._exchanges += 1
            return messages
        finally:
            self._in_use.release()


def guarded(comm: Any, label: str) -> AbstractContextManager[None]:
    """`comm.guard(label)`; where comm is None there is nobody to be told. Raises InvalidInput for what is no
    communicator, as the one of mpi4py or torch.distributed itself."""
    if comm is None:
        return nullcontext()
    if not isinstance(comm, Communicator):
        raise InvalidInput(
            f"comm is {type(comm).__name__}",
            ["expected a communicator of renorm.training"],
            "give training.Mpi(comm) of mpi4py's, training.TorchGroup(group) of torch's, or one of training.Threads(n)",
        )
    return comm.guard(label)


class _Named(Communicator):
    def __init__(self, whole: Communicator, name: str):
        super().__init__(whole.rank, whole.size, whole.timeout)
        self._whole = whole
        self._name = name

    def exchange(self, message: bytes, timeout: float) -> Sequence[bytes]:
        return self._whole.exchange(message, timeout)

    def gather_all(self, items: Sequence[tuple[str, Array]]) -> list[list[Array]]:
        return self._whole.gather_all([(f"{self._name}: {label}", array) for label, array in items])

    def fail(self, label: str, error: BaseException) -> None:
        self._whole.fail(f"{self._name}: {label}", error)


class Alone(Communicator):
    """One rank that has the whole batch: every gather gives back what it was given."""

    def __init__(self):
        super().__init__(0, 1)

    def exchange(self, message: bytes, timeout: float) -> Sequence[bytes]:
        return [message]


def missing(ranks: Sequence[int], where: str, timeout: float, known: Sequence[str] = ()) -> SynchronizationError:
    """Return the error of a rank that waited at `where` for `ranks` in vain. What is `known` of them, a line each, says
    that they will not come; otherwise it took too long."""
    when = "" if known else f" within {timeout:g} s"
    slow = "" if known else "; a rank that is only slow needs a longer timeout= of the communicator"
    return SynchronizationError(
        f"{listed(ranks)} did not come to {where}{when}",
        known,
        f"see what {listed(ranks)} printed: {_SAME}{slow}",
    )


def listed(ranks: Iterable[int]) -> str:
    """'rank 2', 'ranks 0, 1 and 4'."""
    names = [str(r) for r in ranks]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"


def first_line(message: bytes) -> bytes:
    """Return the line that says what a message is."""
    return message[: message.index(b"\n")]


def places(message: bytes) -> str:
    """Return the labels that a message brings, as text for an error."""
    read = json.loads(first_line(message))
    return repr(read["at"]) if "failed" in read else " + ".join(repr(label) for label, _, _ in read["arrays"])


def _line(read: dict[str, Any]) -> bytes:
    text = json.dumps(read).encode()
    return text + b" " * (-(len(text) + 1) % _ALIGNED) + b"\n"


def _message(items: Sequence[tuple[str, Array]]) -> bytes:
    arrays = [(label, np.asarray(array)) for label, array in items]
    for label, array in arrays:
        if array.dtype.kind not in "biufc":
            raise SynchronizationError(f"{label}: ranks exchange numbers that NumPy knows, not {array.dtype.name}")
    line = _line({"arrays": [[label, array.dtype.str, array.shape] for label, array in arrays]})
    return b"".join([line, *(array.tobytes() for _, array in arrays)])


def _opened(messages: Sequence[bytes]) -> list[list[Array]]:
    """Return the arrays in the messages of all ranks: by item, then by rank. Raises what all ranks must know."""
    lines = [first_line(message) for message in messages]
    if any(line != lines[0] for line in lines) or lines[0].startswith(b'{"failed"'):
        raise _disagreement([json.loads(line) for line in lines])
    start = len(lines[0]) + 1
    items: list[list[Array]] = []
    for _, dtype, shape in json.loads(lines[0])["arrays"]:
        count = math.prod(shape)
        items.append([np.frombuffer(m, dtype, count, start).reshape(shape) for m in messages])
        start += count * np.dtype(dtype).itemsize
    return items


def _disagreement(lines: list[dict[str, Any]]) -> SynchronizationError:
    """Return the error of ranks that are not at the same place: it reads the same on all of them."""
    said: dict[str, list[int]] = {}
    failed: list[int] = []
    for rank, read in enumerate(lines):
        if "failed" in read:
            failed.append(rank)
            text = f"{read['failed']} (at {read['at']!r})"
        else:
            text = " + ".join(f"{label!r}, {_typed(dtype, shape)}" for label, dtype, shape in read["arrays"])
        said.setdefault(text, []).append(rank)
    facts = [f"{listed(ranks)}: {text}" for text, ranks in said.items()]
    if failed:
        return SynchronizationError(
            f"{listed(failed)} failed, and took no part in a synchronized layer",
            facts,
            "mend what that rank says; the other ranks changed nothing in this layer",
        )
    return SynchronizationError(
        "ranks met at different layers",
        facts,
        _SAME,
    )


def _typed(dtype: str, shape: Sequence[int]) -> str:
    return f"{np.dtype(dtype).name}[{', '.join(map(str, shape))}]"
