"""Code that is not renorm's: what a target's own code generator made of a group of nodes, run as one step of a program.

The walker calls it like a phase of one iteration, which is thread 0's: the Python thread that runs the network. The
other threads wait at the barriers of the steps around it, as for any kernel. Python cannot raise through native code:
an error ends the run, and is kept until the walk is over.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import InvalidArtifact, RenormError, UserCodeError, raised_at
from renorm.runtime import layout
from renorm.runtime.program import External, TensorSpec
from renorm.runtime.report import WorkRecord
from renorm.runtime.threads import Walk

Array = np.ndarray[Any, Any]
_PAUSE_S, _LONGEST_S = 2e-5, 2e-3  # between two looks at whether external code is free


class ExternalCode:
    """The code that the generator of a target makes of a group of nodes. Derive from it.

    `run` is all it must have. With `save` and `loader` it goes into artifacts, where the compiler is not needed again:
    `loader` is the name under which a function from what `save` gave to an ExternalCode is known, to this process
    (`register_loader`) or by an entry point of the group "renorm.external" of an installed package. work: what it must
    do at least; None counts the bytes of inputs and outputs only.
    """

    loader: ClassVar[str] = ""
    work: WorkRecord | None = None

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Computes the group once: writes all elements of all `outputs`.

        inputs, outputs: of the dtypes and shapes of the group's, in its order; C-contiguous, aligned to their elements,
        none overlapping an output. Inputs are read-only. Nothing of them may be kept after the call: the memory is used
        again. Called by one thread at a time (for each group, where one object is the code of several), in which it may
        run other modules; while it waits for one of these, it may be called again, by who would wait for it otherwise.
        What it raises comes out of `Module.run` as UserCodeError.
        """
        raise NotImplementedError(f"{type(self).__name__}.run")

    @property
    def source(self) -> str:
        """The code as text, for `m.kernel(name).source`."""
        return ""

    def save(self) -> bytes:
        """The code as bytes, for `loader`."""
        raise NotImplementedError(f"{type(self).__name__}.save")


Loader = Callable[[bytes], ExternalCode]

GROUP = "renorm.external"  # of entry points, each from a name to "package.module:function"
PROVIDED = {"onednn": "renorm.targets.onednn.code:load", "tandem": "renorm.targets.tandem.launch:load"}
"""Loaders of the targets that come with renorm, written as entry points are."""

_registered: dict[str, Loader] = {}


def register_loader(name: str, load: Loader) -> None:
    """Makes known to this process what makes external code of bytes that were saved under this name."""
    _registered[name] = load


def _loader(name: str) -> Loader | None:
    """Return the loader that is known under a name. A file says no more than the name: it cannot choose what is
    imported."""
    if name in _registered:
        return _registered[name]
    from importlib.metadata import EntryPoint, entry_points  # only who has external code pays for it

    own = [EntryPoint(name, PROVIDED[name], GROUP)] if name in PROVIDED else []
    found = own or list(entry_points(group=GROUP, name=name))
    return found[0].load() if found else None


def load(external: External, data: bytes, name: str) -> ExternalCode:
    """The code that `save` wrote. Raises InvalidArtifact where its loader is missing or fails."""
    headline = f"{name} holds code of another package, which cannot be loaded"
    try:
        found = _loader(external.loader)
    except (ImportError, AttributeError) as error:
        facts = [f"loader {external.loader!r}", f"{type(error).__name__}: {error}"]
        raise InvalidArtifact(headline, facts, "install what that package needs") from error
    if found is None:
        do = f"install the package that provides it, or register it: renorm.register_loader({external.loader!r}, ...)"
        raise InvalidArtifact(headline, [f"no loader is known as {external.loader!r}"], do)
    try:
        code = found(data)
    except Exception as error:
        what = error.headline if isinstance(error, RenormError) else f"{type(error).__name__}: {error}"
        raise InvalidArtifact(headline, [f"loader {external.loader!r} failed: {what}", raised_at(error)]) from error
    if not isinstance(code, ExternalCode):
        facts = [f"loader {external.loader!r} gave {type(code).__name__}, expected a renorm.ExternalCode"]
        raise InvalidArtifact(headline, facts)
    return code


def saved(code: ExternalCode, name: str) -> bytes:
    """Return the bytes of `code.save`. Raises InvalidArtifact where the code cannot be saved."""
    headline = f"{name} cannot be saved: external code of {type(code).__name__} does not go into files"
    if not code.loader:
        raise InvalidArtifact(headline, ["it names no loader"], "give it `loader` and `save` (renorm.ExternalCode)")
    try:
        data: object = code.save()
    except Exception as error:
        what = error.headline if isinstance(error, RenormError) else f"{type(error).__name__}: {error}"
        raise InvalidArtifact(headline, [what, raised_at(error)]) from error
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidArtifact(headline, [f"save gave {type(data).__name__}, expected bytes"])
    return bytes(data)


class _Turn:
    """A call of external code. It is over when the walk is in which it was made: so one whose end an interrupt has kept
    from being noted holds up nobody. waits: it has not gone in yet."""

    __slots__ = ("thread", "waits", "walk")

    def __init__(self) -> None:
        self.thread, self.walk, self.waits = threading.get_ident(), Walk(), True

    def is_of(self, thread: int) -> bool:
        return self.thread == thread and self.walk.lasts


class Entry:
    """External code as the walker calls it. address: of a function that is called like a phase (codegen.abi)."""

    def __init__(self, code: ExternalCode, external: External, kernel: str):
        self._code, self._external, self._kernel = code, external, kernel
        self._turns = list[_Turn]()  # in the order in which they came; appending and removing are atomic
        word = ctypes.c_int64
        self._function = ctypes.CFUNCTYPE(word, ctypes.c_void_p, word, word, word)(self._call)
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        assert address is not None
        self.address = address
        _entries.add(self)

    def start_over(self) -> None:
        """Forgets who is inside: what a child of fork() must do, in which only the thread that forked exists."""
        me = threading.get_ident()
        self._turns = [turn for turn in self._turns if turn.thread == me]

    def _enter(self, turn: _Turn) -> None:
        """Waits until no other thread computes here.

        Where the thread that is inside waits, in a network that it runs there, for this one, it would wait for ever:
        this one goes in too, while the other stands still, just as a thread goes in again that runs its own network.
        """
        self._turns.append(turn)
        pause = _PAUSE_S
        while not self._is_free(turn):
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)
        turn.waits = False

    def _leave(self, turn: _Turn) -> None:
        with suppress(ValueError):  # it was interrupted before it came in
            self._turns.remove(turn)

    def _is_free(self, mine: _Turn) -> bool:
        """Return whether its turn has come: nobody computes here or came before, or who computes waits for its
        thread."""
        holder = self._holder
        if holder is None:
            return next((t for t in list(self._turns) if t.walk.lasts), mine) is mine
        seen = list[Entry]()
        while holder is not None and holder.thread != mine.thread:
            waiting = [e for e in list(_entries) for t in list(e._turns) if t.waits and t.is_of(holder.thread)]
            if not waiting or waiting[-1] in seen:
                return False
            seen.append(waiting[-1])
            holder = waiting[-1]._holder
        return holder is not None

    @property
    def _holder(self) -> _Turn | None:
        """Whose turn it is."""
        return next((t for t in reversed(list(self._turns)) if not t.waits and t.walk.lasts), None)

    def _call(self, args: int, begin: int, end: int, thread: int) -> int:
        """SUCCESS: anything else, as what is there when an exception leaves this function, ends the run."""
        try:
            self._run(args)
        except BaseException as error:  # also what a signal raises: it comes out of Module.run like an error
            _failures.errors = [self._failed(error)]
            _let_go(error)
            return 0
        return layout.SUCCESS

    def _run(self, args: int) -> None:
        specs = (*self._external.inputs, *self._external.outputs)
        arrays = [_array(a, s) for a, s in zip((ctypes.c_void_p * len(specs)).from_address(args), specs)]
        count = len(self._external.inputs)
        inputs, outputs = arrays[:count], arrays[count:]
        for x in inputs:
            x.flags.writeable = False
        turn = _Turn()
        try:
            self._enter(turn)
            self._code.run(inputs, outputs)
        finally:
            self._leave(turn)
        if (seen := _seen()) is not None:
            seen.append(([x.copy() for x in inputs], [y.copy() for y in outputs]))

    def _failed(self, error: BaseException) -> BaseException:
        if not isinstance(error, Exception):
            return error
        what = error.headline if isinstance(error, RenormError) else f"{type(error).__name__}: {error}"
        operands = ", ".join(map(str, self._external.inputs))
        failed = UserCodeError(
            f"kernel {self._kernel}: external code failed: {what}", [f"operands {operands}", raised_at(error)]
        )
        failed.__cause__ = error
        return failed


def _let_go(error: BaseException | None) -> None:
    """Clears the variables of the frames that an error went through: they hold arrays over memory that is used again,
    or given back, before anybody looks at them."""
    seen = list[BaseException]()
    while error is not None and not any(error is e for e in seen):
        seen.append(error)
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


_entries = weakref.WeakSet["Entry"]()


def _after_fork() -> None:
    for entry in _entries:
        entry.start_over()


os.register_at_fork(after_in_child=_after_fork)
_failures = threading.local()  # errors: what was raised in the walk that this thread is in


def _pending() -> list[BaseException]:
    return getattr(_failures, "errors", [])


Calls = list[tuple[list[Array], list[Array]]]


def _seen() -> Calls | None:
    return getattr(_failures, "seen", None)


@contextmanager
def watched() -> Generator[Calls]:
    """Record what external code reads and writes where this thread runs it inside the block: copies, a pair for each
    call."""
    outer, _failures.seen = _seen(), Calls()
    try:
        yield _failures.seen
    finally:
        _failures.seen = outer


def walk(run: Callable[[], int]) -> int:
    """Return what one walk in this thread gives; raise what external code raised in it. Walks may lie inside of each
    other, as external code and finalizers may run networks: each has its own errors."""
    outer, _failures.errors = _pending(), []
    try:
        reason = run()
    finally:
        errors, _failures.errors = _pending(), outer
    if errors:
        raise errors[0]
    if reason == layout.FAILED:
        raise KeyboardInterrupt  # what left `_call` all the same came from outside; ctypes has printed it
    return reason


def _array(address: int | None, spec: TensorSpec) -> Array:
    """The tensor at an address. It does not keep the memory alive."""
    dtype = dtypes.numpy_dtype(spec.dtype)
    if not spec.nbytes or address is None:
        return np.empty(spec.shape, dtype)
    return np.ndarray(spec.shape, dtype, memoryview((ctypes.c_char * spec.nbytes).from_address(address)))
